package hints

import (
	"math"
	"time"
)

// This file has the limits of the servers of world_test.go.

// winLimit is a fixed window, which begins with the first request or at the clock.
type winLimit struct {
	n, used    int64
	per        int64
	clock      int64 // where windows of the clock begin; -1: windows begin with the first request
	begin, end int64
}

func (w *winLimit) size() (int64, time.Duration) { return w.n, time.Duration(w.per) }

func (w *winLimit) admit(now int64) (bool, int64, int64, int64) {
	if now >= w.end {
		w.used, w.begin = 0, now
		if w.clock >= 0 {
			w.begin = now - (now+w.clock)%w.per
		}
		w.end = w.begin + w.per
	}
	ok := w.used < w.n
	if ok {
		w.used++
	}
	return ok, w.n - w.used, w.end, w.end
}

// standing returns what is left at an instant, and when the window ends.
func (w *winLimit) standing(now int64) (left, end int64) {
	if now >= w.end {
		return w.n, now
	}
	return w.n - w.used, w.end
}

// elasticLimit is a fixed window that each request prolongs, whether it is accepted or not.
type elasticLimit struct{ winLimit }

func (e *elasticLimit) admit(now int64) (bool, int64, int64, int64) {
	ok, left, _, _ := e.winLimit.admit(now)
	e.end = now + e.per
	return ok, left, e.end, e.end
}

// logLimit is a sliding log.
type logLimit struct {
	n   int
	per int64
	log []int64
}

func (l *logLimit) size() (int64, time.Duration) { return int64(l.n), time.Duration(l.per) }

func (l *logLimit) admit(now int64) (bool, int64, int64, int64) {
	for len(l.log) > 0 && l.log[0]+l.per <= now {
		l.log = l.log[1:]
	}
	ok := len(l.log) < l.n
	if ok {
		l.log = append(l.log, now)
	}
	return ok, int64(l.n - len(l.log)), l.log[0] + l.per, l.log[0] + l.per
}

// dripLimit is a token bucket, which reports the time until one more.
type dripLimit struct {
	rate, burst, level float64
	at                 int64
}

func (d *dripLimit) size() (int64, time.Duration) {
	return int64(d.burst), time.Duration(d.burst / d.rate * 1e9)
}

func (d *dripLimit) admit(now int64) (bool, int64, int64, int64) {
	d.level = min(d.burst, d.level+float64(now-d.at)/1e9*d.rate)
	d.at = now
	ok := d.level >= 1
	if ok {
		d.level--
	}
	more := now + int64((math.Floor(d.level)+1-d.level)/d.rate*1e9)
	return ok, int64(d.level), more, more
}
