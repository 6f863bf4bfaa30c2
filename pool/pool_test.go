package pool_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
	"github.com/httpthrottle/throttle/pool"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A server is the base of a member.
type server struct {
	mu     sync.Mutex // of status and err, if they change while requests are sent
	takes  time.Duration
	status int
	header http.Header
	err    error
	sent   atomic.Int64
	read   atomic.Int64 // bytes of bodies
}

func (s *server) RoundTrip(req *http.Request) (*http.Response, error) {
	s.sent.Add(1)
	_, fails := s.now()
	if req.Body != nil {
		if fails == nil {
			n, _ := io.Copy(io.Discard, req.Body)
			s.read.Add(n)
		}
		req.Body.Close()
	}
	if fails != nil {
		return nil, fails
	}
	time.Sleep(s.takes)
	status, _ := s.now()
	if status == 0 {
		status = 200
	}
	return &http.Response{StatusCode: status, Header: s.header, Body: http.NoBody, Request: req}, nil
}

func (s *server) now() (status int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status, s.err
}

// become changes how the server responds, while requests are sent to it.
func (s *server) become(status int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status, s.err = status, err
}

func member(t testing.TB, name string, s *server, opts ...throttle.Option) pool.Member {
	tr, err := throttle.New(s, opts...)
	require.NoError(t, err)
	return pool.Member{Name: name, Transport: tr}
}

func limit(l throttle.Limit) throttle.Option { return throttle.WithLimit(l) }

func of(t testing.TB, members []pool.Member, opts ...pool.Option) *pool.Pool {
	p, err := pool.New(members, opts...)
	require.NoError(t, err)
	return p
}

func get(ctx context.Context, p *pool.Pool) (int, error) {
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.example.com/v1", nil)
	resp, err := p.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

// A request waits at all members and is sent by the first that is due, to the nanosecond, and it is charged nowhere else.
func TestARequestGoesByTheFirstMemberThatIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := &server{}, &server{}
		members := []pool.Member{
			member(t, "a", a, limit(throttle.TokenBucket(1, 3*time.Second))),
			member(t, "b", b, limit(throttle.TokenBucket(1, 2*time.Second))),
		}
		p := of(t, members)
		start := time.Now()
		var mu sync.Mutex
		var at []time.Duration
		var all sync.WaitGroup
		for range 7 {
			all.Go(func() {
				status, err := get(t.Context(), p)
				assert.NoError(t, err)
				assert.Equal(t, 200, status)
				mu.Lock()
				defer mu.Unlock()
				at = append(at, time.Since(start))
			})
			synctest.Wait()
		}
		all.Wait()
		require.Equal(t, []time.Duration{0, 0, 2e9, 3e9, 4e9, 6e9, 6e9}, at)
		require.EqualValues(t, 3, a.sent.Load())
		require.EqualValues(t, 4, b.sent.Load())
		for i, n := range []uint64{3, 4} {
			li := members[i].Transport.Limiter().Limits()[0]
			require.Equal(t, n, li.Granted)
			require.Equal(t, n, li.Charged)
			require.Zero(t, li.Returned)
			s := members[i].Transport.Stats()
			require.Zero(t, s.Waiting+int(s.Canceled), "%v", s)
		}
	})
}

func codes(t *testing.T, p *pool.Pool, n int) {
	t.Helper()
	for range n {
		status, err := get(t.Context(), p)
		require.NoError(t, err)
		require.Equal(t, 200, status)
	}
}

