package limiter

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/order"
)

// This file plays what will happen if no other request comes: with copies of meters and of the queue, and without the lock.

// A Forecast is when requests will be sent that come now, if no other comes.
type Forecast struct {
	From   meter.Instant     // when they come
	Tenths [10]meter.Instant // when each tenth of them will have been sent; Never: it is not known, or never
	Limit  *bucket.Limit     // that they wait for the longest; nil: they do not wait
	Key    string
	Least  bool // the requests may be sent later than that, because it depends on responses
}

const (
	queueCopied = 2_000   // waiters that are copied; those behind them are taken to be like them
	playedMost  = 100_000 // requests that are played; the others are taken to go on in the same way
)

// Forecast plays n requests like r, with the priority and the caller of w. The error is why there is no rate for a key.
func (l *Core) Forecast(r *Request, w *Waiter, n int) (Forecast, error) {
	p, err := l.play(r, w)
	if err != nil {
		return Forecast{}, err
	}
	return p.forecast(n), nil
}

// A play is the copy of what some requests wait for.
type play struct {
	now    meter.Instant
	points []*stage // of the requests that come now
	costs  []int64
	in     order.Waiter // what these have in common
	queue  []queued     // that go before them
	more   int          // waiters behind those in queue
	least  bool         // see Forecast
	shut   bool         // they would be rejected, after Shutdown

	order order.Order
	all   map[*bucket.Bucket]*stage
}

// A queued is the copy of a request that waits.
type queued struct {
	order.Waiter
	order.Standing
}

// A stage is the copy of a bucket.
type stage struct {
	order.Point
	limit *bucket.Limit
	key   string
	meter meter.Meter
	opens meter.Instant // the end of a hold
	bound int64         // for how long requests have waited for it after all others could pay
}

func (s *stage) Ready(from, _ meter.Instant, cost int64) meter.Instant {
	return s.meter.Ready(max(from, s.opens), 0, cost)
}

func (s *stage) Plan(from meter.Instant, ahead, cost int64) meter.Instant {
	return s.meter.Ready(max(from, s.opens), ahead, cost)
}

func (s *stage) Interval() int64 { return 0 }
func (s *stage) Most() int64     { return s.meter.Most() }

// play copies what requests like r would wait for.
func (l *Core) play(r *Request, w *Waiter) (*play, error) {
	charges := r.Charges()
	now, rates, err := l.beginRated(charges)
	defer l.end()
	if err != nil {
		return nil, err
	}
	l.dueLocked(now)
	p := &play{now: now, shut: l.isShutLocked(r.User), all: make(map[*bucket.Bucket]*stage)}
	w.arrived = now
	w.bind(context.Background(), l.deadlineAge, now)
	p.in = order.Waiter{Rank: w.in.Rank, Last: meter.Never, Caller: w.in.Caller, Weight: max(1, w.in.Weight)}
	for i := range charges {
		c := &charges[i]
		var s *stage
		if c.find() {
			s = p.copyLocked(c.Bucket)
		} else {
			rate, burst := c.Limit().Terms(rateAt(rates, i))
			s = p.stage(c.Limit(), c.Key, l.standInLocked(c.Limit(), rate, burst, now))
			p.least = p.least || c.Limit().Supply != nil
		}
		cost := c.Cost
		if c.Limit().Clamps {
			cost = min(cost, s.Most())
		}
		p.points, p.costs = append(p.points, s), append(p.costs, cost)
	}
	p.copyQueueLocked(charges)
	return p, nil
}

// standInLocked returns the meter of a bucket that is yet to be made. One in a store has a meter of its own.
func (l *Core) standInLocked(li *bucket.Limit, r meter.Rate, burst int64, now meter.Instant) meter.Meter {
	if li.Supply == nil {
		return l.meterLocked(li, r, burst, now)
	}
	return meter.NewTokenBucket(now, r, max(1, burst), max(1, burst))
}

