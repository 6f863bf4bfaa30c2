package tests

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// Statistics, holds, rejections, waits and delays have the same verdict on a refusal, and say whether the server has asked for a wait.
func TestAServerHasOneVerdict(t *testing.T) {
	const ok = 200
	wait := http.Header{"Retry-After": {"30"}}
	for name, c := range map[string]struct {
		decide  func(n int) (status int, h http.Header) // about the nth request, counted from 1
		n       int
		opts    []throttle.Option
		verdict throttle.Verdict
		until   int  // in seconds, for which the refusal asks
		held    bool // all requests
		guessed bool // until when
		by      throttle.Source
	}{
		"a wait": {
			func(n int) (int, http.Header) { return at(n, 21, 429), wait }, 21, nil, throttle.VerdictTooFast, 30, true, false, throttle.SourceServer,
		},
		"a bare refusal": {
			func(n int) (int, http.Header) { return at(n, 21, 429), nil }, 21, nil, throttle.VerdictTooFast, 0, true, true, throttle.SourceServer,
		},
		"a bare refusal, with a learned number": {
			func(n int) (int, http.Header) { return at(n, 21, 429), nil }, 21, []throttle.Option{throttle.WithAdaptiveInFlight()}, throttle.VerdictTooMany, 0, false, false, "",
		},
		"a wait, with a learned number": {
			func(n int) (int, http.Header) { return at(n, 21, 429), wait }, 21, []throttle.Option{throttle.WithAdaptiveInFlight()}, throttle.VerdictTooFast, 30, true, false, throttle.SourceServer,
		},
		"a bare refusal, with a learned rate": {
			func(n int) (int, http.Header) { return at(n, 21, 429), nil }, 21, []throttle.Option{throttle.WithAdaptive()}, throttle.VerdictTooFast, 0, false, false, "",
		},
		"a bare refusal, with a limit of its own": {
			func(n int) (int, http.Header) { return at(n, 21, 429), nil }, 21,
			[]throttle.Option{throttle.WithLimit(throttle.TokenBucket(10, time.Second))}, throttle.VerdictTooMany, 0, false, false, "",
		},
		"three bare refusals, with a limit of its own": {
			func(n int) (int, http.Header) {
				if n == 21 || n == 25 || n == 29 {
					return 429, nil
				}
				return ok, nil
			}, 29,
			[]throttle.Option{throttle.WithLimit(throttle.TokenBucket(10, time.Second))}, throttle.VerdictTooFast, 0, true, true, throttle.SourceServer,
		},
		"a 503 with a wait": {
			func(n int) (int, http.Header) { return at(n, 21, 503), wait }, 21, nil, throttle.VerdictClosed, 30, true, false, throttle.SourceServer,
		},
		"everything refused": {
			func(n int) (int, http.Header) {
				if n > 20 {
					return 429, nil
				}
				return ok, nil
			}, 24, nil, throttle.VerdictClosed, 0, true, true, throttle.SourceServer,
		},
		"everything refused, with a learned number": {
			func(n int) (int, http.Header) {
				if n > 20 {
					return 429, nil
				}
				return ok, nil
			}, 28, []throttle.Option{throttle.WithAdaptiveInFlight()}, throttle.VerdictClosed, 0, false, true, throttle.SourceAdaptive,
		},
		"an empty quota": {
			func(n int) (int, http.Header) {
				return at(n, 21, 429), http.Header{"X-Ratelimit-Limit": {"20"}, "X-Ratelimit-Remaining": {strconv.Itoa(max(0, 20-n))}, "X-Ratelimit-Reset": {"30"}}
			}, 20, nil, throttle.VerdictQuota, 0, false, false, "",
		},
		"credit used up": {
			func(n int) (int, http.Header) { return at(n, 21, 429), http.Header{"X-Should-Retry": {"false"}} }, 21, nil, throttle.VerdictFinal, 0, false, true, throttle.SourceServer,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var last throttle.HoldEvent
				tr := throttle.Must(throttle.New(serves(c.decide), append(c.opts, throttle.WithHooks(throttle.Hooks{
					OnHold: func(e throttle.HoldEvent) { last = e },
				}))...))
				refused := time.Time{}
				for range c.n {
					last = throttle.HoldEvent{}
					r, _ := http.NewRequestWithContext(t.Context(), "GET", "http://api.example/", nil)
					resp, err := tr.RoundTrip(r)
					require.NoError(t, err)
					require.NoError(t, resp.Body.Close())
					if resp.StatusCode != ok {
						refused = time.Now()
					}
				}
				s := tr.Limiter().Servers()[0]
				assert.Equal(t, c.by, last.Source)
				assert.Equal(t, c.guessed, last.Guessed, "%v", last)
				assert.Equal(t, c.held, s.HeldUntil.After(time.Now()), "%v", s)
				assert.Equal(t, c.held && c.guessed, s.Guessed)
				if c.by != "" {
					assert.Equal(t, c.verdict, last.Verdict)
				}
				if !refused.IsZero() {
					until := time.Time{}
					if c.until > 0 {
						until = refused.Add(time.Duration(c.until) * time.Second)
					}
					assert.Equal(t, c.verdict, s.Last.Verdict)
					assert.Equal(t, until, s.Last.Until)
					assert.Contains(t, s.String(), ", "+c.verdict.String())
				}
			})
		})
	}
}

