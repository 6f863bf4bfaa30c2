package tests

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/store"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var errGrace = errors.New("the grace is over")

// grace returns a context that ends after d.
func grace(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeoutCause(t.Context(), d, errGrace)
	t.Cleanup(cancel)
	return ctx
}

// takes is a server that responds after d.
func takes(d time.Duration) serverFunc {
	return func(*http.Request) *http.Response {
		time.Sleep(d)
		return says(200)
	}
}

// An ended is how a request ended, and when.
type ended struct {
	after  time.Duration
	status int
	reason throttle.Reason
}

// sendAll sends n requests at the same time. The returned function waits for them, and returns how they ended, in the order of time.
func sendAll(t *testing.T, tr *throttle.Transport, n int) func() []ended {
	start, ends := time.Now(), make(chan ended, n)
	for range n {
		go func() {
			status, r := ask(t, tr, api)
			e := ended{time.Since(start), status, 0}
			if r != nil {
				e.reason = r.Reason
			}
			ends <- e
		}()
		synctest.Wait()
	}
	return func() (all []ended) {
		for range n {
			all = append(all, <-ends)
		}
		return all
	}
}

// Requests that wait are sent, new ones are rejected, and Shutdown returns when the last response has come.
func TestShutdownSendsWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := transportTo(t, takes(300*time.Millisecond), throttle.WithLimit(throttle.TokenBucket(1, time.Second)))
		sent := sendAll(t, tr, 3)
		start := time.Now()
		var all sync.WaitGroup
		for range 3 { // concurrently
			all.Go(func() {
				assert.NoError(t, tr.Shutdown(grace(t, time.Minute)))
				assert.Equal(t, 2300*time.Millisecond, time.Since(start))
			})
		}
		synctest.Wait()
		_, r := ask(t, tr, api)
		require.Equal(t, throttle.ReasonShutdown, r.Reason)
		require.EqualError(t, r, `throttle: limit "bucket": shut down, so no request is sent any more`)
		require.ErrorIs(t, r, throttle.ErrThrottled)
		require.False(t, r.RetryableError())
		_, err := tr.Limiter().Enqueue(throttle.Ask{})
		require.ErrorAs(t, err, &r)
		require.Equal(t, throttle.ReasonShutdown, r.Reason)
		wait, ok := tr.Limiter().Try(throttle.Ask{})
		require.False(t, ok)
		require.Positive(t, wait)
		require.ErrorIs(t, tr.Limiter().Wait(t.Context(), throttle.Ask{Costs: map[string]int64{"bucket": 0}}), throttle.ErrThrottled)
		all.Wait()
		require.Equal(t, []ended{{300 * time.Millisecond, 200, 0}, {1300 * time.Millisecond, 200, 0}, {2300 * time.Millisecond, 200, 0}}, sent())
		require.EqualValues(t, 4, tr.Limiter().Stats().Rejected[throttle.ReasonShutdown])
		require.EqualValues(t, 1, tr.Stats().Rejected[throttle.ReasonShutdown])
		over, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, tr.Shutdown(over), "it has ended, even for a context that has")
	})
}

// At the end of the context, requests that are due by then have been sent, and the others are rejected.
func TestShutdownRejectsWhatWaitsTooLong(t *testing.T) {
	for at, want := range map[time.Duration]ended{
		2*time.Second - 1: {2*time.Second - 1, 0, throttle.ReasonShutdown},
		2 * time.Second:   {2 * time.Second, 200, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			tr := transportTo(t, takes(0), throttle.WithLimit(throttle.TokenBucket(1, time.Second)))
			sent := sendAll(t, tr, 3)
			if err := tr.Shutdown(grace(t, at)); want.reason != 0 {
				require.ErrorIs(t, err, errGrace)
			}
			require.Equal(t, []ended{{0, 200, 0}, {time.Second, 200, 0}, want}, sent())
		})
	}
}

// A context that has ended leaves no time to those that wait, whatever they cost and however they share limits.
func TestShutdownWithoutTimeRejectsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterWith(t, throttle.WithLimit(throttle.TokenBucket(10, time.Hour), throttle.TokenBucket(10, time.Hour, throttle.Name("two"))))
		require.NoError(t, l.Wait(t.Context(), throttle.Ask{Cost: 5}))
		var tickets []*throttle.Ticket
		for i := range 200 {
			ask := throttle.Ask{Cost: 6, Priority: i % 3}
			if i%5 > 0 {
				ask.Cost = 1 // could be sent if those before it left first
			}
			if i%7 == 0 {
				ask.Costs = map[string]int64{"two": 0}
			}
			ticket, err := l.Enqueue(ask)
			require.NoError(t, err)
			select {
			case <-ticket.Decided(): // granted on arrival
			default:
				tickets = append(tickets, ticket)
			}
		}
		require.Greater(t, len(tickets), 150)
		over, cancel := context.WithCancelCause(t.Context())
		cancel(errGrace)
		require.ErrorIs(t, l.Shutdown(over), errGrace)
		for _, ticket := range tickets {
			<-ticket.Decided()
			_, err := ticket.Wait(t.Context())
			r := new(throttle.Rejection)
			require.ErrorAs(t, err, &r)
			require.Equal(t, throttle.ReasonShutdown, r.Reason)
		}
		require.Zero(t, l.Stats().Waiting)
		require.NoError(t, l.Shutdown(over))
	})
}

