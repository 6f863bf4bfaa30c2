package tests

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
	"github.com/httpthrottle/throttle/store"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const noCredit = `{"error":{"message":"You exceeded your current quota.","type":"insufficient_quota","code":"insufficient_quota"}}`

// A creditServer accepts requests, each after 10 ms, as long as there is credit.
type creditServer struct {
	mu    sync.Mutex
	broke map[string]bool // hosts
	sent  []time.Time     // while there was no credit
	by    []string        // headers of the refusal
}

func (s *creditServer) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	broke := s.broke[r.URL.Host]
	resp := says(200)
	if broke {
		s.sent = append(s.sent, time.Now())
		resp = says(429, append([]string{"Content-Type", "application/json"}, s.by...)...)
		resp.Body, resp.ContentLength = io.NopCloser(strings.NewReader(noCredit)), -1
	}
	s.mu.Unlock()
	resp.Request = r
	time.Sleep(10 * time.Millisecond)
	return resp, nil
}

func (s *creditServer) brokeAt(hosts ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broke = map[string]bool{}
	for _, host := range hosts {
		s.broke[host] = true
	}
	s.sent = nil
}

const (
	llm      = "https://api.openai.com/v1/chat"
	llmHost  = "api.openai.com"
	llmFiles = "https://api.openai.com/v1/files"
	otherURL = "https://other.example.com/"
)

func finalClient(t *testing.T, s *creditServer, opts ...throttle.Option) *throttle.Transport {
	t.Helper()
	tr, err := throttle.New(s, append(opts, throttle.WithServerHints(headers.Auto))...)
	require.NoError(t, err)
	return tr
}

// finalKinds are the clients and the ways in which a server says that no waiting helps.
func finalKinds(t *testing.T, f func(t *testing.T, s *creditServer, opts []throttle.Option)) {
	for kind, opts := range map[string]func() []throttle.Option{
		"hints": func() []throttle.Option { return nil },
		"bucket": func() []throttle.Option {
			return []throttle.Option{throttle.WithLimit(throttle.TokenBucket(1000, time.Second))}
		},
		"adaptive": func() []throttle.Option { return []throttle.Option{throttle.WithAdaptive()} },
		"both": func() []throttle.Option {
			return []throttle.Option{throttle.WithAdaptive(), throttle.WithAdaptiveInFlight()}
		},
		"in flight": func() []throttle.Option { return []throttle.Option{throttle.WithAdaptiveInFlight()} },
		"shared": func() []throttle.Option {
			return []throttle.Option{throttle.WithLimit(throttle.TokenBucket(1000, time.Second, throttle.Shared(store.NewMemory())))}
		},
	} {
		for how, by := range map[string][]string{"body": nil, "header": {"X-Should-Retry", "false"}} {
			inBubble(t, kind+" "+how, func(t *testing.T) {
				f(t, &creditServer{by: by}, opts())
			})
		}
	}
}

func TestAFinalRefusalRejectsAllUntilOneRequestAMinuteIsAccepted(t *testing.T) {
	finalKinds(t, func(t *testing.T, s *creditServer, opts []throttle.Option) {
		tr := finalClient(t, s, opts...)
		s.brokeAt()
		for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); time.Sleep(990 * time.Millisecond) {
			status, r := ask(t, tr, llm)
			require.Equal(t, 200, status, "%v", r)
		}
		s.brokeAt(llmHost)
		status, r := ask(t, tr, llm)
		require.Equal(t, 429, status)
		require.Nil(t, r, "it is the server's own response")
		since := time.Now()
		for at, asks := 0*time.Second, 0; at < 5*time.Minute; at = time.Since(since) {
			status, r := ask(t, tr, llm)
			require.Equal(t, 429, status)
			if at >= time.Duration(asks+1)*time.Minute {
				require.Nil(t, r, "a request asks after %v", at)
				asks++
			} else {
				require.Equal(t, throttle.ReasonFinal, r.Reason, "after %v: %v", at, r)
			}
			time.Sleep(time.Second)
		}
		require.Len(t, s.sent, 5)
		for i := range s.sent[1:] {
			require.GreaterOrEqual(t, s.sent[i+1].Sub(s.sent[i]), time.Minute)
		}
		s.brokeAt()
		status, r = ask(t, tr, llm)
		for ; r != nil; status, r = ask(t, tr, llm) {
			time.Sleep(time.Second)
		}
		require.Equal(t, 200, status)
		require.LessOrEqual(t, time.Since(since), 6*time.Minute+time.Second)
		require.Nil(t, finalOf(tr, llmHost))
		for range 50 { // at the rate of before: the refusals have cost nothing
			begin := time.Now()
			status, r := ask(t, tr, llm)
			require.Equal(t, 200, status, "%v", r)
			require.LessOrEqual(t, time.Since(begin), 110*time.Millisecond)
		}
	})
}

