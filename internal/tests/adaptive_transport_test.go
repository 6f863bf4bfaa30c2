package tests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/throttletest"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// An observed Transport has an adaptive limit, and keeps its events.
type observed struct {
	*throttle.Transport
	mu      sync.Mutex
	retunes []throttle.RetuneEvent
}

func observe(t *testing.T, base http.RoundTripper, limit throttle.Limit, opts ...throttle.Option) *observed {
	t.Helper()
	o := new(observed)
	hooks := throttle.WithHooks(throttle.Hooks{OnRetune: func(e throttle.RetuneEvent) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.retunes = append(o.retunes, e)
	}})
	var err error
	o.Transport, err = throttle.New(base, append([]throttle.Option{throttle.WithLimit(limit), hooks}, opts...)...)
	require.NoError(t, err)
	return o
}

// adaptively observes an adaptive limit before a server of throttletest.
func adaptively(t *testing.T, a throttle.AIMD, opts ...throttletest.Option) *observed {
	t.Helper()
	return observe(t, serverOf(t, opts...).Direct(), throttle.Adaptive(a))
}

func serverOf(t *testing.T, opts ...throttletest.Option) *throttletest.Handler {
	t.Helper()
	usual := []throttletest.Option{
		throttletest.WithRoundTrip(40*time.Millisecond, 0), throttletest.WithRetryAfter(throttletest.NoRetryAfter),
		throttletest.WithServiceTime(throttletest.Constant(10 * time.Millisecond)),
	}
	h, err := throttletest.NewHandler(append(usual, opts...)...)
	require.NoError(t, err)
	return h
}

// retuned counts the retunes with a cause.
func (o *observed) retuned(cause throttle.Cause) (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.retunes {
		if e.Reason == cause {
			n++
		}
	}
	return n
}

func (o *observed) bucket() throttle.BucketStats { return bucketIn(o.Limiter()) }

// bucketIn returns the bucket of the adaptive limit: that of its key, if it has one.
func bucketIn(l *throttle.Limiter) (found throttle.BucketStats) {
	for b := range l.Buckets() {
		if b.Limit == "adaptive" && b.Key >= found.Key {
			found = b
		}
	}
	return found
}

// send sends a request, and returns the status of the answer; 0: there was none.
func (o *observed) send(t *testing.T, ctx context.Context) int {
	resp, err := o.RoundTrip(get(t, ctx, "http://api.example.com/items"))
	if err != nil {
		return 0
	}
	_, err = io.Copy(io.Discard, resp.Body)
	assert.True(t, err == nil || ctx.Err() != nil, "%v", err)
	assert.NoError(t, resp.Body.Close())
	return resp.StatusCode
}

// pressed lets n callers, each of whom always has a next request, work for d.
func (o *observed) pressed(t *testing.T, n int, d time.Duration) {
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for ctx.Err() == nil {
				o.send(t, ctx)
			}
		})
	}
	time.Sleep(d)
	cancel()
	all.Wait()
	time.Sleep(time.Minute) // what the server still works on
}

// inBubble is a subtest in a bubble.
func inBubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

func TestOneCutForAllThatWereInFlight(t *testing.T) {
	after := http.Header{"Retry-After": {"2"}}
	for _, c := range []struct {
		name    string
		header  http.Header
		silence int
	}{{"bare", nil, 1}, {"Retry-After", after, 0}} {
		inBubble(t, c.name, func(t *testing.T) {
			o := adaptively(t, throttle.AIMD{Initial: 1000}, throttletest.WithFaults(throttletest.Respond(429, c.header).First(50)))
			var all sync.WaitGroup
			for range 50 {
				all.Go(func() { assert.Equal(t, 429, o.send(t, t.Context())) })
			}
			synctest.Wait()
			require.Equal(t, 50, o.bucket().InFlight)
			all.Wait()
			assert.Equal(t, 1, o.retuned(throttle.CauseThrottled))
			assert.Equal(t, c.silence, o.retuned(throttle.CauseSilence), "a row of failures")
			assert.Equal(t, c.silence+1, len(o.retunes))
			assert.GreaterOrEqual(t, o.bucket().Rate, 850.0, "nothing was accepted that would show where the limit is")
			assert.Zero(t, o.bucket().InFlight)
		})
	}
}

