package pool_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/pool"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A member that is held, or whose queue is long, is left; the others send its share immediately.
func TestAMemberThatCannotSendIsLeft(t *testing.T) {
	for name, stop := range map[string]func(m pool.Member, s *server){
		"held by the user": func(m pool.Member, _ *server) { m.Transport.Limiter().HoldAll(time.Hour) },
		"held by the server": func(m pool.Member, s *server) {
			s.status, s.header = 429, http.Header{"Retry-After": {"3600"}}
			req, _ := http.NewRequest(http.MethodGet, "http://api.example.com/v1", nil)
			_, _ = m.Transport.RoundTrip(req)
		},
		"final": func(m pool.Member, s *server) {
			s.status, s.header = 402, http.Header{"Retry-After": {"3600"}}
			req, _ := http.NewRequest(http.MethodGet, "http://api.example.com/v1", nil)
			_, _ = m.Transport.RoundTrip(req)
			s.status = 200 // whether it is heeded or not, no request is lost
		},
		"shut down": func(m pool.Member, _ *server) { _ = m.Transport.Shutdown(context.Background()) },
		"down": func(_ pool.Member, s *server) {
			s.err = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bad, good := &server{}, &server{}
				slots := throttle.InFlight(2, throttle.Name("slots"))
				rate := throttle.TokenBucket(10, time.Second, throttle.Burst(1))
				members := []pool.Member{member(t, "bad", bad, throttle.WithLimit(rate, slots)), member(t, "good", good, throttle.WithLimit(rate, slots))}
				p := of(t, members)
				codes(t, p, 4)
				stop(members[0], bad)
				time.Sleep(time.Second)
				start := time.Now()
				codes(t, p, 50)
				require.LessOrEqual(t, time.Since(start), 5*time.Second)
			})
		})
	}
}

// A member whose slots are taken because it is slow delays only the requests that it has.
func TestASlowMemberDelaysNoOtherRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slots := limit(throttle.InFlight(2))
		p := of(t, []pool.Member{member(t, "slow", &server{takes: time.Hour}, slots), member(t, "quick", &server{takes: time.Second}, slots)})
		var quick atomic.Int64
		var all sync.WaitGroup
		for range 42 {
			all.Go(func() {
				_, err := get(t.Context(), p)
				assert.NoError(t, err)
				quick.Add(1)
			})
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		require.EqualValues(t, 40, quick.Load())
		all.Wait()
	})
}

// A member that fails three times in a row is left out, and one request a second finds out whether it still fails.
func TestAMemberThatFailsIsTriedOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad, good := &server{status: http.StatusBadGateway}, &server{}
		p := of(t, []pool.Member{member(t, "bad", bad), {Name: "good", Transport: member(t, "", good).Transport, After: 1}})
		for range 100 {
			_, err := get(t.Context(), p)
			require.NoError(t, err)
		}
		require.EqualValues(t, 3, bad.sent.Load())
		for i := range 3 {
			time.Sleep(time.Second - 1)
			codes(t, p, 10)
			require.EqualValues(t, 3+i, bad.sent.Load())
			time.Sleep(time.Nanosecond)
			if i == 2 {
				bad.status = http.StatusOK
			}
			for range 10 {
				_, err := get(t.Context(), p)
				require.NoError(t, err)
			}
			if i < 2 {
				require.EqualValues(t, 4+i, bad.sent.Load())
			}
		}
		require.EqualValues(t, 15, bad.sent.Load(), "it has recovered")
	})
}

// If all members are left out, each is tried.
func TestIfAllFailAllAreTried(t *testing.T) {
	s := &server{status: http.StatusBadGateway}
	p := of(t, []pool.Member{member(t, "a", s), member(t, "b", s)})
	for range 50 {
		status, err := get(t.Context(), p)
		require.NoError(t, err)
		require.Equal(t, http.StatusBadGateway, status)
	}
	require.EqualValues(t, 50, s.sent.Load())
}

// A closing is a body that knows whether it was closed.
type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error {
	c.closed = true
	return nil
}

