package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/concurrency"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
	"github.com/httpthrottle/throttle/internal/supply"
	"github.com/httpthrottle/throttle/store"
)

// This file makes timers and responses of stores late, by 1 ns to 1 s, past the instants at which something ends: tokens that were
// leased, windows, slots, holds, outages. Nothing may panic then, and no window and no slots may be used beyond their number.

// lateKinds are the kinds of limits, each for one key, so small and short that something ends all the time. Those that Shared
// fits are there twice.
var lateKinds = map[string]func(opts ...ruleOption) rule{
	"bucket": func(opts ...ruleOption) rule {
		return tokenBucket(100, time.Second, append(opts, withBurst(5))...)
	},
	"pace": func(opts ...ruleOption) rule { return pace(100, time.Second, opts...) },
	"sliding": func(opts ...ruleOption) rule {
		return slidingWindow(lateN, latePer, opts...)
	},
	"quota": func(opts ...ruleOption) rule { return evenQuota(lateN, latePer, opts...) },
	"fixed": func(opts ...ruleOption) rule {
		return fixedWindow(lateN, latePer, opts...)
	},
	"calendar": func(opts ...ruleOption) rule {
		return calendarWindow(50, meter.Day, time.FixedZone("", -1), opts...) // one ends 1 s after a bubble begins
	},
	"slots": func(opts ...ruleOption) rule { return inFlight(lateN, opts...) },
	"adaptive": func(opts ...ruleOption) rule {
		return adaptive(aimd.Config{Initial: 100}, opts...)
	},
	"adaptive slots": func(opts ...ruleOption) rule {
		return adaptiveInFlight(concurrency.Config{}, opts...)
	},
}

const (
	lateN   = 6
	latePer = 40 * time.Millisecond
)

func TestNothingThatEndsIsUsedLate(t *testing.T) { // slow: every kind of limit beside every other one
	var names []string
	for name := range lateKinds {
		names = append(names, name)
		if name != "adaptive" && name != "adaptive slots" {
			names = append(names, name+", shared")
		}
	}
	slices.Sort(names)
	beside := append(slices.Clone(names), "hints")
	rounds, steps := uint64(1), 100_000/(len(names)*len(beside))+1
	if !testing.Short() {
		rounds = 4
	}
	var all lateTally
	for seed := range rounds {
		for i, one := range names {
			for k, other := range beside {
				synctest.Test(t, func(t *testing.T) {
					w := newLate(t, rand.New(rand.NewPCG(seed, uint64(i*len(beside)+k))), one, other)
					for range steps {
						w.step()
					}
					all.add(w.lateTally)
				})
			}
		}
	}
	t.Logf("%+v", all)
	require.Greater(t, all.granted, steps*len(names)*len(beside)/20)
	require.Positive(t, all.lost)
}

type lateTally struct{ granted, lost, late int }

func (c *lateTally) add(o lateTally) {
	c.granted, c.lost, c.late = c.granted+o.granted, c.lost+o.lost, c.late+o.late
}

// A late is a Core whose timers and store the test plays.
type late struct {
	testing.TB
	*rand.Rand
	core    *driven
	gate    *quota.Key // nil: no server sends hints
	book    *store.Book
	calls   []*bucket.Supply // that have begun
	flights []flight
	ends    []meter.Instant // when something ends
	waiting []*limiter.Waiter
	granted []*grantedLate
	used    map[string]map[meter.Instant]int64 // by limit, and by window of latePer
	outage  bool
	lateTally
}

// A flight is a call of the store on its way back.
type flight struct {
	call     *bucket.Call
	outcomes []supply.Outcome
	err      error
}

type grantedLate struct {
	limiter.Request
	windows []meter.Instant // by charge
}

