package throttle

import "time"

// A reason says why a request is rejected; see [Reason].
type reason uint8

const (
	_ reason = iota
	reasonNoTokens
	reasonMaxWait
	reasonDeadline
	reasonQueueFull
	reasonCost
	reasonHeld
	reasonKeys
	reasonStore
	reasons
)

// A refusal is the decision not to grant a request; see [Rejection].
type refusal struct {
	reason   reason // 0: it is none
	limit    *limit
	key      string
	cost     int64
	wait     time.Duration // until it could have gone; the longest Duration: never
	patience time.Duration
	err      error // of a store
}