// A limit in a unit of the server is the guess for refusals that say nothing. Once they come at any rate, it is wrong, and they hold nothing.
func TestRefusalsAtAnyRateAreNotTheRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var last throttle.HoldEvent
		tr := throttle.Must(throttle.New(serves(func(n int) (int, http.Header) { return at(n%20, 19, 429), nil }),
			throttle.WithLimit(throttle.ServerQuota("tokens")), throttle.WithHooks(throttle.Hooks{
				OnHold: func(e throttle.HoldEvent) { last = e },
			})))
		var verdicts []throttle.Verdict
		for range 200 {
			last = throttle.HoldEvent{}
			r, _ := http.NewRequestWithContext(t.Context(), "GET", "http://api.example/", nil)
			resp, err := tr.RoundTrip(r)
			require.NoError(t, err)
			if resp.StatusCode == 429 {
				s := tr.Limiter().Servers()[0]
				verdicts = append(verdicts, s.Last.Verdict)
				require.Zero(t, last)
				require.Zero(t, s.HeldUntil)
			}
		}
		const guess, chance = throttle.VerdictQuota, throttle.VerdictChance
		require.Equal(t, []throttle.Verdict{guess, guess, guess, chance, chance, chance, chance, chance, chance, chance}, verdicts)
	})
}

// at returns a status for one request, and 200 for all others.
func at(n, nth, status int) int {
	if n == nth {
		return status
	}
	return 200
}

// Where a server that refused everything is down besides, a hold has the verdict on what it refused.
func TestAHoldWithoutARefusalHasTheVerdictOnTheLastOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var holds []throttle.Verdict
		tr := throttle.Must(throttle.New(serves(func(n int) (int, http.Header) {
			switch {
			case n <= 20:
				return 200, nil
			case n <= 24:
				return 429, nil
			}
			return 503, nil
		}), throttle.WithHooks(throttle.Hooks{OnHold: func(e throttle.HoldEvent) { holds = append(holds, e.Verdict) }})))
		for range 30 {
			r, _ := http.NewRequestWithContext(t.Context(), "GET", "http://api.example/", nil)
			_, err := tr.RoundTrip(r)
			require.NoError(t, err)
		}
		const closed = throttle.VerdictClosed
		require.Equal(t, []throttle.Verdict{throttle.VerdictTooFast, closed, closed, closed, closed, closed, closed, closed, closed, closed}, holds)
	})
}

// Whatever waits for a server says the verdict on its last refusal.
func TestWhatWaitsForAServerSaysItsVerdict(t *testing.T) {
	for verdict, decide := range map[throttle.Verdict]func(n int) (int, http.Header){
		throttle.VerdictTooFast: func(n int) (int, http.Header) { return at(n, 3, 429), http.Header{"Retry-After": {"30"}} },
		throttle.VerdictClosed:  func(n int) (int, http.Header) { return at(n, 3, 503), http.Header{"Retry-After": {"30"}} },
		throttle.VerdictQuota: func(n int) (int, http.Header) {
			return 200, http.Header{"X-Ratelimit-Limit": {"3"}, "X-Ratelimit-Remaining": {strconv.Itoa(max(0, 3-n))}, "X-Ratelimit-Reset": {"30"}}
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			tr := throttle.Must(throttle.New(serves(decide)))
			assert.Contains(t, sends(t, tr, 3), "limit \"server\"")
			ctx, receipt := throttle.ContextWithReceipt(t.Context())
			done := make(chan error)
			go func() {
				r, _ := http.NewRequestWithContext(ctx, "GET", "http://api.example/", nil)
				r.Header.Set("Authorization", "a")
				_, err := tr.RoundTrip(r)
				done <- err
			}()
			synctest.Wait()
			w, ok := receipt.Waiting()
			require.True(t, ok)
			assert.Equal(t, verdict, w.Verdict)
			ctx2 := throttle.ContextWithMaxWait(t.Context(), time.Second)
			r, _ := http.NewRequestWithContext(ctx2, "GET", "http://api.example/", nil)
			r.Header.Set("Authorization", "a")
			resp, err := tr.RoundTrip(r)
			require.NoError(t, err)
			why, ok := throttle.RejectionOf(resp)
			require.True(t, ok)
			assert.Equal(t, throttle.ReasonHeld, why.Reason)
			assert.Equal(t, "server", why.Limit)
			assert.Equal(t, verdict, why.Verdict)
			if verdict != throttle.VerdictQuota { // no request was refused
				assert.Contains(t, why.Error(), "ago ("+verdict.String()+")")
			}
			text, err := json.Marshal(why)
			require.NoError(t, err)
			assert.Contains(t, string(text), `"verdict":"`+verdict.Label()+`"`)
			require.NoError(t, <-done)
			d, ok := receipt.Delay()
			require.True(t, ok)
			assert.Equal(t, verdict, d.Verdict)
			assert.Contains(t, d.String(), ", "+verdict.String()+", behind 0")
		})
	}
}

