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

// A minute is what became of the requests that a server answered in it.
type minute struct{ accepted, refused int }

// byChance returns what becomes of the requests of twenty workers, by the minute, at a server that refuses a request after a time if refuses
// says so. It refuses quickly, and answers in five seconds. A worker whose request was refused rests for two seconds.
func byChance(t *testing.T, minutes int, refuses func(after time.Duration, dice float64) bool, opts ...throttle.Option) (each []minute) {
	each = make([]minute, minutes+1)
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		dice := rand.New(rand.NewPCG(3, 4))
		began := time.Now()
		length := time.Duration(minutes) * time.Minute
		tr := throttle.Must(throttle.New(roundTripper(func(r *http.Request) (*http.Response, error) {
			time.Sleep(200 * time.Millisecond)
			mu.Lock()
			after := time.Since(began)
			m := &each[min(minutes, int(after/time.Minute))]
			refused := refuses(after, dice.Float64())
			if refused {
				m.refused++
			} else {
				m.accepted++
			}
			mu.Unlock()
			if refused {
				return &http.Response{StatusCode: 429, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
			}
			time.Sleep(4800 * time.Millisecond)
			body := `{"usage":{"total_tokens":900}}`
			return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
		}), opts...))
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				for time.Since(began) < length {
					resp, err := tr.RoundTrip(get(t.Context()))
					if !assert.NoError(t, err) {
						return
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
					if resp.StatusCode != 200 {
						time.Sleep(2 * time.Second)
					}
				}
			})
		}
		all.Wait()
	})
	return each[:minutes]
}

// total returns the sum over minutes.
func total(each []minute) (all minute) {
	for _, m := range each {
		all.accepted += m.accepted
		all.refused += m.refused
	}
	return all
}

// At one in ten, it takes longer until that is certain, and the dice of a run move it by a tenth.
func TestRefusalsByChanceLowerNoRate(t *testing.T) {
	for _, share := range []float64{0.05, 0.1} {
		refuses := func(_ time.Duration, dice float64) bool { return dice < share }
		possible := total(byChance(t, 20, refuses, throttle.WithoutServerHints())).accepted
		for name, opts := range map[string][]throttle.Option{
			"hints": nil, "adaptive": {throttle.WithAdaptive()}, "adaptive in flight": {throttle.WithAdaptiveInFlight()}, "a limit of its own": {throttle.WithLimit(throttle.Quota(600, time.Minute))},
			"a server's quota": {throttle.WithServerHints(headers.Auto), throttle.WithLimit(throttle.ServerQuota("tokens",
				throttle.Cost(func(*http.Request) int64 { return 1000 }), throttle.SettleJSON("usage.total_tokens")))},
		} {
			t.Run(fmt.Sprintf("%s, %v", name, share), func(t *testing.T) {
				got := total(byChance(t, 20, refuses, opts...)).accepted
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

// Refusals by chance may begin and end late. The limit that the server has then is found as quickly as before.
func TestALimitIsFoundAfterRefusalsByChance(t *testing.T) {
	for name, opts := range map[string][]throttle.Option{"adaptive": {throttle.WithAdaptive()}, "adaptive in flight": {throttle.WithAdaptiveInFlight()}} {
		t.Run(name, func(t *testing.T) {
			tokens, filled := 10.0, time.Duration(0)
			each := byChance(t, 40, func(after time.Duration, dice float64) bool {
				tokens, filled = min(10, tokens+2*(after-filled).Seconds()), after
				switch {
				case after < 10*time.Minute:
					return false
				case after < 25*time.Minute:
					return dice < 0.05
				case tokens < 1: // two requests a second are half of what the workers would send
					return true
				}
				tokens--
				return false
			}, opts...)
			t.Log(each)
			assert.Greater(t, total(each[15:25]).accepted, 2050, "refusals by chance, after five minutes: of 2,350")
			assert.Less(t, each[25].refused, 50)
			limited := total(each[26:])
			assert.Greater(t, limited.accepted, 1600, "of 1,680")
			assert.Less(t, limited.refused, 100)
		})
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