func TestAnIdleHourMovesNothing(t *testing.T) {
	for _, c := range []struct {
		name string
		opts []throttle.Option
	}{{"one for all", nil}, {"by host", []throttle.Option{throttle.WithKey(throttle.ByHost)}}} {
		inBubble(t, c.name, func(t *testing.T) {
			h := serverOf(t, throttletest.WithLimits(throttletest.TokenBucket(100, time.Second, throttletest.Burst(20))))
			o := observe(t, h.Direct(), throttle.Adaptive(throttle.AIMD{}), c.opts...)
			o.pressed(t, 50, 30*time.Second)
			before, retuned := o.bucket().Rate, len(o.retunes)
			require.InDelta(t, 100, before, 15)
			time.Sleep(59*time.Minute - 2*time.Second) // with the minute that pressed takes, an hour
			assert.Equal(t, before, o.bucket().Rate)
			assert.Equal(t, 200, o.send(t, t.Context()))
			assert.Equal(t, before, o.bucket().Rate)
			assert.Len(t, o.retunes, retuned)
		})
	}
}

// What shows nothing of load changes nothing, be it as fast as it may.
func TestWhatIsNoSampleMovesNothing(t *testing.T) { // slow: servers for minutes
	steady := func(t *testing.T, base http.RoundTripper, ctx func(context.Context) context.Context) {
		o := observe(t, base, throttle.Adaptive(throttle.AIMD{Initial: 20}))
		stop := time.Now().Add(20 * time.Second)
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				for time.Now().Before(stop) {
					o.send(t, ctx(t.Context()))
					time.Sleep(10 * time.Millisecond)
				}
			})
		}
		all.Wait()
		assert.Equal(t, 20.0, o.bucket().Rate)
		assert.Zero(t, len(o.retunes), "retunes")
		assert.Zero(t, o.bucket().InFlight)
		time.Sleep(time.Minute)
	}
	itself := func(ctx context.Context) context.Context { return ctx }
	inBubble(t, "a refusal of an inner Transport", func(t *testing.T) {
		inner, err := throttle.New(serverOf(t).Direct(), throttle.WithLimit(throttle.TokenBucket(1, time.Hour)), throttle.WithFailFast())
		require.NoError(t, err)
		steady(t, inner, itself)
	})
	inBubble(t, "a refusal of an inner Transport, as error", func(t *testing.T) {
		inner, err := throttle.New(serverOf(t).Direct(), throttle.WithLimit(throttle.TokenBucket(1, time.Hour)),
			throttle.WithFailFast(), throttle.WithRejectionError())
		require.NoError(t, err)
		steady(t, inner, itself)
	})
	inBubble(t, "the caller's own cancellation", func(t *testing.T) {
		steady(t, serverOf(t).Direct(), func(ctx context.Context) context.Context {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(30*time.Millisecond, cancel)
			return ctx
		})
	})
}

func TestFast500sNeverRaiseTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := adaptively(t, throttle.AIMD{Initial: 10}, throttletest.WithRoundTrip(2*time.Millisecond, 0),
			throttletest.WithFaults(throttletest.Outage(500)))
		o.pressed(t, 50, 5*time.Minute)
		highest := 0.0
		for _, e := range o.retunes {
			highest = max(highest, e.New)
		}
		t.Logf("highest %.1f, %d retunes, %v", highest, len(o.retunes), o.retunes[:min(5, len(o.retunes))])
		assert.LessOrEqual(t, highest, 10.0)
	})
}

func TestOther4xxAreNoSignOfLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := adaptively(t, throttle.AIMD{Max: 100}, throttletest.WithFaults(throttletest.Outage(404)))
		o.pressed(t, 50, time.Minute)
		assert.InDelta(t, 100, o.bucket().Rate, 1e-9)
		assert.Zero(t, o.retuned(throttle.CauseThrottled)+o.retuned(throttle.CauseErrors)+o.retuned(throttle.CauseLatency)+o.retuned(throttle.CauseSilence))
	})
}

// The headers come at once, and the body takes its time.
func TestTheTimeOfABodyIsNoLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := throttletest.Start(t, throttletest.WithInMemory(), throttletest.WithRoundTrip(40*time.Millisecond, 0),
			throttletest.WithFaults(throttletest.SlowBody(1, time.Second).Between(20*time.Second, time.Hour)))
		o := observe(t, s.Transport(), throttle.Adaptive(throttle.AIMD{Max: 50}))
		o.pressed(t, 500, 80*time.Second)
		assert.Zero(t, o.retuned(throttle.CauseLatency))
		assert.Equal(t, 50.0, o.bucket().Rate)
		assert.Greater(t, s.Counts().Received, int64(50*70), "a request whose body is read is not in flight")
		s.Transport().CloseIdleConnections()
	})
}

