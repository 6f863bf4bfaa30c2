package tests

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
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

// Other clients are those that obey what a server asks for, without a learned rate. Each of them knows the parts of a server, too.
var others = map[string][]throttle.Option{
	"default":            nil,
	"a limit of its own": {throttle.WithLimit(throttle.Quota(20, time.Second))},
	"a number in flight": {throttle.WithAdaptiveInFlight()},
}

// An endpoint that refuses everything and says no more shows that it is counted separately, because requests to others are accepted in
// between.
func TestAnEndpointThatRefusesEverythingStopsNoOtherPart(t *testing.T) {
	for _, clients := range []map[string][]throttle.Option{learners, others} {
		for name, opts := range clients {
			for _, status := range []int{429, 503} {
				for _, every := range []time.Duration{500 * time.Millisecond, 5 * time.Second} {
					t.Run(fmt.Sprint(name, ", ", status, ", ", every), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							const span = 20 * time.Minute
							ctx, cancel := context.WithTimeout(t.Context(), span)
							defer cancel()
							var accepted atomic.Int64
							tr := transportTo(t, serverFunc(func(r *http.Request) *http.Response {
								time.Sleep(100 * time.Millisecond)
								if strings.HasPrefix(r.URL.Path, "/sick") {
									return says(status)
								}
								accepted.Add(1)
								return says(200)
							}), opts...)
							var all sync.WaitGroup
							for path, rest := range map[string]time.Duration{"/items": 900 * time.Millisecond, "/users": 1900 * time.Millisecond, "/sick": every} {
								all.Go(func() {
									for ctx.Err() == nil {
										statusOf(ctx, tr, "http://h"+path)
										time.Sleep(rest)
									}
								})
							}
							all.Wait()
							assert.GreaterOrEqual(t, int(accepted.Load()), int(0.95*1.5*span.Seconds()))
						})
					})
				}
			}
		}
	}
}

// Google Sheets counts reads and writes separately, 60 a minute each, and a refusal says no more than that.
func TestReadsThatAreRefusedStopNoWrites(t *testing.T) {
	for name, opts := range learners {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const span = 20 * time.Minute
				ctx, cancel := context.WithTimeout(t.Context(), span)
				defer cancel()
				var mu sync.Mutex
				ends, used, accepted := map[string]time.Time{}, map[string]int{}, map[string]int{}
				tr := transportTo(t, serverFunc(func(r *http.Request) *http.Response {
					time.Sleep(300 * time.Millisecond)
					mu.Lock()
					defer mu.Unlock()
					if now, m := time.Now(), r.Method; !now.Before(ends[m]) {
						ends[m], used[m] = now.Add(time.Minute), 0
					}
					if used[r.Method]++; used[r.Method] > 60 {
						return says(429)
					}
					accepted[r.Method]++
					return says(200)
				}), opts...)
				var all sync.WaitGroup
				call := func(method string, rest time.Duration) {
					all.Go(func() {
						for ctx.Err() == nil {
							req, _ := http.NewRequestWithContext(ctx, method, "http://h/values", nil)
							if resp, err := tr.RoundTrip(req); err == nil {
								resp.Body.Close()
							}
							time.Sleep(rest)
						}
					})
				}
				call(http.MethodGet, time.Millisecond)
				call(http.MethodGet, time.Millisecond)
				call(http.MethodPost, 2*time.Second)
				all.Wait()
				assert.GreaterOrEqual(t, accepted["GET"], 1200*8/10)
				assert.GreaterOrEqual(t, accepted["POST"], int(0.95*span.Seconds()/2.3))
			})
		})
	}
}
