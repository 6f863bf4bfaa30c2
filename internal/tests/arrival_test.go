package tests

import (
	"context"
	"errors"
	"math"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func limiterWith(t *testing.T, opts ...throttle.Option) *throttle.Limiter {
	l, err := throttle.NewLimiter(opts...)
	require.NoError(t, err)
	return l
}

func TestTryReportsToHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		granted, refused := 0, []throttle.Rejection(nil)
		l := limiterWith(t, throttle.WithLimit(throttle.TokenBucket(2, time.Second)), throttle.WithHooks(throttle.Hooks{
			OnGrant:  func(e throttle.GrantEvent) { require.NotNil(t, e.Context); granted++ },
			OnReject: func(e throttle.RejectEvent) { require.NotNil(t, e.Context); refused = append(refused, *e.Rejection) },
		}))
		for _, key := range []string{"", "new"} { // whose bucket is there, and is not
			granted, refused = 0, nil
			_, ok := l.Try(throttle.Ask{Key: key, Cost: 2})
			require.True(t, ok)
			wait, ok := l.Try(throttle.Ask{Key: key})
			require.False(t, ok)
			require.Equal(t, time.Second/2, wait)
			require.Equal(t, 1, granted)
			require.Equal(t, []throttle.Rejection{{
				Reason: throttle.ReasonNoTokens, Limit: "bucket", Key: key, Cost: 1, Wait: time.Second / 2,
			}}, refused)
		}
		require.EqualValues(t, 2, l.Stats().Granted)
		require.EqualValues(t, 2, l.Stats().Rejected[throttle.ReasonNoTokens])
	})
}

func TestTryWithAHookThatPanicsPaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterWith(t, throttle.WithLimit(throttle.TokenBucket(2, time.Hour)),
			throttle.WithHooks(throttle.Hooks{OnGrant: func(throttle.GrantEvent) { panic("mine") }}))
		require.Panics(t, func() { l.Try(throttle.Ask{Cost: 2}) })
		for b := range l.Buckets() {
			require.Equal(t, 2.0, b.Tokens)
		}
	})
}

func TestTryPaysWhatIsLeftOfAClampedCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterWith(t, throttle.WithLimit(throttle.TokenBucket(10, time.Second, throttle.ClampCost())))
		for _, key := range []string{"", "new"} {
			_, ok := l.Try(throttle.Ask{Key: key, Cost: 1000})
			require.True(t, ok)
			wait, ok := l.Try(throttle.Ask{Key: key, Cost: 1000})
			require.False(t, ok)
			require.Equal(t, time.Second, wait)
		}
		wait, ok := l.Try(throttle.Ask{Cost: -1})
		require.False(t, ok)
		require.Equal(t, time.Duration(math.MaxInt64), wait)
	})
}

func TestWhatTryLetGoIsNotInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterWith(t, throttle.WithLimit(throttle.Adaptive(throttle.AIMD{Initial: 1000})))
		for range 2 { // it ends when it is granted, because nothing reports its end
			_, ok := l.Try(throttle.Ask{Key: "new"})
			require.True(t, ok)
		}
		for b := range l.Buckets() {
			require.Zero(t, b.InFlight)
		}
	})
}

func TestTryInADryRunLetsGoWhatItWouldRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var refused []time.Duration
		transport, err := throttle.New(nil, throttle.WithDryRun(), throttle.WithLimit(throttle.TokenBucket(1, time.Second)),
			throttle.WithHooks(throttle.Hooks{OnReject: func(e throttle.RejectEvent) {
				require.True(t, e.DryRun)
				refused = append(refused, e.Rejection.Wait)
			}}))
		require.NoError(t, err)
		for range 2 {
			_, ok := transport.Limiter().Try(throttle.Ask{})
			require.True(t, ok)
		}
		require.Equal(t, []time.Duration{time.Second}, refused)
		require.EqualValues(t, 1, transport.Limiter().Stats().Rejected[throttle.ReasonNoTokens])
	})
}