// A request that is not sent has its body closed, and says why it was not.
func TestABodyThatIsNotSentIsClosed(t *testing.T) {
	errGone, errRead := errors.New("the caller has gone"), errors.New("cannot be read again")
	hour := limit(throttle.TokenBucket(1, time.Hour))
	for name, c := range map[string]struct {
		member func(t *testing.T) pool.Member
		end    func(cancel func(error), old chan struct{})
		want   error
	}{
		"its context ends":      {func(t *testing.T) pool.Member { return member(t, "a", &server{}, hour) }, func(cancel func(error), _ chan struct{}) { cancel(errGone) }, errGone},
		"its context had ended": {func(t *testing.T) pool.Member { return member(t, "a", &server{}, hour) }, nil, errGone},
		"its Cancel":            {func(t *testing.T) pool.Member { return member(t, "a", &server{}, hour) }, func(_ func(error), old chan struct{}) { close(old) }, context.Canceled},
		"GetBody": {func(t *testing.T) pool.Member {
			return member(t, "a", &server{err: &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}})
		}, nil, errRead},
		"rejected": {func(t *testing.T) pool.Member {
			return member(t, "a", &server{}, hour, throttle.WithRejectionError(), throttle.WithMaxWait(0))
		}, nil, throttle.ErrThrottled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				good := member(t, "good", &server{}, hour)
				good.After = 1
				p := of(t, []pool.Member{c.member(t), good})
				if name == "GetBody" { // only the second member could send it
					codes(t, of(t, []pool.Member{good}), 1)
					good.Transport.Limiter().HoldAll(time.Hour)
				} else {
					codes(t, p, 2)
				}
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				old, body := make(chan struct{}), &closing{Reader: strings.NewReader("text")}
				req, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://api.example.com/", body)
				req.GetBody = func() (io.ReadCloser, error) { return nil, errRead }
				//lint:ignore SA1019 http.Client sets Cancel with its Timeout
				req.Cancel = old
				if c.end != nil {
					time.AfterFunc(time.Minute, func() { c.end(cancel, old) })
				} else if name == "its context had ended" {
					cancel(errGone)
				} else if name == "rejected" {
					good.Transport.Limiter().HoldAll(time.Hour)
					_ = good.Transport.Shutdown(ctx)
				}
				_, err := p.RoundTrip(req)
				require.ErrorIs(t, err, c.want)
				if c.want == errGone {
					require.Equal(t, errGone, err, "the cause itself")
				}
				require.True(t, body.closed)
			})
		})
	}
}

// A member that has no rate for a request is passed over. If none has, the request fails with the reasons of all.
func TestAMemberWithoutARateIsPassedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		without := func(name string) pool.Member {
			return member(t, name, &server{}, limit(throttle.TokenBucket(1, time.Second, throttle.Name("of "+name), throttle.Key(throttle.ByHost),
				throttle.RateFor(func(string) (int64, time.Duration) { return -1, time.Second }))))
		}
		p := of(t, []pool.Member{without("a"), member(t, "b", &server{}, limit(throttle.TokenBucket(1, time.Second)))})
		start := time.Now()
		codes(t, p, 3)
		require.Equal(t, 2*time.Second, time.Since(start))
		p = of(t, []pool.Member{without("a"), without("b")})
		_, err := get(t.Context(), p)
		require.ErrorContains(t, err, `limit "of a"`)
		require.ErrorContains(t, err, `limit "of b"`)
	})
}

// Among members that are alike, too, one request a second finds out whether a member still fails, so it is back within a second.
func TestOneOfManyMembersIsBackWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := &server{status: http.StatusBadGateway}
		members := []pool.Member{member(t, "bad", bad)}
		for i := range 15 {
			members = append(members, member(t, fmt.Sprint(i), &server{}))
		}
		p := of(t, members)
		for bad.sent.Load() < 3 {
			_, _ = get(t.Context(), p)
		}
		for i := range int64(5) {
			time.Sleep(time.Second)
			for range 100 {
				_, _ = get(t.Context(), p)
			}
			require.Equal(t, 4+i, bad.sent.Load())
		}
		bad.status = http.StatusOK
		time.Sleep(time.Second)
		codes(t, p, 1600)
		require.InDelta(t, 100, bad.sent.Load()-8, 50)
	})
}

