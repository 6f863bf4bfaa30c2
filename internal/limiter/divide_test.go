package limiter_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/quota"
)

// This file is about requests that wait at a gate while responses show that the server counts them in two quotas.

// models are the traits of a request for a model, in one of two regions or in none.
type models uint64

func (m models) Trait(n int) uint64 {
	switch n {
	case 0:
		return uint64(m.model())
	case 1:
		return uint64(m &^ m.model())
	}
	return 0
}

func (m models) String() string { return "POST /models" }

func (m models) model() models { return m & (small | large) }

// The models of two quotas, of 25 and of 600 a minute, and the regions of two more.
const (
	small models = 1 << iota
	large
	east
	west
)

func (m models) gate() *quota.Key { return &quota.Key{Host: "h", Family: 1, Traits: m} }

// counts is a response that reports what is left of the quota of the model for a minute after the start.
func (m models) counts(l *driven, left int64) *limiter.Answer {
	q := quota.QuotaHint{Name: quota.Unnamed, Limit: 25, Left: left, Known: true, Ends: true, Reset: time.Minute - l.now()}
	if m.model() == large {
		q.Limit = 600
	}
	return &limiter.Answer{Outcome: aimd.OK, Hints: &quota.Hints{Quotas: []quota.QuotaHint{q}}, Traits: m}
}

// A division is requests to a server that counts two models, which the client sends as those of one quota until divide.
type division struct {
	*driven
	flights [2][]*limiter.Request // of the small quota, and of the large one
}

// newDivision returns a division with requests in flight, and none waiting.
func newDivision(t *testing.T, opts ...option) *division {
	l := &division{driven: drive(t, opts...)}
	l.exchange(t.Context(), large.gate(), ask{}, large.counts(l.driven, 599))
	for range 8 {
		for i, m := range []models{small, large} {
			l.flights[i] = append(l.flights[i], l.fly(m))
		}
	}
	return l
}

// fly makes a request for a model that is in flight from now on.
func (l *division) fly(m models) *limiter.Request {
	r := l.request(ask{})
	if l.Now(r, m.gate()) {
		return r
	}
	w := l.waiterFor(r, ask{})
	w.Gate = m.gate()
	waits, err := l.Enqueue(l.t.Context(), w)
	require.False(l.t, waits, err)
	r = &limiter.Request{Context: l.t.Context()}
	w.Take(r)
	return r
}

// responds has the next response to a request for a model come.
func (l *division) responds(m models, left int64) {
	of := &l.flights[m-small]
	l.Report((*of)[0], m.counts(l.driven, left))
	*of = (*of)[1:]
}

// divide has n responses for each model come, by which the two are known to be counted apart, with what is left of the small quota.
func (l *division) divide(n int, left int64) {
	for i := range int64(n) {
		l.responds(large, 590-i)
		l.responds(small, left)
	}
	synctest.Wait()
}

// sendFor makes a request for a model.
func (l *division) sendFor(ctx context.Context, m models, a ask) *request {
	r := new(request)
	ctx, r.cancel = context.WithCancelCause(ctx)
	go func() {
		w := l.waiter(a)
		w.Gate = m.gate()
		err, g := l.Acquire(ctx, w), &grant{&limiter.Request{Context: ctx}, l.driven}
		if err == nil {
			w.Take(g.Request)
		}
		r.decide(l.driven, g, err)
	}()
	synctest.Wait()
	return r
}

// sendBoth makes requests for the two models in turns.
func (l *division) sendBoth(ctx context.Context, a ask) (all []*request) {
	for range 3 {
		all = append(all, l.sendFor(ctx, small, a), l.sendFor(ctx, large, a))
	}
	return all
}

// Nothing is left of the small quota, so all requests wait for its end, until it is known which of them it concerns.
func TestRequestsThatWaitAreDividedWithTheirFamily(t *testing.T) {
	for name, opts := range map[string][]option{"without limits": nil, "with a limit": {inFlight(1000)}} {
		within(t, name, func(t *testing.T) {
			l := newDivision(t, opts...)
			l.responds(small, 0)
			all := l.sendBoth(t.Context(), ask{})
			sleep(time.Second)
			require.Equal(t, 6, l.counts().Waiting)
			l.divide(7, 0)
			l.responds(large, 580)
			l.check()
			requireGranted(t, all[1], time.Second) // it asks whether the end concerns it
			require.Equal(t, 5, l.counts().Waiting)
			all[1].grant.answer(large.counts(l.driven, 500))
			synctest.Wait()
			requireGranted(t, all[3], time.Second)
			requireGranted(t, all[5], time.Second)
			sleep(59*time.Second - 1)
			require.Equal(t, 3, l.counts().Waiting)
			sleep(1)
			requireGranted(t, all[0], time.Minute)
			l.check()
		})
	}
}

