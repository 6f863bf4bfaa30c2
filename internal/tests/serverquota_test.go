package tests

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
)

// A tokenServer has a bucket of 1,000 tokens that refills in 100 s, and charges each request what its header X-Cost says. It keeps the
// estimate.
type tokenServer struct {
	left    float64
	at      time.Time
	refused int
}

func (s *tokenServer) RoundTrip(req *http.Request) (*http.Response, error) {
	now := time.Now()
	if s.at.IsZero() {
		s.left = 1000
	} else {
		s.left = min(1000, s.left+10*now.Sub(s.at).Seconds())
	}
	s.at = now
	cost, err := strconv.ParseFloat(req.Header.Get("X-Cost"), 64)
	if err != nil {
		return nil, err
	}
	resp := &http.Response{StatusCode: 200, Header: http.Header{}, Request: req, Body: io.NopCloser(strings.NewReader("{}"))}
	if cost > s.left {
		s.refused++
		resp.StatusCode = 429
	} else {
		s.left -= cost
	}
	resp.Header.Set("X-RateLimit-Limit-Tokens", "1000")
	resp.Header.Set("X-RateLimit-Remaining-Tokens", strconv.Itoa(int(s.left)))
	resp.Header.Set("X-RateLimit-Reset-Tokens", time.Duration((1000-s.left)/10*float64(time.Second)).String())
	return resp, nil
}

func costHeader(r *http.Request) int64 {
	n, _ := strconv.ParseInt(r.Header.Get("X-Cost"), 10, 64)
	return n
}

// spend sends a request of that cost, and returns when its response came, since began, and its status.
func spend(ctx context.Context, t *testing.T, rt http.RoundTripper, began time.Time, cost int) (after time.Duration, status int) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://api.example.com/", nil)
	require.NoError(t, err)
	req.Header.Set("X-Cost", strconv.Itoa(cost))
	resp, err := rt.RoundTrip(req)
	if err != nil {
		require.ErrorIs(t, err, throttle.ErrThrottled)
		return time.Since(began), 0
	}
	resp.Body.Close()
	return time.Since(began), resp.StatusCode
}

// used makes a Transport with a ServerQuota of tokens, whose server has reported ten times, and has about 70 tokens left.
func used(t *testing.T, server http.RoundTripper, opts ...throttle.Option) *throttle.Transport {
	opts = append(opts, throttle.WithLimit(throttle.ServerQuota("tokens", throttle.Cost(costHeader))))
	transport, err := throttle.New(server, opts...)
	require.NoError(t, err)
	for range 10 {
		_, status := spend(t.Context(), t, transport, time.Now(), 104)
		require.Equal(t, 200, status)
		time.Sleep(time.Second)
	}
	return transport
}

func TestQuotasInTheUnitOfTheServerAreLimits(t *testing.T) {
	inBubble(t, "a large request waits, and a small one does not overtake it", func(t *testing.T) {
		server := new(tokenServer)
		transport := used(t, server)
		began := time.Now()
		large := make(chan time.Duration)
		go func() {
			after, _ := spend(t.Context(), t, transport, began, 300)
			large <- after
		}()
		time.Sleep(time.Second)
		small := make(chan time.Duration)
		go func() {
			after, _ := spend(t.Context(), t, transport, began, 1)
			small <- after
		}()
		first := <-large
		require.Greater(t, first, 20*time.Second, "until 300 tokens are there")
		require.GreaterOrEqual(t, <-small, first)
		require.Zero(t, server.refused)
	})
	inBubble(t, "a wait that is longer than the deadline or MaxWait allows is none", func(t *testing.T) {
		server := new(tokenServer)
		transport := used(t, server)
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		after, status := spend(ctx, t, transport, began, 300)
		require.Zero(t, after)
		require.Zero(t, status)
		after, status = spend(throttle.ContextWithMaxWait(t.Context(), time.Second), t, transport, began, 300)
		require.Zero(t, after)
		require.Equal(t, 429, status)
		require.Zero(t, server.refused)
	})
	inBubble(t, "beside a limit of the user's own in the same unit, the stricter counts", func(t *testing.T) {
		server := new(tokenServer)
		own := throttle.TokenBucket(60, time.Minute, throttle.Burst(5000), throttle.Initial(1100), throttle.Name("own"), throttle.Cost(costHeader))
		transport := used(t, server, throttle.WithLimit(own))
		after, status := spend(t.Context(), t, transport, time.Now(), 300)
		require.Equal(t, 200, status)
		require.Greater(t, after, 200*time.Second)
	})
	inBubble(t, "statistics are in the unit", func(t *testing.T) {
		transport := used(t, new(tokenServer))
		limit := transport.Limiter().Limits()[0]
		require.Equal(t, "tokens", limit.Name)
		require.Equal(t, throttle.KindServerQuota, limit.Kind)
		require.InDelta(t, 10, limit.Rate, 0.1)
		require.InDelta(t, 72, limit.Tokens, 1, "the last request left a sixteenth, and a second has passed")
		require.Equal(t, uint64(1040), limit.Charged)
		servers := transport.Limiter().Servers()
		require.Len(t, servers, 1)
		require.Equal(t, "tokens", servers[0].Quotas[0].Unit)
	})
}

