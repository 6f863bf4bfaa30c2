package tests

import (
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// dried is a Transport in a dry run, with what its requests would have waited.
type dried struct {
	*throttle.Transport
	mu     sync.Mutex
	waited []time.Duration
}

func dryOf(t *testing.T, base http.RoundTripper, opts ...throttle.Option) *dried {
	d := new(dried)
	d.Transport = transportTo(t, base, append(opts, throttle.WithDryRun(), throttle.WithHooks(throttle.Hooks{
		OnGrant: func(e throttle.GrantEvent) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.waited = append(d.waited, e.Waited)
		},
	}))...)
	return d
}

// send sends a request, and returns what it would have waited.
func (d *dried) send(t *testing.T, host string) time.Duration {
	resp, err := d.RoundTrip(get(t, t.Context(), "http://"+host+"/"))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return d.waited[len(d.waited)-1]
}

func perHost(n int64, per time.Duration) throttle.Limit {
	return throttle.TokenBucket(n, per, throttle.Name("host"), throttle.Burst(1), throttle.Key(throttle.ByHost))
}

func TestADryRunDelaysNoKeyByAnother(t *testing.T) {
	for name, shared := range map[string]throttle.Limit{
		"bucket": throttle.TokenBucket(10, time.Second), "pace": throttle.Pace(10, time.Second),
		"window": throttle.SlidingWindow(20, time.Second), "fixed": throttle.FixedWindow(20, time.Second), "slots": throttle.InFlight(5),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := dryOf(t, &answered{&http.Response{StatusCode: 200, Body: http.NoBody}}, throttle.WithLimit(shared, perHost(1, time.Second)))
				require.Zero(t, d.send(t, "a"))
				for i := range 99 {
					require.Equal(t, time.Duration(i+1)*time.Second, d.send(t, "a"))
				}
				time.Sleep(100 * time.Millisecond)
				require.Zero(t, d.send(t, "b"))
				for i := range 50 { // what a has booked is charged when it is due, in each second one
					time.Sleep(time.Second)
					require.Zero(t, d.send(t, strconv.Itoa(i)))
				}
			})
		})
	}
}

// A dry run of requests under several limits says what each would have waited.
func TestADryRunWaitsAsTheRealOneWithSeveralLimits(t *testing.T) {
	window := func(n int64, per time.Duration, opts ...throttle.LimitOption) throttle.Limit {
		return throttle.SlidingWindow(n, per, opts...)
	}
	run := func(limits []throttle.Limit, dry bool) (waited [400]time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			base := &answered{&http.Response{StatusCode: 200, Body: http.NoBody}}
			opts := []throttle.Option{throttle.WithLimit(limits...)}
			var all sync.WaitGroup
			d := new(dried)
			tr := transportTo(t, base, opts...)
			if dry {
				d = dryOf(t, base, opts...)
				tr = d.Transport
			}
			for i := range waited {
				time.Sleep(time.Duration(r.Int64N(int64(300 * time.Millisecond))))
				host := strconv.Itoa(r.IntN(5))
				if dry {
					waited[i] = d.send(t, host)
					continue
				}
				all.Go(func() {
					began := time.Now()
					_, err := tr.RoundTrip(get(t, t.Context(), "http://"+host+"/"))
					assert.NoError(t, err)
					waited[i] = time.Since(began)
				})
				synctest.Wait()
			}
			all.Wait()
		})
		return waited
	}
	for name, limits := range map[string][]throttle.Limit{
		"a limit each, and a wide one that they share": {throttle.TokenBucket(100, time.Second), perHost(1, time.Second)},
		"one for a second, one for a minute":           {throttle.TokenBucket(4, time.Second), window(150, time.Minute)},
		"the one for a minute first":                   {window(150, time.Minute), throttle.TokenBucket(4, time.Second)},
		"three":                                        {throttle.TokenBucket(6, time.Second), window(20, 5*time.Second), window(150, time.Minute)},
		"two of each host":                             {perHost(1, time.Second), window(30, time.Minute, throttle.Key(throttle.ByHost))},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, run(limits, false), run(limits, true)) })
	}
}

