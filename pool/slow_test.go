package pool_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/pool"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A changing is a server whose latency changes.
type changing struct {
	server
	latency atomic.Int64
}

func (c *changing) RoundTrip(req *http.Request) (*http.Response, error) {
	time.Sleep(time.Duration(c.latency.Load()))
	return c.server.RoundTrip(req)
}

// changings returns members with a latency, and their servers.
func changings(t *testing.T, n int, latency time.Duration, opts ...throttle.Option) (members []pool.Member, servers []*changing) {
	for i := range n {
		s := new(changing)
		s.latency.Store(int64(latency))
		tr, err := throttle.New(s, opts...)
		require.NoError(t, err)
		members, servers = append(members, pool.Member{Name: fmt.Sprint(i), Transport: tr}), append(servers, s)
	}
	return members, servers
}

// callers has n callers send requests one after the other for some minutes. It calls at with the number of each minute that begins, and
// returns how many requests each server got in each minute.
func callers(t *testing.T, p *pool.Pool, servers []*changing, n, minutes int, at func(minute int)) (sent [][]int) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(minutes)*time.Minute+1)
	defer cancel()
	var before []int
	for m := range minutes + 1 {
		time.AfterFunc(time.Duration(m)*time.Minute, func() {
			var now, in []int
			for i, s := range servers {
				now = append(now, int(s.sent.Load()))
				if m > 0 {
					in = append(in, now[i]-before[i])
				}
			}
			if before = now; m > 0 {
				sent = append(sent, in)
			}
			at(m)
		})
	}
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for ctx.Err() == nil {
				_, err := get(t.Context(), p)
				assert.NoError(t, err)
			}
		})
	}
	<-ctx.Done()
	all.Wait()
	return sent
}

// A member that becomes 20 or 100 times slower gets a few requests a minute for as long as it is slow, and its share within a minute after it
// has become quick again.
func TestASlowMemberIsLeft(t *testing.T) {
	for name, opts := range map[string][]throttle.Option{
		"no limit":                   nil,
		"a number in flight":         {limit(throttle.InFlight(12))},
		"a learned number in flight": {limit(throttle.AdaptiveInFlight(throttle.Concurrency{}))},
	} {
		for _, slow := range []time.Duration{4 * time.Second, 20 * time.Second} {
			t.Run(name+", "+slow.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					const quick = 200 * time.Millisecond
					members, servers := changings(t, 3, quick, opts...)
					sent := callers(t, of(t, members), servers, 16, 14, func(minute int) {
						switch minute {
						case 1:
							servers[2].latency.Store(int64(slow))
						case 12:
							servers[2].latency.Store(int64(quick))
						}
					})
					const all = 16 * 60 * 5 // what the callers can send in a minute
					t.Log(sent)
					for m, in := range sent {
						others, slow := in[0]+in[1], in[2]
						switch {
						case m == 0 || m == 13:
							require.GreaterOrEqual(t, others+slow, all*99/100, "minute %d", m)
							if m == 13 && strings.Contains(name, "learned") {
								require.GreaterOrEqual(t, slow, 200, "one at a time")
								break
							}
							require.InDelta(t, all/3, slow, all/10, "minute %d", m)
						case m == 1:
							require.GreaterOrEqual(t, others, all/2)
							require.LessOrEqual(t, slow, 30)
						case m < 12:
							require.GreaterOrEqual(t, others, all*95/100, "minute %d", m)
							require.LessOrEqual(t, slow, 6, "minute %d", m)
						}
					}
				})
			})
		}
	}
}
