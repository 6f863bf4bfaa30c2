package pool_test

import (
	"context"
	"fmt"
	"math/rand/v2"
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
	began   atomic.Int64 // requests
}

func (c *changing) RoundTrip(req *http.Request) (*http.Response, error) {
	c.began.Add(1)
	time.Sleep(time.Duration(c.latency.Load()))
	return c.server.RoundTrip(req)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

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
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for ctx.Err() == nil {
				_, err := get(t.Context(), p)
				assert.NoError(t, err)
			}
		})
	}
	for m := range minutes {
		at(m)
		var in []int
		for _, s := range servers {
			in = append(in, -int(s.sent.Load()))
		}
		time.Sleep(time.Minute)
		for i, s := range servers {
			in[i] += int(s.sent.Load())
		}
		sent = append(sent, in)
	}
	at(minutes)
	cancel()
	all.Wait()
	return sent
}

// A member that becomes 20 or 100 times slower gets a few requests a minute for as long as it is slow, and its share within a minute after it
// has become quick again.
func TestASlowMemberIsLeft(t *testing.T) { // slow: minutes of a server
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
							require.GreaterOrEqual(t, others+slow, all*98/100, "minute %d", m) // a learned number begins at 4
							if m == 13 && strings.Contains(name, "learned") {
								require.GreaterOrEqual(t, slow, 200, "one at a time")
								break
							}
							require.InDelta(t, all/3, slow, all/10, "minute %d", m)
						case m == 1:
							require.GreaterOrEqual(t, others, all/2)
							require.LessOrEqual(t, slow, 60)
						case m < 12:
							require.GreaterOrEqual(t, others, all*9/10, "minute %d", m)
							require.LessOrEqual(t, slow, 10, "minute %d", m)
						}
					}
				})
			})
		}
	}
}

// The time that a request has waited for the member of its key is none that the next member takes.
func TestAWaitForTheMemberOfAKeyIsNoLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members, servers := changings(t, 3, 200*time.Millisecond, limit(throttle.InFlight(1)))
		p := of(t, members, pool.Sticky(func(r *http.Request) string { return r.Header.Get("K") }, 5*time.Second))
		send := func(key string) {
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://api.example.com/", nil)
			req.Header.Set("K", key)
			_, err := p.RoundTrip(req)
			assert.NoError(t, err)
		}
		for range 50 {
			send("") // each shows how long it takes
		}
		for _, s := range servers {
			s.latency.Store(int64(time.Minute))
		}
		var all sync.WaitGroup
		all.Go(func() { send("k") })
		synctest.Wait()
		for _, s := range servers {
			s.latency.Store(int64(200 * time.Millisecond))
		}
		start := time.Now()
		send("k")
		require.Equal(t, 5200*time.Millisecond, time.Since(start))
		var before [3]int64
		for i, s := range servers {
			before[i] = s.sent.Load()
		}
		for range 40 {
			send("")
		}
		used := 0
		for i, s := range servers {
			if s.sent.Load() > before[i] {
				used++
			}
		}
		assert.Equal(t, 2, used)
		all.Wait()
	})
}

// A request waits for a quick member if it is responded to sooner than by a slow one that could send it now.
func TestARequestIsSentWhereItIsRespondedToFirst(t *testing.T) {
	const takes, slow = 200 * time.Millisecond, 4 * time.Second
	for every, by := range map[time.Duration]int{slow - 1: 0, slow: 0, slow + 1: 1} {
		t.Run(every.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				members, servers := changings(t, 2, takes, limit(throttle.TokenBucket(1, every)))
				servers[1].latency.Store(int64(slow))
				p := of(t, members)
				for _, other := range []int{0, 1} { // each shows how long it takes
					members[other].Transport.Limiter().HoldAll(1)
					codes(t, p, 1)
				}
				before, start := servers[by].sent.Load(), time.Now()
				time.AfterFunc(time.Second, func() { assert.NoError(t, p.Set(members...)) }) // which changes nothing
				codes(t, p, 1)
				require.Equal(t, before+1, servers[by].sent.Load())
				require.Equal(t, min(every, slow), time.Since(start))
			})
		})
	}
}

// A server with a queue is slow because of the requests in it: once it has fewer, it gets others.
func TestServersWithQueuesAreUsedAlike(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers, takes = 8, 200 * time.Millisecond
		var members []pool.Member
		var servers []*changing
		for i := range 3 {
			s, free := new(changing), make(chan struct{}, workers)
			tr, err := throttle.New(roundTripper(func(req *http.Request) (*http.Response, error) {
				free <- struct{}{}
				defer func() { <-free }()
				time.Sleep(time.Duration(rand.ExpFloat64() * float64(takes)))
				return s.RoundTrip(req)
			}))
			require.NoError(t, err)
			members, servers = append(members, pool.Member{Name: fmt.Sprint(i), Transport: tr}), append(servers, s)
		}
		const minutes, all = 5, 3 * workers * int(time.Minute/takes)
		sum := 0
		for _, in := range callers(t, of(t, members), servers, 64, minutes, func(int) {}) {
			t.Log(in)
			sum += in[0] + in[1] + in[2]
		}
		require.GreaterOrEqual(t, sum, minutes*all*93/100)
	})
}