// Beside each other, a learned rate and a learned number own different refusals, and the verdict says which of them it was.
func TestTheVerdictSaysWhichLearnedLimitARefusalIsOf(t *testing.T) {
	for want, refuses := range map[throttle.Verdict]func(n, inFlight int64) bool{
		throttle.VerdictTooMany: func(_, inFlight int64) bool { return inFlight > 4 },
		throttle.VerdictTooFast: func(n, inFlight int64) bool { return n == 30 && inFlight == 1 },
	} {
		synctest.Test(t, func(t *testing.T) {
			var n, inFlight atomic.Int64
			var refused []throttle.Verdict
			tr := throttle.Must(throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) {
				defer inFlight.Add(-1)
				status := 200
				if refuses(n.Add(1), inFlight.Add(1)) {
					status = 429
				} else {
					time.Sleep(100 * time.Millisecond)
				}
				return &http.Response{StatusCode: status, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
			}), throttle.WithAdaptive(), throttle.WithAdaptiveInFlight()))
			callers := 1
			if want == throttle.VerdictTooMany {
				callers = 8
			}
			done := make(chan throttle.Verdict)
			for range callers {
				go func() {
					last := throttle.Verdict(0)
					for range 40 {
						r, _ := http.NewRequestWithContext(t.Context(), "GET", "http://api.example/", nil)
						if resp, err := tr.RoundTrip(r); err == nil && resp.StatusCode == 429 && last == 0 {
							last = tr.Limiter().Servers()[0].Last.Verdict
						}
					}
					done <- last
				}()
			}
			for range callers {
				if v := <-done; v != 0 {
					refused = append(refused, v)
				}
			}
			assert.Contains(t, refused, want)
		})
	}
}

// Each verdict has words and a label, which is what JSON has.
func TestVerdictsHaveWordsAndLabels(t *testing.T) {
	seen := make(map[string]bool)
	for v := throttle.VerdictTooFast; v <= throttle.VerdictFinal; v++ {
		assert.NotEmpty(t, v.String())
		assert.NotEmpty(t, v.Label())
		assert.False(t, seen[v.Label()] || seen[v.String()])
		seen[v.Label()], seen[v.String()] = true, true
		text, err := json.Marshal(throttle.LastRefusal{Status: 429, Verdict: v})
		require.NoError(t, err)
		assert.Contains(t, string(text), `"verdict":"`+v.Label()+`"`)
	}
	var none throttle.Verdict
	assert.Empty(t, none.String()+none.Label())
	assert.Equal(t, "Verdict(7)", (throttle.VerdictFinal + 1).String())
	assert.Empty(t, (throttle.VerdictFinal + 1).Label())
}

// A server that is unreachable has refused nothing, so a limit that pauses because of that has no verdict.
func TestAPauseWithoutAResponseHasNoVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var holds []throttle.HoldEvent
		tr := throttle.Must(throttle.New(roundTripper(func(*http.Request) (*http.Response, error) {
			time.Sleep(100 * time.Millisecond)
			return nil, io.ErrUnexpectedEOF
		}), throttle.WithAdaptiveInFlight(), throttle.WithHooks(throttle.Hooks{OnHold: func(e throttle.HoldEvent) { holds = append(holds, e) }})))
		for range 100 {
			r, _ := http.NewRequestWithContext(t.Context(), "GET", "http://api.example/", nil)
			_, err := tr.RoundTrip(r)
			require.Error(t, err)
		}
		require.NotEmpty(t, holds)
		for _, e := range holds {
			assert.Zero(t, e.Verdict)
			assert.True(t, e.Guessed)
		}
	})
}