func TestADryRunBooksNothingForARequestThatIsNotSent(t *testing.T) {
	for name, fail := range map[string]func(t *testing.T, d *dried, f *flaky){
		"dial": func(t *testing.T, d *dried, f *flaky) {
			f.until = time.Hour
			_, err := d.RoundTrip(get(t, t.Context(), "http://down/"))
			require.ErrorIs(t, err, errRefused)
			f.until = 0
		},
		"hook": func(t *testing.T, d *dried, _ *flaky) {
			d.waited = nil
			req := get(t, t.Context(), "http://down/")
			require.Panics(t, func() { _, _ = d.RoundTrip(req) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &flaky{start: time.Now()}
				d := new(dried)
				d.Transport = transportTo(t, f, throttle.WithLimit(throttle.TokenBucket(10, time.Hour), perHost(1, time.Second)), throttle.WithDryRun(),
					throttle.WithHooks(throttle.Hooks{OnGrant: func(e throttle.GrantEvent) {
						if d.waited == nil {
							panic("user")
						}
						d.waited = append(d.waited, e.Waited)
					}}))
				d.waited = []time.Duration{0}
				require.Zero(t, d.send(t, "down"))
				for range 3 {
					fail(t, d, f)
					d.waited = []time.Duration{0}
				}
				require.Equal(t, time.Second-20*time.Millisecond, d.send(t, "down"))
				time.Sleep(time.Minute)
				for b := range d.Limiter().Buckets() {
					if b.Limit == "bucket" {
						require.InDelta(t, 8+60./360, b.Tokens, 0.01)
					}
				}
				require.Equal(t, uint64(3), d.Stats().Undone)
			})
		})
	}
}

func TestADryRunTakesASettlementBeforeItsBooking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		settled := throttle.Settle(func(*http.Request, *http.Response) (int64, bool) { return 4, true })
		d := dryOf(t, &answered{&http.Response{StatusCode: 200, Body: http.NoBody}},
			throttle.WithLimit(throttle.TokenBucket(10, 1000*time.Hour, settled), perHost(1, time.Second)))
		for range 2 {
			d.send(t, "a")
		}
		tokens := func() float64 {
			for b := range d.Limiter().Buckets() {
				if b.Limit == "bucket" {
					return b.Tokens
				}
			}
			return -1
		}
		require.InDelta(t, 6, tokens(), 0.01, "the second has not gone yet")
		time.Sleep(time.Second)
		synctest.Wait()
		require.InDelta(t, 2, tokens(), 0.01)
	})
}

// Costs are corrected by the body and by a Receipt, and requests are canceled, before their charges are made.
func TestADryRunBooksTrueCosts(t *testing.T) {
	for others := range 7 { // charges are kept in other places when they are many
		synctest.Test(t, func(t *testing.T) {
			limits := []throttle.Limit{throttle.TokenBucket(1, time.Second), throttle.SlidingWindow(50, time.Minute, throttle.Name("w"), throttle.SettleJSON("cost"))}
			for range others {
				limits = append(limits, throttle.SlidingWindow(50, time.Minute))
			}
			base := bodies(func() io.ReadCloser { return io.NopCloser(strings.NewReader(`{"cost": 3}`)) })
			d := dryOf(t, base, throttle.WithLimit(limits...))
			left := func() float64 {
				b, _ := d.Limiter().Bucket("w", "")
				return b.Tokens
			}
			for i := range 6 {
				ctx, receipt := throttle.ContextWithReceipt(t.Context())
				resp, err := d.RoundTrip(get(t, ctx, "http://a/"))
				require.NoError(t, err)
				if i%2 == 0 {
					_, err = io.Copy(io.Discard, resp.Body)
					require.NoError(t, err)
				} else {
					require.NoError(t, receipt.Settle("w", 4))
				}
				require.NoError(t, resp.Body.Close())
			}
			require.InDelta(t, 47, left(), 0, "the first need not wait")
			g, err := d.Limiter().Acquire(t.Context(), throttle.Ask{})
			require.NoError(t, err)
			g.Cancel()
			time.Sleep(10 * time.Second)
			require.InDelta(t, 50-3*3-3*4, left(), 0)
			_, ok := d.Limiter().Try(throttle.Ask{})
			require.True(t, ok)
			require.InDelta(t, 50-3*3-3*4-1, left(), 0)
		})
	}
}