// A division of many requests lets others have the lock in between, and ends as one of a few does.
func TestManyRequestsAreDividedInPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const each = 30
		l := newDivision(t)
		pieces := 0
		l.SetChecks(60, func() { pieces++ }) // 10 of which are moved
		l.responds(small, 0)
		var all [2][]*request
		for range each {
			for i, m := range []models{small, large} {
				all[i] = append(all[i], l.sendFor(t.Context(), m, ask{}))
			}
		}
		sleep(time.Second)
		require.Equal(t, 2*each, l.counts().Waiting)
		l.divide(7, 0)
		require.GreaterOrEqual(t, pieces, 2*each/10-1)
		l.responds(large, 580)
		l.check()
		requireGranted(t, all[1][0], time.Second) // it asks whether the end concerns it
		all[1][0].grant.answer(large.counts(l.driven, 500))
		synctest.Wait()
		for _, r := range all[1] {
			requireGranted(t, r, time.Second)
		}
		sleep(59*time.Second - 1)
		require.Equal(t, each, l.counts().Waiting)
		sleep(1)
		requireGranted(t, all[0][0], time.Minute)
		l.check()
	})
}

// Requests wait for a slot, in one queue before they are divided and after.
func TestRequestsThatAreDividedKeepTheirOrderAndTheirMaxWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newDivision(t, inFlight(16))
		l.setInFlight("in-flight", 4)
		all, soon := l.sendBoth(t.Context(), ask{}), l.sendBoth(t.Context(), ask{MaxWait: ptr(30 * time.Second)})
		sleep(time.Second)
		l.divide(6, 20)
		l.check()
		require.Equal(t, 12, l.counts().Waiting)
		sleep(29*time.Second - 1)
		require.Equal(t, 12, l.counts().Waiting)
		sleep(1)
		for _, r := range soon {
			requireRejected(t, r, 30*time.Second, bucket.ReasonMaxWait)
		}
		for i, r := range all {
			require.False(t, r.done)
			l.setInFlight("in-flight", int64(5+i))
			synctest.Wait()
			requireGranted(t, r, 30*time.Second)
			l.check()
		}
	})
}

// newRegions returns a division by model, and requests in flight for the large one in the east and in the west, by which their server
// counts it.
func newRegions(t *testing.T) (l *division, flights [2][]*limiter.Request) {
	l = newDivision(t, inFlight(1000))
	l.divide(6, 20)
	for _, m := range []models{small, large} {
		l.Report(l.fly(m), m.counts(l.driven, 20)) // it gets an account of its own
	}
	for range 3 {
		for i, region := range []models{east, west} {
			flights[i] = append(flights[i], l.fly(large|region))
		}
	}
	return l, flights
}

// divideAgain has the responses to those requests come, by which they are known to be counted apart.
func (l *division) divideAgain(flights [2][]*limiter.Request) {
	for i := range int64(3) {
		l.Report(flights[0][i], (large|east).counts(l.driven, 480-i))
		l.Report(flights[1][i], (large|west).counts(l.driven, 180-i))
		synctest.Wait()
	}
}

// Nothing is left of the quota of the small model while requests for the large one wait for a slot. That these are divided once more is no
// reason to reject them.
func TestRequestsThatAreDividedAgainStayUnderTheirQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, flights := newRegions(t)
		l.responds(small, 0)
		l.setInFlight("in-flight", 2) // of 9
		var all []*request
		for range 3 {
			for _, m := range []models{large | east, large | west} {
				all = append(all, l.sendFor(t.Context(), m, ask{MaxWait: ptr(30 * time.Second)}))
			}
		}
		sleep(time.Second)
		l.divideAgain(flights)
		require.Equal(t, 6, l.counts().Waiting)
		l.check()
		l.setInFlight("in-flight", 1000)
		synctest.Wait()
		for _, r := range all {
			requireGranted(t, r, time.Second)
		}
		l.check()
	})
}

// Requests for the small model wait for a slot, until they are known to be counted by region, and with those for the large model, which the
// server has refused. Those whose MaxWait ends before that hold does are rejected. Only the first of each region may ask whether it
// concerns them.
func TestRequestsThatAreDividedAgainAreRejectedIfTheyAreTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, flights := newRegions(t)
		l.Report(l.fly(large), &limiter.Answer{Outcome: aimd.Throttled, Hints: waitHint(time.Minute), Traits: large})
		l.setInFlight("in-flight", 2) // of 9
		soon, later := ask{MaxWait: ptr(30 * time.Second)}, ask{MaxWait: ptr(2 * time.Minute)}
		first, other := l.sendFor(t.Context(), small|east, soon), l.sendFor(t.Context(), small|west, soon)
		late := []*request{l.sendFor(t.Context(), small|east, soon), l.sendFor(t.Context(), small|west, soon)}
		last := l.sendFor(t.Context(), small|east, later)
		sleep(time.Second)
		require.Equal(t, 5, l.counts().Waiting)
		l.divideAgain(flights)
		for _, r := range late {
			requireRejected(t, r, time.Second, bucket.ReasonHeld)
		}
		require.False(t, first.done || other.done || last.done)
		l.check()
	})
}
