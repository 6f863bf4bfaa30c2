package tests

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/store"
)

// This file is what one refusal costs a program that has run for a while, and what a server's reports are worth once responses
// contradict them.

// pressAll has callers send requests in a closed loop until ctx ends. The base says what each response is.
func pressAll(ctx context.Context, tr http.RoundTripper, callers int, request func(caller int) *http.Request) {
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for ctx.Err() == nil {
				resp, err := tr.RoundTrip(request(i).WithContext(ctx))
				if err != nil {
					return
				}
				resp.Body.Close()
			}
		})
	}
	all.Wait()
}

// to returns a request to a URL.
func to(t *testing.T, method, url string) func(int) *http.Request {
	return func(int) *http.Request {
		req, err := http.NewRequest(method, url, nil)
		require.NoError(t, err)
		return req
	}
}

// A client without limits of its own is refused once, at any age. When the wait is over, requests are sent at the rate that was accepted
// before.
func TestOneRefusalCostsItsWait(t *testing.T) {
	const (
		callers = 4
		trip    = 100 * time.Millisecond // so that 40 requests a second are accepted
	)
	for _, age := range []time.Duration{3 * time.Second, 12 * time.Second, 10 * time.Minute} {
		for _, after := range []string{"", "5"} {
			t.Run(fmt.Sprint(age, " ", after), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var (
						mu      sync.Mutex
						start   = time.Now()
						known   time.Time // when the refusal was read; zero: it has not come
						during  int
						resumed int // requests in the second to the eleventh second after the wait
					)
					wait := time.Second
					if after != "" {
						wait = 5 * time.Second
					}
					tr, err := throttle.New(serverFunc(func(*http.Request) *http.Response {
						mu.Lock()
						refuse := known.IsZero() && time.Since(start) >= age
						if refuse {
							known = time.Now().Add(trip)
						}
						switch since := time.Since(known); {
						case known.IsZero() || since <= 0:
						case after != "" && since < wait:
							during++
						case since >= wait+time.Second && since < wait+11*time.Second:
							resumed++
						}
						mu.Unlock()
						time.Sleep(trip)
						switch {
						case refuse && after != "":
							return says(429, "Retry-After", after)
						case refuse:
							return says(429)
						}
						return says(200)
					}))
					require.NoError(t, err)
					ctx, cancel := context.WithTimeout(t.Context(), age+30*time.Second)
					defer cancel()
					pressAll(ctx, tr, callers, to(t, http.MethodGet, api))
					assert.Zero(t, during, "sent before the wait was over")
					assert.Greater(t, resumed, 360, "of 400 in ten seconds")
				})
			})
		}
	}
}

// A crossed is a server with a bucket of 40 requests a second. At an age, it refuses one request by chance, and asks for a wait.
type crossed struct {
	burst float64
	says  []string // headers of its other refusals
	age   time.Duration
	asks  time.Duration
}

// press has 16 callers send requests until 15 s after that wait. It returns how many the bucket refused, and how many it accepted in the
// second to the eleventh second after the wait.
func (c crossed) press(t *testing.T, opts ...throttle.Option) (refused, resumed int) {
	synctest.Test(t, func(t *testing.T) {
		var (
			mu    sync.Mutex
			start = time.Now()
			last  = start
			left  = c.burst
			until time.Time // when the wait ends
		)
		tr, err := throttle.New(serverFunc(func(*http.Request) *http.Response {
			time.Sleep(50 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			now := time.Now()
			if until.IsZero() && now.Sub(start) >= c.age {
				until = now.Add(c.asks)
				return says(429, "Retry-After", fmt.Sprint(c.asks.Seconds()))
			}
			left, last = min(c.burst, left+40*now.Sub(last).Seconds()), now
			if left < 1 {
				refused++
				return says(429, c.says...)
			}
			left--
			if since := now.Sub(until); !until.IsZero() && since >= time.Second && since < 11*time.Second {
				resumed++
			}
			return says(200)
		}), opts...)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), c.age+c.asks+15*time.Second)
		defer cancel()
		pressAll(ctx, tr, 16, to(t, http.MethodGet, api))
	})
	return refused, resumed
}

// A server with a bucket refuses without a word, so its clients go to and fro about its limit. Then one refusal asks for a long wait. What
// was accepted before is worth more than that.
func TestOneLongWaitLowersNoRateThatIsKnown(t *testing.T) {
	_, resumed := crossed{burst: 4, age: 10 * time.Minute, asks: 30 * time.Second}.press(t)
	assert.Greater(t, resumed, 240, "of 400")
}