func TestADryRunBooksWhatIsDueBeforeARequestThatNeedNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := dryOf(t, &answered{&http.Response{StatusCode: 200, Body: http.NoBody}},
			throttle.WithLimit(throttle.TokenBucket(2, 2*time.Hour), perHost(1, time.Second)))
		require.Zero(t, d.send(t, "a"))
		require.Equal(t, time.Second, d.send(t, "a"))
		time.Sleep(time.Second)
		require.Equal(t, time.Hour-time.Second, d.send(t, "b"))
	})
}

func TestADryRunCountsWhatRequestsWouldHaveWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := dryOf(t, &answered{&http.Response{StatusCode: 200, Body: http.NoBody}},
			throttle.WithLimit(throttle.TokenBucket(10, time.Second), perHost(1, time.Second)))
		time.Sleep(time.Hour)
		for range 3 {
			d.send(t, "a")
		}
		require.Equal(t, 2, d.Stats().Waiting)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		for _, s := range []throttle.Stats{d.Stats(), d.Limiter().Stats()} {
			require.EqualValues(t, 3, s.Granted)
			require.EqualValues(t, 2, s.Delayed)
			require.Equal(t, 3*time.Second, s.Waited)
		}
		for _, s := range d.Limiter().Limits()[:2] {
			require.EqualValues(t, 3, s.Granted)
		}
		require.Equal(t, 3*time.Second, d.Limiter().Limits()[1].Waits.Sum)
	})
}

func TestADryRunTakesTurnsAndNoMoreThanMaxQueue(t *testing.T) {
	for most, last := range map[int]float64{1: 2, 2: 1} {
		synctest.Test(t, func(t *testing.T) {
			d := dryOf(t, &answered{&http.Response{StatusCode: 200, Body: http.NoBody}},
				throttle.WithLimit(throttle.TokenBucket(4, 1000*time.Hour), perHost(1, time.Second)), throttle.WithMaxQueue(most))
			for range 3 {
				d.send(t, "a")
			}
			for _, left := range []float64{3, 2, last} {
				for b := range d.Limiter().Buckets() {
					if b.Limit == "bucket" {
						require.InDelta(t, left, b.Tokens, 0.01)
					}
				}
				time.Sleep(time.Second)
				synctest.Wait()
			}
		})
	}
}

// A dry run counts what a real one does, also with priorities, full queues and requests that wait for too long.
func TestADryRunCountsAsTheRealOne(t *testing.T) {
	for seed := range uint64(10) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			opts := []throttle.Option{throttle.WithMaxQueue(5 + r.IntN(20)), throttle.WithLimit(
				throttle.TokenBucket(1+r.Int64N(4), time.Second, throttle.Burst(3)), throttle.SlidingWindow(40, 20*time.Second, throttle.Name("own"), throttle.Key(throttle.ByHost)))}
			base := &answered{&http.Response{StatusCode: 200, Body: http.NoBody}}
			real, dry := transportTo(t, base, opts...).Limiter(), transportTo(t, base, append(opts, throttle.WithDryRun())...).Limiter()
			var all sync.WaitGroup
			for range 300 {
				ctx := throttle.ContextWithPriority(t.Context(), r.IntN(3)-1)
				ask := throttle.Ask{Key: strconv.Itoa(r.IntN(3)), Cost: 1 + r.Int64N(3)}
				if r.IntN(3) == 0 {
					ask.MaxWait = ptr(time.Duration(r.Int64N(int64(5 * time.Second))))
				}
				require.NoError(t, dry.Wait(ctx, ask))
				all.Go(func() { _ = real.Wait(ctx, ask) })
				time.Sleep(time.Duration(r.Int64N(int64(2*time.Second))) * time.Duration(r.IntN(2)))
				synctest.Wait()
				is, as := real.Stats(), dry.Stats()
				as.DryRun, as.Buckets = false, is.Buckets // which are forgotten at other instants
				require.Equal(t, is, as)
			}
			all.Wait()
			synctest.Wait()
			require.NotZero(t, dry.Stats().Rejected[throttle.ReasonMaxWait])
			require.NotZero(t, dry.Stats().Delayed)
			require.Equal(t, real.Limits(), dry.Limits())
		})
	}
}

