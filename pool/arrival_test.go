package pool_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/pool"
	"github.com/httpthrottle/throttle/retry"
)

// A batch sends requests at once and counts how they end.
type batch struct {
	all  sync.WaitGroup
	mu   sync.Mutex
	ends map[string]int // by status, or the reason of a rejection, or the error
	last time.Duration  // from the first one's beginning to the last end
}

func (b *batch) send(rt http.RoundTripper, n int, ctx context.Context, method string) {
	start := time.Now()
	for range n {
		b.all.Go(func() {
			req, _ := http.NewRequestWithContext(ctx, method, "http://api.example.com/v1", strings.NewReader("x"))
			resp, err := rt.RoundTrip(req)
			end := ""
			var r *throttle.Rejection
			if errors.As(err, &r) {
				end = r.Reason.Label()
			} else if err != nil {
				end = err.Error()
			} else if r, ok := throttle.RejectionOf(resp); ok {
				end = r.Reason.Label()
			} else {
				end = fmt.Sprint(resp.StatusCode)
			}
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.ends == nil {
				b.ends = map[string]int{}
			}
			b.ends[end]++
			b.last = max(b.last, time.Since(start))
		})
		synctest.Wait()
	}
}

func several(t *testing.T, n int, opts ...throttle.Option) (members []pool.Member, servers []*server) {
	for i := range n {
		servers = append(servers, &server{})
		members = append(members, member(t, string(rune('a'+i)), servers[i], opts...))
	}
	return members, servers
}

// What all members together can send in time is sent, and the next request is rejected on arrival, with the wait of all of them together.
func TestTheBoundOfAWaitIsThatOfAllMembersTogether(t *testing.T) {
	for _, n := range []int{1, 2, 4, 8} {
		for _, cost := range []int64{1, 5} {
			t.Run(fmt.Sprint(n, " members, cost ", cost), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ten := throttle.TokenBucket(10*cost, time.Second, throttle.Cost(func(*http.Request) int64 { return cost }))
					members, _ := several(t, n, limit(ten), throttle.WithMaxWait(2*time.Second))
					p := of(t, members)
					f, err := p.Forecast(throttle.Ask{Cost: cost}, 30*n)
					require.NoError(t, err)
					assert.Equal(t, 2*time.Second, f.Done())
					assert.Equal(t, time.Duration(0), f.Tenths[2], "the bursts")
					var b batch
					b.send(p, 30*n, t.Context(), http.MethodGet)
					req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://api.example.com/v1", nil)
					resp, err := p.RoundTrip(req)
					require.NoError(t, err)
					r, rejected := throttle.RejectionOf(resp)
					require.True(t, rejected)
					assert.Equal(t, 2100*time.Millisecond, r.Wait)
					assert.Equal(t, throttle.ReasonMaxWait, r.Reason)
					assert.True(t, r.Least)
					assert.Equal(t, "3", resp.Header.Get("Retry-After"))
					f, err = p.Forecast(throttle.Ask{Cost: cost}, 1)
					require.NoError(t, err)
					assert.Equal(t, r.Wait, f.Done())
					assert.Equal(t, 20*n, p.Stats().Waiting)
					last, err := p.Forecast(throttle.Ask{Cost: cost}, 0)
					require.NoError(t, err)
					assert.Equal(t, 2*time.Second, last.Done())
					b.all.Wait()
					assert.Equal(t, map[string]int{"200": 30 * n}, b.ends)
					assert.Equal(t, 2*time.Second, b.last)
					assert.EqualValues(t, 30*n, p.Stats().Sent)
					assert.EqualValues(t, 1, p.Stats().Rejected.Total())
				})
			})
		}
	}
}

// Requests that wait leave a member that fails, except one a second that tries it, and come back once that has succeeded.
func TestRequestsThatWaitSeeThatAMemberIsOutOrBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members, servers := several(t, 3, limit(throttle.TokenBucket(10, time.Second, throttle.Burst(1))))
		p := of(t, members)
		var b batch
		b.send(p, 600, t.Context(), http.MethodPost)
		time.Sleep(time.Second)
		servers[0].become(502, nil)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		s := p.Stats()
		assert.True(t, s.Members[0].Out)
		assert.Equal(t, s.Waiting, s.Members[0].Waiting, "they keep their places there")
		assert.LessOrEqual(t, s.Members[0].Sent, uint64(11+3+5))
		servers[0].become(0, nil)
		b.all.Wait()
		assert.LessOrEqual(t, b.ends["502"], 3+5)
		assert.Equal(t, 600, b.ends["502"]+b.ends["200"])
		assert.Less(t, b.last, 22*time.Second, "20 s by three, and about 5 without the third")
	})
}

// With package retry, no request is lost when a member of three begins to fail while many wait.
func TestNoneIsLostWhenAMemberBeginsToFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members, servers := several(t, 3, limit(throttle.TokenBucket(100, time.Second, throttle.Burst(1))))
		client := retry.NewClient(of(t, members))
		var all sync.WaitGroup
		var lost atomic.Int64
		for range 1500 {
			all.Go(func() {
				resp, err := client.Get("http://api.example.com/v1")
				if err != nil || resp.StatusCode != 200 {
					lost.Add(1)
				}
			})
		}
		time.Sleep(time.Second)
		servers[0].become(0, io.ErrUnexpectedEOF)
		all.Wait()
		assert.Zero(t, lost.Load())
	})
}