func TestARefusalIsOfTheUnitThatItsBodyNames(t *testing.T) {
	refusedBy(t, "output tokens", "output_tokens", "input_tokens")
	refusedBy(t, "requests", "input_tokens", "output_tokens") // the first, because what is spent is in proportion to them
}

// refusedBy has a server refuse a request because of something, and checks which of two limits learns from it.
func refusedBy(t *testing.T, what, learns, other string) {
	inBubble(t, what, func(t *testing.T) {
		says := ""
		base := roundTripper(func(req *http.Request) (*http.Response, error) {
			resp := &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Request: req, Body: http.NoBody}
			if says != "" {
				resp.StatusCode, resp.Body = 429, io.NopCloser(strings.NewReader(`{"message":"Exceeded the `+says+` per minute"}`))
			}
			return resp, nil
		})
		cost := throttle.Cost(func(*http.Request) int64 { return 100 })
		transport, err := throttle.New(base, throttle.WithLimit(throttle.ServerQuota("input_tokens", cost), throttle.ServerQuota("output_tokens", cost)))
		require.NoError(t, err)
		send := func() {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://api.example.com/", nil)
			require.NoError(t, err)
			resp, err := transport.RoundTrip(req)
			require.NoError(t, err)
			_, err = io.Copy(io.Discard, resp.Body)
			require.NoError(t, err)
			resp.Body.Close()
		}
		for range 6 {
			send()
			time.Sleep(time.Second)
		}
		rate := func(limit string) float64 {
			b, ok := transport.Limiter().Bucket(limit, "api.example.com")
			require.True(t, ok)
			return b.Rate
		}
		says = what
		send()
		require.Zero(t, rate(other))
		require.InDelta(t, 600.0/66, rate(learns), 1e-6, "what was charged in 6 s and in the minute that was saved up")
	})
}

func TestServerQuotaChecksItsOptions(t *testing.T) {
	_, err := throttle.New(nil, throttle.WithLimit(
		throttle.ServerQuota(""),
		throttle.ServerQuota("tokens", throttle.Burst(1), throttle.Fraction(0.5), throttle.ClampCost())))
	for _, fault := range []string{
		"ServerQuota: the unit is empty", "Burst(1) does not fit a limit of kind server-quota", "Fraction(0.5) does not fit a limit of kind server-quota",
		"ClampCost() does not fit a limit of kind server-quota",
	} {
		require.ErrorContains(t, err, fault)
	}
}

func TestADryRunOfAServerQuotaSendsAll(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		server := new(tokenServer)
		settle := throttle.Settle(func(req *http.Request, _ *http.Response) (int64, bool) { return costHeader(req), true })
		transport, err := throttle.New(server, throttle.WithDryRun(), throttle.WithLimit(throttle.ServerQuota("tokens", throttle.Cost(costHeader), settle)))
		require.NoError(t, err)
		for range 20 {
			after, _ := spend(t.Context(), t, transport, time.Now(), 104)
			require.Zero(t, after)
			time.Sleep(time.Second)
		}
		require.Positive(t, server.refused)
		require.Zero(t, transport.Limiter().Limits()[0].InFlight)
	})
}

