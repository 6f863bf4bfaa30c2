package limiter

import (
	"sync/atomic"
	"time"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
)

// A Door is where the requests of a pool wait for one of its members, in addition to the limits of that member. While it is shut, because
// requests to the member fail, it lets one request through at a time, as a trial: all others keep their places, and none has to be woken.
type Door struct {
	core   *Core
	bucket *bucket.Bucket
	opens  atomic.Int64 // when the next trial may begin; 0: the Door is open
	every  int64        // the time between the beginnings of two trials
}

// doorLimit is the name of the limit of Doors in rejections.
const doorLimit = "pool"

// NewDoor returns an open Door, at which the waiters of Claims wait.
func (l *Core) NewDoor(every time.Duration) *Door {
	d := &Door{core: l, every: int64(every)}
	li := &bucket.Limit{Index: l.Gate.Index, Rule: bucket.Rule{Name: doorLimit, Share: 1, Open: true}}
	d.bucket = &bucket.Bucket{Limit: li, Meter: (*doorMeter)(d)}
	li.Single = d.bucket
	bucket.PointOf(d.bucket).Elsewhere = true
	return d
}

// standAt has a request wait at a Door, too; nil: it does not.
func (w *Waiter) standAt(d *Door) {
	if d != nil {
		w.charges = append(w.charges, Charge{Bucket: d.bucket, Cost: 1})
	}
}

// isDoor reports whether a bucket is that of a Door.
func isDoor(b *bucket.Bucket) bool {
	_, ok := b.Meter.(*doorMeter)
	return ok
}

// IsShut reports whether only trials are let through.
func (d *Door) IsShut() bool { return d.opens.Load() != 0 }

// Shut shuts the Door, until Open. The first trial begins when the time between two trials has passed. A Door that is shut stays as it is.
func (d *Door) Shut() {
	if d.opens.CompareAndSwap(0, d.next(d.now())) {
		d.changed()
	}
}

// Open lets all requests through that the limits of the member allow.
func (d *Door) Open() {
	if d.opens.Swap(0) != 0 {
		d.changed()
	}
}

// Try begins a trial with a request that does not wait, if one is due. If it is not sent after all, call Untry with the result.
func (d *Door) Try() (due int64, ok bool) {
	due, now := d.opens.Load(), d.now()
	return due, due != 0 && due <= now && d.opens.CompareAndSwap(due, d.next(now))
}

// Untry has the next request begin the trial that Try began.
func (d *Door) Untry(due int64) {
	if opens := d.opens.Load(); opens != 0 && d.opens.CompareAndSwap(opens, due) {
		d.changed()
	}
}

// changed has the requests that wait at the Door be tried.
func (d *Door) changed() {
	d.core.begin()
	defer d.core.end()
	d.core.markLocked(d.bucket)
}

func (d *Door) now() meter.Instant { return meter.Instant(time.Since(d.core.Start)) }

func (d *Door) next(now meter.Instant) meter.Instant { return max(1, now+d.every) }

// NextTrial returns when the next trial may begin; zero: the Door is open.
func (d *Door) NextTrial() time.Time {
	opens := d.opens.Load()
	if opens == 0 {
		return time.Time{}
	}
	return d.core.Start.Add(time.Duration(opens))
}

// Waiting returns how many requests wait at the Door.
func (d *Door) Waiting() int {
	d.core.mu.Lock()
	defer d.core.mu.Unlock()
	return d.bucket.Waiting()
}

// A doorMeter is a Door as a meter. What it charges is 1 for a trial, and 0 for any other request.
type doorMeter Door

func (m *doorMeter) Ready(from meter.Instant, _, _ int64) meter.Instant {
	return max(from, m.opens.Load())
}

func (m *doorMeter) Take(_, now meter.Instant, _ int64, _ bool) (trial int64) {
	if opens := m.opens.Load(); opens != 0 && m.opens.CompareAndSwap(opens, (*Door)(m).next(now)) {
		trial = 1
	}
	return trial
}

func (m *doorMeter) GiveBack(trial int64, now meter.Instant, _ int64) {
	if opens := m.opens.Load(); trial == 1 && opens != 0 {
		m.opens.CompareAndSwap(opens, max(1, now)) // another one may begin at once
	}
}

func (m *doorMeter) Payable(now meter.Instant, _ int64) bool { return m.opens.Load() <= now }

func (m *doorMeter) Spend(now meter.Instant, cost int64) (trial int64, ok bool) {
	if !m.Payable(now, cost) {
		return 0, false
	}
	return m.Take(now, now, cost, false), true
}

func (m *doorMeter) Settle(int64, meter.Instant, int64, int64) {}

func (m *doorMeter) Most() int64 { return meter.MaxCount }

func (m *doorMeter) Matters(now meter.Instant) (must, full meter.Instant) { return 0, 0 }

func (m *doorMeter) Tokens(meter.Instant) float64 { return 0 }

func (m *doorMeter) Retune(meter.Instant, meter.Rate) {}

func (m *doorMeter) Resize(meter.Instant, int64) {}
