package limiter_test

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/quota"
)

// sendBy makes a request that passes a gate of the host "h" as well.
func sendBy(ctx context.Context, l *throttle.Limiter, family uint64, ask throttle.Ask) *request {
	r := new(request)
	ctx, r.cancel = context.WithCancelCause(ctx)
	go func() {
		w := waiterOf(l, ask)
		w.Gate = &quota.Key{Host: "h", Family: family}
		r.decide(l, nil, coreOf(l).Acquire(ctx, w))
	}()
	synctest.Wait()
	return r
}

func TestARequestThatExpiresLetsTheNextGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.InFlight(2, throttle.Name("slots"))))
		ask := func(n int64) throttle.Ask { return throttle.Ask{Costs: map[string]int64{"slots": n}} }
		requireGranted(t, send(t, l, ask(1)), 0)
		both := ask(2)
		both.MaxWait = new(time.Second)
		expires, next := send(t, l, both), send(t, l, ask(1))
		require.False(t, next.done)
		sleep(time.Second)
		requireRefused(t, expires, time.Second, throttle.ReasonMaxWait)
		requireGranted(t, next, time.Second)
		checkInvariants(t, l)
	})
}

func TestWhatIsStoppedByItsGateIsNotAheadOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, empty(1, throttle.Burst(1)))
		coreOf(l).Lock()
		g := coreOf(l).GateLocked(quota.Key{Host: "h", Family: 1}, 0)
		g.Take(0, 0, 1, false)
		hints := quota.Hints{Quotas: []quota.QuotaHint{{Name: "core", Limit: 100, Known: true, Ends: true, Reset: 1000 * time.Second}}}
		coreOf(l).Servers().Apply(g, &quota.Report{Number: 1, Accepted: true, Reading: hints.Read(0)}, 0)
		coreOf(l).Unlock()
		ctx, cancel := context.WithCancel(t.Context())
		for range 10 {
			sendBy(ctx, l, 1, throttle.Ask{Cost: 1})
		}
		soon, stop := context.WithTimeout(t.Context(), 5*time.Second)
		defer stop()
		free := sendBy(soon, l, 2, throttle.Ask{Cost: 1})
		require.NoError(t, l.SetRate("bucket", 1, time.Second))
		synctest.Wait()
		require.False(t, free.done, "%v", free.err)
		sleep(time.Second)
		requireGranted(t, free, time.Second)
		cancel()
		synctest.Wait()
		checkInvariants(t, l)
	})
}

func TestABucketThatIsKeptAgainHasTheBurstOfToday(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(10, time.Second)))
		g := send(t, l, throttle.Ask{Key: "k", Cost: 1}).grant
		sleep(3 * time.Second)
		require.Zero(t, l.Stats().Buckets)
		require.NoError(t, l.SetBurst("bucket", 3))
		require.NoError(t, g.Settle("bucket", 2))
		require.Equal(t, 2, drain(l, "k"))
	})
}

// A request that was barred by one that gives up was not late.
func TestARequestThatIsBarredNoMoreIsChargedAsOfNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterOf(t, throttle.WithLimit(
			throttle.TokenBucket(1000, time.Second, throttle.Burst(10), throttle.Name("a")), throttle.TokenBucket(1, time.Second, throttle.Burst(10), throttle.Initial(0), throttle.Name("b"))))
		bars := send(t, l, throttle.Ask{Costs: map[string]int64{"a": 0, "b": 5}})
		barred := send(t, l, throttle.Ask{Costs: map[string]int64{"a": 1, "b": 1}})
		sleep(2 * time.Second)
		require.False(t, barred.done)
		bars.cancel(nil)
		synctest.Wait()
		requireGranted(t, barred, 2*time.Second)
		requireRefused(t, send(t, l, throttle.Ask{Costs: map[string]int64{"a": 10, "b": 0}, MaxWait: new(time.Duration(0))}), 2*time.Second, throttle.ReasonNoTokens)
	})
}

// A queue has a line for each path family that a server may count apart.
func TestDeadlinesAreCheckedOnArrivalWhateverTheNumberOfFamilies(t *testing.T) {
	within(t, "last", func(t *testing.T) { deadlinesOfManyFamilies(t, false) })
	within(t, "before another", func(t *testing.T) { deadlinesOfManyFamilies(t, true) })
}

// deadlinesOfManyFamilies checks requests that come last, or before one that waits.
func deadlinesOfManyFamilies(t *testing.T, before bool) {
	l := limiterOf(t, empty(1, throttle.Burst(1)))
	ctx, cancel := context.WithCancel(t.Context())
	const families = 200
	for i := range families {
		sendBy(ctx, l, uint64(i), throttle.Ask{Cost: 1})
	}
	if before {
		sendBy(ctx, l, 0, throttle.Ask{Cost: 1, Priority: -1000})
	}
	soon, stop := context.WithTimeout(t.Context(), 100*time.Second)
	defer stop()
	for _, family := range []uint64{0, families - 1, families} { // with a line of its own or without
		rejection := requireRefused(t, sendBy(soon, l, family, throttle.Ask{Cost: 1}), 0, throttle.ReasonDeadline)
		require.Equal(t, (families+1)*time.Second, rejection.Wait)
		rejection = requireRefused(t, sendBy(ctx, l, family, throttle.Ask{Cost: 1, MaxWait: new(families * time.Second)}), 0, throttle.ReasonMaxWait)
		require.Equal(t, (families+1)*time.Second, rejection.Wait)
	}
	late := sendBy(ctx, l, families, throttle.Ask{Cost: 1, MaxWait: new((families + 1) * time.Second)})
	sleep((families + 1) * time.Second)
	requireGranted(t, late, (families+1)*time.Second)
	cancel()
	synctest.Wait()
}

// TestAClosedLineIsNoLongerVocal has a server hold two families of requests, and those of one family leave the queue.
func TestAClosedLineIsNoLongerVocal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := throttle.Must(throttle.New(rt(func(*http.Request) (*http.Response, error) { return reply(429, "Retry-After", "60") }), throttle.WithLimit(throttle.TokenBucket(1, time.Hour))))
		_, err := tr.RoundTrip(get(t.Context(), "http://h/a"))
		require.NoError(t, err)
		waits := func(path string) (cancel func()) {
			ctx, stop := context.WithCancel(t.Context())
			go func() { _, _ = tr.RoundTrip(get(ctx, "http://h/"+path)) }()
			synctest.Wait()
			return stop
		}
		first, second, third := waits("a"), waits("b"), waits("c")
		for _, stop := range []func(){second, first, third} {
			checkInvariants(t, tr.Limiter())
			stop()
			synctest.Wait()
		}
		checkInvariants(t, tr.Limiter())
	})
}