func newLate(t testing.TB, r *rand.Rand, kinds ...string) *late {
	w := &late{TB: t, Rand: r, book: store.NewBook(), used: make(map[string]map[meter.Instant]int64)}
	terms := []sharedOption{storeGrace(time.Duration(1 + r.Int64N(int64(200*time.Millisecond))))}
	if w.outage = r.IntN(4) == 0; w.outage {
		terms = append(terms, withoutStore(supply.ButLocally), expectProcesses(2))
	}
	var rules []option
	memory := store.NewMemory() // not called
	for i, kind := range kinds {
		if kind == "hints" {
			w.gate = &quota.Key{Host: "h"}
			continue
		}
		opts := []ruleOption{named(fmt.Sprint(kind, i))}
		if local, isShared := cut(kind); isShared {
			kind, opts = local, append(opts, shared(memory, terms...))
		}
		rules = append(rules, lateKinds[kind](opts...))
	}
	r.Shuffle(len(rules), func(i, j int) { rules[i], rules[j] = rules[j], rules[i] })
	w.core = drive(t, rules...)
	w.core.SetCallStore(func(s *bucket.Supply) { w.calls = append(w.calls, s) })
	return w
}

func cut(kind string) (local string, isShared bool) {
	const suffix = ", shared"
	if n := len(kind) - len(suffix); n > 0 && kind[n:] == suffix {
		return kind[:n], true
	}
	return kind, false
}

func (w *late) now() meter.Instant { return meter.Instant(time.Since(w.core.Start)) }

// lateness returns 1 ns to 1 s, of any order of magnitude.
func (w *late) lateness() int64 { return 1 + w.Int64N(min(int64(time.Second), int64(1)<<w.IntN(31))) }

// step lets time pass and does anything.
func (w *late) step() {
	w.pass()
	w.core.WakeAll(w.Perm(3))
	switch w.IntN(10) {
	case 0, 1, 2, 3:
		w.join(1 + w.Int64N(1+w.Int64N(5)))
	case 4:
		if n := len(w.waiting); n > 0 && w.IntN(3) == 0 {
			i := w.IntN(n)
			if w.core.Leave(w.waiting[i]); !w.waiting[i].Rejected() { // even if it was granted at that instant
				w.waiting = slices.Delete(w.waiting, i, i+1)
			}
		}
	case 5:
		if w.IntN(4) > 0 {
			break
		}
		d := w.lateness()
		w.core.hold("", time.Duration(d))
		w.ends = append(w.ends, w.now()+d)
	case 6:
		w.core.Release("")
	default:
		w.end()
	}
	w.callStore()
	w.collect()
}

// pass lets time pass: until late after an end, the next instant of a timer or a random one.
func (w *late) pass() {
	at, now := w.core.StopTimers(), w.now()
	w.ends = slices.DeleteFunc(w.ends, func(end meter.Instant) bool { return end <= now })
	if n := len(w.ends); n > 0 && w.IntN(2) == 0 {
		at = w.ends[w.IntN(n)]
	}
	switch {
	case at-now > int64(20*time.Second), w.IntN(4) == 0:
		at = now + w.Int64N(int64(latePer))
	case w.IntN(8) > 0:
		at += w.lateness()
		w.late++
	}
	time.Sleep(time.Duration(max(0, at-now)))
}

func (w *late) join(cost int64) {
	r := limiter.Request{User: w.core.user}
	for _, li := range w.core.Limits {
		if li.Frees {
			r.Add(li, "", 1)
		} else {
			r.Add(li, "", cost)
		}
	}
	in := r.Waiter()
	in.Priority, in.Gate = w.IntN(2), w.gate
	switch waits, err := w.core.Enqueue(context.Background(), in); {
	case waits:
		w.waiting = append(w.waiting, in)
	case err == nil:
		w.grant(in)
	}
}

// collect looks which requests were granted.
func (w *late) collect() {
	w.waiting = slices.DeleteFunc(w.waiting, func(in *limiter.Waiter) bool {
		if isGranted(in) {
			w.grant(in)
		}
		return isDecided(in)
	})
	for _, li := range w.core.Limits {
		if li.Frees && !li.Learns && !w.outage {
			require.LessOrEqual(w, li.InFlight(), lateN)
		}
	}
}