// A request that waits moves to a member that is added, and from one that is removed, without being lost.
func TestMembersComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hour := limit(throttle.TokenBucket(1, time.Hour))
		a, b := member(t, "a", &server{}, hour), member(t, "b", &server{}, hour)
		p := of(t, []pool.Member{a})
		codes(t, p, 1)
		start := time.Now()
		ends := make(chan time.Duration, 3)
		for range 3 {
			go func() {
				_, err := get(t.Context(), p)
				assert.NoError(t, err)
				ends <- time.Since(start)
			}()
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		require.NoError(t, p.Set(a, b))
		require.Equal(t, time.Minute, <-ends)
		synctest.Wait()
		require.Equal(t, 2, a.Transport.Stats().Waiting)
		require.NoError(t, p.Set(b))
		synctest.Wait()
		require.Zero(t, a.Transport.Stats().Waiting)
		require.Equal(t, 2, b.Transport.Stats().Waiting)
		require.Equal(t, time.Minute+time.Hour, <-ends)
		require.NoError(t, p.Set(a)) // which had a token since the first hour
		require.Equal(t, time.Minute+time.Hour, <-ends)
		require.EqualValues(t, 2, a.Transport.Stats().Granted)
	})
}

// A Receipt says what a request waits for at the member that is expected to send it first.
func TestAWaitingRequestSaysWhatItWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := member(t, "a", &server{}, limit(throttle.TokenBucket(1, time.Hour, throttle.Name("of a"))))
		b := member(t, "b", &server{}, limit(throttle.TokenBucket(1, time.Minute, throttle.Name("of b"))))
		p := of(t, []pool.Member{a, b})
		codes(t, p, 2)
		ctx, receipt := throttle.ContextWithReceipt(t.Context())
		_, ok := receipt.Waiting()
		require.False(t, ok, "not yet")
		start := time.Now()
		var request sync.WaitGroup
		request.Go(func() {
			_, err := get(ctx, p)
			assert.NoError(t, err)
		})
		synctest.Wait()
		requireWaiting := func(limit string, due time.Duration) {
			w, ok := receipt.Waiting()
			require.True(t, ok)
			require.Equal(t, throttle.Waiting{Limit: limit, Since: start, Due: start.Add(due), Least: true}, w)
		}
		requireWaiting("of b", time.Minute)
		b.Transport.Limiter().HoldAll(2 * time.Hour)
		requireWaiting("of a", time.Hour)
		b.Transport.Limiter().ReleaseAll()
		time.Sleep(time.Minute - 1)
		requireWaiting("of b", time.Minute)
		time.Sleep(time.Nanosecond)
		request.Wait()
		_, ok = receipt.Waiting()
		require.False(t, ok, "it was sent")
	})
}

// A dear member gets what no cheaper one can send within its After.
func TestTheCheapMemberIsFirstIfItCanInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cheap := member(t, "cheap", &server{}, limit(throttle.TokenBucket(1, time.Second)))
		dear := member(t, "dear", &server{})
		dear.After = 2 * time.Second
		p := of(t, []pool.Member{dear, cheap})
		start := time.Now()
		var all sync.WaitGroup
		for i, want := range []time.Duration{0, 1, 2, 0, 0} {
			all.Go(func() {
				_, err := get(t.Context(), p)
				assert.NoError(t, err)
				assert.Equal(t, want*time.Second, time.Since(start), "%d", i)
			})
			synctest.Wait()
		}
		all.Wait()
		require.EqualValues(t, 3, cheap.Transport.Stats().Granted)
		require.EqualValues(t, 2, dear.Transport.Stats().Granted)
	})
}

// Requests of one key go by one member if it can, and most keys keep theirs when a member goes. Weights share out the others.
func TestStickyAndWeights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := []*server{{}, {}, {}}
		var members []pool.Member
		for i, s := range servers {
			members = append(members, member(t, string(rune('a'+i)), s))
			members[i].Weight = i + 1
		}
		p := of(t, members)
		codes(t, p, 6000)
		for i, s := range servers {
			require.InDelta(t, 1000*(i+1), s.sent.Load(), 200)
		}
		p = of(t, members, pool.Sticky(func(r *http.Request) string { return r.Header.Get("K") }, time.Second))
		by := func(key string) (member int) {
			before := []int64{servers[0].sent.Load(), servers[1].sent.Load(), servers[2].sent.Load()}
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://api.example.com/", nil)
			req.Header.Set("K", key)
			_, err := p.RoundTrip(req)
			require.NoError(t, err)
			for i, s := range servers {
				if s.sent.Load() > before[i] {
					member = i
				}
			}
			return member
		}
		home, count := map[string]int{}, [3]int{}
		for i := range 300 {
			key := fmt.Sprint("user-", i)
			home[key] = by(key)
			count[home[key]]++
			require.Equal(t, home[key], by(key))
		}
		for i := range count {
			require.InDelta(t, 100, count[i], 40)
		}
		require.NoError(t, p.Set(members[0], members[2]))
		for key, at := range home {
			if at != 1 {
				require.Equal(t, at, by(key))
			}
		}
		members[0].Transport.Limiter().HoldAll(time.Hour)
		for key, at := range home {
			if at == 0 {
				require.Equal(t, 2, by(key), "a member that is held is left")
				break
			}
		}
	})
}

