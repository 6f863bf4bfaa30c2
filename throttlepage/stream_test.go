package throttlepage

import (
	"bufio"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A viewer is a ResponseWriter that collects events as they are flushed.
type viewer struct {
	mu     sync.Mutex
	header http.Header
	text   strings.Builder
	events []string
	seen   func(string)
}

func (v *viewer) Header() http.Header { return v.header }
func (v *viewer) WriteHeader(int)     {}

func (v *viewer) Write(b []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.text.Write(b)
}

func (v *viewer) Flush() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.text.Len() == 0 {
		return
	}
	v.events = append(v.events, v.text.String())
	v.text.Reset()
	if v.seen != nil {
		v.seen(v.events[len(v.events)-1])
	}
}

func (v *viewer) count() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.events)
}

// watch serves v until ctx ends, and then closes over.
func (v *viewer) watch(ctx context.Context, h http.Handler) (over chan struct{}) {
	v.header, over = make(http.Header), make(chan struct{})
	r := request(http.MethodGet, "/events").WithContext(ctx)
	go func() {
		defer close(over)
		h.ServeHTTP(v, r)
	}()
	return over
}

func firstEvent(t *testing.T, h http.Handler) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	v := &viewer{seen: func(string) { cancel() }}
	<-v.watch(ctx, h)
	return v.events[0]
}

// The bubble does not end before its goroutines do, so nothing is left of a viewer.
func TestStreamEndsWithItsClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		p := newPage(map[string]source{"a": f})
		ctx, cancel := context.WithCancel(t.Context())
		v := &viewer{}
		over := v.watch(ctx, p)
		time.Sleep(3*time.Second - 1)
		synctest.Wait()
		assert.Equal(t, 3, v.count(), "at 0, 1 and 2 s")
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		assert.Equal(t, 4, v.count())
		cancel()
		<-over
		time.Sleep(time.Hour)
		assert.EqualValues(t, 4, f.read.Load(), "nothing is read while no client looks")
	})
}

func TestViewersShareReadings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		p := newPage(map[string]source{"a": f})
		viewers := make([]viewer, 20)
		for i := range viewers {
			viewers[i].watch(t.Context(), p)
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(9 * time.Second)
		for range 100 {
			get(p, "/")
			get(p, "/state.json")
		}
		assert.EqualValues(t, 11, f.read.Load(), "one a second in 10 s")
		for i := range viewers {
			assert.GreaterOrEqual(t, viewers[i].count(), 10)
		}
	})
}

func TestEventKeepsLinesApart(t *testing.T) {
	assert.Equal(t, "data: a\ndata: b\ndata: \ndata: c\n\n", string(message("a\r\nb\n\nc")))
}

type noFlusher struct{ http.ResponseWriter }

func TestStreamNeedsFlush(t *testing.T) {
	w := httptest.NewRecorder()
	newPage(nil).ServeHTTP(noFlusher{w}, request(http.MethodGet, "/events"))
	assert.Equal(t, http.StatusNotImplemented, w.Code)
	assert.Contains(t, w.Body.String(), "cannot stream")
}

// A server with timeouts of 100 ms for a whole exchange, in real time: deadlines of connections are not those of a bubble.
func TestStreamOutlivesTimeoutsOfServer(t *testing.T) {
	server := httptest.NewUnstartedServer(newPage(map[string]source{"a": &fake{}}))
	server.Config.WriteTimeout, server.Config.ReadTimeout = 100*time.Millisecond, 100*time.Millisecond
	server.Start()
	t.Cleanup(server.Close) // after the clients have left: it waits for them
	events := open(t, server.URL)
	for range 3 {
		readEvent(t, events)
	}
}

// Shutdown waits for requests, and an EventSource never ends by itself.
func TestStreamDoesNotDelayShutdown(t *testing.T) {
	server := httptest.NewServer(newPage(map[string]source{"a": &fake{}}))
	t.Cleanup(server.Close)
	for range 2 {
		readEvent(t, open(t, server.URL))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	assert.NoError(t, server.Config.Shutdown(ctx))
	assert.NoError(t, server.Config.Shutdown(ctx), "again")
}

// open returns the lines of a stream.
func open(t *testing.T, url string) *bufio.Scanner {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/events", nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	t.Cleanup(func() { resp.Body.Close() })
	require.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
	require.Equal(t, "no", resp.Header.Get("X-Accel-Buffering"))
	return bufio.NewScanner(resp.Body)
}

func readEvent(t *testing.T, lines *bufio.Scanner) {
	t.Helper()
	for lines.Scan() {
		if lines.Text() == "" {
			return
		}
	}
	require.FailNow(t, "the stream ended", "%v", lines.Err())
}
