package order

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// A several is an Order of requests under several points and gates, with callers or without, which does anything that can be
// done.
type several struct {
	*world
	r       *rand.Rand
	points  []*Point
	gates   []*Point
	waiting []*Waiter
	planned map[*Waiter]Instant // a lower bound of when it is granted; missing: something has changed since
	fair    bool
}

func newSeveral(t testing.TB, r *rand.Rand) *several {
	x := &several{world: &world{TB: t}, r: r, planned: make(map[*Waiter]Instant), fair: r.IntN(3) == 0}
	for range 1 + r.IntN(4) {
		x.points = append(x.points, x.point(aFake(r)))
	}
	for range r.IntN(4) {
		x.gates = append(x.gates, x.point(aFake(r)))
	}
	x.points[0].Fair = x.fair
	x.paid = x.grant
	return x
}

// places are the points of a request, and its gate.
func places(w *Waiter) []*Point {
	all := slices.Clone(w.At)
	if w.Gate != nil {
		all = append(all, w.Gate)
	}
	return all
}

// canPay reports whether all points of a request except one can pay it.
func canPay(w *Waiter, except *Point, at Instant) bool {
	for i := range w.Costs {
		if p := w.Point(i); p != except && p.Ready(at, at, w.Costs[i]) > at {
			return false
		}
	}
	return true
}

// isFirst reports whether no request with an earlier rank shares a point with one.
func (x *several) isFirst(w *Waiter) bool {
	for _, other := range x.waiting {
		if other != w && other.earlier(w) && slices.ContainsFunc(places(other), func(p *Point) bool { return slices.Contains(places(w), p) }) {
			return false
		}
	}
	return true
}

// grant checks that the request goes in order.
func (x *several) grant(w *Waiter, due Instant) {
	x.waiting = slices.DeleteFunc(x.waiting, func(other *Waiter) bool { return other == w })
	if bound, ok := x.planned[w]; ok {
		require.GreaterOrEqual(x, due, bound, "granted before the lower bound that was planned")
	}
	delete(x.planned, w)
	for _, other := range x.waiting {
		if slices.Equal(places(other), places(w)) && other.Caller == w.Caller {
			before := other.earlier(w)
			if x.fair && w.At[0].Fair {
				before = other.key.seq < w.key.seq
			}
			require.False(x, before, "a request overtook another one that falls under the same points")
		}
		if !x.fair && other.earlier(w) && x.isFirst(other) {
			for _, p := range places(w) {
				if slices.Contains(places(other), p) {
					require.False(x, canPay(other, p, due), "a request overtook another one that only this point stopped")
				}
			}
		}
	}
}

// request returns any request.
func (x *several) request() *Waiter {
	w := &Waiter{Rank: RankOf(x.now, 0), Last: Never, Weight: 1}
	for len(w.At) == 0 {
		for _, p := range x.points {
			if x.r.IntN(2) == 0 {
				w.At, w.Costs = append(w.At, p), append(w.Costs, 1+x.r.Int64N(3))
			}
		}
	}
	if len(x.gates) > 0 && x.r.IntN(3) > 0 {
		w.Gate = x.gates[x.r.IntN(len(x.gates))]
	}
	if x.r.IntN(4) == 0 {
		w.Rank = RankOf(x.now, x.r.IntN(3)-1)
	}
	if x.fair {
		w.Caller = string(rune('a' + x.r.IntN(3)))
	}
	if x.r.IntN(2) == 0 {
		w.Last = x.now + x.r.Int64N(1<<x.r.IntN(33))
	}
	return w
}

// arrive has a request come.
func (x *several) arrive() {
	w := x.request()
	due, _ := x.Plan(w, x.now)
	if due > w.Last {
		return
	}
	if len(x.gates) > 0 || len(x.points) > 1 { // what could pay all may now have to wait for a while, and other requests go before
		clear(x.planned)
	}
	x.Join(w, x.now)
	if again, _ := x.Plan(w, x.now); len(x.points) == 1 && !x.fair {
		require.Equal(x, due, again, "plan of a request that has joined")
	} else if !x.fair { // another line waits there now
		require.LessOrEqual(x, again, due, "plan of a request that has joined")
	}
	x.waiting = append(x.waiting, w)
	x.planned[w] = due
}

func first[A, B any](a A, _ B) A { return a }

