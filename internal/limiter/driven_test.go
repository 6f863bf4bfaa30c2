package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/meter"
)

// The tests of this file drive a Core without anything above it: it is made from rules, and an observer records what it reports. The
// observer and the function that says rates check in each call that the lock is free.

// A driven is a Core with one User.
type driven struct {
	testing.TB
	*limiter.Core
	user   *limiter.User
	told   []string
	panics string // the event at which the observer panics
}

// tokens returns the rule of a token bucket of n a second, which holds as many.
func tokens(n int64, change ...func(*bucket.Rule)) bucket.Rule {
	r := bucket.Rule{Name: fmt.Sprint(n, "/s"), Rate: meter.Rate{N: n, Per: time.Second}, Burst: -1, Initial: -1, Share: 1, Rated: true}
	r.Make = func(now meter.Instant, r meter.Rate, burst int64, _ *meter.Wall) meter.Meter {
		return meter.NewTokenBucket(now, r, burst, burst)
	}
	for _, f := range change {
		f(&r)
	}
	return r
}

// drive returns a Core with these rules.
func drive(t testing.TB, rates map[string]int64, rules ...bucket.Rule) *driven {
	d := &driven{TB: t}
	d.Core = limiter.New(rules, limiter.Options{MaxQueue: 100, MaxKeys: 100, Rate: func(_ *bucket.Limit, key string) (meter.Rate, error) {
		d.checkUnlocked()
		if n, ok := rates[key]; ok {
			return meter.Rate{N: n, Per: time.Second}, nil
		}
		return meter.Rate{}, errNoRate
	}})
	d.user = &limiter.User{Observer: d, Granted: true, Rejected: true}
	return d
}

var errNoRate = errors.New("no rate")

func (d *driven) checkUnlocked() {
	d.Helper()
	require.True(d, d.TryLock(), "a function is called under the lock")
	d.Unlock()
}

func (d *driven) tell(event, format string, args ...any) {
	d.checkUnlocked()
	d.told = append(d.told, event+" "+fmt.Sprintf(format, args...))
	if d.panics == event {
		panic(event)
	}
}

func (d *driven) Waits(at limiter.Place, cost int64, wait time.Duration) {
	d.tell("waits", "%s: %d in %v", at.Limit, cost, wait)
}

func (d *driven) Granted(at limiter.Place, waited time.Duration) {
	d.tell("granted", "%s after %v", at.Limit, waited)
}

// A rejection is the error of a refusal.
type rejection struct{ limiter.Refusal }

func (r *rejection) Error() string { return fmt.Sprint("rejected for reason ", r.Reason) }

func (d *driven) Rejected(_ context.Context, r limiter.Refusal, waited time.Duration) error {
	d.tell("rejected", "%s after %v", r.Limit.Name, waited)
	return &rejection{r}
}

func (d *driven) Canceled(at limiter.Place, cause error, waited time.Duration) {
	d.tell("canceled", "%s after %v: %v", at.Limit, waited, cause)
}

func (d *driven) Held(at limiter.Place, h limiter.Hold) { d.tell("held", "%s for %v", at.Limit, h.By) }

func (d *driven) Retuned(at limiter.Place, r aimd.Retune) {
	d.tell("retuned", "%s to %v", at.Limit, r.To)
}

func (d *driven) Forgot(_ context.Context, server string) { d.tell("forgot", "%s", server) }

// request returns a request that costs the same in each limit.
func (d *driven) request(key string, cost int64) *limiter.Request {
	r := &limiter.Request{User: d.user, Context: context.Background()}
	for _, li := range d.Limits {
		r.Add(li, key, cost)
	}
	return r
}

// acquire has a request wait for at most some time, and makes it one that was granted.
func (d *driven) acquire(ctx context.Context, r *limiter.Request, most time.Duration) error {
	w := r.Waiter()
	w.MaxWait = most
	if err := d.Acquire(ctx, w); err != nil {
		return err
	}
	*r = limiter.Request{}
	w.Take(r)
	return nil
}