// stage returns the copy of a bucket whose meter is m, or stands for it.
func (p *play) stage(li *bucket.Limit, key string, m meter.Meter) *stage {
	s := &stage{limit: li, key: key, opens: li.AllHeldUntil()}
	c, exact := m.(meter.Copier)
	bounder, bounded := m.(meter.Bounder)
	switch {
	case exact:
		s.meter = c.Copy()
	case bounded:
		s.meter, p.least = bounder.Best(p.now), true
	case m == meter.Meter(meter.Unlimited{}):
		s.meter = m
	default:
		s.meter, p.least = likeNow(li, m, p.now), true
	}
	s.Point.Payer = s
	return s
}

// likeNow returns a meter that goes on as a meter is now about which responses decide: a learned rate stays as it is, and a number in
// flight stops nothing.
func likeNow(li *bucket.Limit, m meter.Meter, now meter.Instant) meter.Meter {
	rate := 0.0
	if r, ok := m.(meter.Rater); ok {
		rate = r.PerSecond(now)
	}
	if !(rate > 0) || li.Frees {
		return meter.Unlimited{}
	}
	const over = 1e6 // seconds, so that low rates are whole numbers
	burst := min(max(1, m.Most()), int64(max(1, rate)))
	left := max(0, min(int64(m.Tokens(now)), burst))
	return meter.NewTokenBucket(now, meter.Rate{N: max(1, int64(min(rate*over, 1e15))), Per: over * time.Second}, burst, left)
}

func (p *play) copyLocked(b *bucket.Bucket) *stage {
	if s := p.all[b]; s != nil {
		return s
	}
	s := p.stage(b.Limit, b.Key, b.Meter)
	s.opens, s.Point.Fair = b.HeldUntil(), b.Limit.Fair
	p.all[b] = s
	return s
}

// copyQueueLocked copies the requests that wait where those that come now will.
func (p *play) copyQueueLocked(charges []Charge) {
	seen := make(map[*order.Waiter]bool)
	for i := range charges {
		b := charges[i].Bucket
		if !charges[i].isFound() || b.Waiting() == 0 {
			continue
		}
		for in := range bucket.PointOf(b).Waiters {
			if len(p.queue) == queueCopied {
				p.more = max(p.more, b.Waiting()-queueCopied)
				break
			}
			if seen[in] || in.Rank > p.in.Rank {
				continue
			}
			seen[in] = true
			other := queued{order.Waiter{Rank: in.Rank, Last: meter.Never, Caller: in.Caller, Weight: in.Weight, Costs: slices.Clone(in.Costs[:len(in.At)])}, in.Standing()}
			for _, at := range in.At {
				other.At = append(other.At, &p.copyLocked(bucket.Of(at)).Point)
			}
			p.least = p.least || in.Gate != nil
			p.queue = append(p.queue, other)
		}
	}
}

// forecast plays n requests, or only those that wait before them.
func (p *play) forecast(n int) (f Forecast) {
	f.From = p.now
	if p.shut && n > 0 {
		for i := range f.Tenths {
			f.Tenths[i] = meter.Never
		}
		return f
	}
	when := make([]meter.Instant, min(n, playedMost))
	p.begin()
	at := p.now
	for i := range when {
		at = p.next(at)
		when[i] = at
	}
	if n == 0 {
		n, when = 1, []meter.Instant{p.drain()}
	}
	var last *stage // that the last of them waits for, if it was not played
	for i := range f.Tenths {
		f.Tenths[i], last = p.nth(when, n/10*(i+1)+(n%10*(i+1)+9)/10) // n·(i+1) might overflow
	}
	f.Least = p.least
	var most int64
	if last != nil {
		last.bound += f.Tenths[9] - when[len(when)-1]
	}
	for _, s := range p.points {
		if s.bound > most {
			most, f.Limit, f.Key = s.bound, s.limit, s.key
		}
	}
	return f
}

