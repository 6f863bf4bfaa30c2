package hints

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// This file simulates servers that report their limits as real ones do, and clients that share one of them, in a bubble of
// synctest. What they come to is in figures_test.go.

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func get(ctx context.Context) *http.Request {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://a.com/x", nil)
	if err != nil {
		panic(err)
	}
	return r
}

// A hintServer is one server with one limit, which counts all clients together.
type hintServer struct {
	mu      sync.Mutex
	limit   hintLimit
	report  reporter
	trip    time.Duration // there and back
	jitter  float64       // share of the trip
	works   time.Duration // on an accepted request; what it reports is what is left after that
	stalls  bool          // the host stands still for 20 to 80 ms every three seconds or so, and at the beginning
	still   [2]time.Duration
	dice    *rand.Rand
	began   time.Time
	refused []int
	counts  [][]int // accepted, by client and second
}

// A hintLimit decides about a request that arrives at an instant, in ns since the server began.
type hintLimit interface {
	// admit reports whether the request is accepted, what is left then, when the window ends, and when a retry may succeed.
	admit(now int64) (ok bool, left, end, retry int64)
	size() (n int64, per time.Duration)
}

// A reporter writes the headers that report a limit. Instants are Unix times in ns.
type reporter func(h http.Header, ok bool, n, left int64, per time.Duration, now, end, retry time.Time)

// client returns what a client with that index sends its requests by.
func (s *hintServer) client(i int) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		time.Sleep(s.leg())
		resp := s.answer(i)
		time.Sleep(s.leg())
		resp.Request = r
		return resp, nil
	})
}

func (s *hintServer) leg() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := time.Duration(float64(s.trip) / 2 * (1 + s.jitter*(2*s.dice.Float64()-1)))
	if !s.stalls {
		return d
	}
	at := time.Since(s.began) + d
	for at >= s.still[1] { // the next
		from := s.still[1] + time.Duration(s.dice.ExpFloat64()*3e9)
		if s.still[1] == 0 {
			from = 0
		}
		s.still = [2]time.Duration{from, from + 20*time.Millisecond + time.Duration(s.dice.Int64N(60e6))}
	}
	if at >= s.still[0] {
		d += s.still[1] - at
	}
	return d
}

func (s *hintServer) answer(i int) *http.Response {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Since(s.began)
	ok, left, end, retry := s.limit.admit(int64(now))
	if s.works > 0 && ok {
		s.mu.Unlock()
		time.Sleep(s.works)
		s.mu.Lock()
		now = time.Since(s.began)
		if w, is := s.limit.(*winLimit); is {
			left, end = w.standing(int64(now))
		}
	}
	h := http.Header{"Date": {time.Now().UTC().Format(http.TimeFormat)}}
	n, per := s.limit.size()
	s.report(h, ok, n, left, per, time.Now(), s.began.Add(time.Duration(end)), s.began.Add(time.Duration(retry)))
	if !ok {
		s.refused[i]++
		return &http.Response{StatusCode: 429, Header: h, Body: http.NoBody}
	}
	for len(s.counts[i]) <= int(now/time.Second) {
		s.counts[i] = append(s.counts[i], 0)
	}
	s.counts[i][now/time.Second]++
	return &http.Response{StatusCode: 200, Header: h, Body: http.NoBody}
}

func ceilSeconds(d time.Duration) int64 { return int64((max(0, d) + time.Second - 1) / time.Second) }

func retryAfterIn(h http.Header, ok bool, seconds int64) {
	if !ok {
		h.Set("Retry-After", strconv.FormatInt(seconds, 10))
	}
}

// draft6 reports as express-rate-limit does: the reset in whole seconds, rounded up.
func draft6(h http.Header, ok bool, n, left int64, per time.Duration, now, end, retry time.Time) {
	h.Set("RateLimit-Policy", fmt.Sprintf("%d;w=%d", n, ceilSeconds(per)))
	h.Set("RateLimit-Limit", fmt.Sprint(n))
	h.Set("RateLimit-Remaining", fmt.Sprint(left))
	h.Set("RateLimit-Reset", fmt.Sprint(ceilSeconds(end.Sub(now))))
	retryAfterIn(h, ok, ceilSeconds(per))
}

func draft7(h http.Header, ok bool, n, left int64, per time.Duration, now, end, retry time.Time) {
	h.Set("RateLimit-Policy", fmt.Sprintf("%d;w=%d", n, ceilSeconds(per)))
	h.Set("RateLimit", fmt.Sprintf("limit=%d, remaining=%d, reset=%d", n, left, ceilSeconds(end.Sub(now))))
	retryAfterIn(h, ok, ceilSeconds(end.Sub(now)))
}