func TestASnapshotHasWhatServersReportedInTheirUnit(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		server := new(tokenServer)
		before := used(t, server)
		text, err := json.Marshal(before.Limiter().Snapshot())
		require.NoError(t, err)
		var s throttle.Snapshot
		require.NoError(t, json.Unmarshal(text, &s))
		after, err := throttle.New(server, throttle.WithLimit(throttle.ServerQuota("tokens", throttle.Cost(costHeader))))
		require.NoError(t, err)
		time.Sleep(3 * time.Second)
		require.NoError(t, after.Limiter().Restore(s))
		require.InDelta(t, before.Limiter().Limits()[0].Tokens, after.Limiter().Limits()[0].Tokens, 1e-6)
		waited, status := spend(t.Context(), t, after, time.Now(), 300)
		require.Equal(t, 200, status)
		require.InDelta(t, 26.1, waited.Seconds(), 0.5, "102 are left, and a sixteenth stays")
		require.Zero(t, server.refused)

		none, err := throttle.New(server, throttle.WithLimit(throttle.TokenBucket(1, time.Second, throttle.Name("tokens"))))
		require.NoError(t, err)
		require.ErrorContains(t, none.Limiter().Restore(s), `it was saved by a limit of kind server-quota`)
	})
}

// As the presets of hints say, models are counted separately; without one, all requests of a host are counted together.
func TestAServerQuotaWithoutAKeyIsOfAModel(t *testing.T) {
	for _, c := range []struct {
		hints throttle.Option
		want  []string
	}{
		{throttle.WithServerHints(headers.Auto), []string{"api.openai.com large", "api.openai.com small"}},
		{throttle.WithServerHints(headers.OpenAI), []string{"api.openai.com large", "api.openai.com small"}},
		{throttle.WithServerHints(), []string{"api.openai.com"}},
	} {
		inBubble(t, "", func(t *testing.T) {
			tr, err := throttle.New(new(tokenServer), c.hints, throttle.WithLimit(
				throttle.ServerQuota("tokens", throttle.Cost(costHeader)), throttle.AdaptiveInFlight(throttle.Concurrency{})))
			require.NoError(t, err)
			for _, model := range []string{"large", "small", "large"} { // of which the first passes no gate
				postTokens(t, tr, "https://api.openai.com/v1/responses", `{"model":"`+model+`"}`)
			}
			var keys []string
			for b := range tr.Limiter().Buckets() {
				if b.Limit == "tokens" {
					keys = append(keys, b.Key)
				} else {
					require.Equal(t, "api.openai.com", b.Key)
				}
			}
			require.ElementsMatch(t, c.want, keys)
		})
	}
}

