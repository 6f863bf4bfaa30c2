package tests

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// A Receipt says afterwards why its request has waited.
func TestAReceiptSaysWhyARequestHasWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := transportTo(t, takes(0), throttle.WithLimit(throttle.TokenBucket(1, time.Second, throttle.Name("second"), throttle.Key(throttle.ByHost))))
		sendAll(t, tr, 4) // three of them wait
		synctest.Wait()
		ctx, receipt := throttle.ContextWithReceipt(throttle.ContextWithPriority(t.Context(), -1))
		_, ok := receipt.Delay()
		require.False(t, ok)
		done := make(chan error)
		go func() {
			_, err := tr.RoundTrip(request(ctx))
			done <- err
		}()
		synctest.Wait()
		_, ok = receipt.Delay()
		require.False(t, ok, "it still waits")
		require.NoError(t, <-done)
		d, ok := receipt.Delay()
		require.True(t, ok)
		require.Equal(t, throttle.Delay{Waited: 4 * time.Second, Limit: "second", Key: throttle.ByHost(request(ctx)), Ahead: 3, Priority: -1}, d)
		require.Equal(t, receipt.Waited(), d.Waited)
		require.Equal(t, `waited 4s for limit "second", key "`+d.Key+`", behind 3, at priority -1`, d.String())
		var line bytes.Buffer
		slog.New(slog.NewTextHandler(&line, nil)).Info("sent", "delay", d)
		require.Contains(t, line.String(), `delay.waited=4s delay.limit=second delay.key=`+d.Key+` delay.quota="" delay.ahead=3 delay.priority=-1`)

		time.Sleep(time.Minute)
		_, err := tr.RoundTrip(request(ctx))
		require.NoError(t, err)
		_, ok = receipt.Delay()
		require.False(t, ok, "the last attempt has not waited")
	})
}

// The quota of a server is named that the request has waited for.
func TestADelayNamesTheQuotaOfTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := 2
		tr := transportTo(t, roundTripper(func(r *http.Request) (*http.Response, error) {
			left--
			h := http.Header{"Ratelimit-Policy": {`"hourly";q=2;w=60`}, "Ratelimit": {`"hourly";r=0;t=60`}}
			if left > 0 {
				h = http.Header{"Ratelimit-Policy": {`"hourly";q=2;w=60`}, "Ratelimit": {`"hourly";r=1;t=60`}}
			}
			return &http.Response{StatusCode: 200, Header: h, Body: http.NoBody, Request: r}, nil
		}))
		for range 2 {
			_, err := tr.RoundTrip(request(t.Context()))
			require.NoError(t, err)
		}
		ctx, receipt := throttle.ContextWithReceipt(context.Background())
		_, err := tr.RoundTrip(request(ctx))
		require.NoError(t, err)
		d, ok := receipt.Delay()
		require.True(t, ok)
		require.Equal(t, "server", d.Limit)
		require.Equal(t, "hourly", d.Quota)
		require.Contains(t, d.String(), `for limit "server", quota "hourly", key "`)
	})
}

// A Transport forecasts by the host of a request, its keys and what its server reported.
func TestATransportForecastsLikeARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := transportTo(t, roundTripper(func(r *http.Request) (*http.Response, error) {
			h := http.Header{"X-Ratelimit-Limit": {"10"}, "X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": {"540"}}
			return &http.Response{StatusCode: 200, Header: h, Body: http.NoBody, Request: r}, nil
		}), throttle.WithLimit(throttle.InFlight(100)))
		f, err := tr.Forecast(request(t.Context()), 5)
		require.NoError(t, err)
		require.Zero(t, f.Done())
		_, err = tr.RoundTrip(request(t.Context()))
		require.NoError(t, err)
		f, err = tr.Forecast(request(t.Context()), 5)
		require.NoError(t, err)
		require.InDelta(t, 540, f.Done().Seconds(), 15)
		require.Equal(t, "server", f.Limit)
		require.True(t, f.Least)
		other, err := http.NewRequest(http.MethodGet, "http://other.example/", nil)
		require.NoError(t, err)
		f, err = tr.Forecast(other, 5)
		require.NoError(t, err)
		require.Zero(t, f.Done())
		_, err = tr.Forecast(other, -1)
		require.Error(t, err)
		f, err = tr.Forecast(request(throttle.ContextWithExempt(t.Context())), 5)
		require.NoError(t, err)
		require.Equal(t, throttle.Forecast{}, f)
	})
}

// An Ask without a key stands for the one host that a limit counts. Of several hosts, nothing is known but when those that wait are sent.
func TestAForecastWithoutAKeyIsOfTheHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := transportTo(t, takes(0), throttle.WithLimit(throttle.Adaptive(throttle.AIMD{Initial: 1, Max: 1})))
		wait := sendAll(t, tr, 11)
		synctest.Wait()
		f, err := tr.Limiter().Forecast(throttle.Ask{}, 0)
		require.NoError(t, err)
		require.InDelta(t, 10, f.Done().Seconds(), 1)
		f, err = tr.Limiter().Forecast(throttle.Ask{}, 10)
		require.NoError(t, err)
		require.InDelta(t, 20, f.Done().Seconds(), 1)
		other, err := http.NewRequest(http.MethodGet, "http://other.example/", nil)
		require.NoError(t, err)
		_, err = tr.RoundTrip(other)
		require.NoError(t, err)
		f, err = tr.Limiter().Forecast(throttle.Ask{}, 0)
		require.NoError(t, err)
		require.InDelta(t, 10, f.Done().Seconds(), 1)
		f, err = tr.Limiter().Forecast(throttle.Ask{}, 10)
		require.NoError(t, err)
		require.Equal(t, time.Duration(1<<63-1), f.Done(), "the host is not known")
		wait()
	})
}

// A request in a queue says when it will be sent, or that this is not known.
func TestAWaiterSaysWhatIsExpected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterWith(t, throttle.WithLimit(throttle.InFlight(1)))
		first, err := l.Acquire(t.Context(), throttle.Ask{})
		require.NoError(t, err)
		next, err := l.Enqueue(throttle.Ask{})
		require.NoError(t, err)
		waits, ok := next.Waiting()
		require.True(t, ok)
		require.True(t, waits.Due.IsZero(), "for how long a slot is taken has not been seen")
		time.Sleep(time.Second)
		first.Done()
		g, err := next.Wait(t.Context())
		require.NoError(t, err)
		for range 3 {
			next, err = l.Enqueue(throttle.Ask{})
			require.NoError(t, err)
		}
		waits, ok = next.Waiting()
		require.True(t, ok)
		require.InDelta(t, 2.5, time.Until(waits.Due).Seconds(), 0.1, "half of the time that a slot is taken, and twice all of it")
		g.Done()
	})
}