// In a dry run, each request takes a slot for as long as it lasts, and one for which there is no slot does not wait.
func TestADryRunWaitsForSlotsAsTheRealOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := roundTripper(func(*http.Request) (*http.Response, error) {
			time.Sleep(time.Second)
			return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
		})
		d := dryOf(t, slow, throttle.WithLimit(throttle.InFlight(2)))
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() { d.send(t, "a") })
		}
		synctest.Wait()
		slots := func() throttle.BucketStats {
			b, ok := d.Limiter().Bucket("in-flight", "")
			require.True(t, ok)
			return b
		}
		require.Equal(t, 3, d.Stats().Waiting)
		require.Equal(t, 2, slots().InFlight)
		all.Wait()
		s := d.Stats()
		require.Zero(t, s.Waiting)
		require.EqualValues(t, 5, s.Granted)
		require.Equal(t, 3*time.Second, s.Waited)
		require.Zero(t, slots().InFlight)
		require.EqualValues(t, 2, slots().Tokens)
	})
}

// What a server sends counts when it comes, also if the request would still wait.
func TestADryRunLearnsFromRequestsThatWouldWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := dryOf(t, &answered{&http.Response{StatusCode: 200, Body: http.NoBody}},
			throttle.WithLimit(throttle.Adaptive(throttle.AIMD{Initial: 1}), perHost(1, time.Minute)))
		for range 5 {
			d.send(t, "a")
		}
		for b := range d.Limiter().Buckets() {
			require.Zero(t, b.InFlight, b.Limit)
		}
		require.Equal(t, 4, d.Stats().Waiting)
		time.Sleep(time.Hour)
		s := d.Stats()
		require.Zero(t, s.Waiting)
		require.EqualValues(t, 5, s.Granted)
		require.Equal(t, 10*time.Minute, s.Waited)
		for _, l := range d.Limiter().Limits()[:2] {
			require.EqualValues(t, 5, l.Granted, l.Name)
			require.EqualValues(t, 5, l.Charged, l.Name)
		}
	})
}

