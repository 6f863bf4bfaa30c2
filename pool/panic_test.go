package pool_test

import (
	"context"
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
	"github.com/httpthrottle/throttle/pool"
)

// A countedBody counts how often it is closed.
type countedBody struct {
	io.Reader
	closed atomic.Int32
}

func (b *countedBody) Close() error { b.closed.Add(1); return nil }

// If a function of one member panics while a request enters, waits or is sent, no slot of any member is lost, no request is left in a queue,
// and the body is closed.
func TestAPanicLosesNoPlace(t *testing.T) {
	for name, opts := range map[string]func(panics func()) []throttle.Option{
		"OnWait": func(panics func()) []throttle.Option {
			return []throttle.Option{limit(throttle.InFlight(1)), throttle.WithHooks(throttle.Hooks{OnWait: func(throttle.WaitEvent) { panics() }})}
		},
		"OnGrant": func(panics func()) []throttle.Option {
			return []throttle.Option{limit(throttle.InFlight(1)), throttle.WithHooks(throttle.Hooks{OnGrant: func(throttle.GrantEvent) { panics() }})}
		},
		"Cost": func(panics func()) []throttle.Option {
			return []throttle.Option{limit(throttle.InFlight(1, throttle.Cost(func(*http.Request) int64 { panics(); return 1 })))}
		},
		"RateFor": func(panics func()) []throttle.Option {
			return []throttle.Option{throttle.WithLimit(throttle.InFlight(1), throttle.Quota(1000, time.Second, throttle.Key(func(r *http.Request) string { return r.URL.RawQuery }),
				throttle.RateFor(func(string) (int64, time.Duration) { panics(); return 0, 0 })))}
		},
	} {
		t.Run(name, func(t *testing.T) {
			for nth := range int64(8) {
				synctest.Test(t, func(t *testing.T) {
					var calls, panicked atomic.Int64
					panics := func() {
						if calls.Add(1) == nth+1 {
							panicked.Add(1)
							panic("user")
						}
					}
					a, b := &server{takes: time.Second}, &server{takes: time.Second}
					members := []pool.Member{member(t, "a", a, limit(throttle.InFlight(1))), member(t, "b", b, opts(panics)...)}
					p := of(t, members)
					bodies := make([]*countedBody, 8)
					var all sync.WaitGroup
					for i := range bodies {
						bodies[i] = &countedBody{Reader: strings.NewReader("x")}
						all.Go(func() {
							defer func() { _ = recover() }()
							req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://api.example.com/v1?"+string(rune('a'+i)), bodies[i])
							if resp, err := p.RoundTrip(req); err == nil {
								resp.Body.Close()
							}
						})
						synctest.Wait()
					}
					all.Wait()
					for i, body := range bodies {
						assert.EqualValues(t, 1, body.closed.Load(), "call %d panics, body %d", nth, i)
					}
					for _, m := range members {
						s := m.Transport.Limiter().Limits()[0]
						assert.Zero(t, s.InFlight+s.Waiting, "call %d panics: %v", nth, s)
						ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
						require.NoError(t, m.Transport.Shutdown(ctx))
						cancel()
					}
					assert.LessOrEqual(t, panicked.Load(), int64(1))
				})
			}
		})
	}
}