func finalOf(tr *throttle.Transport, host string) *throttle.FinalStats {
	for _, s := range tr.Limiter().Server(host) {
		if s.Final != nil {
			return s.Final
		}
	}
	return nil
}

func TestOneRequestAsksExactlyAMinuteAfterAFinalRefusal(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		s := &creditServer{}
		tr := finalClient(t, s)
		s.brokeAt(llmHost)
		_, r := ask(t, tr, llm)
		require.Nil(t, r)
		since := time.Now()
		final := finalOf(tr, llmHost)
		require.NotNil(t, final)
		assert.Equal(t, &throttle.FinalStats{Code: "insufficient_quota", Message: "You exceeded your current quota.", Since: final.Since, AskAt: final.AskAt}, final)
		assert.Zero(t, final.Since.Sub(since))
		assert.Zero(t, final.AskAt.Sub(since.Add(time.Minute)))

		time.Sleep(time.Minute - 1)
		_, r = ask(t, tr, llm)
		require.NotNil(t, r, "1 ns before")
		assert.Equal(t, time.Duration(1), r.Wait)
		time.Sleep(time.Nanosecond)
		var wg sync.WaitGroup
		var mu sync.Mutex
		rejected := 0
		for i := range 16 {
			wg.Go(func() {
				_, r := ask(t, tr, []string{llm, llmFiles}[i%2])
				mu.Lock()
				defer mu.Unlock()
				if r != nil {
					rejected++
					assert.Equal(t, throttle.ReasonFinal, r.Reason)
					assert.Equal(t, time.Minute, r.Wait)
				}
			})
		}
		wg.Wait()
		assert.Equal(t, 15, rejected)
		assert.Len(t, s.sent, 2)
	})
}

// After a night without requests, one asks, and not all that come together.
func TestAFinalRefusalIsRememberedWhileNoRequestComes(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		s := &creditServer{}
		tr := finalClient(t, s)
		s.brokeAt(llmHost)
		ask(t, tr, llm)
		time.Sleep(12 * time.Hour)
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() { ask(t, tr, llm) })
		}
		wg.Wait()
		assert.Len(t, s.sent, 2)
	})
}

