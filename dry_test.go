package throttle_test

import (
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
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

// A dry run of requests under a limit each and one that they share says what each would have waited.
func TestADryRunWaitsAsTheRealOneWithSeveralLimits(t *testing.T) {
	run := func(dry bool) (waited [400]time.Duration, live int) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			base := &answered{&http.Response{StatusCode: 200, Body: http.NoBody}}
			opts := []throttle.Option{throttle.WithLimit(throttle.TokenBucket(100, time.Second), perHost(1, time.Second))}
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
		return waited, live
	}
	live, _ := run(false)
	dry, _ := run(true)
	require.Equal(t, live, dry)
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
		require.InDelta(t, 2, tokens(), 0.01)
	})
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

func TestADryRunBooksInOrderAndNoMoreThanMaxQueue(t *testing.T) {
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
			}
		})
	}
}