// GitHub reports the points of GraphQL in headers, under the name of the resource, and the cost of a query in its body; Shopify reports
// both in the body. A client that sends as many queries as it can is refused none.
func TestPointsOfGraphQLAreAQuotaOfTheServer(t *testing.T) {
	for name, c := range map[string]struct {
		url, unit, path string
		size, rate      float64 // a second; 0: all comes back at the end of an hour
		header          func(h http.Header, left float64)
		body            func(cost, left float64, ok bool) string
	}{
		"GitHub": {
			url: "https://api.github.com/graphql", unit: "graphql", path: "data.rateLimit.cost", size: 5000,
			header: func(h http.Header, left float64) {
				h.Set("X-RateLimit-Resource", "graphql")
				h.Set("X-RateLimit-Limit", "5000")
				h.Set("X-RateLimit-Remaining", strconv.Itoa(int(left)))
				h.Set("X-RateLimit-Reset", strconv.FormatInt(time.Now().Truncate(time.Hour).Add(time.Hour).Unix(), 10))
			},
			body: func(cost, _ float64, ok bool) string {
				if !ok {
					return `{"errors":[{"type":"RATE_LIMITED"}]}`
				}
				return `{"data":{"rateLimit":{"cost":` + strconv.Itoa(int(cost)) + `}}}`
			},
		},
		"Shopify": {
			url: "https://shop.myshopify.com/admin/api/graphql.json", unit: "graphql", path: "extensions.cost.actualQueryCost", size: 1000, rate: 50,
			header: func(http.Header, float64) {},
			body: func(cost, left float64, ok bool) string {
				status := `"throttleStatus":{"maximumAvailable":1000,"currentlyAvailable":` + strconv.Itoa(int(left)) + `,"restoreRate":50}`
				if !ok {
					return `{"errors":[{"extensions":{"code":"THROTTLED"}}],"extensions":{"cost":{"requestedQueryCost":` + strconv.Itoa(int(cost)) + `,` + status + `}}}`
				}
				return `{"extensions":{"cost":{"actualQueryCost":` + strconv.Itoa(int(cost)) + `,` + status + `}}}`
			},
		},
	} {
		inBubble(t, name, func(t *testing.T) {
			var mu sync.Mutex
			left, at := c.size, time.Now()
			accepted, refused := 0.0, 0
			base := roundTripper(func(req *http.Request) (*http.Response, error) {
				time.Sleep(20 * time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				now := time.Now()
				if left = min(c.size, left+c.rate*now.Sub(at).Seconds()); c.rate == 0 && now.Truncate(time.Hour).After(at.Truncate(time.Hour)) {
					left = c.size
				}
				at = now
				cost := float64(50 + len(req.Header.Get("X-Query")))
				ok := cost <= left
				if ok {
					left -= cost
					accepted += cost
				} else {
					refused++
				}
				h := http.Header{"Content-Type": {"application/json"}}
				c.header(h, left)
				return &http.Response{StatusCode: 200, Header: h, Request: req, Body: io.NopCloser(strings.NewReader(c.body(cost, left, ok)))}, nil
			})
			tr, err := throttle.New(base, throttle.WithServerHints(headers.Auto), throttle.WithLimit(throttle.ServerQuota(c.unit,
				throttle.Cost(func(r *http.Request) int64 { return int64(50 + len(r.Header.Get("X-Query"))) }), throttle.SettleJSON(c.path))))
			require.NoError(t, err)
			span, possible := 10*time.Minute, c.size+600*c.rate
			if c.rate == 0 {
				span, possible = 3*time.Hour, 3*c.size
			}
			ctx, cancel := context.WithTimeout(t.Context(), span)
			defer cancel()
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					for j := 0; ; j++ {
						req, _ := http.NewRequestWithContext(ctx, http.MethodPost, c.url, nil)
						req.Header.Set("X-Query", strings.Repeat("q", (i*7+j*13)%100))
						resp, err := tr.RoundTrip(req)
						if err != nil {
							return
						}
						_, _ = io.Copy(io.Discard, resp.Body)
						resp.Body.Close()
					}
				})
			}
			wg.Wait()
			t.Logf("%.1f %% used, %d refused", 100*accepted/possible, refused)
			require.LessOrEqual(t, refused, 6, "of about 150 queries at GitHub, in three windows, and 300 at Shopify")
			require.Greater(t, accepted, .95*possible)
		})
	}
}