// Failures are no quick responses: a member that responds with an error within a millisecond gets no more than its share.
func TestAQuickFailureAttractsNoRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members, servers := changings(t, 3, 200*time.Millisecond)
		p := of(t, members)
		codes(t, p, 50)
		servers[0].latency.Store(int64(time.Millisecond))
		servers[0].status = http.StatusNotFound
		before := servers[0].sent.Load()
		for range 3000 {
			_, err := get(t.Context(), p)
			require.NoError(t, err)
		}
		require.InDelta(t, 1000, servers[0].sent.Load()-before, 200)
	})
}

// A member that does not respond at all is tried by one request each time it has been silent for twice as long.
func TestAMemberThatHangsGetsFewRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members, servers := changings(t, 4, 200*time.Millisecond)
		p := of(t, members)
		var hang [12]int
		callers(t, p, servers, 64, 11, func(minute int) {
			if minute == 1 {
				servers[1].latency.Store(int64(time.Hour))
			}
			hang[minute] = int(servers[1].began.Load() - servers[1].sent.Load())
		})
		t.Log(hang)
		require.LessOrEqual(t, hang[11]-hang[2], 3)
	})
}

// A member that has never responded, and whose callers give up, takes no more than half of the time of one of them. It gets its share soon
// after it begins to respond.
func TestAMemberThatHangsFromItsFirstRequestIsLeft(t *testing.T) {
	for giveUp, most := range map[time.Duration]int{5 * time.Second: 41, 30 * time.Second: 11} {
		t.Run(giveUp.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				members, began, responds := []pool.Member(nil), [3]int{}, false
				for i := range 3 {
					tr, err := throttle.New(roundTripper(func(req *http.Request) (*http.Response, error) {
						if began[i]++; i == 0 && !responds {
							<-req.Context().Done()
							return nil, req.Context().Err()
						}
						time.Sleep(200 * time.Millisecond)
						return &http.Response{StatusCode: 200, Body: http.NoBody, Request: req}, nil
					}))
					require.NoError(t, err)
					members = append(members, pool.Member{Name: fmt.Sprint(i), Transport: tr})
				}
				p := of(t, members[1:])
				codes(t, p, 50)
				require.NoError(t, p.Set(members...))
				sendFor := func(d time.Duration) {
					for start := time.Now(); time.Since(start) < d; {
						ctx, cancel := context.WithCancel(t.Context())
						time.AfterFunc(giveUp, cancel)
						_, _ = get(ctx, p)
						cancel()
					}
				}
				sendFor(10 * time.Minute)
				t.Log(began)
				require.LessOrEqual(t, began[0], most)
				responds, began[0] = true, 0
				sendFor(max(10*time.Second, giveUp) + time.Second) // until a request has found out
				require.Positive(t, began[0])
				began = [3]int{}
				sendFor(time.Minute)
				require.InDelta(t, 100, began[0], 50)
			})
		})
	}
}

// The member of a key is left, too, if waiting for its response takes longer than the key is worth, and it gets its requests back later.
func TestTheMemberOfAKeyIsLeftWhileItIsSlow(t *testing.T) {
	const takes, within = 200 * time.Millisecond, time.Second
	for slow, left := range map[time.Duration]bool{takes + within: false, takes + within + 1: true, time.Minute: true} {
		t.Run(slow.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				members, servers := changings(t, 3, takes)
				p := of(t, members, pool.Sticky(func(r *http.Request) string { return r.Header.Get("K") }, within))
				codes(t, p, 50) // each shows how long it takes
				send := func(n int) (by [3]int64) {
					for i, s := range servers {
						by[i] = -s.sent.Load()
					}
					for range n {
						req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://api.example.com/", nil)
						req.Header.Set("K", "k")
						_, err := p.RoundTrip(req)
						require.NoError(t, err)
					}
					for i, s := range servers {
						by[i] += s.sent.Load()
					}
					return by
				}
				by, home := send(1), 0
				for by[home] == 0 {
					home++
				}
				servers[home].latency.Store(int64(slow))
				time.Sleep(10 * time.Second) // so that one response counts for all before
				require.EqualValues(t, 1, send(1)[home])
				if by := send(20)[home]; left {
					require.Zero(t, by)
				} else {
					require.EqualValues(t, 20, by)
				}
				servers[home].latency.Store(int64(takes))
				time.Sleep(slow + 10*time.Second)
				require.EqualValues(t, 20, send(20)[home])
			})
		})
	}
}
