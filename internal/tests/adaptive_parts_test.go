package tests

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// learners are clients that learn a rate, beside what else may limit requests.
var learners = map[string][]throttle.Option{
	"a rate":                    {throttle.WithAdaptive()},
	"a rate and a number":       {throttle.WithAdaptive(), throttle.WithAdaptiveInFlight()},
	"a rate beside a known one": {throttle.WithLimit(throttle.Quota(50, time.Second), throttle.Adaptive(throttle.AIMD{}))},
	"a rate by tenant":          {throttle.WithKey(func(*http.Request) string { return "tenant" }), throttle.WithAdaptive()},
}

// A server that refuses one endpoint, and says for how long, is obeyed there, and each other endpoint gets what it wants. Whether the wait
// is a part of a minute, or of a day, and however often it is asked for again.
func TestWhatAServerAsksForStopsNoOtherPart(t *testing.T) {
	for name, opts := range learners {
		for _, status := range []int{429, 503} {
			for _, after := range []time.Duration{10 * time.Second, 30 * time.Second, 80_000 * time.Second} {
				t.Run(fmt.Sprint(name, ", ", status, ", ", after), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						const span = 20 * time.Minute
						ctx, cancel := context.WithTimeout(t.Context(), span)
						defer cancel()
						var mu sync.Mutex
						var until time.Time
						others, early, refused := 0, 0, 0
						tr := transportTo(t, serverFunc(func(r *http.Request) *http.Response {
							sent := time.Now()
							time.Sleep(100 * time.Millisecond)
							mu.Lock()
							defer mu.Unlock()
							if !strings.HasPrefix(r.URL.Path, "/exports/") {
								others++
								return says(200)
							}
							if sent.Before(until) {
								early++
							}
							refused++
							until = time.Now().Add(after)
							return says(status, "Retry-After", fmt.Sprint(int(after.Seconds())))
						}), opts...)
						var all sync.WaitGroup
						call := func(path string, every time.Duration) {
							all.Go(func() {
								for ctx.Err() == nil {
									if resp, err := tr.RoundTrip(get(t, ctx, "http://h"+path)); err == nil {
										resp.Body.Close()
									}
									time.Sleep(every)
								}
							})
						}
						call("/items", 900*time.Millisecond)
						call("/users", 1900*time.Millisecond)
						time.Sleep(2 * time.Second)
						call("/exports/1", 3*time.Second)
						all.Wait()
						assert.Zero(t, early, "a request that came before the server wanted it")
						assert.GreaterOrEqual(t, others, int(0.95*1.5*span.Seconds()))
						if after < span { // it is asked when its time has come, late by the random part of a hold and by the caller's own rest
							assert.GreaterOrEqual(t, refused, int(0.9*span.Seconds()/(after.Seconds()*1.1+3)))
						}
					})
				})
			}
		}
	}
}

// A hold beside a learned rate ends exactly at the instant that Servers reports, and no request of its part is sent before.
func TestAHoldBesideALearnedRateIsExact(t *testing.T) {
	for name, opts := range learners {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				refuse := true
				tr := transportTo(t, serverFunc(func(*http.Request) *http.Response {
					if refuse {
						return says(429, "Retry-After", "30")
					}
					return says(200)
				}), opts...)
				require.Equal(t, 429, statusOf(t.Context(), tr, "http://h/items"))
				refuse = false
				held := tr.Limiter().Servers()[0].HeldUntil
				require.GreaterOrEqual(t, time.Until(held), 30*time.Second)
				require.LessOrEqual(t, time.Until(held), 31*time.Second)
				sent := make(chan time.Time, 1)
				go func() {
					assert.Equal(t, 200, statusOf(t.Context(), tr, "http://h/items"))
					sent <- time.Now()
				}()
				time.Sleep(time.Until(held) - 1)
				synctest.Wait()
				require.Empty(t, sent)
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				require.Equal(t, held, <-sent)
			})
		})
	}
}

// A Snapshot of before, in which the limit that learns a rate has the wait that a server asked for, is kept.
func TestAWaitThatAnAdaptiveLimitHasSavedIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := transportTo(t, serverFunc(func(*http.Request) *http.Response { return says(200) }), throttle.WithAdaptive())
		var s throttle.Snapshot
		text := fmt.Sprintf(`{"version":1,"taken":%q,"buckets":[{"limit":"adaptive","key":"h","tokens":0,"learned":{"rate":10,"ceiling":0,"paused":30000000000}}]}`,
			time.Now().Format(time.RFC3339Nano))
		require.NoError(t, s.UnmarshalJSON([]byte(text)))
		time.Sleep(10 * time.Second)
		require.NoError(t, tr.Limiter().Restore(s))
		at := time.Now().Add(20 * time.Second)
		require.Equal(t, 200, statusOf(t.Context(), tr, "http://h/items"))
		require.Equal(t, at, time.Now())
	})
}
