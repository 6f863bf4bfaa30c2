package throttle

import "time"

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
	l.countHold()
	crowded := l.holdKey(key, min(int64(d), maxPer))
	for _, limit := range crowded {
		l.direct.observer.heldAll(limit, key, d)
	}
	l.direct.observer.held(HoldEvent{Key: key, For: d, Source: SourceCaller})
}

// holdKey holds a key, and returns the names of the limits that hold more than that key, because there was no room to remember it.
func (l *Limiter) holdKey(key string, d int64) (crowded []string) {
	for _, li := range l.limits {
		p := pending{charges: charged(make([]charge, 0, 1), li, key, 0)}
		fits, asked := l.hold(&p, d)
		for !asked && l.askRates(&p) == nil {
			fits, asked = l.hold(&p, d)
		}
		if asked && !fits { // else no request of this key gets in either, and is told why
			crowded = append(crowded, li.name)
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
	l.holdAll(min(int64(d), maxPer))
	for _, li := range l.limits {
		for piece := range l.pieces(li) {
			l.change(piece, func(b *bucket, _ instant) bool { return b.hasLines() })
		}
	}
	l.direct.observer.held(HoldEvent{For: d, Source: SourceCaller, All: true})
}

// Release ends what [Limiter.Hold] set for key, in every limit. Waiters may go from now on, as tokens allow. What HoldAll, a
// server or an [Adaptive] limit set stays.
func (l *Limiter) Release(key string) {
	l.mustBeMade()
	for _, li := range l.release(key) {
		l.recountHolds(li)
	}
}

// ReleaseAll ends what [Limiter.Hold] and [Limiter.HoldAll] set for any key. A Hold that is set meanwhile may be ended, too.
func (l *Limiter) ReleaseAll() {
	l.mustBeMade()
	l.releaseAll()
	for _, li := range l.limits {
		l.recountHolds(li)
	}
}
