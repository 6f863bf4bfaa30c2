package bucket

import (
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
	"github.com/httpthrottle/throttle/internal/server"
)

// A Reason is why a request is rejected; see throttle.Reason.
type Reason uint8

const (
	_ Reason = iota
	ReasonNoTokens
	ReasonMaxWait
	ReasonDeadline
	ReasonQueueFull
	ReasonCost
	ReasonHeld
	ReasonKeys
	ReasonStore
	ReasonFinal
	ReasonShutdown
	Reasons
)

// Err returns the error that is the cause of a rejection here; nil: there is none.
func (b *Bucket) Err(reason Reason) error {
	switch reason {
	case ReasonStore:
		return b.lease.Out().Err()
	case ReasonFinal:
		return b.final()
	}
	return nil
}

// final returns what the server said with a final refusal that stops requests here; nil: there is none.
func (b *Bucket) final() error {
	if !b.Limit.Gates {
		return nil
	}
	_, _, said := b.Meter.(*quota.Gate).Account.Final()
	return said
}

// Cause returns what a server said that stops requests here.
func (b *Bucket) Cause(now meter.Instant) (c quota.Cause) {
	if b.Limit.Gates {
		return b.Meter.(*quota.Gate).Cause(now)
	}
	if h, ok := b.Meter.(meter.Holder); ok && b.Limit.Unit != "" && h.HeldUntil() > now {
		c.Verdict = server.Exhausted
	}
	if held := b.HeldAlone(); b.extra != nil && b.refusal != nil && now < held && held <= meter.AddInstant(b.refusal.until, StoreErr) {
		c.Refusal, c.Verdict = b.refusal.LastRefusal, b.refusal.Verdict
	}
	return c
}

// StoreErr is by how much the end of a hold may differ after it was written to a store and read again.
const StoreErr = int64(100 * time.Millisecond)

// A holder is a refusal by which a server has held a limit that learns, or a shared one.
type holder struct {
	quota.LastRefusal
	until meter.Instant
}

// HeldBy notes such a refusal.
func (b *Bucket) HeldBy(r quota.LastRefusal, until meter.Instant) {
	b.needs().refusal = &holder{r, until}
}

// Forgive ends a hold of a budget in a store because of what a server has refused, and reports whether there was one.
func (b *Bucket) Forgive(now meter.Instant) bool {
	if b.extra == nil || b.lease == nil || b.refusal == nil || b.lease.HeldUntil() <= now || b.lease.HeldUntil() > meter.AddInstant(b.refusal.until, StoreErr) {
		return false
	}
	b.refusal = nil
	b.lease.Hold(now, now)
	return true
}