// Requests that wait for an own limit, or for a hold, are rejected when the refusal comes, whatever they may wait for.
func TestWaitersAreRejectedWithTheTextOfTheServer(t *testing.T) {
	for name, ctx := range map[string]func(context.Context) (context.Context, context.CancelFunc){
		"no bound": context.WithCancel,
		"deadline": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 10*time.Hour)
		},
		"max wait": func(ctx context.Context) (context.Context, context.CancelFunc) {
			return throttle.ContextWithMaxWait(ctx, 5*time.Hour), func() {}
		},
	} {
		finalKinds(t, func(t *testing.T, s *creditServer, opts []throttle.Option) {
			opts = append(opts, throttle.WithLimit(throttle.TokenBucket(16, time.Hour, throttle.Name("own"))))
			tr := finalClient(t, s, opts...)
			s.brokeAt(llmHost)
			ctx, cancel := ctx(t.Context())
			defer cancel()
			begin := time.Now()
			var wg sync.WaitGroup
			var mu sync.Mutex
			rejected := 0
			for range 50 {
				wg.Go(func() {
					resp, err := tr.RoundTrip(get(t, ctx, llm))
					require.NoError(t, err)
					text, err := io.ReadAll(resp.Body)
					require.NoError(t, err)
					require.NoError(t, resp.Body.Close())
					require.Equal(t, 429, resp.StatusCode)
					r, ok := throttle.RejectionOf(resp)
					if !ok {
						return
					}
					mu.Lock()
					defer mu.Unlock()
					rejected++
					require.Equal(t, throttle.ReasonFinal, r.Reason, "%v", r)
					var final *throttle.FinalError
					require.ErrorAs(t, r, &final)
					require.Equal(t, &throttle.FinalError{Code: "insufficient_quota", Message: "You exceeded your current quota."}, final)
					require.False(t, r.RetryableError())
					require.Equal(t, "false", resp.Header.Get("X-Should-Retry"))
					require.NotContains(t, resp.Header, "Retry-After")
					require.NotContains(t, resp.Header, "Retry-After-Ms")
					var problem struct {
						Error  struct{ Code, Message string }
						Detail string
					}
					require.NoError(t, json.Unmarshal(text, &problem))
					require.Equal(t, "insufficient_quota", problem.Error.Code)
					require.Equal(t, "insufficient_quota: You exceeded your current quota.", problem.Detail)
				})
			}
			wg.Wait()
			require.GreaterOrEqual(t, rejected, 34, name)
			require.LessOrEqual(t, time.Since(begin), 5*time.Second, name)
			require.Equal(t, uint64(rejected), tr.Stats().Rejected[throttle.ReasonFinal])
			limits := tr.Limiter().Limits()
			require.Equal(t, uint64(rejected), limits[len(limits)-1].Rejected[throttle.ReasonFinal])
		})
	}
}

func TestAFinalRefusalConcernsItsAccountOnly(t *testing.T) {
	finalKinds(t, func(t *testing.T, s *creditServer, opts []throttle.Option) {
		tr := finalClient(t, s, opts...)
		s.brokeAt(llmHost)
		ask(t, tr, llm)
		for range 20 {
			status, r := ask(t, tr, otherURL)
			require.Equal(t, 200, status, "%v", r)
			_, r = ask(t, tr, llmFiles)
			require.NotNil(t, r)
		}
	})
	inBubble(t, "keys", func(t *testing.T) {
		s := &creditServer{}
		tr := finalClient(t, s, throttle.WithLimit(throttle.TokenBucket(1000, time.Second)), throttle.WithKey(throttle.ByContext))
		s.brokeAt(llmHost)
		as := func(key string) *throttle.Rejection {
			resp, err := tr.RoundTrip(get(t, throttle.ContextWithKey(t.Context(), key), llm))
			require.NoError(t, err)
			_, err = io.Copy(io.Discard, resp.Body)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			r, _ := throttle.RejectionOf(resp)
			return r
		}
		require.Nil(t, as("a"))
		require.NotNil(t, as("a"))
		require.Nil(t, as("b"), "the server has not said so of this account")
	})
}

func TestForgetServerEndsAFinalRefusal(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		s := &creditServer{}
		tr := finalClient(t, s)
		s.brokeAt(llmHost)
		ask(t, tr, llm)
		s.brokeAt()
		_, r := ask(t, tr, llm)
		require.NotNil(t, r)
		tr.Limiter().ForgetServer(llmHost)
		status, r := ask(t, tr, llm)
		assert.Equal(t, 200, status, "%v", r)
	})
}

// A response to a request that was sent before the refusal says nothing about it, nor does one that fails for another reason.
func TestOnlyALaterAcceptanceEndsAFinalRefusal(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		slow := make(chan struct{})
		status := 429
		tr, err := throttle.New(serverFunc(func(r *http.Request) *http.Response {
			switch {
			case r.URL.Path == "/slow":
				<-slow
				return says(200)
			case status == 429:
				return says(429, "X-Should-Retry", "false")
			}
			return says(status)
		}))
		require.NoError(t, err)
		var wg sync.WaitGroup
		wg.Go(func() { ask(t, tr, "http://a.com/slow") })
		synctest.Wait()
		ask(t, tr, "http://a.com/")
		close(slow)
		wg.Wait()
		require.NotNil(t, finalOf(tr, "a.com"))
		for _, status = range []int{500, 404, 503, 200} {
			_, r := ask(t, tr, "http://a.com/")
			require.NotNil(t, r, "before %d", status)
			time.Sleep(time.Minute)
			got, r := ask(t, tr, "http://a.com/")
			require.Nil(t, r, "%v", r)
			require.Equal(t, status, got)
		}
		assert.Nil(t, finalOf(tr, "a.com"))
	})
}