func TestFunctionsAreNotCalledForLimitsWithTheirOwn(t *testing.T) {
	transport, err := throttle.New(
		roundTripper(func(req *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: http.NoBody, Request: req}, nil
		}),
		throttle.WithLimit(throttle.InFlight(10, throttle.Key(throttle.ByHost)), throttle.TokenBucket(10, time.Second,
			throttle.Key(throttle.ByHost), throttle.Cost(func(*http.Request) int64 { return 2 }))),
		throttle.WithCost(func(*http.Request) int64 { panic("a cost") }),
		throttle.WithKey(func(*http.Request) string { panic("a key") }))
	require.NoError(t, err)
	resp, err := transport.RoundTrip(get(t, t.Context(), "http://api.example.com"))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
}

// With one token per second and none at the start, the wait is one second.
func TestMaxWaitIsCheckedBeforeTheDeadline(t *testing.T) {
	cases := []struct {
		name     string
		maxWait  time.Duration
		deadline time.Duration
		hold     time.Duration
		reason   throttle.Reason // 0: the request is sent
		patience time.Duration
		text     string
	}{
		{"FailFast", 0, 100 * time.Millisecond, 0, throttle.ReasonNoTokens, 0, `cost 1 can be paid in 1s, and the request may not wait`},
		{"FailFastHeld", 0, time.Minute, time.Hour, throttle.ReasonHeld, 0, `held for 1h0m0s`},
		{"MaxWaitBeforeDeadline", time.Second - 1, time.Second - 2, 0, throttle.ReasonMaxWait, time.Second - 1, `a wait of 1s exceeds the maximum of 999.999ms`},
		{"MaxWaitHeld", time.Minute, time.Second, time.Hour, throttle.ReasonHeld, time.Minute, `held for 1h0m0s, and the maximum wait is 1m0s`},
		{"DeadlineWithinMaxWait", time.Second, time.Second, 0, throttle.ReasonDeadline, time.Second, `a wait of 1s exceeds the context's deadline (1s left)`},
		{"DeadlineWithinMaxWaitHeld", 2 * time.Hour, time.Minute, time.Hour, throttle.ReasonDeadline, time.Minute, `a wait of 1h0m0s exceeds the context's deadline (1m0s left)`},
		{"Both", time.Second, time.Second + 1, 0, 0, 0, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRefusal(t, throttle.WithMaxWait(c.maxWait))
				r.tr.Limiter().Hold("", c.hold)
				r.within(c.deadline)
				resp, err := r.tr.RoundTrip(r.req)
				if c.reason == 0 {
					require.NoError(t, err)
					assert.Equal(t, http.StatusNoContent, resp.StatusCode)
					return
				}
				var rejection *throttle.Rejection
				if c.reason == throttle.ReasonDeadline {
					require.ErrorAs(t, err, &rejection)
					assert.ErrorIs(t, err, context.DeadlineExceeded)
				} else {
					require.NoError(t, err)
					defer resp.Body.Close()
					rejection, _ = throttle.RejectionOf(resp)
					assert.NotErrorIs(t, rejection, context.DeadlineExceeded)
				}
				assert.Equal(t, c.reason, rejection.Reason)
				assert.Equal(t, c.patience, rejection.MaxWait)
				assert.Contains(t, rejection.Error(), c.text)
			})
		})
	}
}

// No instant is known at which a slot becomes free, so its waiter is rejected when its maximum wait ends: that timer and the context's
// then fire together.
func TestMaxWaitPrecedesADeadlineAtTheSameInstant(t *testing.T) {
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			l, err := throttle.NewLimiter(throttle.WithLimit(throttle.InFlight(1)))
			require.NoError(t, err)
			_, err = l.Acquire(t.Context(), throttle.Ask{})
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err = l.Acquire(ctx, throttle.Ask{MaxWait: ptr(time.Second)})
			var r *throttle.Rejection
			require.ErrorAs(t, err, &r)
			require.Equal(t, throttle.ReasonMaxWait, r.Reason)
		})
	}
}

