package tests

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/bridge"
	"github.com/httpthrottle/throttle/internal/limiter"
)

// A claimRule is the limits of a Transport: a token each period up to a burst, and a number of slots.
type claimRule struct {
	period time.Duration
	burst  int64
	slots  int
}

// A claimed request comes at a time, costs something, waits at some Transports, is given up at a time if it still waits, and holds its slot
// for a time. Of the model: which Transport sent it, and when.
type claimed struct {
	at, until, takes time.Duration
	cost             int64
	where            []int

	by   int // -1: none
	sent time.Duration
}

// A claimModel plays what the documentation says, one instant after the other.
type claimModel struct {
	rules []claimRule
	full  []time.Duration   // when each bucket would be full
	busy  [][]time.Duration // when its slots become free
	queue [][]*claimed
}

// due returns when the first request in a queue can be granted by it.
func (m *claimModel) due(i int, now time.Duration) time.Duration {
	r := m.rules[i]
	at := max(now, m.full[i]-time.Duration(r.burst-m.queue[i][0].cost)*r.period)
	if len(m.busy[i]) >= r.slots {
		slices.Sort(m.busy[i])
		at = max(at, m.busy[i][len(m.busy[i])-r.slots])
	}
	return at
}

func (m *claimModel) grant(i int, now time.Duration) {
	c := m.queue[i][0]
	c.by, c.sent = i, now
	m.full[i] = max(m.full[i], now) + time.Duration(c.cost)*m.rules[i].period
	m.busy[i] = append(slices.DeleteFunc(m.busy[i], func(t time.Duration) bool { return t <= now }), now+c.takes)
	m.leave(c)
}

func (m *claimModel) leave(c *claimed) {
	for i := range m.queue {
		m.queue[i] = slices.DeleteFunc(m.queue[i], func(o *claimed) bool { return o == c })
	}
}

// play says what becomes of requests. It reports false if two queues may grant at the same instant, as after a request that both had: then
// chance decides.
func (m *claimModel) play(all []*claimed) (exact bool) {
	exact = true
	rest := slices.Clone(all)
	for now := time.Duration(0); ; {
		next, by := time.Duration(1<<62), -1
		for i := range m.queue {
			if len(m.queue[i]) > 0 {
				due := m.due(i, now)
				exact = exact && due != next
				if due < next {
					next, by = due, i
				}
			}
		}
		var gone *claimed
		for _, q := range m.queue {
			for _, c := range q {
				if c.until < next {
					next, by, gone = c.until, -1, c
				}
			}
		}
		switch {
		case len(rest) > 0 && rest[0].at < next:
			c := rest[0]
			now, rest = c.at, rest[1:]
			for _, i := range c.where {
				if m.queue[i] = append(m.queue[i], c); m.queue[i][0] == c && m.due(i, now) == now {
					m.grant(i, now)
					break
				}
			}
		case gone != nil:
			now = next
			m.leave(gone)
		case by >= 0:
			now = next
			m.grant(by, now)
		default:
			return exact
		}
	}
}

type takesKey struct{}

// Requests that wait at several Transports, and are given up at any time, are sent by the one that a model says, at that nanosecond.
// They are charged there and nowhere else. With round times, much happens at one instant, in any order: then no token and no slot is
// lost, either.
func TestClaimsAsAModelSays(t *testing.T) {
	for _, round := range []time.Duration{1, 10 * time.Millisecond} {
		for seed := range uint64(40) {
			t.Run(fmt.Sprint(round, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { playClaims(t, round, rand.New(rand.NewPCG(seed, 45))) })
			})
		}
	}
}

// drawClaims draws Transports and requests, with times that are multiples of a round one, and plays them.
func drawClaims(r *rand.Rand, round time.Duration) (m *claimModel, all []*claimed, exact bool) {
	upTo := func(d time.Duration) time.Duration { return max(round, time.Duration(r.Int64N(int64(d)))/round*round) }
	n := 2 + r.IntN(4)
	m = &claimModel{full: make([]time.Duration, n), busy: make([][]time.Duration, n), queue: make([][]*claimed, n)}
	for range n {
		m.rules = append(m.rules, claimRule{upTo(time.Second), 1 + r.Int64N(5), 1 + r.IntN(4)})
	}
	at := time.Duration(0)
	for range 100 {
		at += upTo(200 * time.Millisecond)
		c := &claimed{at: at, until: at + upTo(10*time.Second), takes: upTo(time.Second), by: -1, where: r.Perm(n)[:1+r.IntN(n)]}
		most := int64(5)
		for _, i := range c.where {
			most = min(most, m.rules[i].burst)
		}
		c.cost = 1 + r.Int64N(most)
		all = append(all, c)
	}
	return m, all, m.play(all)
}

