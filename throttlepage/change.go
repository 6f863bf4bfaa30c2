package throttlepage

import (
	"slices"
	"strings"
	"time"

	"github.com/httpthrottle/throttle"
)

// A change is what happened between two samples.
type change struct{ first, last *sample }

func (c change) rejected() uint64 {
	return grown(c.last.stats.Rejected.Total(), c.first.stats.Rejected.Total())
}

func (c change) refused() uint64 {
	return grown(c.last.stats.ServerRefused, c.first.stats.ServerRefused)
}

// refusedLevel returns how bad it is that servers refused requests. Up to one in a hundred is normal. An adaptive limit finds a
// server's limit by refusals: those that it answered by a lower rate are normal, and one in twenty besides.
func (c change) refusedLevel() string {
	answered, learns := uint64(0), false
	for i := range c.last.limits {
		now, before := &c.last.limits[i], c.first.limit(c.last.limits[i].Name)
		learns = learns || strings.HasPrefix(now.Kind, "adaptive")
		answered += grown(now.Retunes[throttle.CauseThrottled], before.Retunes[throttle.CauseThrottled])
	}
	normal := uint64(100)
	if learns {
		normal = 20
	}
	switch n := c.refused(); {
	case n == 0:
		return ""
	case normal*grown(n, answered) <= grown(c.last.stats.Granted, c.first.stats.Granted):
		return "busy"
	}
	return "bad"
}

// grown returns by how much a counter has grown. What is computed of two counters may fall a little, as they are not read at
// the same instant.
func grown(now, before uint64) uint64 { return now - min(now, before) }

// slowest returns the name of the limit that requests waited for the longest, all together; "" if none waited.
func (c change) slowest() string {
	most, name := time.Duration(0), ""
	for _, li := range c.last.limits {
		if d := li.Waits.Sum - c.first.limit(li.Name).Waits.Sum; d > most {
			most, name = d, li.Name
		}
	}
	return printable(name)
}

// waits returns how long requests waited in all limits, and how many were canceled meanwhile.
func (c change) waits() string {
	last, first := &c.last.stats, &c.first.stats
	all := waits{none: grown(last.Granted-last.Delayed, first.Granted-first.Delayed)}
	for i := range c.last.limits {
		before := c.first.limit(c.last.limits[i].Name)
		for j, n := range waitsOf(&c.last.limits[i], &before).some {
			if j == len(all.some) {
				all.some = append(all.some, 0)
			}
			all.some[j] += n
		}
	}
	text := "p90 wait " + all.quantile(0.9)
	if n := grown(last.Canceled, first.Canceled); n > 0 {
		text += ", " + count(n) + " gave up"
	}
	return text
}

// limit returns what the sample says of a limit, or zeros.
func (s *sample) limit(name string) throttle.LimitStats {
	i := slices.IndexFunc(s.limits, func(li throttle.LimitStats) bool { return li.Name == name })
	if i < 0 {
		return throttle.LimitStats{}
	}
	return s.limits[i]
}

// waits counts how long requests waited.
type waits struct {
	none uint64   // did not wait
	some []uint64 // by throttle.WaitBounds; the last are those beyond
}

func waitsOf(now, before *throttle.LimitStats) waits {
	w := waits{none: grown(now.Granted-now.Delayed, before.Granted-before.Delayed)}
	for i, n := range now.Waits.Counts {
		w.some = append(w.some, grown(n, before.Waits.Counts[i]))
	}
	return w
}

// quantile returns which wait the part q of all requests did not exceed, interpolated between two bounds.
func (w waits) quantile(q float64) string {
	all := w.none
	for _, n := range w.some {
		all += n
	}
	if all == 0 {
		return none
	}
	rank := q * float64(all)
	if rank <= float64(w.none) {
		return duration(0)
	}
	rank -= float64(w.none)
	bounds, lower := throttle.WaitBounds(), time.Duration(0)
	for i, n := range w.some {
		if i == len(bounds) {
			break
		}
		if rank <= float64(n) {
			return duration(lower + time.Duration(rank/float64(n)*float64(bounds[i]-lower)))
		}
		rank, lower = rank-float64(n), bounds[i]
	}
	return ">\u00a0" + duration(lower)
}

// perSecond returns how many requests were granted per second, over the last few seconds.
func (l *watched) perSecond() float64 {
	const few = 5 * time.Second
	i := max(0, len(l.history)-2)
	for i > 0 && l.last().at.Sub(l.history[i].at) < few {
		i--
	}
	return grantedPerSecond(&l.history[i], l.last())
}

func grantedPerSecond(a, b *sample) float64 {
	d := float64(b.stats.Granted-b.stats.Undone) - float64(a.stats.Granted-a.stats.Undone)
	return max(0, d/b.at.Sub(a.at).Seconds())
}