// A Ticket keeps its place without a goroutine, and others go in the order of their tickets.
func TestTicketsAreGrantedInOrderAtTheirInstants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, began := limiterWith(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second, throttle.Burst(2)))), time.Now()
		tickets := make([]*throttle.Ticket, 5)
		for i := range tickets {
			var err error
			tickets[i], err = l.Enqueue(throttle.Ask{})
			require.NoError(t, err)
			require.Equal(t, max(0, time.Duration(i-1))*time.Second, tickets[i].Due().Sub(began))
		}
		require.Equal(t, 3, l.Stats().Waiting)
		for i := range 2 {
			<-tickets[i].Decided()
		}
		require.NoError(t, l.SetRate("bucket", 1, 2*time.Second))
		require.Equal(t, 2*time.Second, tickets[2].Due().Sub(began), "places are no promises")
		tickets[3].Cancel()
		require.Equal(t, 4*time.Second, tickets[4].Due().Sub(began), "it moves up")
		g, err := tickets[0].Wait(t.Context())
		require.NoError(t, err)
		g.Cancel()
		require.Equal(t, 2*time.Second, tickets[4].Due().Sub(began), "and again")
		<-tickets[2].Decided()
		require.Equal(t, began, tickets[2].Due())
		<-tickets[4].Decided()
		require.Equal(t, 2*time.Second, time.Since(began))
		time.Sleep(time.Second)
		_, err = tickets[4].Wait(t.Context())
		require.NoError(t, err, "it was granted before")
		for _, ticket := range []*throttle.Ticket{tickets[0], tickets[3], tickets[4]} {
			_, err = ticket.Wait(t.Context())
			require.ErrorContains(t, err, "Wait or Cancel of this Ticket was called before")
			ticket.Cancel()
		}
		s := l.Stats()
		require.Zero(t, s.Waiting)
		require.EqualValues(t, 4, s.Granted)
		require.EqualValues(t, 1, s.Canceled)
		tickets[2].Cancel()
		require.EqualValues(t, 2, l.Stats().Undone, "Cancel gives back what was granted")
		_, ok := l.Try(throttle.Ask{})
		require.True(t, ok)
	})
}

func TestTicketEndsByItsMaxWaitOrTheContextOfWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterWith(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second)), throttle.WithMaxQueue(1))
		first, err := l.Enqueue(throttle.Ask{})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = first.Wait(ctx)
		require.ErrorIs(t, err, context.Canceled)
		second, err := l.Enqueue(throttle.Ask{})
		require.NoError(t, err, "the first gave its token back")
		_, err = l.Enqueue(throttle.Ask{MaxWait: ptr(time.Second / 2)})
		var r *throttle.Rejection
		require.ErrorAs(t, err, &r)
		require.Equal(t, throttle.ReasonMaxWait, r.Reason, "it is known on arrival")
		_, err = l.Enqueue(throttle.Ask{Costs: map[string]int64{"none": 1}})
		require.ErrorContains(t, err, "none")
		third, err := l.Enqueue(throttle.Ask{MaxWait: ptr(time.Second)})
		require.NoError(t, err)
		_, err = l.Enqueue(throttle.Ask{})
		require.ErrorAs(t, err, &r)
		require.Equal(t, throttle.ReasonQueueFull, r.Reason)
		l.HoldAll(10 * time.Second)
		<-third.Decided()
		_, err = third.Wait(t.Context())
		require.ErrorAs(t, err, &r)
		require.Equal(t, throttle.ReasonHeld, r.Reason)
		_, err = second.Wait(t.Context())
		require.NoError(t, err, "it was granted on arrival")
		fourth, err := l.Enqueue(throttle.Ask{})
		require.NoError(t, err)
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = fourth.Wait(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Zero(t, l.Stats().Waiting)
	})
}

