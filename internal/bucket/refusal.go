package bucket

import (
	"time"

	"github.com/httpthrottle/throttle/internal/quota"
)

// A reason says why a request is rejected; see [Reason].
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
	Reasons
)

// Err returns the error that is the cause of a rejection here; nil: there is none.
func (b *Bucket) Err(reason Reason) error {
	switch reason {
	case ReasonStore:
		return b.Lease.Out().Err()
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

// A Refusal is the decision not to grant a request; see [Rejection].
type Refusal struct {
	Reason   Reason // 0: it is none
	Limit    *Limit
	Key      string
	Cost     int64
	Wait     time.Duration // until it could have gone; the longest Duration: never
	Patience time.Duration
	Most     int64 // the largest cost that its bucket can pay, where that is the reason; 0: there is no bucket
	Err      error // of a store, or what a server said
}