// A client knows the rate of its server, and not its burst. A refusal of its first burst and another one by chance lower no rate that is
// right.
func TestARefusalOfABurstDoesNotCountBesideTheNext(t *testing.T) {
	for _, asks := range []time.Duration{time.Second, 5 * time.Second, 30 * time.Second} {
		refused, resumed := crossed{burst: 8, says: []string{"Retry-After", "1"}, age: 6 * time.Second, asks: asks}.press(t,
			throttle.WithLimit(throttle.TokenBucket(40, time.Second, throttle.Burst(80))))
		assert.NotZero(t, refused, "of the first burst")
		assert.Greater(t, resumed, 380, "of 400, after %v", asks)
	}
}

// Nothing was accepted before the first refusal. What has waited for it leaves evenly, at a rate that doubles each second.
func TestWhatWaitedForTheFirstRefusalLeavesEvenly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const (
			waiting = 200
			asks    = 30 * time.Second
		)
		var (
			mu   sync.Mutex
			sent []time.Duration
		)
		start := time.Now()
		tr, err := throttle.New(serverFunc(func(*http.Request) *http.Response {
			mu.Lock()
			sent = append(sent, time.Since(start))
			first := len(sent) == 1
			mu.Unlock()
			time.Sleep(50 * time.Millisecond)
			if first {
				return says(429, "Retry-After", fmt.Sprint(asks.Seconds()))
			}
			return says(200)
		}))
		require.NoError(t, err)
		send := func() {
			_, err := tr.RoundTrip(to(t, http.MethodGet, api)(0))
			assert.NoError(t, err)
		}
		send()
		var all sync.WaitGroup
		for range waiting {
			all.Go(send)
		}
		all.Wait()
		require.Len(t, sent, 1+waiting)
		resumed := sent[1]
		require.GreaterOrEqual(t, resumed, asks)
		for i, most := range []int{6, 18, 41} { // from 4/s on: 5.8, 17.3 and 40.4 within so many seconds
			end, _ := slices.BinarySearch(sent, resumed+time.Duration(i+1)*time.Second)
			require.LessOrEqual(t, end-1, most)
		}
		require.Less(t, sent[waiting]-resumed, 6*time.Second)
	})
}

// The first response with rate-limit headers is a refusal. A limit that learns waits as long as it says.
func TestALimitThatLearnsHeedsTheFirstRefusalThatReportsAQuota(t *testing.T) { // slow: minutes of a server
	for name, header := range map[string][]string{
		"Retry-After":           {"Retry-After", "10", "X-RateLimit-Limit", "600", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "10"},
		"a reset":               {"X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "10"},
		"the draft":             {"RateLimit", `"default";r=0;t=10`, "Retry-After", "10"},
		"only Retry-After":      {"Retry-After", "10"},
		"a quota that is named": {"X-RateLimit-Resource", "search", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "10", "Retry-After", "10"},
	} {
		for client, opts := range map[string][]throttle.Option{
			"adaptive": {throttle.WithAdaptive()},
			"both":     {throttle.WithAdaptive(), throttle.WithAdaptiveInFlight()},
			"beside":   {throttle.WithAdaptive(), throttle.WithLimit(throttle.TokenBucket(50, time.Second))},
		} {
			t.Run(name+" "+client, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					const trip = 500 * time.Millisecond
					var mu sync.Mutex
					start, during, after, refused := time.Now(), 0, 0, time.Time{}
					tr, err := throttle.New(serverFunc(func(*http.Request) *http.Response {
						mu.Lock()
						first := refused.IsZero() && time.Since(start) > 10*time.Minute
						if first {
							refused = time.Now()
						} else if known := refused.Add(trip); !refused.IsZero() && time.Now().After(known) {
							if time.Since(known) < 10*time.Second {
								during++
							}
							after++
						}
						mu.Unlock()
						time.Sleep(trip)
						if first {
							return says(429, header...)
						}
						return says(200)
					}), opts...)
					require.NoError(t, err)
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute+20*time.Second)
					defer cancel()
					pressAll(ctx, tr, 4, to(t, http.MethodGet, api))
					assert.Zero(t, during, "sent before the wait was over")
					assert.NotZero(t, after)
				})
			})
		}
	}
}

