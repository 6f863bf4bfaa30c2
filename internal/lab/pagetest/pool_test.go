package pagetest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/pool"
	"github.com/httpthrottle/throttle/throttlepage"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// A pool with a member that is out and one that is held says so in its headline and its table, which fit the screen of a laptop and of a telephone.
func TestAPoolFitsTheScreen(t *testing.T) { // slow: a browser, in real time
	var members []pool.Member
	for i, name := range []string{"reserved", "east", "west"} {
		tr, err := throttle.New(roundTripper(func(req *http.Request) (*http.Response, error) {
			time.Sleep(20 * time.Millisecond)
			if name == "east" {
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
			}
			return &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: req}, nil
		}), throttle.WithLimit(throttle.TokenBucket(int64(2*(i+1)), time.Second, throttle.Name("tokens"))))
		require.NoError(t, err)
		members = append(members, pool.Member{Name: name, Transport: tr, After: time.Duration(i) * time.Millisecond})
	}
	p, err := pool.New(members)
	require.NoError(t, err)
	page := throttlepage.New(map[string]*throttle.Limiter{"other": limiter(t)}, throttlepage.Pools(map[string]*pool.Pool{"models": p}), throttlepage.Every(time.Second))
	defer page.Close()
	server := serve(t, "", page)
	defer stop(server)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for range 150 {
		all.Go(func() {
			req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.example.com/", nil)
			if resp, err := p.RoundTrip(req); err == nil {
				resp.Body.Close()
			}
		})
	}
	members[0].Transport.Limiter().HoldAll(15 * time.Second)
	for _, screen := range [][2]int64{{1280, 900}, {390, 844}} {
		b := openTab(t, screen[0], screen[1])
		if b == nil {
			return
		}
		b.navigate(pageOf(server))
		b.within(5*time.Second, live)
		b.within(5*time.Second, `document.querySelectorAll("#l1 svg.line").length >= 4`)
		assert.LessOrEqual(t, eval[int64](b, `document.documentElement.scrollWidth`), screen[0])
		assert.Equal(t, "models", eval[string](b, `document.querySelector("h2").innerText`), "it needs attention")
		assert.Contains(t, eval[string](b, `document.querySelector(".says").innerText`), "“east” is out (dial tcp: connection refused, ")
		assert.Equal(t, 4, eval[int](b, `document.querySelectorAll(".members tbody tr").length`))
		assert.Less(t, eval[float64](b, `document.querySelector(".members").getBoundingClientRect().top`), float64(screen[1]), "without scrolling")
		for _, scheme := range []string{"light", "dark"} {
			b.prefer(scheme)
			assert.Empty(t, eval[[]string](b, faint), scheme)
			b.picture(fmt.Sprintf("page-pool-%d-%s.png", screen[0], scheme))
		}
		assert.Empty(t, b.console())
	}
}
