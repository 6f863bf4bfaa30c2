package throttle

import (
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/queue"
)

// A Source says what set a hold.
type Source string

const (
	SourceCaller   Source = "caller"   // [Limiter.Hold] or [Limiter.HoldAll]
	SourceServer   Source = "server"   // a response
	SourceAdaptive Source = "adaptive" // an [Adaptive] limit, because of a response
)

// HoldCounts counts holds by [Source]. A hold of several limits counts once.
type HoldCounts struct {
	Caller   uint64 `json:"caller"`
	Server   uint64 `json:"server"`
	Adaptive uint64 `json:"adaptive"`
}

// Hold blocks all requests for key, in every limit, for duration d. Waiters that can no longer be granted in time are rejected.
// Tokens still come in, up to the burst. The longest of several holds counts; 0 and less do nothing; more than 146
// years are 146 years. If there is no room for the key's bucket, a limit remembers 1,024 holds without; beyond that it holds
// all keys that have no bucket, and logs that. [Limiter.Release] ends it.
func (l *Limiter) Hold(key string, d time.Duration) {
	l.mustBeMade()
	if d <= 0 {
		return
	}
	l.core.CountHold()
	crowded := l.holdKey(key, min(int64(d), meter.MaxPer))
	for _, limit := range crowded {
		l.direct.observer.heldAll(limit, key, d)
	}
	l.direct.observer.held(HoldEvent{Key: key, For: d, Source: SourceCaller})
}

// holdKey holds a key, and returns the names of the limits that hold more than that key, because there was no room to remember it.
func (l *Limiter) holdKey(key string, d int64) (crowded []string) {
	for _, li := range l.core.Limits {
		p := queue.Pending{Paid: queue.Paid{Charges: make([]queue.Charge, 0, 1)}}
		p.Add(li, key, 0)
		fits, asked := l.core.Hold(&p, d)
		for !asked && l.askRates(&p) == nil {
			fits, asked = l.core.Hold(&p, d)
		}
		if asked && !fits { // else no request of this key gets in either, and is told why
			crowded = append(crowded, li.Name)
		}
	}
	return crowded
}

// HoldAll blocks all requests, whatever their keys, for duration d, as [Limiter.Hold] does for one key. It takes effect
// immediately. Waiters that can no longer be granted in time are rejected before HoldAll returns.
func (l *Limiter) HoldAll(d time.Duration) {
	l.mustBeMade()
	if d <= 0 {
		return
	}
	l.core.HoldAll(min(int64(d), meter.MaxPer))
	for _, li := range l.core.Limits {
		l.core.ChangeAll(li, func(b *queue.Bucket, _ meter.Instant) bool { return b.HasLines() })
	}
	l.direct.observer.held(HoldEvent{For: d, Source: SourceCaller, All: true})
}

// Release ends what [Limiter.Hold] set for key, in every limit. Waiters may go from now on, as tokens allow. What HoldAll, a
// server or an [Adaptive] limit set stays.
func (l *Limiter) Release(key string) {
	l.mustBeMade()
	for _, li := range l.core.Release(key) {
		l.core.RecountHolds(li)
	}
}

// ReleaseAll ends what [Limiter.Hold] and [Limiter.HoldAll] set for any key. A Hold that is set meanwhile may be ended, too.
func (l *Limiter) ReleaseAll() {
	l.mustBeMade()
	l.core.ReleaseAll()
	for _, li := range l.core.Limits {
		l.core.RecountHolds(li)
	}
}