func draft8(h http.Header, ok bool, n, left int64, per time.Duration, now, end, retry time.Time) {
	h.Set("RateLimit-Policy", fmt.Sprintf(`"%d-in-%dsec"; q=%d; w=%d; pk=:MTI3:`, n, ceilSeconds(per), n, ceilSeconds(per)))
	h.Set("RateLimit", fmt.Sprintf(`"%d-in-%dsec"; r=%d; t=%d`, n, ceilSeconds(per), left, ceilSeconds(end.Sub(now))))
	retryAfterIn(h, ok, ceilSeconds(end.Sub(now)))
}

// flaskLike reports as flask-limiter does: an epoch that is one second late, rounded down, and a Retry-After that goes by it.
func flaskLike(h http.Header, ok bool, n, left int64, per time.Duration, now, end, retry time.Time) {
	h.Set("X-RateLimit-Limit", fmt.Sprint(n))
	h.Set("X-RateLimit-Remaining", fmt.Sprint(left))
	h.Set("X-RateLimit-Reset", fmt.Sprint(end.Unix()+1))
	retryAfterIn(h, ok, max(0, int64(time.Unix(end.Unix()+1, 0).Sub(now)/time.Second)))
}

// epochUp reports an epoch that is rounded up.
func epochUp(h http.Header, ok bool, n, left int64, per time.Duration, now, end, retry time.Time) {
	h.Set("X-RateLimit-Limit", fmt.Sprint(n))
	h.Set("X-RateLimit-Remaining", fmt.Sprint(left))
	h.Set("X-RateLimit-Reset", fmt.Sprint(end.Add(time.Second-1).Unix()))
}

// deltaDown reports the reset in whole seconds, rounded down.
func deltaDown(h http.Header, ok bool, n, left int64, per time.Duration, now, end, retry time.Time) {
	h.Set("X-RateLimit-Limit", fmt.Sprint(n))
	h.Set("X-RateLimit-Remaining", fmt.Sprint(left))
	h.Set("X-RateLimit-Reset", fmt.Sprint(int64(end.Sub(now)/time.Second)))
	retryAfterIn(h, ok, ceilSeconds(retry.Sub(now)))
}

// deltaLate reports the reset in whole seconds, one second late.
func deltaLate(h http.Header, ok bool, n, left int64, per time.Duration, now, end, retry time.Time) {
	h.Set("X-RateLimit-Limit", fmt.Sprint(n))
	h.Set("X-RateLimit-Remaining", fmt.Sprint(left))
	h.Set("X-RateLimit-Reset", fmt.Sprint(ceilSeconds(end.Sub(now))+1))
	retryAfterIn(h, ok, ceilSeconds(retry.Sub(now))+1)
}

// deltaExact reports the reset to the millisecond, as OpenAI does.
func deltaExact(h http.Header, ok bool, n, left int64, per time.Duration, now, end, retry time.Time) {
	h.Set("X-RateLimit-Limit-Requests", fmt.Sprint(n))
	h.Set("X-RateLimit-Remaining-Requests", fmt.Sprint(left))
	h.Set("X-RateLimit-Reset-Requests", fmt.Sprint(max(0, end.Sub(now)).Round(time.Millisecond)))
}

// onlyRetryAfter reports nothing before it refuses.
func onlyRetryAfter(h http.Header, ok bool, n, left int64, per time.Duration, now, end, retry time.Time) {
	retryAfterIn(h, ok, max(1, ceilSeconds(retry.Sub(now))))
}

// nothing refuses without headers.
func nothing(http.Header, bool, int64, int64, time.Duration, time.Time, time.Time, time.Time) {}

// A hintCase is one run: a server and its clients.
type hintCase struct {
	name    string
	limit   func(r *rand.Rand) hintLimit
	report  reporter
	rate    float64                                            // of the server, per second
	options func(n int64, per time.Duration) []throttle.Option // of each client
	clients int                                                // 0: 1
	callers int                                                // of each; 0: 16
	trip    time.Duration                                      // 0: 20 ms
	length  time.Duration                                      // 0: 20 s
	apart   time.Duration                                      // between the starts of clients
	works   time.Duration                                      // see hintServer
	stalls  bool
	stop    func(client int) (from, until time.Duration) // in which a client works; nil: always
}

// hintServerOf returns the server of that name.
func hintServerOf(t *testing.T, name string) hintCase {
	t.Helper()
	for _, c := range hintServers {
		if c.name == name {
			return c
		}
	}
	require.Fail(t, "no such server", name)
	return hintCase{}
}

