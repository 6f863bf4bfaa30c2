package throttlepage

import "time"

const kept = 720 // points that the page remembers: an hour, at one in 5 s

// A figure is what a chart shows of a Limiter.
type figure int

const (
	granted  figure = iota // requests per second
	waiting                // requests in the queue
	rejected               // requests per second
	refused                // by servers, per second
	figures
)

// A point is what the page remembers of one stretch of time.
type point struct {
	at     int64 // end of the stretch, in milliseconds of Unix time
	gap    bool  // nothing is known of the time before it
	values [figures]float32
	rates  []float32 // of each limit, at its end
}

// A memory is the last points of a Limiter, oldest first in a ring.
type memory struct {
	ring []point
	next int    // of the ring, once that is full
	n    int    // points that were ever taken
	base sample // the one that the next point begins with
	cut  bool   // nothing is known of the time before base
}

// due reports whether it is time for a point.
func (m *memory) due(now time.Time, every time.Duration) bool {
	return m.base.at.IsZero() || now.Sub(m.base.at) >= every
}

// take adds the point that ends with s. Its figures are those since the sample before. If that is too long ago, it cannot be known
// when they changed: there is no point, and the line has a gap.
func (m *memory) take(s *sample, every time.Duration) {
	base := m.base
	m.base = *s
	if base.at.IsZero() || s.at.Sub(base.at) > 2*every {
		m.cut = true
		return
	}
	c := change{&base, s}
	seconds := s.at.Sub(base.at).Seconds()
	p := point{at: s.at.UnixMilli(), gap: m.cut}
	m.cut = false
	p.values[granted] = float32(grantedPerSecond(&base, s))
	p.values[rejected] = float32(float64(c.rejected()) / seconds)
	p.values[refused] = float32(float64(c.refused()) / seconds)
	p.values[waiting] = float32(s.stats.Waiting)
	for i := range s.limits {
		p.rates = append(p.rates, float32(s.limits[i].Rate))
	}
	m.n++
	if len(m.ring) < kept {
		m.ring = append(m.ring, p)
		return
	}
	m.ring[m.next] = p
	m.next = (m.next + 1) % kept
}

// at returns the i-th point, oldest first.
func (m *memory) at(i int) *point { return &m.ring[(m.next+i)%len(m.ring)] }

// span returns the time that the points cover, the last one included.
func (m *memory) span() time.Duration {
	if len(m.ring) < 2 {
		return 0
	}
	return time.Duration(m.at(len(m.ring)-1).at-m.at(0).at) * time.Millisecond
}