// A final refusal has its own verdict, whatever else holds the host.
func TestAFinalRefusalHasItsOwnVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var last throttle.HoldEvent
		release := make(chan struct{})
		tr := throttle.Must(throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) {
			h, status := http.Header{}, 200
			switch r.Header.Get("Authorization") {
			case "final":
				<-release
				status = 429
				h.Set("X-Should-Retry", "false")
			case "closed":
				status = 503
				h.Set("Retry-After", "30")
			}
			return &http.Response{StatusCode: status, Header: h, Body: http.NoBody, Request: r}, nil
		}), throttle.WithHooks(throttle.Hooks{OnHold: func(e throttle.HoldEvent) { last = e }})))
		send := func(key string) {
			r, _ := http.NewRequestWithContext(t.Context(), "GET", "http://api.example/", nil)
			r.Header.Set("Authorization", key)
			_, err := tr.RoundTrip(r)
			assert.NoError(t, err)
		}
		done := make(chan struct{})
		go func() { send("final"); close(done) }()
		synctest.Wait()
		send("closed")
		require.Equal(t, throttle.VerdictClosed, last.Verdict)
		close(release)
		<-done
		require.NotNil(t, last.Final)
		assert.Equal(t, throttle.VerdictFinal, last.Verdict)
	})
}

// The reset of a quota that is far from empty is no wait, whether the headers or the body say which limit refused the request.
func TestAFarResetIsNoWaitForTheUnitThatABodyNames(t *testing.T) {
	for _, body := range []string{`{"message":"Slow down"}`, `{"message":"Rate limit reached for tokens per minute"}`} {
		synctest.Test(t, func(t *testing.T) {
			n := 0
			tr := throttle.Must(throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) {
				time.Sleep(100 * time.Millisecond)
				n++
				resp := says(at(n, 21, 429), "X-Ratelimit-Limit", "1000", "X-Ratelimit-Remaining", strconv.Itoa(1000-n), "X-Ratelimit-Reset", "3600")
				if n == 21 {
					resp.Header.Set("Content-Type", "application/json")
					resp.Body, resp.ContentLength = io.NopCloser(strings.NewReader(body)), -1
				}
				resp.Request = r
				return resp, nil
			}), throttle.WithLimit(throttle.ServerQuota("tokens"))))
			for range 22 {
				r, _ := http.NewRequestWithContext(throttle.ContextWithMaxWait(t.Context(), time.Minute), "GET", "http://api.example/", nil)
				resp, err := tr.RoundTrip(r)
				require.NoError(t, err)
				why, _ := throttle.RejectionOf(resp)
				require.Nil(t, why, "request %d, %s", n, body)
				_, err = io.ReadAll(resp.Body)
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
			}
		})
	}
}

// A ServerQuota that takes a refusal has the verdict on it.
func TestAServerQuotaThatIsHeldHasAVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := throttle.Must(throttle.New(serves(func(n int) (int, http.Header) { return at(n, 20, 429), http.Header{"Retry-After": {"30"}} }),
			throttle.WithLimit(throttle.ServerQuota("tokens"))))
		var why *throttle.Rejection
		for n := range 21 {
			r, _ := http.NewRequestWithContext(throttle.ContextWithMaxWait(t.Context(), 10*time.Second), "GET", "http://api.example/", nil)
			resp, err := tr.RoundTrip(r)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			why, _ = throttle.RejectionOf(resp)
			require.Equal(t, n == 20, why != nil, "request %d", n)
		}
		assert.Equal(t, "tokens", why.Limit)
		assert.Equal(t, throttle.VerdictQuota, why.Verdict, "%v", why)
	})
}

// After a restart, the end of a hold is still a guess if it was one.
func TestAGuessIsKeptInASnapshot(t *testing.T) {
	for _, after := range []string{"", "30"} {
		synctest.Test(t, func(t *testing.T) {
			tr := throttle.Must(throttle.New(serves(func(n int) (int, http.Header) { return at(n, 5, 429), http.Header{"Retry-After": {after}} })))
			for range 5 {
				r, _ := http.NewRequestWithContext(t.Context(), "GET", "http://api.example/", nil)
				_, err := tr.RoundTrip(r)
				require.NoError(t, err)
			}
			next := throttle.Must(throttle.New(nil))
			require.NoError(t, next.Limiter().Restore(tr.Limiter().Snapshot()))
			s := next.Limiter().Servers()[0]
			require.True(t, s.HeldUntil.After(time.Now()))
			require.Equal(t, after == "", s.Guessed)
		})
	}
}