// A dry run charges an estimate when a request would have been granted, and the true cost as long after that as its response takes.
func TestADryRunSettlesAsTheRealOne(t *testing.T) { // slow: many random runs
	seeds := uint64(300)
	if testing.Short() {
		seeds = 30
	}
	settled := throttle.Settle(func(_ *http.Request, resp *http.Response) (int64, bool) {
		cost, err := strconv.ParseInt(resp.Header.Get("Cost"), 10, 64)
		return cost, err == nil
	})
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 4))
			limits := []throttle.Limit{
				throttle.TokenBucket(1+r.Int64N(4), time.Second, throttle.Burst(5+r.Int64N(5)), settled),
				throttle.SlidingWindow(20+r.Int64N(20), 20*time.Second, throttle.Name("own"), throttle.Key(throttle.ByHost), throttle.SettleJSON("cost")),
				throttle.Pace(3, time.Second), throttle.FixedWindow(30, 10*time.Second, settled),
			}
			opts := []throttle.Option{throttle.WithoutServerHints(), throttle.WithMaxQueue(20), throttle.WithLimit(limits[:1+r.IntN(len(limits))]...)}
			base := roundTripper(func(req *http.Request) (*http.Response, error) {
				takes, _ := time.ParseDuration(req.Header.Get("Takes"))
				time.Sleep(takes)
				return &http.Response{StatusCode: 200, Header: req.Header, Body: io.NopCloser(strings.NewReader(req.Header.Get("Body")))}, nil
			})
			real, dry := transportTo(t, base, opts...), transportTo(t, base, append(opts, throttle.WithDryRun())...)
			var all sync.WaitGroup
			for range 100 {
				ctx := throttle.ContextWithCost(throttle.ContextWithPriority(t.Context(), r.IntN(3)-1), 1+r.Int64N(5))
				if r.IntN(3) == 0 {
					ctx = throttle.ContextWithMaxWait(ctx, time.Duration(r.Int64N(int64(5*time.Second))))
				}
				host := strconv.Itoa(r.IntN(3))
				cost, takes := r.Int64N(8), time.Duration(r.Int64N(int64(3*time.Second)))
				for _, tr := range []http.RoundTripper{real, dry} {
					req := get(t, ctx, "http://"+host+"/")
					req.Header.Set("Cost", strconv.FormatInt(cost, 10))
					req.Header.Set("Takes", takes.String())
					req.Header.Set("Body", `{"cost": `+strconv.FormatInt(cost, 10)+`}`)
					all.Go(func() {
						resp, err := tr.RoundTrip(req)
						if err == nil { // else the test has failed
							_, _ = io.Copy(io.Discard, resp.Body)
							_ = resp.Body.Close()
						}
					})
				}
				time.Sleep(time.Duration(r.Int64N(int64(time.Second))) * time.Duration(r.IntN(2)))
				synctest.Wait()
				is, as := real.Stats(), dry.Stats()
				as.DryRun, as.Buckets = false, is.Buckets // which are forgotten at other instants
				require.Equal(t, is, as, "seed %d", seed)
				for _, limit := range real.Limiter().Limits() {
					is, _ := real.Limiter().Bucket(limit.Name, "")
					as, _ := dry.Limiter().Bucket(limit.Name, "")
					require.Equal(t, is, as, "seed %d", seed)
				}
			}
			for range 600 {
				time.Sleep(100 * time.Millisecond)
				synctest.Wait()
				is, as := real.Stats(), dry.Stats()
				as.DryRun, as.Buckets = false, is.Buckets // which are forgotten at other instants
				require.Equal(t, is, as, "seed %d", seed)
			}
			all.Wait()
			time.Sleep(time.Minute)
			synctest.Wait()
			require.Equal(t, real.Limiter().Limits(), dry.Limiter().Limits(), "seed %d", seed)
		})
	}
}

// In a dry run, a server may respond after all that was known of it is forgotten, because the request would have been rejected by then.
func TestADryRunForgetsAServerBeforeItResponds(t *testing.T) {
	for name, fails := range map[string]error{"a response": nil, "no connection": &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, "an error": io.ErrUnexpectedEOF} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sent := 0
				tr, err := throttle.New(roundTripper(func(req *http.Request) (*http.Response, error) {
					if sent++; sent == 2 {
						time.Sleep(10 * time.Minute)
						if fails != nil {
							return nil, fails
						}
					}
					h := header("X-RateLimit-Limit", "100", "X-RateLimit-Remaining", "90", "X-RateLimit-Reset", "1")
					return &http.Response{StatusCode: 200, Header: h, Body: http.NoBody, Request: req}, nil
				}), throttle.WithDryRun(), throttle.WithMaxWait(2*time.Minute), throttle.WithLimit(throttle.TokenBucket(1, time.Minute)))
				require.NoError(t, err)
				_, err = tr.RoundTrip(request(t.Context()))
				require.NoError(t, err)
				time.AfterFunc(10*time.Second, func() { tr.Limiter().HoldAll(time.Hour) })
				_, err = tr.RoundTrip(request(t.Context()))
				require.ErrorIs(t, err, fails)
				_, err = tr.RoundTrip(request(t.Context()))
				require.NoError(t, err)
				require.NoError(t, tr.Shutdown(t.Context()))
				for _, s := range tr.Limiter().Limits() {
					require.Zero(t, s.InFlight, s.Name)
				}
			})
		})
	}
}
