package pagetest

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// browser returns the path of Chromium or Chrome, or "". With THROTTLE_REAL_SERVERS=1 in the environment, it must be there.
func browser(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	require.NotEqual(t, "1", os.Getenv("THROTTLE_REAL_SERVERS"), "Chromium is not installed")
	t.Log("Chromium is not installed, so the page is not tested in it")
	return ""
}

// A tab is a page that a browser shows.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	requests []string
	messages []string // on the console
}

// openTab starts a browser, and returns nil if there is none.
func openTab(t *testing.T, width, height int64, opts ...chromedp.EmulateViewportOption) *tab {
	path := browser(t)
	if path == "" {
		return nil
	}
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU)...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	b := &tab{t: t, ctx: ctx}
	require.NoError(t, chromedp.Do(ctx, chromedp.EmulateViewport(width, height, opts...)))
	_, err := chromedp.Call(ctx, network.Enable, network.EnableParams{})
	require.NoError(t, err)
	require.NoError(t, chromedp.Listen(ctx, func(event any) {
		if e, ok := event.(*network.EventRequestWillBeSent); ok {
			b.mu.Lock()
			b.requests = append(b.requests, e.Request.URL)
			b.mu.Unlock()
		}
	}))
	messages := chromedp.Console(ctx)
	go func() {
		for m, err := range messages {
			if err != nil {
				return // the browser is gone
			}
			b.mu.Lock()
			b.messages = append(b.messages, m.String())
			b.mu.Unlock()
		}
	}()
	return b
}

func (b *tab) requested() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.requests)
}

func (b *tab) console() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.messages)
}

func (b *tab) navigate(url string) { require.NoError(b.t, chromedp.Do(b.ctx, chromedp.Navigate(url))) }

// eval returns the value of an expression.
func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	require.NoError(b.t, err, expression)
	return v
}

// within fails if an expression does not become true in that time. While the tab loads another page, it cannot be evaluated.
func (b *tab) within(d time.Duration, expression string) {
	b.t.Helper()
	for end := time.Now().Add(d); ; time.Sleep(50 * time.Millisecond) {
		is, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](expression))
		if err == nil && is {
			return
		}
		if time.Now().After(end) {
			require.NoError(b.t, err, expression)
			require.FailNow(b.t, "not within "+d.String(), "%s; the page: %s", expression, eval[string](b, "document.body.innerText"))
		}
	}
}

// serve serves h at /debug/throttle/ of an address, by default a free one.
func serve(t *testing.T, address string, h http.Handler) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle("/debug/throttle/", h)
	server := httptest.NewUnstartedServer(mux)
	listener, err := net.Listen("tcp", cmp.Or(address, "127.0.0.1:0"))
	require.NoError(t, err)
	require.NoError(t, server.Listener.Close())
	server.Listener = listener
	server.Start()
	return server
}

func pageOf(server *httptest.Server) string { return fmt.Sprintf("%s/debug/throttle/", server.URL) }

// stop closes a server and what is open to it.
func stop(server *httptest.Server) {
	server.CloseClientConnections()
	server.Close()
}
