package realserver_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An exchange is what the server saw of a request: nothing of the time that it waited for its turn.
type exchange struct {
	sent, took time.Duration // since the recorder was made; until the headers of the answer
	status     int           // 0: no answer
}

// A recorder is a transport that remembers.
type recorder struct {
	*http.Transport
	start time.Time
	mu    sync.Mutex
	all   []exchange
	late  []exchange // how much longer than it should a nap took
}

func newRecorder(t *testing.T) *recorder {
	t.Helper()
	r := &recorder{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, start: time.Now()}
	t.Cleanup(r.CloseIdleConnections)
	return r
}

func (r *recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	x := exchange{sent: time.Since(r.start)}
	resp, err := r.Transport.RoundTrip(req)
	x.took = time.Since(r.start) - x.sent
	if err == nil {
		x.status = resp.StatusCode
	}
	if req.Context().Err() == nil { // otherwise it is our own doing
		r.mu.Lock()
		r.all = append(r.all, x)
		r.mu.Unlock()
	}
	return resp, err
}

// watch naps until the end, to know when the machine is too busy to let anybody go on.
func (r *recorder) watch(end <-chan struct{}) {
	const nap = 10 * time.Millisecond
	for {
		at := time.Since(r.start)
		select {
		case <-end:
			return
		case <-time.After(nap):
			r.mu.Lock()
			r.late = append(r.late, exchange{sent: at, took: time.Since(r.start) - at - nap})
			r.mu.Unlock()
		}
	}
}

// A tally sums up what was sent in a stretch of time.
type tally struct {
	over     time.Duration
	accepted int
	refused  map[int]int   // by status
	median   time.Duration // latency of the accepted
	stalled  time.Duration // the longest until then that the machine let somebody wait who was ready
}

func (r *recorder) between(from, to time.Duration) tally {
	r.mu.Lock()
	defer r.mu.Unlock()
	sum := tally{over: to - from, refused: map[int]int{}}
	var took []time.Duration
	for _, x := range r.all {
		if x.sent < from || x.sent >= to {
			continue
		}
		if x.status == http.StatusOK {
			took = append(took, x.took)
		} else {
			sum.refused[x.status]++
		}
	}
	for _, x := range r.late {
		if x.sent < to {
			sum.stalled = max(sum.stalled, x.took)
		}
	}
	if sum.accepted = len(took); sum.accepted > 0 {
		slices.Sort(took)
		sum.median = took[len(took)/2]
	}
	return sum
}

// onlyRefusedBy asserts that every answer was a 200 or that status.
func (s tally) onlyRefusedBy(t *testing.T, status int) {
	t.Helper()
	for got := range s.refused {
		assert.Equal(t, status, got, "status of a refusal")
	}
}

func (s tally) refusals() (n int) {
	for _, k := range s.refused {
		n += k
	}
	return n
}

// share is how many of the requests were refused.
func (s tally) share() float64 {
	return float64(s.refusals()) / float64(max(1, s.accepted+s.refusals()))
}

// rate is how many requests a second were accepted.
func (s tally) rate() float64 { return float64(s.accepted) / s.over.Seconds() }

// fasterThan asserts the rate, unless the machine stood still for a while: then latencies are many times what they were,
// which is a reason to send less.
func (s tally) fasterThan(t *testing.T, rate float64) {
	t.Helper()
	if s.stalled > 100*time.Millisecond {
		t.Logf("the machine stood still for %v: %.1f/s says nothing", s.stalled.Round(time.Millisecond), s.rate())
		return
	}
	assert.Greater(t, s.rate(), rate, "accepted per second")
}

func (s tally) String() string {
	return fmt.Sprintf("%4.1f s: %5.1f/s accepted (%d), %5.2f %% refused (%d), median latency %v, stalls up to %v",
		s.over.Seconds(), s.rate(), s.accepted, 100*s.share(), s.refusals(),
		s.median.Round(time.Millisecond), s.stalled.Round(time.Millisecond))
}

// work lets so many callers, each with always one more request, call for that long; each rests after an answer.
func work(t *testing.T, transport http.RoundTripper, url string, callers int, rest, length time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context()) // without a deadline, for which requests would be refused early
	defer time.AfterFunc(length, cancel).Stop()
	client := &http.Client{Transport: transport}
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				get(ctx, client, url)
				select {
				case <-ctx.Done():
				case <-time.After(rest):
				}
			}
		})
	}
	wg.Wait()
}

// get does not say what became of the request: the recorder knows.
func get(ctx context.Context, client *http.Client, url string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		panic(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, resp.Body)
}

// throttled lets 50 callers work through a Transport with these options, and returns what the server saw. The log shows
// what an adaptive limit has made of it.
func throttled(t *testing.T, url string, length time.Duration, opts ...throttle.Option) *recorder {
	t.Helper()
	var mu sync.Mutex
	var cuts []string
	seen := newRecorder(t)
	retuned := func(e throttle.RetuneEvent) {
		if e.New < e.Old {
			mu.Lock()
			defer mu.Unlock()
			cuts = append(cuts, fmt.Sprintf("%.1f s %s %.1f/s", time.Since(seen.start).Seconds(), e.Reason, e.New))
		}
	}
	transport, err := throttle.New(seen, append(opts, throttle.WithHooks(throttle.Hooks{OnRetune: retuned}))...)
	require.NoError(t, err)
	end := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { seen.watch(end) })
	work(t, transport, url+"/throttled", 50, 0, length)
	close(end)
	wg.Wait()
	if len(cuts) > 0 {
		t.Log("cuts:", strings.Join(cuts, ", "))
	}
	return seen
}

// pressing lets callers work who heed nothing, a thousand or so requests a second.
func pressing(t *testing.T, url string, length time.Duration) *recorder {
	t.Helper()
	seen := newRecorder(t)
	work(t, seen, url+"/pressing", 20, 20*time.Millisecond, length)
	return seen
}
