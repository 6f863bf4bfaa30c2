package queue

import (
	"github.com/httpthrottle/throttle/internal/quota"
)

// This file bounds how much is kept of what servers reported: the families of one account, its bytes, and the bytes of all. Servers
// decide what there is to keep, so a bound on the number of accounts is not enough.

const (
	// MaxSaid is how many bytes what servers reported takes at most, about, if no requests are in flight.
	MaxSaid = 64 << 20

	maxFamilies = 16  // gates of an account that no request needs; the others are forgotten when another one is made
	gateSize    = 448 // about what a gate takes with its bucket, besides its list of quotas
	partySize   = 448 // about what a party takes with its host and its places in maps, besides its account
	lookAtMost  = 64  // parties or gates that are looked at under one lock to find one that may be forgotten
)

// What is kept of an account is worth more, the later its kind comes here.
const (
	stopsNothing   = iota
	stopsRequests  // by what an accepted request was told
	stopsByRefusal // the server has refused a request
)

// worth returns which of these kinds the party is of.
func (p *party) worth(now Instant) int {
	switch {
	case !p.account.Stops(now):
		return stopsNothing
	case !p.refusal:
		return stopsRequests
	}
	return stopsByRefusal
}

// idle reports whether no request needs a gate of the party.
func (p *party) idle() bool {
	if len(p.gates) > lookAtMost {
		return false
	}
	for _, b := range p.gates {
		if !idleGate(b) {
			return false
		}
	}
	return true
}

func idleGate(b *Bucket) bool { return !b.HasLines() && b.Meter.(*GateBucket).InFlight() == 0 }

// countLocked counts how many bytes a party takes.
func (l *Core) countLocked(p *party) {
	n := partySize + len(p.Key.Host) + len(p.Key.keys) + p.account.Size() + p.gatesSize()
	l.said += n - int(p.size)
	p.size = int32(n)
}

func (p *party) gatesSize() int {
	return len(p.gates) * (gateSize + len(p.Key.Host) + len(p.Key.keys) + 16*p.account.Quotas())
}

// boundLocked bounds how many bytes a party takes that a server has told something, and all parties together. It returns the name
// of one that was forgotten although it stopped requests.
func (l *Core) boundLocked(p *party, now Instant) (forgot string) {
	if !p.account.Stops(now) {
		p.refusal = false
	}
	p.account.Fit(now, quota.MaxSize-partySize-min(p.gatesSize(), quota.MaxSize/2))
	for l.countLocked(p); l.said > MaxSaid; {
		name := l.forgetPartyLocked(p, stopsByRefusal, now)
		if name == "" {
			break
		}
		forgot = name
	}
	return forgot
}

// roomForFamilyLocked forgets a gate of a party that no request needs, if there are many.
func (l *Core) roomForFamilyLocked(p *party) {
	gates := p.gates
	if len(gates) < maxFamilies {
		return
	}
	for _, b := range gates[:min(len(gates), lookAtMost)] {
		if idleGate(b) {
			l.gateKeys.Remove(b)
			l.forgetLocked(b)
			return
		}
	}
}

// roomForGateLocked reports whether there is room for another gate. It forgets a gate that stops nothing to make room if it must.
func (l *Core) roomForGateLocked(now Instant) bool {
	return len(l.Gates) < l.MaxKeys || l.evictLocked(now, nil, &l.gateKeys)
}

// forgetPartyLocked forgets a party, which is not the one of that pointer and not worth more than most: of some, the one that is
// worth least, and of these the one that was used least recently. It returns its name; "": there is none.
func (l *Core) forgetPartyLocked(except *party, most int, now Instant) string {
	var victim *party
	looked, least := 0, most
	for _, h := range l.hosts { // a map yields them from a random place
		if looked > lookAtMost && victim != nil || looked > SweepMost {
			break
		}
		for _, p := range h.parties[:min(len(h.parties), lookAtMost)] {
			looked++
			if p == except || !p.idle() {
				continue
			}
			if w := p.worth(now); w < least || w == least && (victim == nil || p.used < victim.used) {
				victim, least = p, w
			}
		}
	}
	if victim == nil {
		return ""
	}
	name := victim.Key.Name()
	for n := len(victim.gates); n > 0; n-- {
		b := victim.gates[n-1]
		l.Gate.Counts.Evicted++
		l.gateKeys.Remove(b)
		l.forgetLocked(b)
	}
	return name
}