func TestClassifyDecidesOtherwise(t *testing.T) {
	classify := throttle.Classify(func(resp *http.Response, err error) throttle.Outcome {
		switch {
		case err != nil:
			return throttle.OutcomeIgnore
		case resp.StatusCode == 418:
			return throttle.OutcomeThrottled
		case resp.StatusCode == 429:
			return throttle.OutcomeOK
		}
		return 0
	})
	for _, c := range []struct {
		name  string
		fault throttletest.Fault
		cuts  bool
	}{
		{"418 is too much", throttletest.Outage(418), true},
		{"429 is well", throttletest.Outage(429), false},
		{"a broken connection is nothing", throttletest.Abort(), false},
		{"503 is what it is", throttletest.Outage(503), true},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			h := serverOf(t, throttletest.WithFaults(c.fault.Every(3)))
			o := observe(t, h.Direct(), throttle.Adaptive(throttle.AIMD{Initial: 20, Max: 50}, classify))
			o.pressed(t, 50, time.Minute)
			assert.Equal(t, c.cuts, o.retuned(throttle.CauseThrottled)+o.retuned(throttle.CauseErrors) > 0)
			assert.True(t, c.cuts || o.bucket().Rate == 50, "%v", o.bucket().Rate)
		})
	}
}

func TestAGrantIsReportedOrCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := throttle.NewLimiter(throttle.WithAdaptive(throttle.AIMD{Max: 80}))
		require.NoError(t, err)
		acquire := func() *throttle.Grant {
			g, err := l.Acquire(t.Context(), throttle.Ask{Cost: 1})
			require.NoError(t, err)
			return g
		}
		g := acquire()
		require.Equal(t, 1, bucketIn(l).InFlight)
		g.Cancel()
		g.Report(throttle.OutcomeThrottled)
		require.Equal(t, throttle.BucketStats{Limit: "adaptive", Rate: 10, Tokens: 1, Learned: &throttle.LearnedStats{InFlightMost: 8, Mode: "start"}},
			bucketIn(l), "as if it had never been")
		for range 600 {
			g := acquire()
			time.Sleep(10 * time.Millisecond)
			g.Report(throttle.OutcomeOK)
			g.Report(throttle.OutcomeThrottled)
			g.Cancel()
		}
		require.Zero(t, bucketIn(l).InFlight)
		require.InDelta(t, 80, bucketIn(l).Rate, 1e-9)
		acquire().Report(throttle.OutcomeThrottled)
		require.InDelta(t, 72, bucketIn(l).Rate, 1e-9)
		for range 100 {
			require.NoError(t, l.Wait(t.Context(), throttle.Ask{}))
			for _, ok := l.Try(throttle.Ask{}); !ok; _, ok = l.Try(throttle.Ask{}) {
				time.Sleep(time.Millisecond)
			}
			require.Zero(t, bucketIn(l).InFlight)
		}
	})
}