// with returns the case with other options, for a host that stands still now and then, at a round trip.
func (c hintCase) with(options func(int64, time.Duration) []throttle.Option, trip time.Duration) hintCase {
	c.options, c.trip, c.stalls = options, trip, true
	return c
}

// A hintResult is what became of a run.
type hintResult struct {
	share   float64 // accepted of what the limit allows
	refused float64 // of all requests
	jain    float64 // of the clients' accepted
	trend   float64 // the ratio of largest to smallest in the last 20 s, to that of the 20 s before
	each    []int
}

func (r hintResult) String() string {
	s := fmt.Sprintf("%5.1f %% /%5.2f %%", 100*r.share, 100*r.refused)
	if len(r.each) > 1 {
		s += fmt.Sprintf("  Jain %.3f, trend %.2f, %v", r.jain, r.trend, r.each)
	}
	return s
}

func (c hintCase) run(t *testing.T, seed uint64) (res hintResult) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(seed, 5))
		if c.clients == 0 {
			c.clients = 1
		}
		if c.callers == 0 {
			c.callers = 16
		}
		if c.trip == 0 {
			c.trip = 20 * time.Millisecond
		}
		if c.length == 0 {
			c.length = 20 * time.Second
		}
		// Bubbles begin in 2000, whose epoch seconds nothing reads as such.
		time.Sleep(26*365*24*time.Hour + time.Duration(r.Int64N(int64(time.Second))))
		s := &hintServer{limit: c.limit(r), report: c.report, trip: c.trip, jitter: 0.2, works: c.works, stalls: c.stalls, dice: r, began: time.Now(),
			refused: make([]int, c.clients), counts: make([][]int, c.clients)}
		n, per := s.limit.size()
		var wg sync.WaitGroup
		for i := range c.clients {
			tr, err := throttle.New(s.client(i), c.options(n, per)...)
			if err != nil {
				t.Error(err)
				return
			}
			from, until := time.Duration(i)*c.apart, c.length
			if c.stop != nil {
				from, until = c.stop(i)
			}
			for range c.callers {
				wg.Go(func() {
					time.Sleep(from)
					for time.Since(s.began) < until {
						ctx := throttle.ContextWithMaxWait(t.Context(), until-time.Since(s.began))
						resp, err := tr.RoundTrip(get(ctx))
						if err != nil {
							return
						}
						if _, local := throttle.RejectionOf(resp); local {
							return
						}
						io.Copy(io.Discard, resp.Body)
						resp.Body.Close()
					}
				})
			}
		}
		wg.Wait()
		res = s.result(c)
	})
	return res
}

func (s *hintServer) result(c hintCase) (r hintResult) {
	rate := c.rate
	if rate == 0 {
		n, per := s.limit.size()
		rate = float64(n) / per.Seconds()
	}
	total, refused := 0, 0
	var late, before []int
	last := int(c.length / time.Second)
	sum := func(counts []int, from, to int) (n int) {
		for i := max(0, from); i < min(to, len(counts)); i++ {
			n += counts[i]
		}
		return n
	}
	for i, counts := range s.counts {
		r.each = append(r.each, sum(counts, 0, len(counts)))
		total, refused = total+r.each[i], refused+s.refused[i]
		late, before = append(late, sum(counts, last-20, last)), append(before, sum(counts, last-40, last-20))
	}
	r.share = float64(total) / rate / c.length.Seconds()
	r.refused = float64(refused) / float64(max(1, total+refused))
	squares := 0.0
	for _, n := range r.each {
		squares += float64(n) * float64(n)
	}
	r.jain = float64(total) * float64(total) / squares / float64(len(r.each))
	ratio := func(n []int) float64 { return float64(slices.Max(n)) / float64(max(1, slices.Min(n))) }
	r.trend = ratio(late) / ratio(before)
	return r
}

// seeds returns n, or 1 in a short test.
func seeds(n uint64) uint64 {
	if testing.Short() {
		return 1
	}
	return n
}

// median runs a case with several seeds, and returns the medians.
func (c hintCase) median(t *testing.T, seeds uint64) hintResult {
	t.Helper()
	var all []hintResult
	for seed := range seeds {
		all = append(all, c.run(t, seed))
	}
	mid := func(of func(hintResult) float64) float64 {
		x := make([]float64, len(all))
		for i := range all {
			x[i] = of(all[i])
		}
		slices.Sort(x)
		return x[len(x)/2]
	}
	return hintResult{
		share: mid(func(r hintResult) float64 { return r.share }), refused: mid(func(r hintResult) float64 { return r.refused }),
		jain: mid(func(r hintResult) float64 { return r.jain }), trend: mid(func(r hintResult) float64 { return r.trend }), each: all[0].each,
	}
}