func (x *several) step() {
	switch what := x.r.IntN(12); {
	case what < 4:
		x.until(x.now + x.r.Int64N(1<<x.r.IntN(33)))
	case what == 4 && len(x.waiting) > 0:
		i := x.r.IntN(len(x.waiting))
		w := x.waiting[i]
		x.waiting = slices.Delete(x.waiting, i, i+1)
		clear(x.planned)
		x.Leave(w)
	case what == 5 || what == 6 && x.r.IntN(2) == 0:
		all := append(slices.Clone(x.points), x.gates...)
		p := all[x.r.IntN(len(all))]
		clear(x.planned)
		if p.Payer.(*fake).change(x.r, x.now) {
			x.Check(p)
		}
		x.Touch(p)
		for _, w := range x.reject(1 + x.r.IntN(40)) {
			x.waiting = slices.DeleteFunc(x.waiting, func(other *Waiter) bool { return other == w })
		}
	case what == 6 && len(x.gates) > 1 && len(x.waiting) > 0:
		clear(x.planned)
		if w := x.waiting[x.r.IntN(len(x.waiting))]; w.Gate != nil {
			x.Move(w, w.Gate, x.gates[x.r.IntN(len(x.gates))])
		}
	case what == 7 && x.fair:
		clear(x.planned)
		x.Correct(x.points[0], string(rune('a'+x.r.IntN(3))), 1, x.r.Int64N(7)-3)
	default:
		x.arrive()
	}
	x.serve()
}

// rest checks that no request can go, now and until Wake.
func (x *several) rest() {
	x.check(x)
	require.Equal(x, len(x.waiting), x.Len())
	if x.fair {
		return
	}
	at := x.now
	if wake := x.Wake(); x.r.IntN(2) == 0 {
		at += x.r.Int64N(min(wake, x.now+10*second) - x.now)
	}
	for _, w := range x.waiting {
		require.False(x, x.isFirst(w) && canPay(w, nil, at), "a request can go at %d, and Wake is %d", at, x.Wake())
	}
}

func runSeveral(t testing.TB, r *rand.Rand, steps int) {
	x := newSeveral(t, r)
	for range steps {
		x.step()
		x.rest()
	}
	for len(x.waiting) > 0 {
		w := x.waiting[0]
		x.waiting = x.waiting[1:]
		clear(x.planned)
		x.Leave(w)
		x.serve()
	}
	require.Empty(t, x.lines)
	require.Empty(t, x.due)
	for _, p := range append(x.points, x.gates...) {
		require.Zero(t, p.Waiting())
		require.Empty(t, p.blocked)
		require.Empty(t, p.stops)
		require.Nil(t, p.turns)
	}
}

func TestSeveralPointsKeepTheOrder(t *testing.T) { // slow: 400 seeds
	forSeeds(t, 400, func(t *testing.T, r *rand.Rand) { runSeveral(t, r, 100) })
}

// In this seed, a request of a caller with requests at several gates goes later than its own gate alone would have it.
func TestACallerAtSeveralGatesIsPlannedByItsTurns(t *testing.T) {
	runSeveral(t, rand.New(rand.NewPCG(1917, 1)), 100)
}

func FuzzSeveral(f *testing.F) {
	f.Add(uint64(0))
	f.Fuzz(func(t *testing.T, seed uint64) { runSeveral(t, rand.New(rand.NewPCG(seed, 3)), 100) })
}

// A request is rejected if and only if it would be planned for too late after all rejections before it, one by one.
func TestNoRequestIsRejectedThatWouldBeInTime(t *testing.T) {
	rejected, queues := 0, 0
	forSeeds(t, 400, func(t *testing.T, r *rand.Rand) {
		seed := r.Uint64()
		fair, debts := r.IntN(2) == 0, r.IntN(2) == 0
		one, other := newCrowd(t, seed, fair), newCrowd(t, seed, fair)
		require.Equal(t, len(one.waiting), len(other.waiting))
		for range 4 {
			seed = r.Uint64()
			want := other.rejectOneByOne(other.change(seed))
			var got []*Waiter
			switch p := one.change(seed); {
			case p == nil:
			case debts:
				got = one.rejectForDebts(p)
			default:
				one.Check(p)
				got = one.reject(1 + r.IntN(50))
			}
			for _, x := range []*several{one, other} {
				for _, p := range append(x.points, x.gates...) {
					x.Touch(p)
				}
				x.serve()
			}
			require.Equal(t, len(want), len(got))
			for i, w := range got {
				require.Equal(t, slices.Index(other.waiting, want[i]), slices.Index(one.waiting, w))
			}
			for _, ln := range one.lines {
				queues = max(queues, len(ln.queues))
			}
			rejected += len(got)
			one.check(t)
		}
	})
	require.Positive(t, rejected)
	require.Greater(t, queues, 2)
}

// newCrowd has many requests wait that differ in costs, gates, priorities and for how long.
func newCrowd(t testing.TB, seed uint64, fair bool) *several {
	x := newSeveral(t, rand.New(rand.NewPCG(seed, 4)))
	x.fair, x.points[0].Fair = fair, fair
	x.points = x.points[:min(2, len(x.points))]
	if fair { // plans are exact in one queue for each caller
		x.gates = nil
	}
	for _, p := range append(x.points, x.gates...) {
		p.Payer.(*fake).held = second
	}
	last := x.now + x.r.Int64N(int64(10*second))
	for range 80 {
		w := &Waiter{Rank: RankOf(x.now, x.r.IntN(3)), Last: last, Weight: 1}
		if fair {
			w.Caller, w.Rank = string(rune('a'+x.r.IntN(20))), 0 // else the next of its caller may go before others that have been checked
		}
		for _, p := range x.points {
			w.At, w.Costs = append(w.At, p), append(w.Costs, 1+x.r.Int64N(3))
		}
		if len(x.gates) > 0 {
			w.Gate = x.gates[x.r.IntN(len(x.gates))]
		}
		if x.r.IntN(2) == 0 {
			w.Last = x.now + x.r.Int64N(int64(20*second))
		}
		if due, _ := x.Plan(w, x.now); due <= w.Last {
			x.Join(w, x.now)
			x.waiting = append(x.waiting, w)
		}
	}
	x.serve()
	return x
}