// With headers.Auto, the account of a request is its host and what the vendor counts separately there.
func TestAServerQuotaIsOfWhatItsVendorCountsSeparately(t *testing.T) {
	const body = `{"messages":[],"model":"m"}`
	for url, want := range map[string]string{
		"https://api.openai.com/v1/responses":                                                                                           "api.openai.com m",
		"https://x.openai.azure.com/openai/v1/responses":                                                                                "x.openai.azure.com m",
		"https://api.anthropic.com/v1/messages":                                                                                         "api.anthropic.com m",
		"https://generativelanguage.googleapis.com/v1beta/models/pro:streamGenerateContent":                                             "generativelanguage.googleapis.com pro",
		"https://api.groq.com/openai/v1/chat/completions":                                                                               "api.groq.com m",
		"https://api.cerebras.ai/v1/chat/completions":                                                                                   "api.cerebras.ai m",
		"https://api.mistral.ai/v1/chat/completions":                                                                                    "api.mistral.ai m",
		"https://x.cloud.databricks.com/serving-endpoints/chat/completions":                                                             "x.cloud.databricks.com chat m",
		"https://adb-1.2.azuredatabricks.net/serving-endpoints/e/invocations":                                                           "adb-1.2.azuredatabricks.net e m",
		"https://bedrock-runtime.eu-west-1.amazonaws.com/openai/v1/chat/completions":                                                    "bedrock-runtime.eu-west-1.amazonaws.com m",
		"https://bedrock-mantle.us-east-1.api.aws/v1/responses":                                                                         "bedrock-mantle.us-east-1.api.aws m",
		"https://s3.eu-west-1.amazonaws.com/model/x":                                                                                    "s3.eu-west-1.amazonaws.com",
		"https://sts.us-east-1.api.aws/model/x":                                                                                         "sts.us-east-1.api.aws",
		"https://bedrock-runtime.us-west-2.amazonaws.com/model/anthropic.claude-v2%3A1/converse":                                        "bedrock-runtime.us-west-2.amazonaws.com anthropic.claude-v2:1 m",
		"https://bedrock-runtime.us-west-2.amazonaws.com/model/arn%3Aaws%3Abedrock%3Aus-west-2%3A1%3Ainference-profile%2Fus.a/converse": "bedrock-runtime.us-west-2.amazonaws.com arn:aws:bedrock:us-west-2:1:inference-profile/us.a m",
	} {
		inBubble(t, "", func(t *testing.T) {
			tr, err := throttle.New(new(tokenServer), throttle.WithServerHints(headers.Auto), throttle.WithLimit(throttle.ServerQuota("tokens", throttle.Cost(costHeader))))
			require.NoError(t, err)
			for range 2 { // of which the first passes no gate
				postTokens(t, tr, url, body)
			}
			var keys []string
			for b := range tr.Limiter().Buckets() {
				keys = append(keys, b.Key)
			}
			require.Equal(t, []string{want}, keys, url)
		})
	}
}

// As docs/llm.md says: a batch that waits as if it had come an hour later lets interactive requests pass, and gets the rest of the budget.
func TestInteractiveRequestsPassABatchOnTheBudgetOfAServer(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		server := new(tokenServer)
		transport := used(t, server)
		batch := throttle.ContextWithPriority(t.Context(), -360)
		var all sync.WaitGroup
		done := make([]time.Duration, 20)
		began := time.Now()
		for i := range done {
			all.Go(func() {
				var status int
				done[i], status = spend(batch, t, transport, began, 100)
				assert.Equal(t, 200, status)
			})
		}
		for range 5 {
			time.Sleep(20 * time.Second)
			from := time.Now()
			after, status := spend(t.Context(), t, transport, from, 100)
			require.Equal(t, 200, status)
			require.LessOrEqual(t, after, 10*time.Second, "as long as its own tokens take")
		}
		all.Wait()
		require.Zero(t, server.refused)
		slices.Sort(done)
		require.InDelta(t, 250, done[len(done)-1].Seconds(), 10, "nothing of the budget is lost")
	})
}

// As docs/llm.md says: what batches have enqueued is given back once they have ended, hours later.
func TestABatchEndpointIsALimitOfSlotsWithACost(t *testing.T) {
	inBubble(t, "", func(t *testing.T) {
		queue, err := throttle.NewLimiter(throttle.WithLimit(throttle.InFlight(2_000_000, throttle.Name("enqueued"))))
		require.NoError(t, err)
		began := time.Now()
		var ended []time.Duration
		var mu sync.Mutex
		var all sync.WaitGroup
		for i := range 5 {
			all.Go(func() {
				time.Sleep(time.Duration(i) * time.Second)
				grant, err := queue.Acquire(t.Context(), throttle.Ask{Costs: map[string]int64{"enqueued": 900_000}})
				if !assert.NoError(t, err) {
					return
				}
				defer grant.Done()
				time.Sleep(3 * time.Hour)
				mu.Lock()
				defer mu.Unlock()
				ended = append(ended, time.Since(began))
			})
		}
		all.Wait()
		require.Equal(t, []time.Duration{3 * time.Hour, 3*time.Hour + time.Second, 6 * time.Hour, 6*time.Hour + time.Second, 9 * time.Hour}, ended)
	})
}

// postTokens sends a request of 10 tokens.
func postTokens(t *testing.T, tr *throttle.Transport, url, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("X-Cost", "10")
	req.Header.Set("Content-Type", "application/json")
	resp, err := tr.RoundTrip(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
}
