package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/store"
)

// seen collects the events of a Transport.
type seen struct {
	waits   []throttle.WaitEvent
	grants  []throttle.GrantEvent
	rejects []throttle.RejectEvent
	cancels []throttle.CancelEvent
	holds   []throttle.HoldEvent
}

func (x *seen) hooks() throttle.Option {
	return throttle.WithHooks(throttle.Hooks{
		OnWait:   func(e throttle.WaitEvent) { x.waits = append(x.waits, e) },
		OnGrant:  func(e throttle.GrantEvent) { x.grants = append(x.grants, e) },
		OnReject: func(e throttle.RejectEvent) { x.rejects = append(x.rejects, e) },
		OnCancel: func(e throttle.CancelEvent) { x.cancels = append(x.cancels, e) },
		OnHold:   func(e throttle.HoldEvent) { x.holds = append(x.holds, e) },
	})
}

func transportOf(t *testing.T, opts ...throttle.Option) *throttle.Transport {
	transport, err := throttle.New(&answered{&http.Response{Body: http.NoBody}}, opts...)
	require.NoError(t, err)
	return transport
}

func TestHooksAndStatsReportWhatHappens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var x seen
		transport := transportOf(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second, throttle.Name("slow"))),
			throttle.WithKey(throttle.ByHost), x.hooks(), throttle.WithMaxQueue(1), throttle.WithRejectionError(),
			throttle.WithExempt(func(r *http.Request) bool { return r.URL.Path == "/health" }))
		ctx, cancel := context.WithCancelCause(t.Context())
		send := func(ctx context.Context, path string) error {
			_, err := transport.RoundTrip(get(t, ctx, "http://h"+path))
			return err
		}
		require.NoError(t, send(ctx, "/"))
		go send(ctx, "/") // waits a second, but is cancelled
		synctest.Wait()
		require.Equal(t, throttle.Stats{Waiting: 1, Buckets: 1, Granted: 1}, counted(transport.Stats()))
		require.ErrorIs(t, send(ctx, "/"), throttle.ErrThrottled) // the line is full
		time.Sleep(400 * time.Millisecond)
		cancel(errors.New("enough"))
		synctest.Wait()
		require.NoError(t, send(t.Context(), "/")) // waits
		require.NoError(t, send(t.Context(), "/health"))
		require.NoError(t, send(throttle.ContextWithExempt(t.Context()), "/"))
		_, sent, err := transport.TryRoundTrip(get(t, t.Context(), "http://h/health"))
		require.NoError(t, err)
		require.True(t, sent)
		require.ErrorIs(t, send(throttle.ContextWithMaxWait(t.Context(), 0), "/"), throttle.ErrThrottled)
		require.ErrorIs(t, send(throttle.ContextWithMaxWait(t.Context(), time.Second-1), "/"), throttle.ErrThrottled)
		require.ErrorIs(t, send(throttle.ContextWithCost(t.Context(), 2), "/"), throttle.ErrThrottled)
		transport.Limiter().Hold("h", time.Hour)
		require.ErrorIs(t, send(throttle.ContextWithMaxWait(t.Context(), time.Minute), "/"), throttle.ErrThrottled)

		want := throttle.Stats{
			Buckets: 1, Granted: 2, Delayed: 1, Waited: 600 * time.Millisecond, Canceled: 1, Exempt: 3,
			Rejected: throttle.Counts[throttle.Reason]{throttle.ReasonNoTokens: 1, throttle.ReasonMaxWait: 1, throttle.ReasonQueueFull: 1, throttle.ReasonCost: 1, throttle.ReasonHeld: 1},
		}
		require.Equal(t, want, counted(transport.Stats()))
		require.Equal(t, uint64(5), want.Rejected.Total())
		want.Exempt, want.Holds.Caller = 0, 1
		require.Equal(t, want, counted(transport.Limiter().Stats()))

		require.Equal(t, []throttle.WaitEvent{
			{Place: throttle.Place{Context: ctx, Limit: "slow", Key: "h"}, Cost: 1, Wait: time.Second},
			{Place: throttle.Place{Context: t.Context(), Limit: "slow", Key: "h"}, Cost: 1, Wait: 600 * time.Millisecond},
		}, x.waits)
		require.Len(t, x.grants, 2)
		require.Zero(t, x.grants[0].Waited)
		require.Equal(t, 600*time.Millisecond, x.grants[1].Waited)
		require.Len(t, x.rejects, 5)
		require.Equal(t, throttle.ReasonHeld, x.rejects[4].Rejection.Reason)
		require.Equal(t, time.Hour, x.rejects[4].Rejection.Wait)
		require.Equal(t, time.Minute, x.rejects[4].Rejection.MaxWait)
		require.Equal(t, []throttle.CancelEvent{{Place: throttle.Place{Context: ctx, Limit: "slow", Key: "h"}, Cause: context.Cause(ctx), Waited: 400 * time.Millisecond}}, x.cancels)
		require.Equal(t, []throttle.HoldEvent{{Place: throttle.Place{Key: "h"}, For: time.Hour, Source: throttle.SourceCaller}}, x.holds)

		buckets := map[string]throttle.BucketStats{}
		for b := range transport.Limiter().Buckets() {
			buckets[b.Key] = b
		}
		require.Equal(t, throttle.BucketStats{Limit: "slow", Key: "h", Rate: 1, Capacity: 1, Wait: time.Hour, HeldUntil: time.Now().Add(time.Hour).Round(0)},
			rounded(buckets["h"]))
		_, err = json.Marshal(transport.Stats()) // as expvar does
		require.NoError(t, err)
		_, err = json.Marshal(buckets)
		require.NoError(t, err)
	})
}