// nth returns when the k-th request is sent, counted from 1. Those that were not played are sent when each limit can pay them and all
// before. Where that is only a lower bound, they go on as the second half of those that were played did, if that is later. It also returns
// what the request waits for longest after those; nil: it does not.
func (p *play) nth(when []meter.Instant, k int) (at meter.Instant, by *stage) {
	n := len(when)
	if k <= n {
		return when[k-1], nil
	}
	last, more, exact := when[n-1], int64(k-n), len(p.points) == 1 && p.order.Len() == 0
	at = last
	for i, s := range p.points {
		cost := max(1, p.costs[i])
		if due := s.Plan(last, min(more-1, 2*meter.MaxCount/cost)*p.costs[i], p.costs[i]); due > at {
			at, by = due, s
		}
		exact = exact && s.meter.Most()%cost == 0
	}
	if exact || last == meter.Never {
		return at, by
	}
	each := float64(last-when[n/2-1]) / float64(n-n/2)
	if on := each * float64(more); on > math.MaxInt64/2 {
		at = meter.Never
	} else {
		at = max(at, meter.AddInstant(last, int64(on)))
	}
	return at, by
}

// begin has the copied requests wait, and as many like them as there are more.
func (p *play) begin() {
	slices.SortFunc(p.queue, func(a, b queued) int { return cmp.Compare(a.Nth, b.Nth) }) // they were copied one line after the other
	for i := range p.queue {
		p.order.Join(&p.queue[i].Waiter, p.now)
	}
	for i := range p.queue {
		p.order.Resume(&p.queue[i].Waiter, p.queue[i].Standing)
	}
	for i := range p.more {
		w := &p.queue[i%len(p.queue)].Waiter
		p.order.Join(&order.Waiter{At: w.At, Costs: w.Costs, Rank: w.Rank, Last: meter.Never, Caller: w.Caller, Weight: w.Weight}, p.now)
	}
}

// drain plays until no request waits, and returns when the last one is sent.
func (p *play) drain() (at meter.Instant) {
	for at = p.now; p.order.Len() > 0 && at < meter.Never; {
		_, at = p.grant(at)
	}
	return at
}

// next plays until the next of the requests that come now is sent, and returns when that is.
func (p *play) next(at meter.Instant) meter.Instant {
	switch {
	case at == meter.Never || len(p.points) == 0:
		return at
	case p.order.Len() == 0: // no need to line up
		from := at
		for ready := p.ready(at); ready != at; ready = p.ready(at) {
			at = ready
		}
		if at < meter.Never {
			p.charge(p.points, p.costs, from, at)
		}
		return at
	}
	own := p.in
	for i, s := range p.points {
		own.At, own.Costs = append(own.At, &s.Point), append(own.Costs, p.costs[i])
	}
	p.order.Join(&own, at)
	for own.IsWaiting() && at < meter.Never {
		_, at = p.grant(at)
	}
	return at
}

// ready returns when a request that comes now could be paid at each point by itself.
func (p *play) ready(from meter.Instant) (at meter.Instant) {
	at = from
	for i, s := range p.points {
		at = max(at, s.Ready(from, from, p.costs[i]))
	}
	return at
}

// grant plays until the next waiter is granted, and returns when that is; Never: nothing that is known lets another one be granted.
func (p *play) grant(from meter.Instant) (w *order.Waiter, at meter.Instant) {
	for at = from; at < meter.Never; at = p.order.Wake() {
		w, due := p.order.Next(at)
		if w == nil {
			continue
		}
		points := make([]*stage, len(w.At))
		for i, point := range w.At {
			points[i] = point.Payer.(*stage)
		}
		p.charge(points, w.Costs, from, due)
		return w, due
	}
	return nil, meter.Never
}

// charge charges a request that is sent at an instant, and notes what it has waited for since the one before it.
func (p *play) charge(points []*stage, costs []int64, from, at meter.Instant) {
	last, latest := -1, from
	for i, s := range points {
		if ready := s.Ready(from, from, costs[i]); ready > latest {
			last, latest = i, ready
		}
	}
	if last >= 0 {
		points[last].bound += at - from
	}
	for i, s := range points {
		s.meter.Take(at, at, costs[i], at > p.now)
	}
}