// A body is sent once. If a member could not be reached, the next one gets it from GetBody.
func TestBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := &server{err: &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}}
		up := &server{}
		bad := member(t, "bad", down)
		good := member(t, "good", up)
		good.After = time.Hour // the other one is tried first
		p := of(t, []pool.Member{bad, good})
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://api.example.com/", strings.NewReader("text"))
		resp, err := p.RoundTrip(req)
		require.NoError(t, err)
		require.Equal(t, 200, resp.StatusCode)
		require.EqualValues(t, 4, up.read.Load())
		require.EqualValues(t, 1, down.sent.Load())

		p = of(t, []pool.Member{bad, good}) // which does not know that it is down
		req, _ = http.NewRequestWithContext(t.Context(), http.MethodPost, "http://api.example.com/", io.NopCloser(strings.NewReader("text")))
		_, err = p.RoundTrip(req)
		require.ErrorContains(t, err, `pool: member "bad": `)
		require.ErrorContains(t, err, "pool: the request has a body and no GetBody, so it cannot be sent by another member")
		require.ErrorIs(t, err, syscall.ECONNREFUSED)

		p = of(t, []pool.Member{bad})
		_, err = get(t.Context(), p)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	})
}

// If no member can send a request in time, it is rejected as by the one that could first. If its context ends, nothing is charged.
func TestARequestThatNoMemberCanSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := member(t, "a", &server{}, limit(throttle.TokenBucket(1, time.Hour)), throttle.WithRejectionError(), throttle.WithMaxWait(time.Second))
		b := member(t, "b", &server{}, limit(throttle.TokenBucket(1, time.Minute)), throttle.WithRejectionError(), throttle.WithFailFast())
		p := of(t, []pool.Member{a, b})
		codes(t, p, 2)
		_, err := get(t.Context(), p)
		r := new(throttle.Rejection)
		require.ErrorAs(t, err, &r)
		require.Equal(t, throttle.ReasonNoTokens, r.Reason)
		require.Equal(t, time.Minute, r.Wait)
		require.Zero(t, a.Transport.Stats().Rejected[throttle.ReasonMaxWait])
		require.EqualValues(t, 1, b.Transport.Stats().Rejected[throttle.ReasonNoTokens])

		ctx, cancel := context.WithCancel(t.Context())
		c := member(t, "c", &server{}, limit(throttle.TokenBucket(1, time.Hour)))
		d := member(t, "d", &server{}, limit(throttle.TokenBucket(1, time.Hour)))
		p = of(t, []pool.Member{c, d})
		codes(t, p, 2)
		go func() {
			time.Sleep(time.Second)
			cancel()
		}()
		_, err = get(ctx, p)
		require.ErrorIs(t, err, context.Canceled)
		time.Sleep(2 * time.Hour)
		start := time.Now()
		codes(t, p, 2)
		require.Zero(t, time.Since(start))
		require.EqualValues(t, 2, c.Transport.Stats().Granted)
	})
}