// The timer of MaxWait rejects a Ticket on which no goroutine waits.
func TestATicketThatIsNotWaitedForIsRejectedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		canceled, rejected := 0, 0
		l := limiterWith(t, throttle.WithLimit(throttle.InFlight(1)), throttle.WithHooks(throttle.Hooks{
			OnCancel: func(throttle.CancelEvent) { canceled++ }, OnReject: func(throttle.RejectEvent) { rejected++ },
		}))
		first, err := l.Enqueue(throttle.Ask{})
		require.NoError(t, err)
		second, err := l.Enqueue(throttle.Ask{MaxWait: ptr(time.Minute)})
		require.NoError(t, err)
		third, err := l.Enqueue(throttle.Ask{})
		require.NoError(t, err)
		require.Equal(t, time.Now(), third.Due(), "at the earliest: it depends on the requests in flight")
		began := time.Now()
		<-second.Decided()
		require.Equal(t, time.Minute, time.Since(began))
		second.Cancel()
		require.Equal(t, 1, rejected, "the hook is called when its owner calls Wait")
		g, err := first.Wait(t.Context())
		require.NoError(t, err)
		g.Done()
		<-third.Decided()
		third.Cancel()
		require.Equal(t, 1, canceled)
		require.Zero(t, l.Stats().Waiting)
		for b := range l.Buckets() {
			require.Zero(t, b.InFlight)
		}
	})
}

func TestAContextThatHasEndedCostsNothing(t *testing.T) {
	l := limiterWith(t, throttle.WithLimit(throttle.TokenBucket(1, time.Hour)))
	gone := errors.New("gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	require.Equal(t, gone, l.Wait(ctx, throttle.Ask{}))
	_, err := l.Acquire(ctx, throttle.Ask{Cost: 2})
	require.Equal(t, gone, err)
	_, ok := l.Try(throttle.Ask{})
	require.True(t, ok)
	require.Equal(t, gone, l.Wait(ctx, throttle.Ask{}))
}

// A function of the user may take long, so that the context ends meanwhile.
func TestARequestThatEndsWhileItsKeyOrCostIsFoundIsNotCharged(t *testing.T) {
	gone := errors.New("gone")
	for name, opts := range map[string][]throttle.Option{
		"all limits":          {throttle.WithLimit(throttle.TokenBucket(10, time.Hour))},
		"a limit that learns": {throttle.WithLimit(throttle.TokenBucket(10, time.Hour)), throttle.WithAdaptive(throttle.AIMD{})},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			first := true
			tr, err := throttle.New(serverFunc(func(*http.Request) *http.Response { return says(200) }), append(opts,
				throttle.WithCost(func(*http.Request) int64 {
					if !first {
						cancel(gone)
					}
					return 3
				}))...)
			require.NoError(t, err)
			ask(t, tr, api)
			first = false
			_, err = tr.RoundTrip(get(t, ctx, api))
			require.ErrorIs(t, err, gone)
			assert.Equal(t, uint64(1), tr.Stats().Granted)
		})
	}
}

// A Ticket without an owner is like a request that is never sent and never ends.
func TestATicketThatIsForgottenSpendsItsTokensAndKeepsItsSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterWith(t, throttle.WithLimit(throttle.TokenBucket(2, time.Minute), throttle.InFlight(2)))
		for range 2 {
			_, err := l.Enqueue(throttle.Ask{})
			require.NoError(t, err)
		}
		wait, ok := l.Try(throttle.Ask{Costs: map[string]int64{"in-flight": 0}})
		require.False(t, ok)
		require.Equal(t, 30*time.Second, wait)
		time.Sleep(time.Hour)
		_, ok = l.Try(throttle.Ask{Costs: map[string]int64{"in-flight": 0}})
		require.True(t, ok)
		_, ok = l.Try(throttle.Ask{Costs: map[string]int64{"bucket": 0}})
		require.False(t, ok, "both slots are taken")
	})
}