func playClaims(t *testing.T, round time.Duration, r *rand.Rand) {
	m, all, exact := drawClaims(r, round)
	for round == 1 && !exact {
		m, all, exact = drawClaims(r, round)
	}
	by := make([]*throttle.Transport, len(m.rules))
	base := roundTripper(func(req *http.Request) (*http.Response, error) {
		time.Sleep(req.Context().Value(takesKey{}).(time.Duration))
		return &http.Response{StatusCode: 200, Body: http.NoBody, Request: req}, nil
	})
	for i, rule := range m.rules {
		by[i] = throttle.Must(throttle.New(base, throttle.WithLimit(
			throttle.TokenBucket(1, rule.period, throttle.Burst(rule.burst), throttle.Name("tokens")),
			throttle.InFlight(int64(rule.slots), throttle.Name("slots")))))
	}
	start, got := time.Now(), make([]claimed, len(all))
	var requests sync.WaitGroup
	for i, c := range all {
		requests.Go(func() {
			time.Sleep(c.at)
			got[i] = claimed{by: -1}
			if got[i].by = sendClaimed(t, by, c); got[i].by >= 0 {
				got[i].sent = time.Since(start) - c.takes
			}
		})
	}
	requests.Wait()
	charged, granted := make([]int64, len(by)), make([]int, len(by))
	for i, c := range all {
		if round == 1 {
			require.Equal(t, c.by, got[i].by, "request %d: %+v", i, c)
			require.Equal(t, c.sent, got[i].sent, "request %d: %+v", i, c)
		}
		if j := got[i].by; j >= 0 {
			charged[j] += c.cost
			granted[j]++
		}
	}
	for j, tr := range by {
		limits := tr.Limiter().Limits()
		require.EqualValues(t, charged[j], limits[0].Charged-limits[0].Returned)
		require.EqualValues(t, granted[j], limits[0].Granted-limits[0].Undone)
		require.Zero(t, limits[0].Waiting)
		require.Zero(t, limits[1].InFlight)
		require.Zero(t, tr.Stats().Rejected)
		if round == 1 {
			full := time.Until(start.Add(m.full[j]))
			wait, ok := tr.Limiter().Try(throttle.Ask{Costs: map[string]int64{"tokens": m.rules[j].burst, "slots": 0}})
			require.Equal(t, full <= 0, ok)
			require.Equal(t, max(0, full), wait, "no token is lost")
		}
	}
}

// sendClaimed sends a request by the first of some Transports, and returns which that was; -1: none in time.
func sendClaimed(t *testing.T, by []*throttle.Transport, c *claimed) (sent int) {
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), takesKey{}, c.takes))
	defer cancel()
	req, err := http.NewRequestWithContext(throttle.ContextWithCost(ctx, c.cost, "tokens"), http.MethodGet, "http://api.example.com/", nil)
	assert.NoError(t, err)
	claim := limiter.NewClaim(time.Now())
	members, waiters, waits := make([]bridge.Member, len(c.where)), make([]*limiter.Waiter, len(c.where)), make([]bool, len(c.where))
	for i, j := range c.where {
		ask, member := bridge.Ask()
		_, err := by[j].Enqueue(ask)
		assert.NoError(t, err)
		members[i] = *member
		waiters[i], err = members[i].Prepare(req)
		assert.NoError(t, err)
		waiters[i].Claim = claim
		waits[i], err = members[i].Core().EnqueueClaimed(ctx, waiters[i], nil)
		assert.NoError(t, err)
	}
	claim.Seal()
	select {
	case <-claim.Done():
	case <-time.After(c.until - c.at): // which is the end of both at this very instant, as the model has it
		claim.Close()
	}
	sent = -1
	for i, w := range waiters {
		if claim.Winner() != w {
			if waits[i] {
				members[i].Core().Leave(w)
			}
			continue
		}
		defer func() {
			resp, _, err := members[i].Send(req, w, waits[i])
			assert.NoError(t, err)
			assert.NoError(t, resp.Body.Close())
		}()
		sent = c.where[i]
	}
	return sent
}