// A request is in flight until its body has ended, if a limit needs that, and otherwise until its response has come.
func TestShutdownWaitsForBodiesThatLimitsNeed(t *testing.T) {
	settle := throttle.TokenBucket(100, time.Hour, throttle.SettleJSON("used"))
	for _, c := range []struct {
		name  string
		limit throttle.Limit
		waits bool
	}{
		{"slots", throttle.InFlight(5), true},
		{"settled by the body", settle, true},
		{"nothing", throttle.TokenBucket(100, time.Hour), false},
	} {
		for _, end := range []string{"read", "closed", "canceled"} {
			synctest.Test(t, func(t *testing.T) {
				base := bodies(func() io.ReadCloser { return io.NopCloser(strings.NewReader(`{"used": 7}`)) })
				tr := transportTo(t, base, throttle.WithLimit(c.limit))
				ctx, cancel := context.WithCancel(t.Context())
				resp := opened(t, tr, ctx)
				start := time.Now()
				go func() {
					time.Sleep(time.Second)
					if end == "canceled" {
						cancel()
						synctest.Wait()
					}
					if end == "read" {
						_, _ = io.Copy(io.Discard, resp.Body)
					}
					_ = resp.Body.Close()
				}()
				require.NoError(t, tr.Shutdown(t.Context()))
				if c.waits {
					assert.Equal(t, time.Second, time.Since(start), "%s, %s", c.name, end)
				} else {
					assert.Zero(t, time.Since(start), "%s, %s", c.name, end)
				}
				cancel()
				time.Sleep(2 * time.Second)
			})
		}
	}
}

// A Transport that uses another Limiter ends alone. The Limiter ends with all of them.
func TestShutdownOfOneTransportLeavesTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterWith(t, throttle.WithLimit(throttle.TokenBucket(1, time.Second)))
		one := transportTo(t, takes(time.Second/2), throttle.WithLimiter(l))
		two := transportTo(t, takes(10*time.Second), throttle.WithLimiter(l))
		first, second := sendAll(t, one, 2), sendAll(t, two, 3) // at 0, 1, 2, 3 and 4 s
		start := time.Now()
		require.NoError(t, one.Shutdown(t.Context()))
		require.Equal(t, 1500*time.Millisecond, time.Since(start))
		_, r := ask(t, one, api)
		require.Equal(t, throttle.ReasonShutdown, r.Reason)
		third := sendAll(t, two, 1) // at 5 s, until 15
		require.ErrorIs(t, two.Shutdown(grace(t, 2*time.Second)), errGrace)
		require.ErrorIs(t, l.Shutdown(grace(t, time.Second)), errGrace, "requests are in flight")
		require.NoError(t, l.Shutdown(t.Context()))
		require.Equal(t, 13*time.Second, time.Since(start))
		require.Len(t, first(), 2)
		for _, e := range append(second(), third()...) {
			if e.reason == 0 {
				require.Equal(t, 200, e.status)
				continue
			}
			require.Equal(t, throttle.ReasonShutdown, e.reason)
		}
	})
}

// A Grant is in flight until its limits know its end, and a Ticket keeps its place until then.
func TestShutdownWaitsForGrants(t *testing.T) {
	for name, c := range map[string]struct {
		limit throttle.Limit
		end   func(*throttle.Grant)
	}{
		"a slot, done":      {throttle.InFlight(1), (*throttle.Grant).Done},
		"a slot, canceled":  {throttle.InFlight(1), (*throttle.Grant).Cancel},
		"learned, reported": {throttle.Adaptive(throttle.AIMD{Initial: 1, Max: 1}), func(g *throttle.Grant) { g.Report(throttle.OutcomeOK) }},
		"learned number": {throttle.AdaptiveInFlight(throttle.Concurrency{Initial: 1, Max: 1}), func(g *throttle.Grant) {
			g.Report(throttle.OutcomeOK)
			g.Done()
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := limiterWith(t, throttle.WithLimit(c.limit))
			g, err := l.Acquire(t.Context(), throttle.Ask{})
			require.NoError(t, err)
			ticket, err := l.Enqueue(throttle.Ask{})
			require.NoError(t, err)
			start := time.Now()
			go func() {
				time.Sleep(5 * time.Second)
				c.end(g)
				<-ticket.Decided()
				time.Sleep(time.Second)
				ticket.Cancel()
			}()
			require.NoError(t, l.Shutdown(t.Context()), name)
			require.Equal(t, 6*time.Second, time.Since(start), name)
		})
	}
}

