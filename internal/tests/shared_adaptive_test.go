package tests

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/store"
)

// A process with a low learned rate gets its share of a shared window again, although the others empty each window before the next request
// that its rate allows.
func TestALearnedRateBesideASharedWindowGrows(t *testing.T) { // slow: minutes of a server
	for _, c := range []struct {
		n   int64
		per time.Duration
	}{{5, time.Second}, {20, 4 * time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			st, began := &countedStore{Store: store.NewMemory(), oneWay: time.Millisecond}, time.Now()
			const measured, lasts = 2 * time.Minute, 8 * time.Minute
			var got [3]atomic.Int64
			var all sync.WaitGroup
			for p := range got {
				server := roundTripper(func(r *http.Request) (*http.Response, error) {
					at := time.Since(began)
					time.Sleep(50 * time.Millisecond)
					resp := &http.Response{StatusCode: http.StatusOK, Header: make(http.Header), Body: io.NopCloser(strings.NewReader("")), Request: r}
					switch {
					case p == 0 && at > 30*time.Second && at < 40*time.Second:
						resp.StatusCode = http.StatusTooManyRequests
					case at > measured:
						got[p].Add(1)
					}
					return resp, nil
				})
				tr, err := throttle.New(server, throttle.WithAdaptive(),
					throttle.WithLimit(throttle.FixedWindow(c.n, c.per, throttle.Name("window"), throttle.Shared(st))))
				require.NoError(t, err)
				for range 8 {
					all.Go(func() {
						for time.Since(began) < lasts {
							resp, err := tr.RoundTrip(get(t, t.Context(), "http://server/"))
							if !assert.NoError(t, err) {
								return
							}
							resp.Body.Close()
						}
					})
				}
			}
			all.Wait()
			share := c.n * int64((lasts-measured)/c.per) / int64(len(got))
			for p := range got {
				assert.InEpsilon(t, share, got[p].Load(), .15, // turns are random: a standard deviation is .02
					"process %d of three, %d in %v", p, c.n, c.per)
			}
			time.Sleep(15 * time.Second) // calls of the store end
		})
	}
}
