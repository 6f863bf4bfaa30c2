package limiter

import (
	"cmp"
	"context"
	"math"
	"slices"

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

// Forecast plays n requests like r, with the priority, the caller and the gate of w. With n = 0, it plays those that wait where r would, or
// all that wait if r has no key. The rejection is why r could never be granted; the error, why there is no rate for a key.
func (l *Core) Forecast(r *Request, w *Waiter, n int) (Forecast, *Rejection, error) {
	p, err := l.play(r, w, n)
	if err != nil || p.rejection != nil && n > 0 {
		return Forecast{}, p.rejection, err
	}
	return p.forecast(n), nil, nil
}

// A play is the copy of what some requests wait for.
type play struct {
	now       meter.Instant
	points    []*stage // of the requests that come now
	costs     []int64
	ends      []int64      // what these will probably be in the end
	in        order.Waiter // what these requests have in common
	queue     []*queued    // that go before them
	least     bool         // see Forecast
	shut      bool         // they would be rejected, after Shutdown
	rejection *Rejection   // why they would be rejected in any case; nil: they would not

	order order.Order
	more  int // waiters behind those in queue
	all   map[*bucket.Bucket]*stage
	each  []*stage // of all, in the order in which they were copied
}

// A queued is the copy of a request that waits. It is the Owner of its Waiter.
type queued struct {
	order.Waiter
	order.Standing
	ends []int64 // what its costs will probably be in the end
	like int     // others that wait behind it and are taken to be like it
}

// A stage is the copy of a bucket.
type stage struct {
	order.Point
	limit *bucket.Limit
	key   string
	meter meter.Meter
	opens meter.Instant // the end of a hold
	bound int64         // for how long requests have waited for it after all others could pay
	free  float64       // what can be paid now, where it is not known how long more takes; +Inf: it is
	waits bool          // requests wait there
	// unsettled: what requests cost in the end has not been seen, so what comes in is not enough for a bound.
	unsettled bool
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
func (l *Core) play(r *Request, w *Waiter, n int) (*play, error) {
	charges := r.Charges()
	now, rates, err := l.beginRated(charges)
	defer l.end()
	p := &play{now: now, shut: l.isShutLocked(r.User), all: make(map[*bucket.Bucket]*stage)}
	if err != nil {
		return p, err
	}
	l.dueLocked(now)
	w.arrived = now
	w.bind(context.Background(), l.deadlineAge, now)
	p.in = order.Waiter{Rank: w.in.Rank, Last: meter.Never, Caller: w.in.Caller, Weight: max(1, w.in.Weight)}
	keyed := false
	for i := range charges {
		p.addLocked(l, &charges[i], rateAt(rates, i))
		keyed = keyed || charges[i].Key != ""
	}
	var gate *bucket.Bucket
	if w.Gate != nil {
		if g := l.servers.Find(w.Gate, now); g != nil {
			gate = ownerOf(g)
			p.add(p.copyLocked(gate), 1, 1)
		}
	}
	switch {
	case n > 0:
		p.copyQueueLocked(charges, gate, p.in.Rank)
	case keyed:
		p.copyQueueLocked(charges, gate, meter.Never)
	default:
		p.copyAllLocked(&l.order)
	}
	return p, nil
}

// addLocked adds the charge of the requests that come now.
func (p *play) addLocked(l *Core, c *Charge, own meter.Rate) {
	li, found := c.Limit(), c.find()
	var s *stage
	cost, end, most := c.Cost, c.Cost, int64(0)
	switch {
	case found && c.Key == "" && li.Hosted && li.Keys() > 0 && c.Bucket.IsUnused(p.now): // requests are counted by host
		if li.Keys() > 1 {
			s, most = &stage{limit: li, meter: meter.Unlimited{}}, meter.MaxCount // which of them is not known
			s.Point.Payer = s
			break
		}
		c.Bucket = li.Only()
		c.Key = c.Bucket.Key
		fallthrough
	case found:
		s, end, most = p.copyLocked(c.Bucket), c.Bucket.Expected(cost, c.share), c.Bucket.Meter.Most()
	default:
		rate, burst := li.Terms(own)
		m := l.standInLocked(li, rate, burst, p.now)
		s, most = p.stage(li, c.Key, m), m.Most()
		p.least = p.least || li.Supply != nil
	}
	switch {
	case cost < 0 || cost > most && !li.Clamps:
		p.rejection = &Rejection{Reason: bucket.ReasonCost, Limit: li, Key: c.Key, Cost: cost, Wait: bucket.Until(meter.Never, 0), Most: most}
	case cost > most:
		cost, end = most, min(end, most)
	}
	p.add(s, cost, end)
}

func (p *play) add(s *stage, cost, end int64) {
	p.points, p.costs, p.ends = append(p.points, s), append(p.costs, cost), append(p.ends, end)
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
	s := &stage{limit: li, key: key, opens: li.AllHeldUntil(), free: math.Inf(1)}
	p.least = p.least || li.Settles || li.Settled.IsKnown()
	switch m := m.(type) {
	case meter.Copier:
		s.meter = m.Copy()
	case meter.Bounder:
		s.meter, p.least = m.Best(p.now), true
	case meter.Player:
		known := false
		if s.meter, known = m.Play(p.now); !known {
			s.free = m.(meter.Meter).Tokens(p.now)
		}
		p.least = true
	default: // as without limits
		s.meter = m
	}
	if li.Settles && li.Rated && !li.Settled.IsKnown() {
		s.free, s.unsettled = max(0, m.Tokens(p.now)), true
	}
	s.Point.Payer = s
	return s
}

func (p *play) copyLocked(b *bucket.Bucket) *stage {
	if s := p.all[b]; s != nil {
		return s
	}
	s := p.stage(b.Limit, b.Key, b.Meter)
	s.opens, s.waits, s.Point.Fair = b.HeldUntil(), b.Waiting() > 0, b.Limit.Fair
	p.all[b] = s
	p.each = append(p.each, s)
	return s
}

// copyQueueLocked copies the requests up to a rank that wait where those that come now will.
func (p *play) copyQueueLocked(charges []Charge, gate *bucket.Bucket, rank meter.Instant) {
	seen := make(map[*order.Waiter]bool)
	copyAt := func(b *bucket.Bucket) {
		if b.Waiting() == 0 {
			return
		}
		for in := range bucket.PointOf(b).Waiters {
			if len(p.queue) == queueCopied {
				p.more = max(p.more, b.Waiting()-queueCopied)
				break
			}
			if !seen[in] && in.Rank <= rank {
				seen[in] = true
				p.copyWaiterLocked(in)
			}
		}
	}
	for i := range charges {
		if c := &charges[i]; c.isFound() {
			copyAt(c.Bucket)
		}
	}
	if gate != nil {
		copyAt(gate)
	}
}

// copyAllLocked copies all requests that wait.
func (p *play) copyAllLocked(o *order.Order) {
	for in, like := range o.Sample(queueCopied) {
		p.copyWaiterLocked(in)
		p.queue[len(p.queue)-1].like = like
	}
}

// copyWaiterLocked copies a request that waits.
func (p *play) copyWaiterLocked(in *order.Waiter) {
	other := &queued{Standing: in.Standing()}
	n := len(in.At)
	other.Waiter = order.Waiter{Rank: in.Rank, Last: meter.Never, Caller: in.Caller, Weight: in.Weight, Costs: slices.Clone(in.Costs[:n]), Owner: other}
	w := in.Owner.(*Waiter)
	for i, at := range in.At {
		b, share := bucket.Of(at), bucket.Share(0)
		if w.lowered {
			share = w.charges[i].share
		}
		other.At = append(other.At, &p.copyLocked(b).Point)
		other.ends = append(other.ends, b.Expected(in.Costs[i], share))
	}
	if in.Gate != nil {
		other.Gate = &p.copyLocked(bucket.Of(in.Gate)).Point
	}
	p.queue = append(p.queue, other)
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
	stages, costs := p.points, p.costs
	when := make([]meter.Instant, min(n, playedMost))
	p.begin()
	at := p.now
	for i := range when {
		at = p.next(at)
		when[i] = at
	}
	if n == 0 {
		n, when, stages, costs = 1, []meter.Instant{p.drain()}, p.each, nil
	}
	var last *stage // that the last of them waits for, if it was not played
	for i := range f.Tenths {
		k := n/10*(i+1) + (n%10*(i+1)+9)/10 // n·(i+1) might overflow
		f.Tenths[i], last = p.nth(when, k)
		if s := p.unknown(stages, costs, k, f.Tenths[i]); s != nil {
			f.Tenths[i], last, s.bound = meter.Never, nil, meter.Never
		}
	}
	f.Least = p.least
	var most int64
	if last != nil {
		last.bound += f.Tenths[9] - when[len(when)-1]
	}
	for _, s := range stages {
		if s.bound > most {
			most, f.Limit, f.Key = s.bound, s.limit, s.key
		}
	}
	if f.Limit == nil && f.Tenths[9] == meter.Never { // some meter cannot say when it can pay once more
		for _, s := range stages {
			if s.Ready(p.now, p.now, 1) == meter.Never {
				f.Limit, f.Key = s.limit, s.key
			}
		}
	}
	return f
}

// unknown returns the stage because of which it is not known when the k-th request of some costs is sent, although as far as is known it could
// be sent then; nil: there is none. No costs: of those that wait, the last one. Where something that is known delays it further than a hold,
// that is a lower bound.
func (p *play) unknown(stages []*stage, costs []int64, k int, at meter.Instant) *stage {
	opens := p.now
	for _, s := range stages {
		opens = max(opens, s.opens)
	}
	for i, s := range stages {
		if at > opens && !s.unsettled {
			continue
		}
		if s.waits && !math.IsInf(s.free, 1) || costs != nil && float64(k)*float64(costs[i]) > s.free {
			return s
		}
	}
	return nil
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
	slices.SortFunc(p.queue, func(a, b *queued) int { return cmp.Compare(a.Nth, b.Nth) }) // they were copied one line after the other
	for _, q := range p.queue {
		p.order.Join(&q.Waiter, p.now)
	}
	for _, q := range p.queue {
		p.order.Resume(&q.Waiter, q.Standing)
	}
	for i := range p.more {
		p.joinLike(p.queue[i%len(p.queue)])
	}
	for more := true; more; {
		more = false
		for _, q := range p.queue {
			if q.like > 0 {
				q.like--
				p.joinLike(q)
				more = true
			}
		}
	}
}

// joinLike has another request wait like a copied one.
func (p *play) joinLike(q *queued) {
	w := &q.Waiter
	p.order.Join(&order.Waiter{At: w.At, Costs: q.costs(), Gate: w.Gate, Rank: w.Rank, Last: meter.Never, Caller: w.Caller, Weight: w.Weight, Owner: q}, p.now)
}

// costs returns what a copied request is charged, without what the order keeps behind it.
func (q *queued) costs() []int64 { return q.Waiter.Costs[:len(q.ends)] }

// drain plays until no request waits, and returns when the last one is sent.
func (p *play) drain() (at meter.Instant) {
	for at = p.now; p.order.Len() > 0 && at < meter.Never; {
		at = p.grant(at)
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
			p.pay(p.points, p.costs, p.ends, from, at)
		}
		return at
	}
	own := p.in
	for i, s := range p.points {
		own.At, own.Costs = append(own.At, &s.Point), append(own.Costs, p.costs[i])
	}
	p.order.Join(&own, at)
	for own.IsWaiting() && at < meter.Never {
		at = p.grant(at)
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
func (p *play) grant(from meter.Instant) (at meter.Instant) {
	for at = from; at < meter.Never; at = p.order.Wake() {
		w, due := p.order.Next(at)
		if w == nil {
			continue
		}
		points, ends := make([]*stage, len(w.Costs)), p.ends
		for i := range points {
			points[i] = w.Point(i).Payer.(*stage)
		}
		if q, ok := w.Owner.(*queued); ok {
			ends = q.ends
		}
		p.pay(points, w.Costs, ends, from, due)
		return due
	}
	return meter.Never
}

// pay charges a request that is sent at an instant, and notes what it has waited for since the one before it. What it will be charged less,
// or more, in the end counts from then on.
func (p *play) pay(points []*stage, costs, ends []int64, from, at meter.Instant) {
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
		charged := s.meter.Take(at, at, costs[i], at > p.now)
		if i < len(ends) && ends[i] != costs[i] {
			s.meter.Settle(charged, at, costs[i], ends[i])
		}
	}
}