// counted takes the settings out of Stats.
func counted(s throttle.Stats) throttle.Stats {
	s.MaxQueue, s.MaxKeys, s.DryRun = 0, 0, false
	return s
}

// rounded takes the monotonic clock out of a BucketStats, and its tokens, which Tokens tests have.
func rounded(b throttle.BucketStats) throttle.BucketStats {
	b.HeldUntil, b.Tokens = b.HeldUntil.Round(0), 0
	return b
}

func TestNothingIsLoggedByDefaultAndOneLineASecondElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		lines := func() []string {
			defer out.Reset()
			return strings.Split(strings.TrimSpace(out.String()), "\n")
		}
		transport := transportOf(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second)), throttle.WithRejectionError(),
			throttle.WithLogger(slog.New(slog.NewTextHandler(&out, nil))))
		send := func(ctx context.Context) { transport.RoundTrip(get(t, ctx, "http://h/")) }
		send(t.Context())
		require.Equal(t, []string{""}, lines(), "a request that need not wait is not logged")
		for range 100 {
			send(throttle.ContextWithMaxWait(t.Context(), 0))
			send(throttle.ContextWithCost(t.Context(), 5))
		}
		got := lines()
		require.Len(t, got, 2, "one for each reason")
		require.Contains(t, got[0], `level=WARN msg="throttle: request rejected" reason="no tokens" limit=bucket key="" cost=1 wait=1s`)
		require.Contains(t, got[1], `reason=cost`)
		require.NotContains(t, got[0], "suppressed")
		time.Sleep(time.Second - 1)
		send(throttle.ContextWithCost(t.Context(), 5))
		require.Equal(t, []string{""}, lines())
		time.Sleep(time.Nanosecond)
		send(throttle.ContextWithCost(t.Context(), 5))
		require.Contains(t, lines()[0], "suppressed=100")
		transport.Limiter().Hold("", time.Second)
		require.Contains(t, lines()[0], `level=WARN msg="throttle: held" key="" for=1s source=caller`)
		send(t.Context())
		require.Contains(t, lines()[0], `level=INFO msg="throttle: request waits" limit=bucket key="" cost=1 wait=1s`)
	})
}

func TestDryRunDelaysAndRefusesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var x seen
		transport := transportOf(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second)), throttle.WithDryRun(),
			throttle.WithMaxWait(2*time.Second), x.hooks())
		start := time.Now()
		for range 5 {
			resp, err := transport.RoundTrip(get(t, t.Context(), "http://h/"))
			require.NoError(t, err)
			_, local := throttle.RejectionOf(resp)
			require.False(t, local)
		}
		require.Zero(t, time.Since(start))
		require.Equal(t, throttle.Stats{Waiting: 2, Granted: 1, Rejected: throttle.Counts[throttle.Reason]{throttle.ReasonMaxWait: 2}}, counted(transport.Stats()))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Equal(t, throttle.Stats{
			Granted: 3, Delayed: 2, Waited: 3 * time.Second, Rejected: throttle.Counts[throttle.Reason]{throttle.ReasonMaxWait: 2},
		}, counted(transport.Stats()))
		require.Len(t, x.grants, 3)
		require.Equal(t, 2*time.Second, x.grants[2].Waited)
		require.True(t, x.grants[2].DryRun)
		require.Len(t, x.rejects, 2)
		require.True(t, x.rejects[0].DryRun)
		require.Equal(t, 3*time.Second, x.rejects[0].Rejection.Wait)
	})
}