func known(n int64, per time.Duration) []throttle.Option {
	return []throttle.Option{throttle.WithLimit(throttle.TokenBucket(n*95, 100*per, throttle.Burst(1)))}
}
func knownDeaf(n int64, per time.Duration) []throttle.Option {
	return append(known(n, per), throttle.WithoutServerHints())
}
func wholeLimit(n int64, per time.Duration) []throttle.Option {
	return []throttle.Option{throttle.WithLimit(throttle.TokenBucket(n, per, throttle.Burst(1)))}
}
func inWindow(n int64, per time.Duration) []throttle.Option {
	return []throttle.Option{throttle.WithLimit(throttle.SlidingWindow(n*95/100, per))}
}
func inWindowDeaf(n int64, per time.Duration) []throttle.Option {
	return append(inWindow(n, per), throttle.WithoutServerHints())
}
func hintsAlone(int64, time.Duration) []throttle.Option { return nil }
func adaptiveTwice(n int64, per time.Duration) []throttle.Option {
	return []throttle.Option{throttle.WithAdaptive(throttle.AIMD{Initial: 2 * float64(n) / per.Seconds()})}
}

func window(n int64, per time.Duration, clock bool) func(*rand.Rand) hintLimit {
	return func(r *rand.Rand) hintLimit {
		w := &winLimit{n: n, per: int64(per), clock: -1}
		if clock {
			w.clock = r.Int64N(w.per)
		}
		return w
	}
}
func elastic(n int64, per time.Duration) func(*rand.Rand) hintLimit {
	return func(*rand.Rand) hintLimit { return &elasticLimit{winLimit{n: n, per: int64(per), clock: -1}} }
}
func slidingLog(n int, per time.Duration) func(*rand.Rand) hintLimit {
	return func(*rand.Rand) hintLimit { return &logLimit{n: n, per: int64(per)} }
}
func drip(rate, burst float64) func(*rand.Rand) hintLimit {
	return func(*rand.Rand) hintLimit { return &dripLimit{rate: rate, burst: burst, level: burst} }
}

// hintServers are the servers of figures_test.go.
var hintServers = []hintCase{
	{name: "express draft-6", limit: window(50, time.Second, false), report: draft6},
	{name: "express draft-7, 100 in 10 s", limit: window(100, 10*time.Second, false), report: draft7},
	{name: "express draft-8", limit: window(50, time.Second, false), report: draft8},
	{name: "clock, rounded up", limit: window(50, time.Second, true), report: draft6},
	{name: "clock, epoch rounded up", limit: window(50, time.Second, true), report: epochUp},
	{name: "clock, rounded down", limit: window(50, time.Second, true), report: deltaDown},
	{name: "clock, a second late", limit: window(50, time.Second, true), report: deltaLate},
	{name: "clock, exact", limit: window(50, time.Second, true), report: deltaExact},
	{name: "GitHub-like, 100 in 5 s", limit: window(100, 5*time.Second, true), report: epochUp},
	{name: "flask fixed", limit: window(50, time.Second, false), report: flaskLike, works: 2 * time.Millisecond},
	{name: "flask moving", limit: slidingLog(50, time.Second), report: flaskLike},
	{name: "elastic window", limit: elastic(50, time.Second), report: deltaExact},
	{name: "elastic window, reported late", limit: elastic(50, time.Second), report: flaskLike},
	{name: "sliding log, exact", limit: slidingLog(50, time.Second), report: deltaExact},
	{name: "bucket 50/s, burst 50, exact", limit: drip(50, 50), report: deltaExact},
	{name: "haproxy, Retry-After 1", limit: slidingLog(50, time.Second), report: onlyRetryAfter},
	{name: "rack-attack, Retry-After 1", limit: window(50, time.Second, true), report: onlyRetryAfter},
	{name: "bucket 10/s, burst 10, Retry-After", limit: drip(10, 10), report: onlyRetryAfter},
	{name: "bucket 10/s, burst 10, Retry-After 2", limit: drip(10, 10), report: retryAfter2},
	{name: "nginx nodelay burst 20, bare", limit: drip(50, 20), report: nothing, rate: 50},
	{name: "nginx no burst, bare", limit: drip(50, 1), report: nothing, rate: 50},
	{name: "nginx no burst, 50 ms, bare", limit: drip(50, 1), report: nothing, rate: 50, works: 50 * time.Millisecond},
}

// retryAfter2 refuses with the same header each time.
func retryAfter2(h http.Header, ok bool, n, left int64, per time.Duration, now, end, retry time.Time) {
	retryAfterIn(h, ok, 2)
}
