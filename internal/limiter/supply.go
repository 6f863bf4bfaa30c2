package limiter

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
	"github.com/httpthrottle/throttle/internal/supply"
)

// A probe is the timer for the next call of a store that was unreachable.
type probe struct {
	timer *time.Timer
	at    meter.Instant // when the timer fires; never: it does not
}

// supplyOf returns the supply with these terms.
func (l *Core) supplyOf(terms bucket.SupplyTerms, limit string) *bucket.Supply {
	i := slices.IndexFunc(l.supplies, func(s *bucket.Supply) bool { return s.Store == terms.Store && s.Terms == terms.Terms })
	if i < 0 {
		i = len(l.supplies)
		l.supplies = append(l.supplies, &bucket.Supply{Supply: &supply.Supply[*bucket.Bucket]{Terms: terms.Terms, Dice: meter.Dice(rand.Uint64())}, Store: terms.Store})
	}
	s := l.supplies[i]
	s.Limits = append(s.Limits, limit)
	return s
}

// armLeasesLocked sets the alarms of the buckets that were marked.
func (l *Core) armLeasesLocked(now meter.Instant) {
	for l.leases.HasMarked() {
		b := l.leases.Next()
		l.rouseLocked(b, now) // its timer may be late
		l.leases.SetAlarm(b, l.dueLeaseLocked(b, now))
	}
	l.armLeaseTimerLocked(now)
}

// armLeaseTimerLocked sets the timer for the first alarm. If that is removed, the timer wakes for nothing.
func (l *Core) armLeaseTimerLocked(now meter.Instant) {
	_, first := l.leases.FirstAlarm()
	if first == meter.Never || first == l.leaseTimerAt {
		return
	}
	l.leaseTimerAt = first
	if d := time.Duration(l.leaseTimerAt - now); l.leaseTimer == nil {
		l.leaseTimer = time.AfterFunc(d, l.wakeLeases)
	} else {
		l.leaseTimer.Reset(d)
	}
}

// wakeLeases is what the timer of leases calls.
func (l *Core) wakeLeases() {
	l.mu.Lock()
	defer l.end()
	l.leaseTimerAt = meter.Never
	now := l.nowLocked()
	for b, at := l.leases.FirstAlarm(); at <= now; b, at = l.leases.FirstAlarm() {
		l.rouseLocked(b, now)
	}
	l.armLeaseTimerLocked(now)
}

// rouseLocked ends the alarm of a bucket, if it is due.
func (l *Core) rouseLocked(b *bucket.Bucket, now meter.Instant) {
	if l.leases.AlarmOf(b) > now {
		return
	}
	l.leases.SetAlarm(b, meter.Never)
	l.markLocked(b)
	if b.Leased().Out() != nil { // the grace of an outage may be over
		b.Leased().Update(now)
		l.replanLocked(b)
	}
}

// dueLeaseLocked puts a bucket in the queue of its store if the store is to be asked, and returns when it may be otherwise.
func (l *Core) dueLeaseLocked(b *bucket.Bucket, now meter.Instant) (at meter.Instant) {
	at, asks := b.Leased().Due(now, b.Demand(now), b.Waiting() > 0)
	if opens := b.Opens(); opens > now && b.Waiting() > 0 {
		at = min(at, opens)
	}
	if asks {
		if b.Leased().Out() != nil && b.Waiting() > 0 {
			b.Leased().Update(now)
			l.replanLocked(b) // waiters that cannot wait for the store are rejected now
		}
		l.callLocked(b.Limit.Supply, now)
	}
	return at
}

// callLocked starts a call of the store, if there is something to ask for and it may be called.
func (l *Core) callLocked(s *bucket.Supply, now meter.Instant) {
	begins, at := s.Begin(now)
	if begins {
		l.callStore(s)
	}
	if begins || at == meter.Never {
		return
	}
	p := l.probes[s]
	if p == nil {
		p = &probe{time.AfterFunc(time.Duration(at-now), func() { l.probe(s) }), at}
		l.probes[s] = p
	}
	if p.at != at {
		p.at = at
		p.timer.Reset(time.Duration(at - now))
	}
}

// probe is what the timer of a supply calls: a store that was unreachable may be called again.
func (l *Core) probe(s *bucket.Supply) {
	l.mu.Lock()
	defer l.end()
	l.probes[s].at = meter.Never
	l.callLocked(s, l.nowLocked())
}

// drawnLocked marks the leases from which charges were paid that did not wait. If no request waits there and enough tokens are left, the
// store need not be asked earlier than the timer says.
func (l *Core) drawnLocked(charges []Charge, now meter.Instant) {
	for i := range charges {
		b := charges[i].Bucket
		if n := b.Leased(); n != nil && (n.Low() || n.Wanted > 0 || b.Waiting() > 0) {
			b.MarkLease()
		}
	}
	if l.leases.HasMarked() {
		l.serveLocked(now)
	}
}

// holdLeasesLocked holds the shared budgets of a request that a server has refused, in all processes. If the refusal turns out to be none,
// the holds are lifted that were not extended meanwhile.
func (l *Core) holdLeasesLocked(charges []Charge, until meter.Instant, by quota.LastRefusal, d *Doubts, now meter.Instant) {
	for i := range charges {
		b := charges[i].Bucket
		if b.Leased() == nil {
			continue
		}
		b.Leased().Hold(now, until)
		b.NoteHold()
		b.HeldBy(by, until)
		l.replanLocked(b)
		if d != nil {
			d.add(b, func(now meter.Instant, as aimd.Outcome) bool {
				lifts := as != 0 && b.Leased().HeldUntil() <= meter.AddInstant(until, bucket.StoreErr)
				if lifts {
					b.Leased().Hold(now, now)
					l.recountHeldLocked(b.Limit)
				}
				return lifts
			})
		}
	}
}

// wantLocked has the store asked for a cost that no request waits for. A caller that does not wait is likely to try again. One that could not
// wait for long enough is not, so that only what a process knows of the store is brought up to date.
func (l *Core) wantLocked(charges []Charge, try bool, now meter.Instant) {
	for i := range charges {
		b := charges[i].Bucket
		if b.Leased() == nil || b.Ready(0, 0, charges[i].Cost) < meter.Never {
			continue
		}
		if try || b.Leased().Out() != nil || b.Leased().RecheckAt() <= now {
			b.Leased().Wanted = min(charges[i].Cost, b.Leased().Most())
			l.markLocked(b)
		}
	}
}

// detached returns err without the end of the context of a call in its chain: a caller would take it for the end of its own context.
func detached(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return errors.New(err.Error())
	}
	return err
}