// While a request waits, its traits say to which quota of the server it belongs. They are those of the time at which it was enqueued.
func TestTheRequestOfATicketMayBeChangedWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const small, large = api + "/small", api + "/large"
		left := map[string]chan string{small: make(chan string), large: make(chan string)}
		limit := map[string]string{small: "25", large: "600"}
		base := roundTripper(func(req *http.Request) (*http.Response, error) {
			url := req.URL.String()
			h := header("X-RateLimit-Limit", limit[url], "X-RateLimit-Remaining", <-left[url], "X-RateLimit-Reset", "60")
			return &http.Response{StatusCode: 200, Header: h, Body: http.NoBody, Request: req}, nil
		})
		tr, err := throttle.New(base)
		require.NoError(t, err)
		get := func(url string) *http.Request {
			req, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
			require.NoError(t, err)
			return req
		}
		send := func(url string) {
			go func() { _, _ = tr.RoundTrip(get(url)) }()
			synctest.Wait()
		}
		responds := func(url, n string) {
			left[url] <- n
			synctest.Wait()
		}
		send(large)
		responds(large, "599")
		for range 8 {
			send(small)
			send(large)
		}
		responds(small, "0")
		req := get(small)
		ticket, err := tr.Enqueue(req)
		require.NoError(t, err)
		go func() { req.URL.Path = "/other" }()
		for range 7 {
			responds(large, "590")
			responds(small, "0")
		}
		responds(large, "580")
		time.Sleep(time.Minute - 1)
		synctest.Wait()
		select {
		case <-ticket.Decided():
			require.FailNow(t, "it is sent as one of the other quota")
		default:
		}
		time.Sleep(time.Nanosecond)
		<-ticket.Decided()
		ticket.Cancel()
	})
}

// Whatever ends a request ends the wait of its Ticket, too, and its place is free.
func TestARequestThatEndsGivesUpItsTicket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, err := throttle.New(roundTripper(func(req *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: http.NoBody, Request: req}, nil
		}), throttle.WithLimit(throttle.TokenBucket(1, time.Minute)))
		require.NoError(t, err)
		_, err = tr.RoundTrip(request(t.Context()))
		require.NoError(t, err)
		ctx, end := context.WithCancel(t.Context())
		cancel := make(chan struct{})
		canceled := request(t.Context())
		canceled.Cancel = cancel //lint:ignore SA1019 http.Client sets it with its Timeout
		for _, c := range []struct {
			req *http.Request
			end func()
		}{{request(ctx), end}, {canceled, func() { close(cancel) }}} {
			ticket, err := tr.Enqueue(c.req)
			require.NoError(t, err)
			began := time.Now()
			time.AfterFunc(time.Second, c.end)
			_, err = ticket.RoundTrip(c.req)
			require.ErrorIs(t, err, context.Canceled)
			require.Equal(t, time.Second, time.Since(began))
			require.Zero(t, tr.Stats().Waiting)
		}
	})
}

// A Ticket that is decided when its request comes does not wait, and says when that was.
func TestATicketThatIsDecidedOnArrivalDoesNotWait(t *testing.T) {
	for name, c := range map[string]struct {
		cost, granted int64
		before        func(tr *throttle.Transport)
	}{
		"free":      {0, 1, nil},
		"granted":   {1, 1, nil},
		"rejected":  {3, 0, nil},
		"negative":  {-1, 0, nil},
		"shut down": {1, 0, func(tr *throttle.Transport) { _ = tr.Shutdown(t.Context()) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cost := throttle.WithCost(func(*http.Request) int64 { return c.cost })
				tr, err := throttle.New(roundTripper(nil), cost, throttle.WithLimit(throttle.TokenBucket(2, time.Minute)))
				require.NoError(t, err)
				time.Sleep(time.Second)
				if c.before != nil {
					c.before(tr)
				}
				now := time.Now()
				ctx, receipt := throttle.ContextWithReceipt(t.Context())
				ticket, err := tr.Enqueue(request(ctx))
				require.NoError(t, err)
				time.Sleep(time.Second)
				require.Equal(t, now, ticket.Due())
				_, waits := ticket.Waiting()
				require.False(t, waits)
				_, waits = receipt.Waiting()
				require.False(t, waits)
				ticket.Cancel()
				require.EqualValues(t, c.granted, tr.Stats().Granted)
				require.EqualValues(t, c.granted, tr.Stats().Undone)
				require.NoError(t, tr.Shutdown(t.Context()))
			})
		})
	}
}