// A request that goes to the member of its key does not take the turn of one that would try the member that is left out.
func TestTheMemberOfAKeyIsBackWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers := []*server{{}, {}}
		p := of(t, []pool.Member{member(t, "a", servers[0]), member(t, "b", servers[1])}, pool.Sticky(func(r *http.Request) string { return r.Header.Get("K") }, time.Second))
		by := func(key string) int {
			before := servers[0].sent.Load()
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://api.example.com/", nil)
			req.Header.Set("K", key)
			_, err := p.RoundTrip(req)
			require.NoError(t, err)
			return int(1 - servers[0].sent.Load() + before)
		}
		keys := [2]string{}
		for i := 0; keys[0] == "" || keys[1] == ""; i++ {
			keys[by(fmt.Sprint(i))] = fmt.Sprint(i)
		}
		servers[1].status = http.StatusBadGateway
		for range 3 {
			require.Equal(t, 1, by(keys[1]))
		}
		require.Equal(t, 0, by(keys[1]), "it is left out")
		servers[1].status = http.StatusOK
		time.Sleep(time.Second)
		require.Equal(t, 0, by(keys[0]))
		require.Equal(t, 1, by(keys[1]))
		require.Equal(t, 1, by(keys[1]), "it is back")
	})
}

// A member that fails and is slow is tried as rarely as one that is only slow.
func TestAMemberThatFailsSlowlyIsTriedAsRarelyAsASlowOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members, servers := changings(t, 2, 200*time.Millisecond)
		p := of(t, members)
		codes(t, p, 20)
		servers[0].status = http.StatusGatewayTimeout
		servers[0].latency.Store(int64(30 * time.Second))
		before := servers[0].sent.Load()
		for start := time.Now(); time.Since(start) < 10*time.Minute; {
			_, err := get(t.Context(), p)
			require.NoError(t, err)
		}
		require.LessOrEqual(t, servers[0].sent.Load()-before, int64(12))
	})
}

// However it is that no connection can be made, the request is sent by another member, with its body.
func TestARequestWithoutAConnectionIsSentByAnotherMember(t *testing.T) {
	uncertified := httptest.NewTLSServer(http.NotFoundHandler())
	defer uncertified.Close()
	uncertified.Config.ErrorLog = log.New(io.Discard, "", 0)
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for name, base := range map[string]http.RoundTripper{
		"the host is down":         to(t, gone.URL, &http.Transport{}),
		"its proxy is down":        to(t, "http://api.example.com", &http.Transport{Proxy: http.ProxyURL(parse(t, gone.URL))}),
		"the TLS proxy is down":    to(t, "https://api.example.com", &http.Transport{Proxy: http.ProxyURL(parse(t, gone.URL))}),
		"its certificate is wrong": to(t, uncertified.URL, &http.Transport{}),
	} {
		t.Run(name, func(t *testing.T) {
			tr, err := throttle.New(base)
			require.NoError(t, err)
			good := &server{}
			second := member(t, "good", good)
			second.After = 1
			p := of(t, []pool.Member{{Name: "bad", Transport: tr}, second})
			for range 3 {
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://api.example.com/", strings.NewReader("text"))
				resp, err := p.RoundTrip(req)
				require.NoError(t, err)
				require.Equal(t, 200, resp.StatusCode)
			}
			require.EqualValues(t, 12, good.read.Load())
		})
	}
}

func parse(t *testing.T, text string) *url.URL {
	u, err := url.Parse(text)
	require.NoError(t, err)
	return u
}

// to returns a base that sends all requests to a host.
func to(t *testing.T, host string, base http.RoundTripper) http.RoundTripper {
	u := parse(t, host)
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		req = req.Clone(req.Context())
		req.URL.Scheme, req.URL.Host = u.Scheme, u.Host
		return base.RoundTrip(req)
	})
}