func TestAnAdaptiveLimitTakesNoRateFromElsewhere(t *testing.T) {
	l, err := throttle.NewLimiter(throttle.WithAdaptive())
	require.NoError(t, err)
	require.ErrorContains(t, l.SetRate("adaptive", 5, time.Second), `SetRate("adaptive", 5, 1s)`)
	require.ErrorContains(t, l.SetBurst("adaptive", 5), `SetBurst("adaptive", 5)`)
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		limit throttle.Limit
		says  string
	}{
		{throttle.Adaptive(throttle.AIMD{}, throttle.Fraction(0.5)), "Fraction(0.5)"},
		{throttle.Adaptive(throttle.AIMD{}, throttle.Burst(3)), "Burst(3)"},
		{throttle.Adaptive(throttle.AIMD{}, throttle.Initial(3)), "Initial(3)"},
		{throttle.Adaptive(throttle.AIMD{}, throttle.Start(time.Unix(1, 0))), "Start("},
		{throttle.Adaptive(throttle.AIMD{}, throttle.Classify(nil)), "Classify(nil)"},
		{throttle.Adaptive(throttle.AIMD{}, throttle.RateFor(func(string) (int64, time.Duration) { return 1, 1 })), "RateFor"},
		{throttle.TokenBucket(1, time.Second, throttle.Classify(func(*http.Response, error) throttle.Outcome { return 0 })), "Classify"},
		{throttle.Adaptive(throttle.AIMD{Initial: nan}), "AIMD.Initial is NaN"},
		{throttle.Adaptive(throttle.AIMD{Initial: -1}), "AIMD.Initial is -1"},
		{throttle.Adaptive(throttle.AIMD{Min: nan}), "AIMD.Min is NaN"},
		{throttle.Adaptive(throttle.AIMD{Min: -2}), "AIMD.Min is -2"},
		{throttle.Adaptive(throttle.AIMD{Max: inf}), "AIMD.Max is +Inf"},
		{throttle.Adaptive(throttle.AIMD{Min: 3, Max: 2}), "AIMD.Min is 3: above Max, which is 2"},
		{throttle.Adaptive(throttle.AIMD{Min: 3, Initial: 2}), "AIMD.Initial is 2: below Min, which is 3"},
		{throttle.Adaptive(throttle.AIMD{Max: 3, Initial: 4}), "AIMD.Initial is 4: above Max, which is 3"},
		{throttle.Adaptive(throttle.AIMD{LatencyThreshold: -1}), "AIMD.LatencyThreshold is -1ns"},
		{throttle.Adaptive(throttle.AIMD{ErrorThreshold: 1.1}), "AIMD.ErrorThreshold is 1.1"},
		{throttle.Adaptive(throttle.AIMD{ErrorThreshold: nan}), "AIMD.ErrorThreshold is NaN"},
	} {
		_, err := throttle.New(nil, throttle.WithLimit(c.limit))
		assert.ErrorContains(t, err, c.says)
	}
	_, err = throttle.New(nil, throttle.WithAdaptive(throttle.AIMD{Min: 2, Max: 1}, throttle.AIMD{ErrorThreshold: -1}))
	assert.ErrorContains(t, err, "AIMD.Min is 2")
	assert.ErrorContains(t, err, "AIMD.ErrorThreshold is -1")
}

// A current rate that is low rejects no request in advance, because it may grow: that is for holds and Max alone.
func TestLowRateRejectsNoRequestInAdvance(t *testing.T) {
	at := func(t *testing.T, a throttle.AIMD, opts ...throttle.Option) *observed {
		o := observe(t, serverOf(t).Direct(), throttle.Adaptive(a), append(opts, throttle.WithRejectionError())...)
		require.Equal(t, 200, o.send(t, t.Context()))
		return o
	}
	refused := func(t *testing.T, o *observed, ctx context.Context) *throttle.Rejection {
		_, err := o.RoundTrip(get(t, ctx, "http://api.example.com/items"))
		var r *throttle.Rejection
		ok := errors.As(err, &r)
		require.True(t, ok, "%v", err)
		return r
	}
	inBubble(t, "a current rate", func(t *testing.T) {
		o := at(t, throttle.AIMD{Initial: 0.1}, throttle.WithMaxWait(time.Second))
		var all sync.WaitGroup
		for range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			all.Go(func() { o.send(t, ctx) })
		}
		synctest.Wait()
		assert.Equal(t, 10, o.Stats().Waiting)
		all.Wait()
	})
	inBubble(t, "Max and the longest wait", func(t *testing.T) {
		o := at(t, throttle.AIMD{Initial: 1, Max: 1}, throttle.WithMaxWait(10*time.Second))
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() { o.send(t, t.Context()) })
		}
		synctest.Wait()
		r := refused(t, o, t.Context())
		assert.Equal(t, throttle.ReasonMaxWait, r.Reason)
		assert.Equal(t, 11*time.Second-50*time.Millisecond, r.Wait)
		all.Wait()
		assert.Zero(t, o.Stats().Rejected[throttle.ReasonMaxWait]-1)
	})
	inBubble(t, "Max and the deadline", func(t *testing.T) {
		o := at(t, throttle.AIMD{Initial: 1, Max: 1})
		ctx, cancel := context.WithTimeout(t.Context(), 900*time.Millisecond)
		defer cancel()
		r := refused(t, o, ctx)
		assert.Equal(t, throttle.ReasonDeadline, r.Reason)
		assert.Equal(t, 950*time.Millisecond, r.Wait)
		require.ErrorIs(t, r, context.DeadlineExceeded)
	})
	inBubble(t, "a hold", func(t *testing.T) {
		o := at(t, throttle.AIMD{}, throttle.WithMaxWait(10*time.Second))
		o.Limiter().Hold("", 11*time.Second)
		r := refused(t, o, t.Context())
		assert.Equal(t, throttle.ReasonHeld, r.Reason)
		assert.Equal(t, 11*time.Second, r.Wait)
	})
	inBubble(t, "a pause", func(t *testing.T) {
		h := serverOf(t, throttletest.WithFaults(throttletest.Respond(429, http.Header{"Retry-After": {"20"}}).OnRequests(1)))
		o := observe(t, h.Direct(), throttle.Adaptive(throttle.AIMD{}), throttle.WithMaxWait(10*time.Second), throttle.WithRejectionError())
		require.Equal(t, 429, o.send(t, t.Context()))
		r := refused(t, o, t.Context())
		assert.Equal(t, throttle.ReasonHeld, r.Reason)
		assert.GreaterOrEqual(t, r.Wait, 20*time.Second)
		assert.LessOrEqual(t, r.Wait, 21*time.Second)
	})
	inBubble(t, "a pause that comes while one waits", func(t *testing.T) {
		h := serverOf(t, throttletest.WithFaults(throttletest.Respond(429, http.Header{"Retry-After": {"20"}}).OnRequests(1)))
		o := observe(t, h.Direct(), throttle.Adaptive(throttle.AIMD{Initial: 1}), throttle.WithMaxWait(10*time.Second), throttle.WithRejectionError())
		go o.send(t, t.Context())
		synctest.Wait()
		began := time.Now()
		assert.Equal(t, throttle.ReasonHeld, refused(t, o, t.Context()).Reason)
		assert.Equal(t, 50*time.Millisecond, time.Since(began), "as soon as it is known")
	})
}