// A server counts two kinds of requests apart, under one set of header names. Whatever the responses to one kind report, requests of
// the other are not sent before the wait is over.
func TestAnAskedWaitHoldsWhateverOtherResponsesReport(t *testing.T) { // slow: minutes of a server
	const per = time.Minute
	for name, opts := range map[string][]throttle.Option{
		"hints": nil, "adaptive": {throttle.WithAdaptive()}, "own limit": {throttle.WithLimit(throttle.SlidingWindow(600, per))},
	} {
		for _, asked := range []bool{true, false} {
			t.Run(fmt.Sprint(name, " ", asked), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var mu sync.Mutex
					limits, left, ends := [2]int{25, 600}, [2]int{}, [2]time.Time{}
					var until time.Time // the small quota's, once a refusal of it has been read
					refused, early := 0, 0
					tr, err := throttle.New(serverFunc(func(r *http.Request) *http.Response {
						k := 1
						if r.Method == http.MethodPost {
							k = 0
						}
						mu.Lock()
						defer mu.Unlock()
						if k == 0 && time.Now().Before(until) {
							early++
						}
						mu.Unlock()
						time.Sleep(50 * time.Millisecond)
						mu.Lock()
						if now := time.Now(); !now.Before(ends[k]) {
							ends[k], left[k] = now.Truncate(per).Add(per), limits[k]
						}
						status := 200
						if left[k]--; left[k] < 0 {
							status, left[k] = 429, 0
						}
						whole := fmt.Sprint(int((time.Until(ends[k]) + time.Second - 1) / time.Second))
						header := []string{"X-RateLimit-Limit", fmt.Sprint(limits[k]), "X-RateLimit-Remaining", fmt.Sprint(left[k]), "X-RateLimit-Reset", whole}
						if status == 429 {
							refused, until = refused+1, ends[k]
							if asked {
								header = append(header, "Retry-After", whole)
							}
						}
						return says(status, header...)
					}), opts...)
					require.NoError(t, err)
					ctx, cancel := context.WithTimeout(t.Context(), 10*per)
					defer cancel()
					kinds := []func(int) *http.Request{to(t, http.MethodPost, api), to(t, http.MethodGet, api)}
					pressAll(ctx, tr, 6, func(caller int) *http.Request { return kinds[caller%2](caller) })
					assert.LessOrEqual(t, early, 2*10, "those of a window that were in flight with the first one that was refused")
					assert.LessOrEqual(t, refused, 5*10)
				})
			})
		}
	}
}

// Responses of a server that accepts everything report that nothing is left, or a limit of 0. Requests that are sent after such a report
// and are accepted show that it is wrong.
func TestAcceptedRequestsContradictReportsThatNothingIsLeft(t *testing.T) { // slow: minutes of a server
	for name, header := range map[string][]string{
		"a limit of 0":     {"X-RateLimit-Limit", "0", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "60"},
		"nothing left":     {"X-RateLimit-Limit", "100", "X-RateLimit-Remaining", "0"},
		"no tokens left":   {"X-RateLimit-Limit-Tokens", "100", "X-RateLimit-Remaining-Tokens", "0"},
		"nothing is known": {},
	} {
		for client, opts := range map[string][]throttle.Option{
			"hints": nil, "adaptive": {throttle.WithAdaptive()}, "own limit": {throttle.WithLimit(throttle.TokenBucket(1000, time.Second))},
		} {
			t.Run(name+" "+client, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := 0
					var mu sync.Mutex
					tr, err := throttle.New(serverFunc(func(*http.Request) *http.Response {
						time.Sleep(50 * time.Millisecond)
						mu.Lock()
						defer mu.Unlock()
						n++
						return says(200, header...)
					}), opts...)
					require.NoError(t, err)
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					pressAll(ctx, tr, 4, to(t, http.MethodGet, api))
					assert.Greater(t, n, 4_600, "of 4,800")
				})
			})
		}
	}
}

// A window of tokens reports what is left, but no end, and refuses with a bare 429. One request at a time asks whether it has begun again,
// and nothing grows meanwhile.
func TestAnEmptyQuotaWithoutAnEndIsAskedOneRequestAtATime(t *testing.T) {
	const (
		per   = time.Minute
		limit = 300
	)
	for _, unit := range []string{"", "-Tokens"} {
		for client, opts := range map[string][]throttle.Option{"hints": nil, "adaptive": {throttle.WithAdaptive()}} {
			t.Run(client+unit, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var mu sync.Mutex
					ends, used, accepted, refused := time.Time{}, 0, 0, 0
					tr, err := throttle.New(serverFunc(func(*http.Request) *http.Response {
						mu.Lock()
						if now := time.Now(); !now.Before(ends) {
							ends, used = now.Truncate(per).Add(per), 0
						}
						status := 200
						if used++; used > limit {
							status, refused = 429, refused+1
						} else {
							accepted++
						}
						left := max(0, limit-used)
						mu.Unlock()
						time.Sleep(200 * time.Millisecond)
						return says(status, "X-RateLimit-Limit"+unit, fmt.Sprint(limit), "X-RateLimit-Remaining"+unit, fmt.Sprint(left))
					}), opts...)
					require.NoError(t, err)
					ctx, cancel := context.WithTimeout(t.Context(), 20*per)
					defer cancel()
					pressAll(ctx, tr, 8, to(t, http.MethodGet, api))
					assert.LessOrEqual(t, float64(refused), 0.1*float64(accepted+refused), "%d accepted", accepted)
					assert.Greater(t, accepted, 20*limit*6/10)
				})
			})
		}
	}
}