// TestSeveralTransportsShareOneBudget has three users of one Limiter, each with costs, maximum waits and rejections of its own.
func TestSeveralTransportsShareOneBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var x, y seen
		limiter, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(10, time.Second)), x.hooks())
		require.NoError(t, err)
		search := transportOf(t, throttle.WithLimiter(limiter), throttle.WithFailFast(), throttle.WithCost(costing(6)))
		bulk := transportOf(t, throttle.WithLimiter(limiter), y.hooks())
		require.Same(t, limiter, bulk.Limiter())

		resp, err := search.RoundTrip(get(t, t.Context(), "http://h/"))
		require.NoError(t, err)
		_, local := throttle.RejectionOf(resp)
		require.False(t, local)
		resp, err = search.RoundTrip(get(t, t.Context(), "http://h/"))
		require.NoError(t, err)
		rejection, local := throttle.RejectionOf(resp)
		require.True(t, local)
		require.Equal(t, 200*time.Millisecond, rejection.Wait, "2 of 6 are missing")

		start := time.Now()
		require.NoError(t, limiter.Wait(throttle.ContextWithCost(t.Context(), 5), throttle.Ask{Cost: 99}))
		require.Equal(t, 100*time.Millisecond, time.Since(start))
		_, err = bulk.RoundTrip(get(t, t.Context(), "http://h/"))
		require.NoError(t, err)
		require.Equal(t, 200*time.Millisecond, time.Since(start))

		require.Equal(t, throttle.Stats{Granted: 1, Rejected: throttle.Counts[throttle.Reason]{throttle.ReasonNoTokens: 1}}, counted(search.Stats()))
		require.Equal(t, throttle.Stats{Granted: 1, Delayed: 1, Waited: 100 * time.Millisecond}, counted(bulk.Stats()))
		require.Equal(t, throttle.Stats{
			Granted: 3, Delayed: 2, Waited: 200 * time.Millisecond, Rejected: throttle.Counts[throttle.Reason]{throttle.ReasonNoTokens: 1},
		}, counted(limiter.Stats()))
		require.Len(t, x.grants, 3, "of both Transports, and of the Limiter itself")
		require.Len(t, y.grants, 1, "hooks of its own")
	})
}

func TestWithoutLimitsOnlyAHoldStopsARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		transport := transportOf(t, throttle.WithKey(throttle.ByHost))
		start := time.Now()
		for range 1000 {
			_, err := transport.RoundTrip(get(t, t.Context(), "http://a/"))
			require.NoError(t, err)
		}
		transport.Limiter().Hold("a", time.Minute)
		_, err := transport.RoundTrip(get(t, t.Context(), "http://b/"))
		require.NoError(t, err)
		require.Zero(t, time.Since(start))
		_, err = transport.RoundTrip(get(t, t.Context(), "http://a/"))
		require.NoError(t, err)
		require.Equal(t, time.Minute, time.Since(start))
		require.Error(t, transport.Limiter().SetRate("none", 1, 1))
	})
}

func TestAGuessedShareIsWarnedOf(t *testing.T) {
	for name, c := range map[string]struct {
		opts []throttle.SharedOption
		warn bool
	}{
		"guessed":  {[]throttle.SharedOption{throttle.WithoutStore(throttle.OutageLocalShare)}, true},
		"expected": {[]throttle.SharedOption{throttle.WithoutStore(throttle.OutageLocalShare), throttle.ExpectProcesses(8)}, false},
		"rejects":  {nil, false},
		"passes":   {[]throttle.SharedOption{throttle.WithoutStore(throttle.OutagePass)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			log := slog.New(slog.NewTextHandler(&out, nil))
			limit := throttle.TokenBucket(1, time.Second, throttle.Name("calls"), throttle.Shared(store.NewMemory(), c.opts...))
			_, err := throttle.NewLimiter(throttle.WithLimit(limit), throttle.WithLogger(log))
			require.NoError(t, err)
			if !c.warn {
				require.Empty(t, out.String())
				return
			}
			require.Equal(t, 1, strings.Count(out.String(), "\n"), out.String())
			require.Contains(t, out.String(), "level=WARN")
			require.Contains(t, out.String(), "ExpectProcesses")
			require.Contains(t, out.String(), "limits=[calls]")
		})
	}
}
