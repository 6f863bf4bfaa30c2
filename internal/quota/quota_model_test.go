package quota

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

// Some servers tell the time to some more, and not to all: after the reset of a quota that was empty one request asks, and the
// others wait for its answer.
func TestQuotaAfterAWindowThatRanDryOneRequestAsks(t *testing.T) {
	_, g, _ := newFamilies()
	asks(t, g, 0, core(50, 1, 10*second))
	sends(t, g, 1, 1)
	g.Answered(2, 1, true, []Tell{core(50, 0, 10*second)})
	requireReady(t, g, 2, 10*second)
	sends(t, g, 10*second, 1)
	requireWaits(t, g, 10*second)
	g.Answered(11*second, 10*second, true, []Tell{core(50, 4, 15*second)})
	sends(t, g, 11*second, 1)
	requireReady(t, g, 11*second, 11*second+second/2) // three are left for four seconds, of which two count
}

func TestQuotaWordIsLessWhatWasSilentSince(t *testing.T) {
	a, g, _ := newFamilies()
	asks(t, g, 0, core(100, 10, meter.Never))
	sends(t, g, 1, 2)
	sends(t, g, 6, 1)
	g.Answered(5, 1, true, nil)
	g.Answered(7, 1, true, []Tell{core(100, 9, meter.Never)}) // counted before the other, perhaps
	require.EqualValues(t, 8, a.quotas[0].told)
	g.Answered(8, 6, true, []Tell{core(100, 7, meter.Never)}) // and this one after it
	require.EqualValues(t, 7, a.quotas[0].told)
	for range 2 * maxSilent {
		g.Take(9, 9, 1, false)
		g.Answered(9, 9, true, nil)
		require.LessOrEqual(t, len(a.quotas[0].silent), maxSilent)
	}
}

func TestQuotaDetails(t *testing.T) {
	a, g, _ := newFamilies()
	asks(t, g, 0, core(10, 1, meter.Never), Tell{"daily", 10, 9, meter.Never, true, 0, false, ""})
	sends(t, g, 1, 1)
	requireWaits(t, g, 1) // for an answer, whatever the second of the two says
	g.Take(2, 2, 1, true) // in a dry run
	require.EqualValues(t, 1, a.quotas[0].told)

	a, g, y := newFamilies()
	sends(t, y, 5, 1)
	asks(t, g, 10, core(10, 0, 60*second))
	y.Answered(61*second, 5, true, []Tell{core(10, 5, 120*second)}) // other requests that fall under it see the reset, too
	require.EqualValues(t, 5, a.quotas[0].told)
}

// A hostWorld is one server and one client with many requests to send, in simulated time.
type hostWorld struct {
	eventHeap
	now     meter.Instant
	r       *rand.Rand
	server  modelServer
	account *Account
	gates   []*modelGate

	up, down         [2]int64      // least and most latency
	lost, mute, back float64       // shares of answers lost, of answers without headers, and of requests not sent
	blur             int64         // to what resets are rounded: up, if negative down
	until            meter.Instant // no request comes after

	deaf           int           // gates that have heard nothing yet
	heard          meter.Instant // all have
	made           int           // events
	sent, refused  int
	granted, toWhy int // refused for want of knowledge
}

type modelGate struct {
	*Gate
	waiting int
	since   meter.Instant
	armed   meter.Instant
	heard   bool
}

// A modelServer decides about a request that arrives, and says what is left.
type modelServer interface {
	arrive(now meter.Instant) (ok bool, t Tell)
}

// windows is a server with a fixed window.
type windows struct {
	limit  int64
	length int64
	window int64
	used   int64
	mostly map[int64]int64 // granted by window
}

func (s *windows) arrive(now meter.Instant) (bool, Tell) {
	if w := now / s.length; w != s.window {
		s.window, s.used = w, 0
	}
	ok := s.used < s.limit
	if ok {
		s.used++
		s.mostly[s.window]++
	}
	return ok, core(s.limit, s.limit-s.used, (s.window+1)*s.length)
}

// tokens is a server with a token bucket, that tells when there is some more.
type tokens struct {
	rate  float64 // per second
	burst float64
	level float64
	at    meter.Instant
}