// A request is granted now, after a wait, or not at all, and its User is told once.
func TestARequestIsToldOnceWhatBecomesOfIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := drive(t, nil, tokens(2))
		require.True(t, d.Now(d.request("", 2), nil))
		r := d.request("", 1)
		require.False(t, d.Now(r, nil))
		require.NoError(t, d.acquire(t.Context(), r, -1))
		require.EqualValues(t, time.Second/2, r.Waited)
		require.EqualValues(t, time.Second/2, r.At)
		err := d.acquire(t.Context(), d.request("", 2), time.Second-1)
		require.Equal(t, bucket.ReasonMaxWait, err.(*rejection).Reason)
		require.Equal(t, time.Second, err.(*rejection).Wait)
		wait, ok := d.Try(d.request("", 1))
		require.False(t, ok)
		require.Equal(t, time.Second/2, wait)
		require.Equal(t, []string{
			"granted  after 0s", "waits 2/s: 1 in 500ms", "granted 2/s after 500ms", "rejected 2/s after 0s", "rejected 2/s after 0s",
		}, d.told)
		require.NoError(t, d.Check())
	})
}

// A request whose context ends gives its place to the next one.
func TestACanceledRequestCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := drive(t, nil, tokens(1))
		require.True(t, d.Now(d.request("", 1), nil))
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Hour, errNoRate)
		defer cancel()
		first := make(chan error, 1)
		stop := make(chan struct{})
		go func() {
			w := d.request("", 1).Waiter()
			w.Cancel = stop
			first <- d.Acquire(ctx, w)
		}()
		synctest.Wait()
		go close(stop)
		require.ErrorIs(t, <-first, context.Canceled)
		r := d.request("", 1)
		require.NoError(t, d.acquire(t.Context(), r, -1))
		require.EqualValues(t, time.Second, r.Waited)
		require.Zero(t, d.Limits[0].Counts.Waiting)
		require.NoError(t, d.Check())
	})
}

// If the observer panics, the request is not sent, and its charges are given back.
func TestAnObserverThatPanicsLeavesNothingCharged(t *testing.T) {
	for _, event := range []string{"granted", "waits"} {
		synctest.Test(t, func(t *testing.T) {
			d := drive(t, nil, tokens(1), tokens(3))
			if event == "waits" {
				require.True(t, d.Now(d.request("", 1), nil))
			}
			before := d.Limits[1].Single.Meter.Tokens(0)
			d.panics = event
			require.PanicsWithValue(t, event, func() {
				if r := d.request("", 1); !d.Now(r, nil) {
					_ = d.acquire(t.Context(), r, -1)
				}
			})
			require.InDelta(t, before, d.Limits[1].Single.Meter.Tokens(0), 0)
			require.Zero(t, d.Limits[0].Counts.Waiting)
			require.NoError(t, d.Check())
		})
	}
}

// Rates are asked for without the lock, once for each bucket, and a key without a rate gets no bucket.
func TestRatesOfKeysAreAskedForWithoutTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rates := map[string]int64{"a": 5, "b": 1}
		d := drive(t, rates, tokens(2, func(r *bucket.Rule) { r.Asks = true }))
		for key, n := range rates {
			require.NoError(t, d.acquire(t.Context(), d.request(key, n), 0))
			_, ok := d.Try(d.request(key, 1))
			require.False(t, ok, "the bucket holds %d", n)
		}
		require.ErrorIs(t, d.acquire(t.Context(), d.request("c", 1), 0), errNoRate)
		require.Nil(t, d.Limits[0].Bucket("c"))
		rates["a"] = 10
		delete(rates, "b")
		var faults []error
		d.Refresh(d.Limits[0], nil, func(err error) { faults = append(faults, err) })
		require.Equal(t, []error{errNoRate}, faults)
		require.InDelta(t, 10, d.Limits[0].Bucket("a").PerSecond(0), 0)
		require.InDelta(t, 1, d.Limits[0].Bucket("b").PerSecond(0), 0, "it keeps the rate that it had")
	})
}

// What is settled, returned or freed once is not again.
func TestARequestIsSettledOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := drive(t, nil, tokens(10))
		left := func() float64 { return d.Limits[0].Single.Meter.Tokens(0) }
		r := d.request("", 4)
		require.True(t, d.Now(r, nil))
		charged, err := d.Settle(r, 0, 1)
		require.NoError(t, err)
		require.EqualValues(t, 4, charged)
		require.InDelta(t, 9, left(), 0)
		_, err = d.Settle(r, 0, 2)
		require.ErrorIs(t, err, limiter.ErrSettled)
		d.Cancel(r)
		require.InDelta(t, 9, left(), 0, "something was done with it")
		r = d.request("", 4)
		require.True(t, d.Now(r, nil))
		d.Report(r, &limiter.Answer{Unsent: true})
		d.Cancel(r)
		require.InDelta(t, 9, left(), 0)
		_, err = d.Settle(r, 0, 1)
		require.Error(t, err)
	})
}