func (w *late) grant(in *limiter.Waiter) {
	w.lateTally.granted++
	g := new(grantedLate)
	in.Take(&g.Request)
	charges := g.Charges()
	g.windows = make([]meter.Instant, len(charges))
	for i := range charges {
		c := &charges[i]
		g.windows[i] = (w.core.Start.UnixNano() + g.At) / int64(latePer)
		if c.Limit().Stored == store.Fixed && c.Limit().Supply != nil && !w.outage {
			require.Equal(w, c.Paid*1000/int64(latePer), g.windows[i], "%s: leased in another window than used in", c.Limit().Name)
		}
		w.count(c.Limit(), g.windows[i], c.Cost)
	}
	w.granted = append(w.granted, g)
}

// count counts what is used of a window.
func (w *late) count(li *bucket.Limit, window meter.Instant, cost int64) {
	if w.outage || li.Stored != store.Fixed || li.Gates {
		return
	}
	if w.used[li.Name] == nil {
		w.used[li.Name] = make(map[meter.Instant]int64)
	}
	w.used[li.Name][window] += cost
	require.LessOrEqual(w, w.used[li.Name][window], int64(lateN), "in one window of %s", li.Name)
}

// end ends a request: it had a response, was not sent, or cost something else.
func (w *late) end() {
	n := len(w.granted)
	if n == 0 {
		return
	}
	i := w.IntN(n)
	g := w.granted[i]
	w.granted = slices.Delete(w.granted, i, i+1)
	charges := g.Charges()
	a := limiter.Answer{Outcome: []aimd.Outcome{aimd.OK, aimd.OK, aimd.Throttled}[w.IntN(3)]}
	if w.gate != nil {
		a.Hints = &quota.Hints{Limited: a.Outcome == aimd.Throttled, Quotas: []quota.QuotaHint{{
			Limit: 10, Left: w.Int64N(3), Known: true, Ends: true, Reset: time.Duration(w.Int64N(int64(latePer))),
		}}}
		if a.Hints.Limited {
			a.Hints.Wait = time.Duration(w.lateness())
			w.ends = append(w.ends, w.now()+int64(a.Hints.Wait))
		}
	}
	switch w.IntN(6) {
	case 0: // it was not sent
		for i := range charges {
			w.count(charges[i].Limit(), g.windows[i], -charges[i].Cost)
		}
		w.core.Cancel(&g.Request)
		return
	case 1:
		if c := &charges[0]; !c.Limit().Frees && c.Limit().Stored != store.Fixed {
			_, err := w.core.Settle(&g.Request, 0, w.Int64N(9))
			require.NoError(w, err)
		}
	}
	w.core.Report(&g.Request, &a)
	if w.gate != nil && len(charges) == len(w.core.Limits) {
		w.core.ReportUngated(&g.Request, w.gate, &a)
	}
}

// callStore lets calls begin, arrive, and return, in any order and at any time.
func (w *late) callStore() {
	for len(w.calls) > 0 && w.IntN(4) > 0 {
		s := w.calls[0]
		w.calls = w.calls[1:]
		f := w.core.Collect(s)
		if f == nil {
			continue
		}
		back := flight{call: f}
		if w.IntN(30) == 0 {
			back.err = errLost
			w.lost++
		} else {
			for _, l := range w.book.Lease(time.Now(), f.Asks) {
				require.NoError(w, l.Err)
				for _, p := range l.Parts {
					back.outcomes = append(back.outcomes, supply.Outcome{LeasedPart: p})
					for _, d := range []time.Duration{p.Until, p.Next, p.Hold, p.Wait} {
						if d > 0 {
							w.ends = append(w.ends, f.Sent()+int64(d))
						}
					}
				}
			}
		}
		w.ends = append(w.ends, f.Sent()+int64(10*time.Millisecond), f.Sent()+int64(f.Timeout()))
		w.flights = append(w.flights, back)
	}
	for len(w.flights) > 0 && w.IntN(3) > 0 {
		i := w.IntN(len(w.flights))
		back := w.flights[i]
		w.flights = slices.Delete(w.flights, i, i+1)
		if w.now()-back.call.Sent() > int64(back.call.Timeout()) {
			w.core.Book(back.call, nil, context.DeadlineExceeded, true)
		}
		if w.core.Book(back.call, back.outcomes, back.err, false) {
			w.calls = append(w.calls, back.call.Supply) // it calls until there is nothing to ask for
		}
	}
}

var errLost = errors.New("connection reset")
