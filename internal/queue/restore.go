package queue

import (
	"errors"

	"github.com/httpthrottle/throttle/internal/meter"
)

var errNoRoom = errors.New("there is no room for another key")

// Restore has f change the bucket of the only charge of p, which it makes if there is none, and holds it for d. It does nothing
// if the rate of the bucket must be asked for first. The error is that of f, or that there is no room for the bucket.
func (l *Core) Restore(p *Pending, d int64, f func(b *Bucket, now Instant) error) (asked bool, err error) {
	if !l.lockIfAsked(p) {
		return false, nil
	}
	defer l.end()
	c, now := p.Charges, l.NowLocked()
	if !l.haveLocked(&c[0], c, rateAt(p.Rates, 0), now) {
		return true, errNoRoom
	}
	b := c[0].bucket
	l.dueLocked(now)
	err = f(b, now)
	if d > 0 {
		e := b.needs()
		e.Held = max(e.Held, now+min(d, meter.MaxPer))
	}
	b.Limit.HeldMost = max(b.Limit.HeldMost, b.HeldAlone())
	l.replanLocked(now, b)
	return true, err
}

// RestoreGate has f change a gate, which it makes if there is none. The error is that of f, or that there is no room for the gate.
func (l *Core) RestoreGate(key GateKey, f func(g *GateBucket, now Instant) error) error {
	now := l.begin()
	defer l.end()
	if !l.roomForGateLocked(now) {
		return errNoRoom
	}
	l.Heard.Store(true)
	g := l.GateLocked(key, now).Meter.(*GateBucket)
	err := f(g, now)
	if g.Account.Knows(AnyQuota) {
		g.Account.Adopt(now, AnyQuota)
	}
	l.Gate.HeldMost = max(l.Gate.HeldMost, g.HeldUntil())
	l.replanPartyLocked(g.Party, now)
	return err
}
