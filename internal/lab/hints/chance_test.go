//go:build !race

package hints

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
)

// byChance returns how many requests of twenty workers are accepted in twenty minutes by a server that refuses a share of them whatever their
// rate is. It refuses quickly, and answers in five seconds. A worker whose request was refused rests for two seconds.
func byChance(t *testing.T, share float64, opts ...throttle.Option) (accepted int) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		dice := rand.New(rand.NewPCG(3, 4))
		tr := throttle.Must(throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) {
			time.Sleep(200 * time.Millisecond)
			mu.Lock()
			refused := dice.Float64() < share
			mu.Unlock()
			if refused {
				return &http.Response{StatusCode: 429, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
			}
			time.Sleep(4800 * time.Millisecond)
			body := `{"usage":{"total_tokens":900}}`
			return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
		}), opts...))
		var all sync.WaitGroup
		began := time.Now()
		for range 20 {
			all.Go(func() {
				for time.Since(began) < 20*time.Minute {
					resp, err := tr.RoundTrip(get(t.Context()))
					if !assert.NoError(t, err) {
						return
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
					if resp.StatusCode != 200 {
						time.Sleep(2 * time.Second)
						continue
					}
					mu.Lock()
					accepted++
					mu.Unlock()
				}
			})
		}
		all.Wait()
	})
	return accepted
}

// At one in ten, it takes longer until that is certain, and the dice of a run move it by a tenth.
func TestRefusalsByChanceLowerNoRate(t *testing.T) {
	for _, share := range []float64{0.05, 0.1} {
		possible := byChance(t, share, throttle.WithoutServerHints())
		for name, opts := range map[string][]throttle.Option{
			"hints": nil, "a limit of its own": {throttle.WithLimit(throttle.Quota(600, time.Minute))},
			"a server's quota": {throttle.WithServerHints(headers.Auto), throttle.WithLimit(throttle.ServerQuota("tokens",
				throttle.Cost(func(*http.Request) int64 { return 1000 }), throttle.SettleJSON("usage.total_tokens")))},
		} {
			t.Run(fmt.Sprintf("%s, %v", name, share), func(t *testing.T) {
				got := byChance(t, share, opts...)
				t.Logf("%d of %d", got, possible)
				if share < 0.1 {
					assert.Greater(t, got, possible*2/3)
				} else {
					assert.Greater(t, got, possible/2)
				}
			})
		}
	}
}

// Each of several clients has a smaller share of what the server accepts while the others are there, and is refused as often. Their refusals
// depend on the rate, and to take them for chance would be seen by what is refused.
func TestNeighboursAreNotTakenForChance(t *testing.T) {
	for name, options := range map[string]func(int64, time.Duration) []throttle.Option{"hints": hintsAlone, "adaptive": func(int64, time.Duration) []throttle.Option {
		return []throttle.Option{throttle.WithAdaptive()}
	}} {
		t.Run(name, func(t *testing.T) {
			c := hintServerOf(t, "nginx nodelay burst 20, bare")
			c.options, c.clients, c.length, c.apart = options, 15, 3*time.Minute, 5*time.Second
			r := c.median(t, seeds(3))
			t.Log(r)
			assert.GreaterOrEqual(t, r.share, 0.9)
			assert.LessOrEqual(t, r.refused, 0.2)
		})
	}
}