func TestFailFastSaysWhenTheRequestCouldBeSent(t *testing.T) {
	refused := func(t *testing.T, o *observed, reason throttle.Reason) *throttle.Rejection {
		resp, err := o.RoundTrip(get(t, t.Context(), "http://api.example.com/items"))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		r, ok := throttle.RejectionOf(resp)
		require.True(t, ok)
		assert.Equal(t, reason, r.Reason)
		return r
	}
	for _, c := range []throttle.AIMD{{Initial: 0.1}, {Initial: 3}, {}, {Max: 0.7}, {Max: 10}, {Initial: 19.9, Max: 19.9}, {Initial: 30, Max: 30}} {
		inBubble(t, fmt.Sprintf("the rate, %v to %v", c.Initial, c.Max), func(t *testing.T) {
			o := observe(t, serverOf(t).Direct(), throttle.Adaptive(c), throttle.WithFailFast())
			var all sync.WaitGroup
			defer all.Wait()
			for range 20 {
				all.Go(func() { assert.Equal(t, 200, o.send(t, t.Context())) })
				synctest.Wait()
				if c.Max == 0 {
					all.Wait() // an answer may raise the rate, and a rate that was reported is outdated sooner
				}
				wait := refused(t, o, throttle.ReasonNoTokens).Wait
				require.Positive(t, wait)
				require.LessOrEqual(t, wait, 10*time.Second)
				time.Sleep(wait - 1)
				require.Equal(t, time.Duration(1), refused(t, o, throttle.ReasonNoTokens).Wait)
				time.Sleep(time.Nanosecond)
			}
		})
	}
	inBubble(t, "a pause", func(t *testing.T) {
		h := serverOf(t, throttletest.WithFaults(throttletest.Respond(429, http.Header{"Retry-After": {"20"}}).OnRequests(1)))
		o := observe(t, h.Direct(), throttle.Adaptive(throttle.AIMD{}), throttle.WithFailFast())
		require.Equal(t, 429, o.send(t, t.Context()))
		wait := refused(t, o, throttle.ReasonHeld).Wait
		assert.GreaterOrEqual(t, wait, 20*time.Second)
		assert.LessOrEqual(t, wait, 21*time.Second)
		time.Sleep(wait - 1)
		require.Equal(t, time.Duration(1), refused(t, o, throttle.ReasonHeld).Wait)
		time.Sleep(time.Nanosecond)
		require.Equal(t, 200, o.send(t, t.Context()))
	})
	inBubble(t, "as much in flight as may be", func(t *testing.T) {
		h := serverOf(t, throttletest.WithFaults(throttletest.Hang()))
		o := observe(t, h.Direct(), throttle.Adaptive(throttle.AIMD{Initial: 5, Max: 5}), throttle.WithFailFast())
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() { o.send(t, ctx) })
			time.Sleep(time.Second)
		}
		assert.Equal(t, 8, o.bucket().InFlight)
		t.Log(refused(t, o, throttle.ReasonNoTokens).Wait, "because it is not known when a response comes")
		cancel()
		all.Wait()
		assert.Zero(t, o.bucket().InFlight)
	})
}

func TestStatisticsOfAnAdaptiveLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := serverOf(t, throttletest.WithFaults(throttletest.Respond(429, http.Header{"Retry-After": {"2"}}).OnRequests(1)))
		o := observe(t, h.Direct(), throttle.Adaptive(throttle.AIMD{Initial: 50}))
		learned := &throttle.LearnedStats{InFlightMost: 8, Mode: "start"}
		require.Equal(t, throttle.BucketStats{Limit: "adaptive", Rate: 50, Tokens: 2, Learned: learned}, o.bucket())
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() { o.send(t, t.Context()) })
		}
		synctest.Wait()
		require.Equal(t, throttle.BucketStats{Limit: "adaptive", Key: "api.example.com", Rate: 50, InFlight: 2, Waiting: 3, Wait: 1, Learned: learned}, o.bucket())
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
		b, now := o.bucket(), time.Now()
		require.Zero(t, b.HeldUntil)
		require.Equal(t, throttle.ModePaused, b.Learned.Mode)
		require.InDelta(t, 45, b.Rate, 1, "little was accepted that would show where the limit is")
		held := o.Limiter().Servers()[0].HeldUntil
		require.GreaterOrEqual(t, held, now.Add(2*time.Second))
		require.Less(t, held, now.Add(2200*time.Millisecond))
		time.Sleep(held.Sub(now) - 1)
		require.Equal(t, held, o.Limiter().Servers()[0].HeldUntil)
		require.Positive(t, o.bucket().Waiting)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.Zero(t, o.Limiter().Servers()[0].HeldUntil)
		require.Positive(t, h.Counts().InFlight)
		all.Wait()
	})
}

func TestAnAdaptiveLimitStartsAtTheRateOfThoseBesideIt(t *testing.T) {
	second, two := time.Second, func(*http.Request) int64 { return 2 }
	for name, c := range map[string]struct {
		limits []throttle.Limit
		from   float64
	}{
		"none":                    {[]throttle.Limit{throttle.Adaptive(throttle.AIMD{})}, 10},
		"one":                     {[]throttle.Limit{throttle.Adaptive(throttle.AIMD{}), throttle.SlidingWindow(600, 10*second)}, 60},
		"the lowest":              {[]throttle.Limit{throttle.TokenBucket(90, second), throttle.Adaptive(throttle.AIMD{}), throttle.Pace(70, second)}, 70},
		"its share":               {[]throttle.Limit{throttle.TokenBucket(90, second, throttle.Fraction(0.5)), throttle.Adaptive(throttle.AIMD{})}, 45},
		"below the default":       {[]throttle.Limit{throttle.FixedWindow(1000, 24*time.Hour), throttle.Adaptive(throttle.AIMD{})}, 10},
		"above Max":               {[]throttle.Limit{throttle.TokenBucket(90, second), throttle.Adaptive(throttle.AIMD{Max: 30})}, 30},
		"below Min":               {[]throttle.Limit{throttle.TokenBucket(90, second), throttle.Adaptive(throttle.AIMD{Min: 95})}, 95},
		"Initial is set":          {[]throttle.Limit{throttle.TokenBucket(90, second), throttle.Adaptive(throttle.AIMD{Initial: 12})}, 12},
		"in flight":               {[]throttle.Limit{throttle.InFlight(90), throttle.Adaptive(throttle.AIMD{})}, 10},
		"of other costs":          {[]throttle.Limit{throttle.TokenBucket(90, second, throttle.Cost(two)), throttle.Adaptive(throttle.AIMD{})}, 10},
		"beside one of its costs": {[]throttle.Limit{throttle.TokenBucket(90, second), throttle.Adaptive(throttle.AIMD{}, throttle.Cost(two))}, 10},
	} {
		l, err := throttle.NewLimiter(throttle.WithLimit(c.limits...))
		require.NoError(t, err, name)
		require.InDelta(t, c.from, bucketIn(l).Rate, 1e-9, name)
	}
}
