package queue

import "github.com/httpthrottle/throttle/internal/order"

// This file is what tests outside of the package see of its inside.

// LineCount returns how many lines of requests there are.
func (l *Core) LineCount() int { return l.order.Lines() }

// PointOf returns the point of a bucket.
func (b *Bucket) PointOf() *order.Point { return &b.needs().point }