// A maximum wait is counted from the arrival, whatever tiers a request goes through.
func TestMaxWaitIsCountedFromTheArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members, _ := several(t, 4, limit(throttle.TokenBucket(1, time.Hour, throttle.Initial(0))), limit(throttle.InFlight(1)), throttle.WithMaxWait(time.Second))
		for i := range members {
			members[i].Transport = throttle.Must(throttle.New(&server{takes: time.Hour}, limit(throttle.InFlight(1)), throttle.WithMaxWait(time.Second)))
			members[i].After = time.Duration(i) * 300 * time.Millisecond
		}
		p := of(t, members)
		ctx, cancel := context.WithCancel(t.Context())
		var busy, b batch
		for range members {
			busy.send(p, 1, ctx, http.MethodGet)
			time.Sleep(5 * time.Second)
		}
		b.send(p, 1, ctx, http.MethodGet)
		b.all.Wait()
		assert.Equal(t, map[string]int{"max_wait": 1}, b.ends)
		assert.Equal(t, time.Second, b.last)
		cancel()
		time.Sleep(2 * time.Hour)
		busy.all.Wait()
	})
}

// A request that has arrived at a pool before Shutdown is sent, by whatever member; one that comes later is rejected. The Transports are shut
// down, too, once no request is left.
func TestShutdownSendsWhatHasArrived(t *testing.T) {
	for _, whole := range []bool{true, false} {
		t.Run(fmt.Sprint("of the pool ", whole), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				members, servers := several(t, 2, limit(throttle.InFlight(1)))
				servers[0].takes, servers[1].takes = 3*time.Second, 3*time.Second
				members[1].After = 500 * time.Millisecond
				p := of(t, members)
				var b, late batch
				b.send(p, 4, t.Context(), http.MethodGet)
				time.Sleep(100 * time.Millisecond)
				var all sync.WaitGroup
				ends := make([]time.Duration, 2)
				start := time.Now()
				for i, m := range members {
					all.Go(func() {
						if ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second); whole {
							defer cancel()
							assert.NoError(t, p.Shutdown(ctx))
						} else {
							defer cancel()
							assert.NoError(t, m.Transport.Shutdown(ctx))
						}
						ends[i] = time.Since(start)
					})
				}
				synctest.Wait()
				late.send(p, 1, t.Context(), http.MethodGet)
				all.Wait()
				late.all.Wait()
				b.all.Wait()
				assert.Equal(t, map[string]int{"200": 4}, b.ends)
				assert.Equal(t, map[string]int{"shutdown": 1}, late.ends)
				assert.GreaterOrEqual(t, max(ends[0], ends[1]), 5900*time.Millisecond, "the last one waits for 3 s, and takes 3 s")
				for _, m := range members {
					_, sent, _ := m.Transport.TryRoundTrip(&http.Request{})
					assert.False(t, sent)
				}
			})
		})
	}
}

// A dialing server asks for a connection, as an http.Transport does, and fails before it has one.
type dialing struct {
	server
	fails atomic.Pointer[error]
}

func (d *dialing) RoundTrip(req *http.Request) (*http.Response, error) {
	trace := httptrace.ContextClientTrace(req.Context())
	if trace != nil && trace.GetConn != nil {
		trace.GetConn("h:1")
	}
	if err := d.fails.Load(); err != nil {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, *err
	}
	if trace != nil && trace.GotConn != nil {
		trace.GotConn(httptrace.GotConnInfo{})
	}
	return d.server.RoundTrip(req)
}

// Whatever the error is: if there was no connection, another member sends the request, also after others have succeeded.
func TestAnyErrorWithoutAConnectionIsNotOfTheRequest(t *testing.T) {
	for name, err := range map[string]error{
		"TLS timeout":          errors.New("net/http: TLS handshake timeout"),
		"EOF in the handshake": io.EOF,
		"TLS alert":            &net.OpError{Op: "remote error", Err: tls.AlertError(40)},
		"CONNECT 502":          errors.New("Bad Gateway"),
		"the dialer's own":     errors.New("no route today"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := &dialing{}, &dialing{}
				members := []pool.Member{
					{Name: "a", Transport: throttle.Must(throttle.New(a))},
					{Name: "b", Transport: throttle.Must(throttle.New(b)), After: time.Second},
				}
				p := of(t, members)
				var before, after batch
				before.send(p, 3, t.Context(), http.MethodPost)
				a.fails.Store(&err)
				after.send(p, 3, t.Context(), http.MethodPost)
				before.all.Wait()
				after.all.Wait()
				assert.Equal(t, map[string]int{"200": 3}, after.ends)
				assert.EqualValues(t, 3, a.sent.Load())
				assert.True(t, p.Stats().Members[0].Out)
			})
		})
	}
}

// A dial error takes its member out also if it is not certain that the request was not sent, so that no request waits there for another attempt.
func TestADialErrorTakesAMemberOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members, servers := several(t, 2)
		members[1].After = time.Hour
		p := of(t, members)
		var before, first, after batch
		before.send(p, 1, t.Context(), http.MethodPost)
		servers[0].become(0, &net.OpError{Op: "dial", Err: io.ErrUnexpectedEOF})
		first.send(p, 1, t.Context(), http.MethodPost)
		after.send(p, 3, t.Context(), http.MethodPost)
		after.all.Wait()
		assert.Equal(t, map[string]int{"200": 3}, after.ends)
		assert.Zero(t, after.last)
		assert.True(t, p.Stats().Members[0].Out)
	})
}
