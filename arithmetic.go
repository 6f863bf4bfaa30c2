package throttle

import "github.com/httpthrottle/throttle/internal/meter"

type (
	instant = meter.Instant
	rate    = meter.Rate
)

const (
	never    = meter.Never
	maxCount = meter.MaxCount
	maxPer   = meter.MaxPer
)
