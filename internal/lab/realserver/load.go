package realserver

import (
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// An exchange is what the server saw of a request: nothing of the time that the request waited in the client.
type exchange struct {
	sent, took time.Duration // since the recorder was made; until the header of the response
	status     int           // 0: no response
}

// A Recorder is a transport that remembers what was sent. It lies below a throttle.Transport.
type Recorder struct {
	*http.Transport
	start time.Time

	mu    sync.Mutex // guards the following
	all   []exchange
	dials []time.Duration
	late  []exchange // sleeps of watch, and how much longer than asked for they took
}

// NewRecorder returns a recorder whose clock starts now. Its connections end with CloseIdleConnections.
func NewRecorder() *Recorder {
	r := &Recorder{start: time.Now()}
	var dialer net.Dialer
	r.Transport = &http.Transport{MaxIdleConnsPerHost: 128, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		r.mu.Lock()
		r.dials = append(r.dials, time.Since(r.start))
		r.mu.Unlock()
		return dialer.DialContext(ctx, network, addr)
	}}
	return r
}

// RoundTrip sends the request and notes what became of it, unless the caller canceled it.
func (r *Recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	x := exchange{sent: time.Since(r.start)}
	resp, err := r.Transport.RoundTrip(req)
	x.took = time.Since(r.start) - x.sent
	if err == nil {
		x.status = resp.StatusCode
	}
	if context.Cause(req.Context()) != errOver {
		r.mu.Lock()
		r.all = append(r.all, x)
		r.mu.Unlock()
	}
	return resp, err
}

// watch sleeps again and again, to find out when the machine is too busy to let a process go on.
func (r *Recorder) watch(ctx context.Context) {
	const nap = 10 * time.Millisecond
	for {
		at := time.Since(r.start)
		select {
		case <-ctx.Done():
			return
		case <-time.After(nap):
			r.mu.Lock()
			r.late = append(r.late, exchange{sent: at, took: time.Since(r.start) - at - nap})
			r.mu.Unlock()
		}
	}
}

// A Tally sums up what was sent in a stretch of time.
type Tally struct {
	Over              time.Duration
	Accepted, Refused int           // Refused: a response that is not 200
	Failed            int           // no response
	P50, P99          time.Duration // until the header of the accepted
	Stalled           time.Duration // the longest that the machine did not let a process go on
}

// Between returns the tally of what was sent in a stretch of time.
func (r *Recorder) Between(from, to time.Duration) Tally {
	r.mu.Lock()
	defer r.mu.Unlock()
	sum := Tally{Over: to - from}
	var took []time.Duration
	for _, x := range r.all {
		switch {
		case x.sent < from || x.sent >= to:
		case x.status == http.StatusOK:
			took = append(took, x.took)
		case x.status == 0:
			sum.Failed++
		default:
			sum.Refused++
		}
	}
	for _, x := range r.late {
		if x.sent >= from && x.sent < to {
			sum.Stalled = max(sum.Stalled, x.took)
		}
	}
	if sum.Accepted = len(took); sum.Accepted > 0 {
		slices.Sort(took)
		sum.P50, sum.P99 = took[len(took)/2], took[len(took)*99/100]
	}
	return sum
}

// Dials returns how many connections were dialed in a stretch of time.
func (r *Recorder) Dials(from, to time.Duration) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, at := range r.dials {
		if from <= at && at < to {
			n++
		}
	}
	return n
}

// Reaches returns how long after an instant two seconds began in which requests were accepted at that rate. It
// returns the largest Duration if that never happened.
func (r *Recorder) Reaches(rate float64, after time.Duration) time.Duration {
	const over = 2 * time.Second
	r.mu.Lock()
	defer r.mu.Unlock()
	var accepted []time.Duration
	for _, x := range r.all {
		if x.status == http.StatusOK && x.sent >= after {
			accepted = append(accepted, x.sent)
		}
	}
	slices.Sort(accepted)
	n := int(math.Ceil(rate * over.Seconds()))
	for i := n - 1; i < len(accepted); i++ {
		if accepted[i]-accepted[i-n+1] <= over {
			return accepted[i-n+1] - after
		}
	}
	return math.MaxInt64
}

// RefusedShare returns how many of the requests were refused or failed, from 0 to 1.
func (s Tally) RefusedShare() float64 {
	bad := s.Refused + s.Failed
	return float64(bad) / float64(max(1, s.Accepted+bad))
}

// PerSecond returns how many requests per second were accepted.
func (s Tally) PerSecond() float64 { return float64(s.Accepted) / s.Over.Seconds() }

// errOver is the cause of a context that ended with the load, not by a timeout.
var errOver = errorString("realserver: the load is over")

type errorString string

func (e errorString) Error() string { return string(e) }

// Work has that many callers send requests one after the other for that long. A caller whose request failed rests
// for a moment. With a timeout a request may not take longer than that in all.
func Work(ctx context.Context, transport http.RoundTripper, url string, callers int, length, timeout time.Duration) {
	ctx, cancel := context.WithCancelCause(ctx) // without a deadline, for which requests would be refused early
	defer time.AfterFunc(length, func() { cancel(errOver) }).Stop()
	defer cancel(errOver)
	client := &http.Client{Transport: transport, Timeout: timeout}
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for ctx.Err() == nil {
				if !get(ctx, client, url) {
					select {
					case <-ctx.Done():
					case <-time.After(10 * time.Millisecond):
					}
				}
			}
		})
	}
	wg.Wait()
}

// get reports whether there was a response. What it was, the recorder knows.
func get(ctx context.Context, client *http.Client, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		panic(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err == nil
}

// Medians names the figures of that many runs.
func Medians(runs int) string {
	if runs == 1 {
		return "one run"
	}
	return fmt.Sprintf("medians of %d runs", runs)
}