func (x *several) change(seed uint64) *Point {
	r := rand.New(rand.NewPCG(seed, 5))
	all := append(slices.Clone(x.points), x.gates...)
	p := all[r.IntN(len(all))]
	if !p.Payer.(*fake).change(r, x.now) || p.Waiting() == 0 {
		return nil
	}
	return p
}

// rejectForDebts has so many debts come that all requests are checked.
func (x *several) rejectForDebts(p *Point) (late []*Waiter) {
	for range 50 {
		x.CheckDebt(p)
		late = append(late, x.reject(1+x.r.IntN(50))...)
	}
	return late
}

// turnOf returns the place of a request among those of its line.
func turnOf(w *Waiter) key {
	k := key{0, w.Rank, w.key.seq}
	if q := w.queue; q.caller != nil {
		before := int64(0)
		for other := q.first; other != w; other = other.next() {
			before += other.Costs[q.lane.line.fair]
		}
		k.major = q.caller.start(before)
	}
	return k
}

// rejectOneByOne is what Overdue and its caller do, by planning every request after every rejection.
func (x *several) rejectOneByOne(p *Point) (late []*Waiter) {
	for p != nil {
		all := slices.DeleteFunc(slices.Clone(x.waiting), func(w *Waiter) bool { return !w.IsWaiting() })
		slices.SortFunc(all, func(a, b *Waiter) int {
			if turnOf(a).Before(turnOf(b)) {
				return -1
			}
			return 1
		})
		i := slices.IndexFunc(all, func(w *Waiter) bool { return first(x.Plan(w, x.now)) > w.tight() })
		if i < 0 {
			break
		}
		x.Leave(all[i])
		late = append(late, all[i])
	}
	return late
}

// The gate of some requests is found to be two: each of them is granted as if its own gate had been known from the beginning, with other
// limits or without.
func TestARequestThatIsMovedStandsAsIfItHadWaitedThereFromTheBeginning(t *testing.T) {
	forSeeds(t, 80, func(t *testing.T, r *rand.Rand) {
		seed := r.Uint64()
		moved, known := newDivided(t, seed, true), newDivided(t, seed, false)
		moved.until(30 * second)
		known.until(30 * second)
		require.Len(t, known.granted, dividedRequests)
		for i, g := range known.granted {
			require.Equal(t, g.w.Owner, moved.granted[i].w.Owner, "grant %d", i)
			require.Equal(t, g.due, moved.granted[i].due, "grant %d", i)
		}
	})
}

const dividedRequests = 40

// newDivided has requests wait at two gates, which are held. If they move, they have waited at another one.
func newDivided(t *testing.T, seed uint64, move bool) *several {
	r := rand.New(rand.NewPCG(seed, 6))
	x := newSeveral(t, rand.New(rand.NewPCG(seed, 7)))
	parts := []*Point{x.point(aFake(r)), x.point(aFake(r))}
	whole, only := x.point(&fake{kind: slots, most: 1}), r.IntN(3) == 0
	for _, p := range append(parts, whole) {
		p.Payer.(*fake).held = 10*second + r.Int64N(int64(second))
	}
	for _, p := range append(x.points, parts...) { // so that all are granted
		p.Payer.(*fake).kind, p.Payer.(*fake).step = bucket, 1+p.Payer.(*fake).step%(100*ms)
	}
	of := make(map[*Waiter]*Point)
	for i := range dividedRequests {
		caller := r.IntN(3)
		w := &Waiter{Rank: RankOf(x.now, r.IntN(3)), Last: Never, Weight: 1 + int64(caller), Caller: string(rune('a' + caller)), Owner: i}
		part, at := parts[r.IntN(2)], whole
		if !move {
			at = part
		}
		if of[w] = part; only {
			w.At, w.Costs = []*Point{at}, []int64{1}
		} else {
			w.At, w.Costs, w.Gate = x.points[:1], []int64{1 + r.Int64N(3)}, at
		}
		x.Join(w, x.now)
		x.waiting = append(x.waiting, w)
		x.until(x.now + r.Int64N(int64(second/10)))
	}
	if move {
		for _, i := range r.Perm(dividedRequests) {
			x.Move(x.waiting[i], whole, of[x.waiting[i]])
			x.serve()
		}
		require.Zero(t, whole.Waiting())
	}
	x.check(t)
	return x
}

// earlier reports whether w came before other, by rank.
func (w *Waiter) earlier(other *Waiter) bool {
	return w.Rank < other.Rank || w.Rank == other.Rank && w.key.seq < other.key.seq
}
