package queue

import (
	"github.com/httpthrottle/throttle/internal/order"
	"github.com/httpthrottle/throttle/internal/quota"
)

// This file is what tests outside of the package see of its inside.

// LineCount returns how many lines of requests there are.
func (l *Core) LineCount() int { return l.order.Lines() }

// PointOf returns the point of a bucket.
func (b *Bucket) PointOf() *order.Point { return &b.needs().point }

func (l *Core) MarkLocked(b *Bucket)    { l.markLocked(b) }
func (l *Core) ServeLocked(now Instant) { l.serveLocked(now) }

func (l *Core) AtOnce() *int             { return &l.atOnce }
func (l *Core) VisitAtOnce() *int        { return &l.visitAtOnce }
func (l *Core) Pause() *func()           { return &l.pause }
func (l *Core) QuotaOff() *quota.Rules   { return &l.quotaOff }
func (l *Core) Hosts() *map[string]*host { return &l.hosts }
func (l *Core) Supplies() *[]*Supply     { return &l.supplies }
func (l *Core) SweepAt() *Instant        { return &l.sweepAt }
func (l *Core) Synced() *Instant         { return &l.synced }
func (l *Core) WallAt() *Instant         { return &l.wallAt }