func (s *tokens) arrive(now meter.Instant) (bool, Tell) {
	s.level = min(s.burst, s.level+float64(now-s.at)/1e9*s.rate)
	s.at = now
	ok := s.level >= 1
	if ok {
		s.level--
	}
	more := (math.Floor(s.level) + 1 - s.level) / s.rate
	return ok, core(int64(s.burst), int64(s.level), now+int64(math.Ceil(more*1e9)))
}

func newWorld(seed uint64, s modelServer, gates int) *hostWorld {
	w := &hostWorld{
		r: rand.New(rand.NewPCG(seed, 0)), server: s, account: NewAccount(NewServer(seed), seed+1),
		up: [2]int64{5 * milli, 100 * milli}, down: [2]int64{5 * milli, 100 * milli}, heard: meter.Never, deaf: gates,
	}
	for range gates {
		w.gates = append(w.gates, &modelGate{Gate: NewGate(w.account), waiting: 200 / gates})
	}
	return w
}

func (w *hostWorld) between(span [2]int64) int64 { return span[0] + w.r.Int64N(span[1]-span[0]+1) }

// An event is what happens at an instant. Events of one instant happen in the order in which they were made.
type event struct {
	at  meter.Instant
	seq int
	do  func()
}

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(event)) }
func (h *eventHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// after lets do happen in d.
func (w *hostWorld) after(d int64, do func()) {
	w.made++
	heap.Push(&w.eventHeap, event{w.now + max(0, d), w.made, do})
}

// run runs the world to its end.
func (w *hostWorld) run() {
	w.serve()
	for len(w.eventHeap) > 0 {
		e := heap.Pop(&w.eventHeap).(event)
		w.now = e.at
		e.do()
		w.serve()
	}
}

// serve sends the requests that may go, and sets timers, which are late, for the others.
func (w *hostWorld) serve() {
	for _, g := range w.gates {
		for g.waiting > 0 && w.now < w.until {
			at := g.Ready(g.since, 0, 1)
			if at > w.now {
				if at < meter.Never && at != g.armed {
					g.armed = at
					w.after(at-w.now+w.r.Int64N(milli), func() {})
				}
				break
			}
			due := max(at, w.now-20*milli)
			g.Take(due, w.now, 1, true)
			g.since = max(g.since, due)
			g.waiting--
			w.send(g)
		}
	}
}

// send sends a request. When it has been answered, its sender wants to send the next.
func (w *hostWorld) send(g *modelGate) {
	sentAt := w.now
	if w.r.Float64() < w.back {
		w.after(w.between(w.up), func() { g.GiveBack(0, w.now, 1); g.waiting++ })
		return
	}
	w.sent++
	w.after(w.between(w.up), func() {
		ok, told := w.server.arrive(w.now)
		switch {
		case ok:
			w.granted++
		case sentAt <= w.heard:
			w.toWhy++
		default:
			w.refused++
		}
		switch {
		case w.blur > 0:
			told.Reset = (told.Reset + w.blur - 1) / w.blur * w.blur
		case w.blur < 0:
			told.Reset = told.Reset / w.blur * w.blur
		}
		tells := []Tell{told}
		switch p := w.r.Float64(); {
		case p < w.lost:
			w.after(second, func() { g.Answered(w.now, sentAt, false, nil); g.waiting++ })
			return
		case p < w.lost+w.mute:
			tells = nil
		}
		w.after(w.between(w.down), func() {
			if tells != nil && !g.heard {
				if g.heard, w.deaf = true, w.deaf-1; w.deaf == 0 {
					w.heard = w.now
				}
			}
			g.Answered(w.now, sentAt, ok, tells)
			g.waiting++
		})
	})
}

// requireNotStuck demands that, long after, all can go.
func (w *hostWorld) requireNotStuck(t *testing.T) {
	t.Helper()
	for _, g := range w.gates {
		require.Zero(t, g.inFlight)
		at := g.Ready(w.now, 0, 1)
		require.Less(t, at, meter.Never)
		require.True(t, g.Payable(at+100*second, 1))
	}
}

func TestQuotaModelFixedWindowNeverRejectsAClientThatKnowsIt(t *testing.T) {
	for _, c := range []struct {
		limit, length    int64
		gates            int
		lost, mute, back float64
		least            float64
		blind            int // refused since no answer of a small window may have told anything // of what the windows allow
	}{
		{50, 10 * second, 1, 0, 0, 0, 0.95, 0},
		{50, 10 * second, 1, 0.03, 0.1, 0.02, 0.95, 0},
		{50, 10 * second, 3, 0.03, 0.1, 0.02, 0.95, 0},
		{1000, 10 * second, 1, 0.03, 0.1, 0.02, 0.95, 0},
		{1000, 60 * second, 2, 0.03, 0.1, 0.02, 0.95, 0},
		{20, 4 * second, 2, 0.03, 0.1, 0.02, 0.95, 0},
		{3, 10 * second, 2, 0.03, 0.1, 0.02, 0.95, 2},
		{50, 10 * second, 2, 0.1, 0.6, 0.1, 0.88, 0}, // a client that hears less must be more careful
	} {
		t.Run(fmt.Sprintf("%d in %ds by %d gates, %v mute", c.limit, c.length/second, c.gates, c.mute), func(t *testing.T) {
			const n = 40
			worst, sum := 1.0, 0.0
			for seed := range uint64(10) {
				s := &windows{limit: c.limit, length: c.length, mostly: map[int64]int64{}}
				w := newWorld(seed, s, c.gates)
				w.lost, w.mute, w.back, w.until = c.lost, c.mute, c.back, n*c.length
				w.run()
				require.LessOrEqual(t, w.refused, c.blind, "seed %d: refused of %d", seed, w.sent)
				require.LessOrEqual(t, w.toWhy, 200)
				good := 0.0
				for i := range int64(n - 1) {
					good += float64(s.mostly[i+1]) / float64(c.limit*(n-1))
				}
				worst, sum = min(worst, good), sum+good
				w.requireNotStuck(t)
			}
			t.Logf("goodput %.4f, at least %.4f", sum/10, worst)
			require.GreaterOrEqual(t, worst, c.least)
		})
	}
}

// What a token bucket tells is the time to some more: at such a reset, there is not the limit again. Once that has been
// seen, few are refused, though all want to go at once. One request for each reset asks first, which at round trips of 105 ms
// costs throughput where a token comes every 20 ms.
func TestQuotaModelTokenBucketIsUsedUpAndSeldomOverrun(t *testing.T) {
	for _, c := range []struct{ rate, burst, least float64 }{{1, 5, 0.95}, {5, 10, 0.95}, {20, 20, 0.75}, {50, 50, 0.45}, {50, 500, 0.95}} {
		t.Run(fmt.Sprintf("%v per second, burst %v", c.rate, c.burst), func(t *testing.T) {
			worst, refused := 1.0, 0.0
			for seed := range uint64(10) {
				w := newWorld(seed, &tokens{rate: c.rate, burst: c.burst, level: c.burst}, 2)
				w.lost, w.mute, w.back, w.until = 0.03, 0.1, 0.02, 300*second
				w.run()
				worst = min(worst, float64(w.granted)/(c.burst+300*c.rate))
				refused = max(refused, float64(w.refused)/float64(w.sent))
				w.requireNotStuck(t)
			}
			t.Logf("goodput at least %.4f, refused at most %.4f", worst, refused)
			require.GreaterOrEqual(t, worst, c.least)
			require.Less(t, refused, 0.2)
		})
	}
}

// Resets in whole seconds are late by up to one, or early.
func TestQuotaModelResetsInWholeSeconds(t *testing.T) {
	for _, blur := range []int64{second, -second} {
		for seed := range uint64(10) {
			s := &windows{limit: 50, length: 9300 * milli, mostly: map[int64]int64{}}
			w := newWorld(seed, s, 2)
			w.lost, w.mute, w.back, w.until, w.blur = 0.03, 0.1, 0.02, 40*s.length, blur
			w.run()
			good := float64(w.granted) / float64(40*s.limit)
			t.Logf("blur %d: goodput %.4f, refused %d of %d", blur/second, good, w.refused, w.sent)
			require.GreaterOrEqual(t, good, 0.9)
			w.requireNotStuck(t)
		}
	}
}