// New reports all faults of members and options together.
func TestBadMembersAndOptionsAreNamed(t *testing.T) {
	m := member(t, "a", &server{})
	_, err := pool.New(nil)
	require.EqualError(t, err, "pool: 0 members: there must be 1 to 64")
	_, err = pool.New([]pool.Member{m, m, {Name: "c", Weight: -1, After: -1}})
	require.EqualError(t, err, `pool: member 1 ("a"): another member has this Transport
pool: member 1: another member has the name "a"
pool: member 2 ("c"): the Transport is nil
pool: member "c": Weight -1 is negative
pool: member "c": After -1ns is negative`)
	_, err = pool.New([]pool.Member{{Name: "a", Transport: m.Transport, Weight: 1_000_001}})
	require.EqualError(t, err, `pool: member "a": Weight 1000001 is more than 1000000`)
	one := m.Transport.Limiter()
	shared, err := throttle.New(&server{}, throttle.WithLimiter(one))
	require.NoError(t, err)
	dry := member(t, "dry", &server{}, throttle.WithDryRun())
	p, err := pool.New([]pool.Member{m, dry, {Name: "b", Transport: shared}})
	require.EqualError(t, err, `pool: member "dry": its Transport has WithDryRun, under which no request waits: remove the option
pool: member "b": member "a" has this Limiter, too: give each member limits of its own`)
	_, err = (&http.Client{Transport: p}).Post("http://api.example.com", "", strings.NewReader("x"))
	require.ErrorContains(t, err, "pool: there is no Pool: make it with New, and look at the error of that")
	_, err = pool.New([]pool.Member{m}, nil, pool.Sticky(nil, 0), pool.Sticky(func(*http.Request) string { return "" }, -1))
	require.EqualError(t, err, `pool: an Option is nil
pool: Sticky: the function is nil
pool: Sticky: the time -1ns is negative`)
}

// A member that all its servers stop says which of them is asked first, and when that is.
func TestAMemberSaysWhyItSendsNothing(t *testing.T) {
	refuses := map[string]func(h http.Header) string{
		"a": func(h http.Header) string { h.Set("Retry-After", "120"); return "" },
		"b": func(h http.Header) string { h.Set("Retry-After", "60"); return "" },
		"c": func(h http.Header) string {
			h.Set("X-Should-Retry", "false")
			return `{"error":{"message":"You exceeded your current quota.","type":"insufficient_quota","code":"insufficient_quota"}}`
		},
		"d": func(h http.Header) string { h.Set("Retry-After", "180"); return "" },
	}
	const final = "c.test refuses, and no waiting helps: insufficient_quota: You exceeded your current quota."
	for hosts, want := range map[string]struct {
		why   string
		until time.Duration
	}{
		"a": {"a.test asks to wait (too fast)", 2 * time.Minute}, "ab": {"b.test asks to wait (too fast)", time.Minute}, "bd": {"b.test asks to wait (too fast)", time.Minute},
		"ac": {final, time.Minute}, "cd": {final, time.Minute}, "c": {final, time.Minute},
	} {
		t.Run(hosts, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr, err := throttle.New(worldServer(func(req *http.Request) (*http.Response, error) {
					h := http.Header{"Content-Type": {"application/json"}}
					body := refuses[req.URL.Host[:1]](h)
					return &http.Response{StatusCode: http.StatusTooManyRequests, Header: h, Body: io.NopCloser(strings.NewReader(body)), ContentLength: -1, Request: req}, nil
				}), throttle.WithServerHints(headers.Auto))
				require.NoError(t, err)
				p, start := of(t, []pool.Member{{Name: "m", Transport: tr}}), time.Now()
				require.Empty(t, p.Stats().Members[0].Why)
				for _, host := range hosts {
					req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+string(host)+".test/", nil)
					resp, err := p.RoundTrip(req)
					require.NoError(t, err)
					_, err = io.Copy(io.Discard, resp.Body)
					require.NoError(t, err)
					require.NoError(t, resp.Body.Close())
				}
				m := p.Stats().Members[0]
				require.Equal(t, want.why, m.Why)
				require.InDelta(t, want.until.Seconds(), m.Until.Sub(start).Seconds(), want.until.Seconds()/20)
			})
		})
	}
}