// What a server asks for concerns all processes that share a limit. A backoff is the guess of one process, which others may know to be
// wrong. If each of eight held the others, they would use a twentieth of a limit of five per second.
func TestABackoffHoldsNoOtherProcess(t *testing.T) {
	for asks, waits := range map[string]bool{"": false, "3": true} {
		synctest.Test(t, func(t *testing.T) {
			shared := store.NewMemory()
			process := func(status int) *throttle.Transport {
				base := serverFunc(func(r *http.Request) *http.Response {
					h := http.Header{}
					if status != http.StatusOK && asks != "" {
						h.Set("Retry-After", asks)
					}
					return &http.Response{StatusCode: status, Header: h, Body: http.NoBody, Request: r}
				})
				return throttle.Must(throttle.New(base, throttle.WithLimit(throttle.TokenBucket(100, time.Second, throttle.Shared(shared)))))
			}
			send := func(tr *throttle.Transport) {
				_, err := tr.RoundTrip(to(t, "GET", "http://api.example.com/")(0))
				require.NoError(t, err)
			}
			refused, other := process(http.StatusTooManyRequests), process(http.StatusOK)
			send(other)
			for range 2 { // a bare refusal sets no hold before the second
				send(refused)
			}
			synctest.Wait() // until the store has been called
			begun := time.Now()
			for range 50 { // until the other process has asked the store
				send(other)
			}
			require.Equal(t, waits, time.Since(begun) > 100*time.Millisecond, "Retry-After %q", asks)
		})
	}
}

// A fixed window reports what is left, and no end. What is known of how long windows last is worth more than the search for the end.
func TestWindowsWithoutAReportedEndAreUsedWhole(t *testing.T) { // slow: minutes of a server
	for _, asks := range []string{"", "1"} {
		for client, opts := range map[string][]throttle.Option{"hints": nil, "adaptive": {throttle.WithAdaptive()}} {
			all, no := 0, 0 // accepted and refused in all phases, because a refusal or two are chance
			for phase := range time.Duration(5) {
				synctest.Test(t, func(t *testing.T) {
					const limit = 20
					var mu sync.Mutex
					window, used, accepted, refused := time.Time{}, 0, 0, 0
					tr, err := throttle.New(serverFunc(func(*http.Request) *http.Response {
						time.Sleep(10 * time.Millisecond)
						mu.Lock()
						if now := time.Now().Add(phase * time.Second / 5).Truncate(time.Second); now.After(window) {
							window, used = now, 0
						}
						h, status := http.Header{}, 200
						if used < limit {
							used++
							accepted++
						} else {
							status, refused = 429, refused+1
							if asks != "" {
								h.Set("Retry-After", asks)
							}
						}
						h.Set("X-RateLimit-Limit", fmt.Sprint(limit))
						h.Set("X-RateLimit-Remaining", fmt.Sprint(limit-used))
						mu.Unlock()
						time.Sleep(10 * time.Millisecond)
						return &http.Response{StatusCode: status, Header: h, Body: http.NoBody}
					}), opts...)
					require.NoError(t, err)
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					pressAll(ctx, tr, 16, to(t, "GET", "http://api.example.com/"))
					require.GreaterOrEqual(t, accepted, 60*limit*80/100, "%s, Retry-After %q", client, asks)
					all, no = all+accepted, no+refused
				})
			}
			require.GreaterOrEqual(t, all, 5*60*20*92/100, "%s, Retry-After %q", client, asks)
			require.LessOrEqual(t, no, all/20, "%s, Retry-After %q", client, asks)
		}
	}
}

