package queue

import "github.com/httpthrottle/throttle/internal/meter"

type (
	Instant = meter.Instant
	Rate    = meter.Rate
)

const (
	Never    = meter.Never
	MaxCount = meter.MaxCount
	MaxPer   = meter.MaxPer
)