// A request that never reached the server has not asked.
func TestARequestThatWasNotSentHasNotAsked(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		var fail error
		tr, err := throttle.New(rtFunc(func(r *http.Request) (*http.Response, error) {
			if fail != nil {
				return nil, fail
			}
			resp := says(429, "X-Should-Retry", "false")
			resp.Request = r
			return resp, nil
		}))
		require.NoError(t, err)
		ask(t, tr, "http://a.com/")
		time.Sleep(time.Minute)
		fail = &throttle.Rejection{Reason: throttle.ReasonNoTokens} // of an inner Transport
		_, err = tr.RoundTrip(get(t, t.Context(), "http://a.com/"))
		require.Error(t, err)
		fail = nil
		_, r := ask(t, tr, "http://a.com/")
		assert.Nil(t, r)
		_, r = ask(t, tr, "http://a.com/")
		assert.NotNil(t, r)
	})
}

type rtFunc func(*http.Request) (*http.Response, error)

func (f rtFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// What the headers asked for stays: no request asks before.
func TestAWaitBesideAFinalRefusalHolds(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		s := &creditServer{by: []string{"Retry-After", "300"}}
		tr := finalClient(t, s)
		s.brokeAt(llmHost)
		ask(t, tr, llm)
		_, r := ask(t, tr, llm)
		require.Equal(t, throttle.ReasonFinal, r.Reason)
		require.GreaterOrEqual(t, r.Wait, 300*time.Second)
		require.Less(t, r.Wait, 302*time.Second)
		time.Sleep(r.Wait - 1)
		_, r = ask(t, tr, llm)
		require.NotNil(t, r)
		time.Sleep(time.Nanosecond)
		_, r = ask(t, tr, llm)
		require.Nil(t, r)
	})
	inBubble(t, "no reason of its own", func(t *testing.T) { // x-should-retry speaks of this request, Retry-After of the next ones
		tr, err := throttle.New(serverFunc(func(*http.Request) *http.Response { return says(429, "X-Should-Retry", "false", "Retry-After", "5") }), throttle.WithFailFast())
		require.NoError(t, err)
		ask(t, tr, api)
		_, r := ask(t, tr, api)
		require.Equal(t, throttle.ReasonHeld, r.Reason)
	})
}

func TestABodyThatIsNotReadSaysNothing(t *testing.T) {
	for name, c := range map[string]struct {
		by  []string
		end bool
	}{"body": {nil, false}, "header": {[]string{"X-Should-Retry", "false"}, true}} {
		inBubble(t, name, func(t *testing.T) {
			s := &creditServer{by: c.by}
			tr := finalClient(t, s)
			s.brokeAt(llmHost)
			resp, err := tr.RoundTrip(get(t, t.Context(), llm))
			require.NoError(t, err)
			require.Nil(t, finalOf(tr, llmHost), "before the body is read or closed")
			require.NoError(t, resp.Body.Close())
			final := finalOf(tr, llmHost)
			require.Equal(t, c.end, final != nil)
			if c.end {
				require.Empty(t, final.Code+final.Message)
			}
		})
	}
}

// The refusal counts before its own slot is free, so no request that waits for that is sent without effect.
func TestAFinalRefusalReachesWhatWaitsForItsSlot(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		var sent atomic.Int64
		tr, err := throttle.New(serverFunc(func(*http.Request) *http.Response {
			time.Sleep(time.Duration(sent.Add(1)) * time.Second)
			resp := says(429, "X-Should-Retry", "false", "Content-Type", "application/json")
			resp.Body = io.NopCloser(strings.NewReader("{}"))
			return resp
		}), throttle.WithAdaptiveInFlight(throttle.Concurrency{Initial: 2, Max: 4}))
		require.NoError(t, err)
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() { ask(t, tr, api) })
			time.Sleep(time.Millisecond)
		}
		wg.Wait()
		assert.EqualValues(t, 2, sent.Load())
	})
}