// A budgetStore is a store in memory whose budgets the test can read.
type budgetStore struct {
	mu    sync.Mutex
	book  *store.Book
	takes time.Duration
	calls int
}

func (s *budgetStore) Lease(ctx context.Context, asks []store.Ask) ([]store.Lease, error) {
	select {
	case <-time.After(s.takes):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	return s.book.Lease(time.Now(), asks), nil
}

// left returns how many tokens or slots a budget has left, infinitely many if it is as good as new, and how many processes have slots or
// wait for them.
func (s *budgetStore) left(kind store.Kind, limit, key string) (left float64, holders int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.book.Status(&store.Budget{Kind: kind, Limit: limit, Key: key}, time.Now())
	if !ok {
		return math.Inf(1), 0
	}
	return b.Left, len(b.Holders)
}

// Tokens and slots that no request has used are back in the store when Shutdown returns, and all of them can be used by others.
func TestShutdownGivesBackWhatIsLeased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &budgetStore{book: store.NewBook(), takes: 2 * time.Millisecond}
		limits := []throttle.Limit{
			throttle.TokenBucket(1000, 10_000*time.Hour, throttle.Shared(s, throttle.LeaseAhead(time.Second)), throttle.Key(throttle.ByHost)),
			throttle.FixedWindow(1000, 10_000*time.Hour, throttle.Shared(s, throttle.LeaseAhead(time.Second)), throttle.Name("day")),
			throttle.InFlight(3, throttle.Shared(s)),
		}
		tr := transportTo(t, takes(10*time.Millisecond), throttle.WithLimit(limits...))
		for range 100 {
			status, r := ask(t, tr, api)
			require.Equal(t, 200, status, r)
		}
		lessThanUsed, _ := s.left(store.Bucket, "bucket", "api.example.com")
		require.Less(t, lessThanUsed, 900.0, "some are leased ahead")
		_, holders := s.left(store.Slots, "in-flight", "")
		require.Equal(t, 1, holders)
		sent := sendAll(t, tr, 9)
		start := time.Now()
		require.NoError(t, tr.Shutdown(t.Context()))
		require.Less(t, time.Since(start), 50*time.Millisecond)
		for _, e := range sent() {
			require.Equal(t, 200, e.status)
		}
		left, _ := s.left(store.Bucket, "bucket", "api.example.com")
		require.InDelta(t, 891, left, 1e-2)
		left, _ = s.left(store.Fixed, "day", "")
		require.InDelta(t, 891, left, 0)
		left, _ = s.left(store.Slots, "in-flight", "")
		require.InDelta(t, math.Inf(1), left, 0)
		calls := s.calls
		time.Sleep(time.Minute)
		require.Equal(t, calls, s.calls, "nothing is asked for afterwards")
	})
}

// If the context ends first, slots go back as soon as their requests end.
func TestSlotsGoBackAfterAShutdownThatRanOutOfTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &budgetStore{book: store.NewBook(), takes: time.Millisecond}
		l := limiterWith(t, throttle.WithLimit(throttle.InFlight(3, throttle.Shared(s))))
		var grants []*throttle.Grant
		for range 2 {
			g, err := l.Acquire(t.Context(), throttle.Ask{})
			require.NoError(t, err)
			grants = append(grants, g)
		}
		require.ErrorIs(t, l.Shutdown(grace(t, time.Second)), errGrace)
		for i, g := range grants {
			time.Sleep(time.Second)
			g.Done()
			time.Sleep(2 * time.Millisecond)
			left, _ := s.left(store.Slots, "in-flight", "")
			require.InDelta(t, []float64{2, math.Inf(1)}[i], left, 0)
		}
		require.NoError(t, l.Shutdown(t.Context()))
	})
}

// A store that does not respond delays the end by its timeout.
func TestShutdownDoesNotWaitForAStoreThatIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &budgetStore{book: store.NewBook()}
		l := limiterWith(t, throttle.WithLimit(throttle.TokenBucket(10, time.Second, throttle.Shared(s, throttle.StoreTimeout(time.Second)))))
		require.NoError(t, l.Wait(t.Context(), throttle.Ask{}))
		s.takes = time.Hour
		start := time.Now()
		require.NoError(t, l.Shutdown(t.Context()))
		require.LessOrEqual(t, time.Since(start), time.Second)
		time.Sleep(time.Hour)
	})
}

