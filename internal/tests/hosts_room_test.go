//go:build !race

package tests

import (
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"

	"github.com/stretchr/testify/require"
)

// heap returns how many bytes are in use after a collection.
func heap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// What is known of 20,000 hosts takes little memory, however many quotas they have, and is forgotten once it is of no more use.
func TestWhatIsKnownOf20000Hosts(t *testing.T) {
	for name, c := range map[string]struct {
		hosts int
		paths int // of each host, which its server counts separately
		most  int // bytes a host
	}{
		"one quota":    {20_000, 1, 1600},
		"three quotas": {5000, 3, 4800},
	} {
		hosts := c.hosts
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				serve := roundTrip(func(r *http.Request) (*http.Response, error) {
					n, _ := strconv.Atoi(r.URL.Path[1:])
					h := http.Header{"X-Ratelimit-Limit": {strconv.Itoa(100 + n)}, "X-Ratelimit-Remaining": {"5"}, "X-Ratelimit-Reset": {"60"}}
					return &http.Response{StatusCode: 200, Header: h, Body: http.NoBody, Request: r}, nil
				})
				tr := throttle.Must(throttle.New(serve, throttle.WithMaxKeys(c.paths*hosts)))
				send := func() {
					for i := range hosts {
						for path := range c.paths {
							resp, err := tr.RoundTrip(get(t, t.Context(), fmt.Sprintf("http://host-%d.example/%d", i, path)))
							require.NoError(t, err)
							resp.Body.Close()
						}
					}
				}
				before := heap()
				send()
				took := (heap() - before) / hosts
				t.Logf("%d bytes a host", took)
				require.LessOrEqual(t, took, c.most)
				require.Equal(t, hosts*c.paths, len(tr.Limiter().Servers()))
				time.Sleep(time.Hour)
				synctest.Wait()
				tr.Limiter().Stats()
				require.Less(t, (heap()-before)/hosts, 300, "it is forgotten")
				runtime.KeepAlive(tr)
			})
		})
	}
}
