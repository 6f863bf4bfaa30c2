package bucket

import "time"

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
	Reasons
)

// A Refusal is the decision not to grant a request; see [Rejection].
type Refusal struct {
	Reason   Reason // 0: it is none
	Limit    *Limit
	Key      string
	Cost     int64
	Wait     time.Duration // until it could have gone; the longest Duration: never
	Patience time.Duration
	Most     int64 // the largest cost that its bucket can pay, where that is the reason; 0: there is no bucket
	Err      error // of a store
}
