package quota

import (
	"errors"
	"fmt"

	"github.com/httpthrottle/throttle/internal/meter"
)

// This file bounds how much is kept of what servers reported: the gates of one account, its bytes, and the bytes of all. Servers decide
// what there is to keep, so a bound on the number of accounts is not enough.

const (
	// maxTotal is how many bytes a Registry takes at most, about, with a bucket for each gate and while no requests are in flight.
	maxTotal = 64 << 20

	groupMost   = 4 * maxSize // bytes of the accounts of a group together, besides what each takes without quotas
	maxFamilies = 16          // gates of an account that no request needs; the others are forgotten when another one is made
	gateSize    = 448         // about what a gate takes with its bucket, besides its list of quotas
	recordSize  = 304         // about what an account takes with its host and its places in maps, besides what Account.Size counts
	lookAtMost  = 64          // accounts or gates that are looked at at once to find one that may be forgotten
	sweepMost   = 1024        // that are looked at by the keeper, or where most may not be forgotten
)

// count counts how many bytes an account takes. Every change of an account that takes room, or frees it, ends in it: a request takes none,
// and a response only if it has hints.
func (r *Registry) count(a *Account) {
	n := a.takes()
	r.size += n - int(a.size)
	a.size = int32(n)
}

// bound bounds how many bytes an account takes about which a report came, and all accounts together. It returns the name of one that was
// forgotten although it stopped requests.
func (r *Registry) bound(a *Account, now meter.Instant) (forgot string) {
	if !a.stops(now) {
		a.byRefusal = false
	}
	most := min(maxSize, groupMost/len(a.group.accounts))
	a.fit(now, most-recordSize-min(a.gatesSize(), most/2))
	for r.count(a); r.size > maxTotal; {
		name := r.forgetAccount(a, stopsByRefusal, now)
		if name == "" {
			break
		}
		forgot = name
	}
	return forgot
}

// fitFamilies forgets a gate of an account that no request needs, if there are many.
func (r *Registry) fitFamilies(a *Account) {
	if len(a.gates) < maxFamilies {
		return
	}
	for _, g := range a.gates[:min(len(a.gates), lookAtMost)] {
		if g.idle() {
			r.keeper.Remove(g)
			r.forget(g)
			return
		}
	}
}

// hasRoom reports whether there is room for another gate. It forgets a gate that stops nothing to make room if it must.
func (r *Registry) hasRoom(now meter.Instant) bool {
	if len(r.gates) < r.most {
		return true
	}
	g, ok := r.keeper.Evict(now, sweepMost, func(*Gate) bool { return false })
	if ok {
		r.Evicted++
		r.forget(g)
	}
	return ok
}

// gateFor returns a gate for a response to a request that passed none: if it must, it makes room for it by forgetting an account that is
// worth no more than the response. It returns the name of that account, and no gate if there is no room and the response is no refusal.
func (r *Registry) gateFor(key *Key, limited bool, now meter.Instant) (g *Gate, forgot string) {
	if g = r.Gate(key, now); g != nil {
		return g, ""
	}
	worth := stopsNothing
	if limited {
		worth = stopsByRefusal
	}
	if forgot = r.forgetAccount(nil, worth, now); forgot == "" && !limited {
		return nil, ""
	}
	return r.add(key, now), forgot
}

// forgetAccount forgets an account, which is not the one of that pointer and not worth more than most: of some, the one that is worth
// least, and of these the one that was used least recently. It returns its name; "": there is none.
func (r *Registry) forgetAccount(except *Account, most int, now meter.Instant) string {
	var victim *Account
	looked, least := 0, most
	for _, s := range r.hosts { // a map yields them from a random place
		if looked > lookAtMost && victim != nil || looked > sweepMost {
			break
		}
		for _, a := range s.accounts[:min(len(s.accounts), lookAtMost)] {
			looked++
			if a == except || !a.idle() {
				continue
			}
			if w := a.worth(now); w < least || w == least && (victim == nil || a.used < victim.used) {
				victim, least = a, w
			}
		}
	}
	if victim == nil {
		return ""
	}
	name := victim.Key.Name()
	r.forgetGates(victim)
	return name
}

// forgetGates forgets the gates of an account, and with them the account.
func (r *Registry) forgetGates(a *Account) {
	for n := len(a.gates); n > 0; n-- {
		g := a.gates[n-1]
		r.Evicted++
		r.keeper.Remove(g)
		r.forget(g)
	}
}

// Forget lifts everything that a server reported about an account, which may have been forgotten itself; see [Account.Forget].
func (r *Registry) Forget(a *Account, now meter.Instant) {
	a.Forget(now)
	if len(a.gates) > 0 {
		r.count(a)
	}
}

// Restore has f change an account, and bounds what the account takes afterwards. The error is that of f, or that there was not
// enough room.
func (r *Registry) Restore(a *Account, now meter.Instant, f func(*Account, meter.Instant) error) error {
	a.asked = askMost // it is not known which requests what is restored concerns, so it concerns all
	err := f(a, now)
	if forgot := r.bound(a, now); forgot != "" {
		err = errors.Join(err, fmt.Errorf("for lack of room, what %s reported was forgotten", forgot))
	}
	return err
}

// Free notes that a request that kept a gate busy may have ended. It reports whether First may be earlier now.
func (r *Registry) Free(g *Gate, now meter.Instant) bool { return r.keeper.Free(g, now) }

// Sweep forgets gates that are as good as new, and looks at most so many. It reports whether there may be more to look at.
func (r *Registry) Sweep(now meter.Instant, most int) (more bool) {
	return r.keeper.Sweep(now, most, r.forget)
}

// First returns when Sweep has something to do; Never: nothing is kept.
func (r *Registry) First() meter.Instant { return r.keeper.First() }
