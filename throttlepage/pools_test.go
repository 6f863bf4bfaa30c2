package throttlepage

import (
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/pool"
)

// A Pool is one thing on the page: each request that waits counts once, members that are out say why and until when, and what all do together
// has a row.
func TestAPoolIsOneThing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		member := func(name string, fails *atomic.Bool, opts ...throttle.Option) pool.Member {
			tr, err := throttle.New(roundTripper(func(req *http.Request) (*http.Response, error) {
				if fails != nil && fails.Load() {
					return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
				}
				return &http.Response{StatusCode: 200, Body: http.NoBody, Request: req}, nil
			}), append(opts, throttle.WithLimit(throttle.TokenBucket(2, time.Second, throttle.Name("tokens"))))...)
			require.NoError(t, err)
			return pool.Member{Name: name, Transport: tr}
		}
		members := []pool.Member{member("east", &down), member("west", nil), member("north", nil)}
		p, err := pool.New(members)
		require.NoError(t, err)
		page := New(nil, Pools(map[string]*pool.Pool{"models": p}), Every(0))
		defer page.Close()
		assert.Contains(t, get(page, "/").Body.String(), "Nothing waits.")

		send := func(ctxMaxWait time.Duration) {
			ctx := t.Context()
			if ctxMaxWait >= 0 {
				ctx = throttle.ContextWithMaxWait(ctx, ctxMaxWait)
			}
			req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.example.com/", nil)
			if resp, err := p.RoundTrip(req); err == nil {
				resp.Body.Close()
			}
		}
		var all sync.WaitGroup
		for range 6 {
			send(-1)
		}
		down.Store(true)
		for range 12 {
			all.Go(func() { send(-1) })
			synctest.Wait()
		}
		time.Sleep(600 * time.Millisecond) // east is tried, and goes out
		members[2].Transport.Limiter().HoldAll(time.Minute)
		send(0)
		time.Sleep(1650 * time.Millisecond)
		synctest.Wait()
		s := p.Stats()
		require.True(t, s.Members[0].Out)
		require.Positive(t, s.Waiting)
		content := strings.ReplaceAll(get(page, "/").Body.String(), "\u00a0", " ")
		for _, want := range []string{
			`<th scope="row">east</th><td data-label="State"><b class="state">out</b> <small>dial tcp: connection refused, tried again in`,
			`<th scope="row">north</th><td data-label="State"><b class="state">held 58 s</b> <small>limit &#34;tokens&#34; is held</small>`,
			`<th scope="row">together</th><td data-label="State"><b class="state">1 of 3 in</b>`,
			`“east” is out (dial tcp: connection refused, tried again in`, `“north” is held for 58`,
			`<dt>waiting now</dt><dd class="value">` + number(float64(s.Waiting)) + `<`,
			`<th scope="row">west: tokens`, `member “east” is left out, dial tcp: connection refused`, `1 request rejected by limit`,
		} {
			assert.True(t, strings.Contains(content, want), want)
		}
		text := get(page, "/text").Body.String()
		assert.Regexp(t, `east +out .*connection refused`, text)
		assert.Regexp(t, `together +1 of 3 in`, text)
		assert.Contains(t, get(page, "/state.json").Body.String(), `"why": "dial tcp: connection refused"`)
		down.Store(false)
		all.Wait()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		assert.Contains(t, get(page, "/").Body.String(), "member “east” is back")
	})
}

func TestWrongPoolsPanic(t *testing.T) {
	assert.PanicsWithValue(t, `throttlepage: Pools: the Pool "a" is nil`, func() { New(nil, Pools(map[string]*pool.Pool{"a": nil})) })
	l, err := throttle.NewLimiter()
	require.NoError(t, err)
	p, err := pool.New([]pool.Member{{Name: "a", Transport: throttle.Must(throttle.New(nil))}})
	require.NoError(t, err)
	assert.PanicsWithValue(t, `throttlepage: Pools: two are named "a"`, func() {
		New(map[string]*throttle.Limiter{"a": l}, Pools(map[string]*pool.Pool{"a": p}))
	})
}