// A dry run rejects nothing and has no request wait, so Shutdown waits only for what is in flight.
func TestShutdownOfADryRunRejectsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := transportTo(t, takes(time.Second), throttle.WithLimit(throttle.TokenBucket(1, time.Hour)), throttle.WithDryRun())
		sent := sendAll(t, tr, 3)
		start := time.Now()
		require.NoError(t, tr.Shutdown(t.Context()))
		require.Equal(t, time.Second, time.Since(start))
		status, r := ask(t, tr, api)
		require.Equal(t, 200, status)
		require.Nil(t, r)
		require.EqualValues(t, 1, tr.Stats().Rejected[throttle.ReasonShutdown])
		require.NoError(t, tr.Shutdown(t.Context()))
		require.Len(t, sent(), 3)
	})
}

// A request that panics, is canceled or is exempt does not keep a Transport from ending.
func TestNoRequestIsInFlightForever(t *testing.T) {
	hook := throttle.WithHooks(throttle.Hooks{OnGrant: func(e throttle.GrantEvent) {
		if e.Context.Value(panicking{}) == "hook" {
			panic("hook")
		}
	}})
	for _, limits := range [][]throttle.Limit{{throttle.TokenBucket(1, time.Second)}, {throttle.TokenBucket(1, time.Second), throttle.InFlight(9)}} {
		synctest.Test(t, func(t *testing.T) {
			base := serverFunc(func(r *http.Request) *http.Response {
				if r.Context().Value(panicking{}) == "base" {
					panic("base")
				}
				return says(200)
			})
			tr := transportTo(t, base, throttle.WithLimit(limits...), hook)
			for _, where := range []string{"base", "hook", "base", "hook"} {
				require.PanicsWithValue(t, where, func() {
					_, _ = tr.RoundTrip(request(context.WithValue(t.Context(), panicking{}, where)))
				})
			}
			ctx, cancel := context.WithCancel(t.Context())
			go func() { _, _ = tr.RoundTrip(request(ctx)) }()
			synctest.Wait()
			cancel()
			require.NoError(t, tr.Shutdown(t.Context()))
			resp, err := tr.RoundTrip(request(throttle.ContextWithExempt(t.Context())))
			require.NoError(t, err)
			require.Equal(t, 200, resp.StatusCode)
		})
	}
}

// A request whose outcome is reported ends once, also if a function panics while it is reported.
func TestARequestEndsOnceWhateverPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := []*http.Response{says(200), says(200), says(429, "Retry-After", "60")}
		base := serverFunc(func(*http.Request) (resp *http.Response) {
			resp, answers = answers[0], answers[1:]
			return resp
		})
		hook := throttle.WithHooks(throttle.Hooks{OnRetune: func(throttle.RetuneEvent) { panic("retune") }}) // of the report of the outcome
		tr := transportTo(t, base, hook, throttle.WithLimit(throttle.Adaptive(throttle.AIMD{}, throttle.Classify(
			func(resp *http.Response, _ error) throttle.Outcome {
				switch {
				case len(answers) == 2:
					panic("classify")
				case resp.StatusCode == 429:
					return throttle.OutcomeThrottled
				}
				return throttle.OutcomeOK
			}))))
		require.PanicsWithValue(t, "classify", func() { _, _ = tr.RoundTrip(request(t.Context())) })
		_, err := tr.RoundTrip(request(t.Context()))
		require.NoError(t, err)
		require.PanicsWithValue(t, "retune", func() { _, _ = tr.RoundTrip(request(t.Context())) })
		require.NoError(t, tr.Shutdown(t.Context()))
	})
}

// A request ends also if a hook panics while a panic of another function is handled.
func TestARequestEndsWhenTwoFunctionsPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := []*http.Response{says(200), says(429, "Retry-After", "60")}
		base := serverFunc(func(*http.Request) (resp *http.Response) {
			resp, answers = answers[0], answers[1:]
			return resp
		})
		hook := throttle.WithHooks(throttle.Hooks{OnRetune: func(throttle.RetuneEvent) { panic("retune") }})
		classify := throttle.Classify(func(resp *http.Response, _ error) throttle.Outcome {
			if resp.StatusCode == 429 {
				panic("classify")
			}
			return throttle.OutcomeOK
		})
		tr := transportTo(t, base, hook, throttle.WithLimit(throttle.Adaptive(throttle.AIMD{}), throttle.AdaptiveInFlight(throttle.Concurrency{}, classify)))
		_, err := tr.RoundTrip(request(t.Context()))
		require.NoError(t, err)
		require.PanicsWithValue(t, "retune", func() { _, _ = tr.RoundTrip(request(t.Context())) })
		require.NoError(t, tr.Shutdown(t.Context()))
	})
}

type panicking struct{}

func request(ctx context.Context) *http.Request {
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, api, nil)
	return req
}