// A log refuses with a bare 429. Once it has done so several times, its limit and how long it is closed are known: 92 % of it are used, in
// the mean of 40 runs, and six minutes differ from that by 1.3 % of it.
func TestABareLogIsUsedWellInTheThirdMinute(t *testing.T) { // slow: logs for three minutes
	for _, log := range []struct {
		n   int
		per time.Duration
	}{{200, 4 * time.Second}, {100, 10 * time.Second}} {
		accepted, refused := 0, 0
		for range 6 {
			var used []time.Time
			a, r := pressBare(t, func(now time.Time) bool {
				used = slices.DeleteFunc(used, func(u time.Time) bool { return now.Sub(u) >= log.per })
				if len(used) == log.n {
					return false
				}
				used = append(used, now)
				return true
			})
			accepted, refused = accepted+a, refused+r
		}
		require.GreaterOrEqual(t, float64(accepted), .87*6*float64(log.n)*float64(time.Minute/log.per), "%d per %s", log.n, log.per)
		require.LessOrEqual(t, float64(refused), .04*float64(accepted+refused), "%d per %s", log.n, log.per)
	}
}

// A window of a minute refuses with a bare 429. By the third minute it is known for how long it is closed, so that few requests ask whether
// it still is.
func TestABareWindowOfAMinuteIsAskedSeldomInTheThirdMinute(t *testing.T) {
	const (
		limit  = 60
		phases = 40
	)
	accepted, refused := 0, 0
	for phase := range time.Duration(phases) {
		window, used := time.Time{}, 0
		a, r := pressBare(t, func(now time.Time) bool {
			if w := now.Add(phase * time.Minute / phases).Truncate(time.Minute); w.After(window) {
				window, used = w, 0
			}
			if used == limit {
				return false
			}
			used++
			return true
		})
		accepted, refused = accepted+a, refused+r
	}
	require.GreaterOrEqual(t, accepted, phases*limit*78/100)
	require.LessOrEqual(t, refused, phases*limit*8/100)
}

// pressBare has 16 callers send all they can for three minutes to a server that refuses with a bare 429, and returns how many requests it
// accepted and refused in the third.
func pressBare(t *testing.T, accepts func(now time.Time) bool) (accepted, refused int) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		third := time.Now().Add(2 * time.Minute)
		tr := throttle.Must(throttle.New(serverFunc(func(*http.Request) *http.Response {
			time.Sleep(10 * time.Millisecond)
			mu.Lock()
			now, status, counts := time.Now(), http.StatusOK, &accepted
			if !accepts(now) {
				status, counts = http.StatusTooManyRequests, &refused
			}
			if !now.Before(third) {
				*counts++
			}
			mu.Unlock()
			time.Sleep(10 * time.Millisecond)
			return &http.Response{StatusCode: status, Header: http.Header{}, Body: http.NoBody}
		})))
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		pressAll(ctx, tr, 16, to(t, "GET", "http://api.example.com/"))
	})
	return accepted, refused
}

// A client that leaves a twentieth of a log to others is never stopped by what the log reports, because it is not refused.
func TestAFractionOfALogIsUsedWhole(t *testing.T) {
	const limit = 300
	for name, reports := range map[string]func(left int, end time.Duration) http.Header{
		"no end": func(left int, _ time.Duration) http.Header {
			return http.Header{"X-Ratelimit-Remaining": {fmt.Sprint(left)}}
		},
		"when the next request returns": func(left int, end time.Duration) http.Header {
			return http.Header{"X-Ratelimit-Remaining": {fmt.Sprint(left)}, "X-Ratelimit-Reset": {fmt.Sprint(int(end.Seconds()) + 1)}}
		},
		"always as much": func(int, time.Duration) http.Header {
			return http.Header{"X-Ratelimit-Remaining": {"15"}, "X-Ratelimit-Reset": {"60"}}
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			var used []time.Time
			accepted, refused := 0, 0
			tr := throttle.Must(throttle.New(serverFunc(func(*http.Request) *http.Response {
				time.Sleep(10 * time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				now, status := time.Now(), http.StatusOK
				used = slices.DeleteFunc(used, func(u time.Time) bool { return now.Sub(u) >= time.Minute })
				if len(used) == limit {
					status, refused = http.StatusTooManyRequests, refused+1
				} else {
					used, accepted = append(used, now), accepted+1
				}
				h := reports(limit-len(used), used[0].Add(time.Minute).Sub(now))
				h.Set("X-RateLimit-Limit", fmt.Sprint(limit))
				return &http.Response{StatusCode: status, Header: h, Body: http.NoBody}
			}), throttle.WithLimit(throttle.SlidingWindow(limit, time.Minute, throttle.Fraction(0.95)))))
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
			defer cancel()
			pressAll(ctx, tr, 16, to(t, "GET", "http://api.example.com/"))
			require.Equal(t, 4*limit*95/100, accepted, name)
			require.Zero(t, refused, name)
		})
	}
}
