package aimd

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// A simServer has a policy, a service time, faults and outages.
type simServer struct {
	*world
	policy policy
}

// answer returns what becomes of a request that comes now: the Outcome, how long until the answer leaves (negative:
// never), and Retry-After.
func (s *simServer) answer(now instant) (Outcome, int64, time.Duration) {
	t := float64(now) / 1e9
	if s.outage != nil && t >= s.outage.from && t < s.outage.to {
		if s.outage.hangs {
			return OK, -1, 0
		}
		return Unavailable, second / 1000, 0
	}
	ok, wait, retryAfter := s.policy.admit(now)
	if !ok {
		s.found.refused++
		return s.refusal, at(s.refusing), retryAfter
	}
	if s.faults > 0 && s.rng.Float64() < s.faults {
		return s.fault, second / 1000, 0
	}
	return OK, wait + at(s.service(s.rng, t)), 0
}

// A policy says whether a request that comes now is accepted; if so, how long it has to wait for service.
type policy interface {
	admit(now instant) (ok bool, wait int64, retryAfter time.Duration)
}

type retryAfterHeader func(until int64) time.Duration

func bare(int64) time.Duration { return 0 }
func wholeSeconds(d int64) time.Duration {
	return max(time.Second, time.Duration((d+second-1)/second*second))
}
func fiveSeconds(int64) time.Duration { return 5 * time.Second }

// policeBucket is a token bucket whose limit may change.
type policeBucket struct {
	limit  func(t float64) float64
	burst  float64
	after  retryAfterHeader
	level  float64
	last   instant
	filled bool
}

func (p *policeBucket) admit(now instant) (bool, int64, time.Duration) {
	l := p.limit(float64(now) / 1e9)
	if !p.filled {
		p.level, p.filled = p.burst, true
	}
	p.level = min(p.burst, p.level+l*float64(now-p.last)/1e9)
	p.last = now
	if p.level < 1 {
		return false, 0, p.after(at((1 - p.level) / l))
	}
	p.level--
	return true, 0, 0
}

// policeWindow is n per fixed window.
type policeWindow struct {
	n     int
	per   float64
	after retryAfterHeader
	index int64
	used  int
}

func (p *policeWindow) admit(now instant) (bool, int64, time.Duration) {
	per := at(p.per)
	if i := now / per; i != p.index {
		p.index, p.used = i, 0
	}
	if p.used >= p.n {
		return false, 0, p.after((p.index+1)*per - now)
	}
	p.used++
	return true, 0, 0
}

// policeLog is n in any stretch of length per. With counting, refused requests count too (HAProxy's stick tables);
// with elastic, a refused request begins the window again.
type policeLog struct {
	n                 int
	per               float64
	counting, elastic bool
	after             retryAfterHeader
	log               []instant
	barredUntil       instant
}

func (p *policeLog) admit(now instant) (bool, int64, time.Duration) {
	per := at(p.per)
	i, _ := slices.BinarySearch(p.log, now-per+1)
	p.log = p.log[i:]
	ok := len(p.log) < p.n && now >= p.barredUntil
	if ok || p.counting {
		p.log = append(p.log, now)
	}
	if !ok && p.elastic {
		p.barredUntil = now + per
	}
	if ok {
		return true, 0, 0
	}
	if len(p.log) == 0 {
		return false, 0, p.after(p.barredUntil - now)
	}
	return false, 0, p.after(p.log[max(0, len(p.log)-p.n)] + per - now)
}

// nginx is limit_req, delaying up to burst requests or, with nodelay, letting them pass.
type nginx struct {
	limit, burst float64
	nodelay      bool
	excess       float64
	last         instant
}

func (p *nginx) admit(now instant) (bool, int64, time.Duration) {
	excess := 0.0
	if p.last > 0 {
		excess = max(0, p.excess-p.limit*float64(now-p.last)/1e9+1)
	}
	if excess > p.burst {
		return false, 0, 0
	}
	p.excess, p.last = excess, now
	if p.nodelay {
		return true, 0, 0
	}
	return true, at(excess / p.limit), 0
}

// pool is some workers and a queue before them.
type pool struct {
	workers int
	queue   int
	service func(t float64) float64
	rng     *rand.Rand
	free    []instant // when each worker is free
	starts  []instant // of those in the queue
}

func (p *pool) admit(now instant) (bool, int64, time.Duration) {
	if p.free == nil {
		p.free = make([]instant, p.workers)
	}
	i, _ := slices.BinarySearch(p.starts, now+1)
	p.starts = p.starts[i:]
	if len(p.starts) >= p.queue {
		return false, 0, 0
	}
	best := 0
	for i, f := range p.free {
		if f < p.free[best] {
			best = i
		}
	}
	start := max(now, p.free[best])
	done := start + at(p.service(float64(now)/1e9)*math.Exp(0.3*p.rng.NormFloat64()-0.045))
	p.free[best] = done
	if start > now {
		p.starts = append(p.starts, start)
	}
	return true, done - now, 0
}

// atATime serves so many at once, each for as long, and refuses the others.
type atATime struct {
	n     int
	each  float64
	after retryAfterHeader
	busy  []instant // until
}

func (p *atATime) admit(now instant) (bool, int64, time.Duration) {
	i, _ := slices.BinarySearch(p.busy, now+1)
	p.busy = p.busy[i:]
	if len(p.busy) >= p.n {
		return false, 0, p.after(0)
	}
	p.busy = append(p.busy, now+at(p.each))
	return true, at(p.each), 0
}

type anything struct{}

func (anything) admit(instant) (bool, int64, time.Duration) { return true, 0, 0 }
