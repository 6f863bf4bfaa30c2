package bucket

import "github.com/httpthrottle/throttle/internal/quota"

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
