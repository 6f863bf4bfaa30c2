package adversary

import (
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

const (
	own, ownBurst  = 40, 5 // the client's own limit, for each second
	least, most    = 0.5, 25.
	fewest, slots  = 1, 6
	hosts          = 20
	workers        = 12
	requestsOfEach = 250
)

// A liar is a server that lies in every way it can, and notes when requests come. It plays a mood for a while, so that a lie is repeated often
// enough to be learned, and then changes it.
type liar struct {
	mu     sync.Mutex
	r      *rand.Rand
	mood   int
	until  time.Time
	came   []time.Time
	flying map[string]int
	most   int // that were in flight at one host
}

var (
	statuses = []int{200, 204, 206, 301, 304, 400, 401, 403, 404, 408, 409, 425, 429, 430, 500, 502, 503, 504, 529, 599, 100, 0, -1, 999, math.MaxInt32}
	names    = []string{
		"Retry-After", "Retry-After-Ms", "X-Retry-After", "RateLimit", "RateLimit-Policy", "RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset",
		"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "X-RateLimit-Reset-After", "X-RateLimit-Used", "X-RateLimit-Bucket",
		"X-Rate-Limit-Limit", "X-Rate-Limit-Remaining", "Date", "Age", "Server", "Content-Type", "Content-Encoding", "Cf-Ray",
	}
	texts = []string{
		"", "0", "-0", "1", "-1", "60", "0.001", "1e9", "1e309", "NaN", "Inf", "-Inf", "9223372036854775807", "9223372036854775808", "18446744073709551616",
		"31536000", "1s", "1h", "never", "Sat, 31 Dec 2016 23:59:60 GMT", "Fri, 31 Dec 9999 23:59:59 GMT", "Thu, 01 Jan 1970 00:00:00 GMT",
		`"a";r=0;t=31000000`, `"a";q=1;w=1`, `"a";r=9223372036854775807;t=0`, `"a";q=0;w=0`, `"a";q=-1`, "100;w=60", "application/json", "gzip",
		"text/event-stream", "1, 2, 3", strings.Repeat("9", 400), "\x00", "a\nb", "2000-01-01T00:00:00Z",
	}
	failures = []error{
		errors.New("broken"), io.EOF, io.ErrUnexpectedEOF, syscall.ECONNREFUSED, syscall.ECONNRESET, &url.Error{Op: "Get", Err: syscall.EPIPE}, &timeout{},
	}
)

type timeout struct{}

func (*timeout) Error() string { return "timeout" }
func (*timeout) Timeout() bool { return true }

func (s *liar) pick(of ...int) int { return of[s.r.IntN(len(of))] }

// RoundTrip implements http.RoundTripper.
func (s *liar) RoundTrip(req *http.Request) (*http.Response, error) {
	s.mu.Lock()
	now := time.Now()
	if now.After(s.until) {
		s.mood, s.until = s.r.IntN(8), now.Add(time.Duration(s.r.Int64N(int64(2*time.Minute))))
	}
	s.came = append(s.came, now)
	s.flying[req.Host]++
	s.most = max(s.most, s.flying[req.Host])
	status, takes, header, fails, body := 200, time.Duration(s.r.Int64N(1<<s.r.IntN(31))), make(http.Header), false, ""
	switch s.mood {
	case 0: // it says that all is well, at once
		takes = 0
	case 1: // it refuses all
		status = s.pick(429, 503, 529)
	case 2: // it gets faster with load
		takes = time.Second / time.Duration(1+s.flying[req.Host])
	case 3: // it fails
		fails = true
	case 4: // it refuses and asks for an immediate retry
		status = 429
		header.Set("Retry-After", "0")
	default:
		status = s.pick(statuses...)
		for range s.r.IntN(12) {
			header.Add(names[s.r.IntN(len(names))], texts[s.r.IntN(len(texts))])
		}
		fails, body = s.r.IntN(8) == 0, strings.Repeat(texts[s.r.IntN(len(texts))], s.r.IntN(99))
	}
	err := failures[s.r.IntN(len(failures))]
	s.mu.Unlock()
	time.Sleep(takes)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flying[req.Host]--
	if fails {
		return nil, err
	}
	return &http.Response{
		StatusCode: status, Status: "lies", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: header, Request: req, ContentLength: -1, Body: io.NopCloser(strings.NewReader(body)),
	}, nil
}

// Whatever a server does, an adaptive limit stays within its bounds, and the limits that the client has set itself hold.
func TestLiesMoveAnAdaptiveLimitOnlyWithinItsBounds(t *testing.T) { // slow: ten seeds
	seeds := uint64(10)
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) { attack(t, seed) })
	}
}

func attack(t *testing.T, seed uint64) {
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	s := &liar{r: rand.New(rand.NewPCG(seed, 0)), flying: make(map[string]int)}
	tr, err := throttle.New(s, throttle.WithKey(throttle.ByHost), throttle.WithMaxWait(20*time.Second), throttle.WithLimit(
		throttle.TokenBucket(own, time.Second, throttle.Burst(ownBurst), throttle.Name("own"), throttle.Key(func(*http.Request) string { return "" })),
		throttle.Adaptive(throttle.AIMD{Initial: 5, Min: least, Max: most}, throttle.Name("rate")),
		throttle.AdaptiveInFlight(throttle.Concurrency{Min: fewest, Max: slots}, throttle.Name("slots")),
		throttle.TokenBucket(1000, time.Second, throttle.Name("settled"), throttle.SettleJSON("usage", "0")),
	))
	require.NoError(t, err)
	begin := time.Now()
	var group sync.WaitGroup
	for i := range workers {
		group.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(i)+1))
			for range requestsOfEach {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://host-%d.test/", r.IntN(1+r.IntN(hosts))), nil)
				require.NoError(t, err)
				if resp, err := tr.RoundTrip(req); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
				inBounds(t, tr.Limiter())
				time.Sleep(time.Duration(r.Int64N(1 << r.IntN(33))))
			}
		})
	}
	group.Wait()
	require.LessOrEqual(t, s.most, slots, "more are in flight than ever may be")
	for i, at := range s.came {
		sent := int64(0)
		for _, later := range s.came[i:] {
			if sent++; later.Sub(at) > 10*time.Second {
				break
			}
			allowed := ownBurst + float64(later.Sub(at)+20*time.Millisecond)/float64(time.Second)*own
			require.LessOrEqual(t, float64(sent), allowed, "requests from %v on, within %v", at.Sub(begin), later.Sub(at))
		}
	}
	require.Greater(t, len(s.came), workers*requestsOfEach/20, "the client fell silent")
	for b := range tr.Limiter().Buckets() {
		require.Zero(t, b.Waiting)
		require.Zero(t, b.InFlight, "%v", b)
	}
}

// inBounds checks what was learned.
func inBounds(t *testing.T, l *throttle.Limiter) {
	for b := range l.Buckets() {
		switch {
		case b.Limit == "rate" && b.Key != "":
			require.True(t, b.Rate >= least && b.Rate <= most, "%v", b)
			require.False(t, math.IsNaN(b.Tokens), "%v", b)
		case b.Limit == "slots" && b.Key != "":
			require.True(t, b.Capacity >= fewest && b.Capacity <= slots, "%v", b)
			require.LessOrEqual(t, b.InFlight, slots)
		}
	}
}
