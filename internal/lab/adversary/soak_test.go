package adversary

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// A soak is a day in the life of two Transports, one inside the other, whose users do whatever can be done to them. The one
// outside has a bucket that is never full and never empty, so that its balance is an exact account of all that was spent. A
// restart by snapshot ends each life.
type soak struct {
	*testing.T
	start        time.Time
	inner, outer *throttle.Transport
	last         [4][]uint64 // counters, which never fall

	mu       sync.Mutex // guards what follows
	r        *rand.Rand
	spent    int64 // what the outer bucket must have been charged for requests that are over
	charged  int64 // and for those that are not
	inFlight int   // requests that an Adaptive limit let go, and that have not ended
	sent     int
	ends     map[string]int // of requests, by how they ended
	downTill time.Duration
	dialed   time.Duration // when the server was last down for a request
}

const (
	soakStart  = int64(500_000_000) // tokens in the outer bucket
	soakPerSec = 1000
)

func TestLivesOfEverything(t *testing.T) { // slow: 24 lives of half an hour
	const length = 30 * time.Minute
	lives := 24
	if testing.Short() {
		lives = 2
	}
	before := heap()
	synctest.Test(t, func(t *testing.T) {
		x := &soak{T: t, start: time.Now(), r: rand.New(rand.NewPCG(1, 11)), ends: make(map[string]int)}
		var saved [2][]byte
		for range lives {
			x.run(saved, length)
			require.Less(t, heap()-before, int64(24<<20), "memory")
			saved = x.save()
			time.Sleep(time.Duration(x.r.Int64N(int64(time.Minute))))
		}
		t.Logf("%d requests reached the server: %v", x.sent, x.ends)
		require.Greater(t, x.sent, lives*int(length/time.Minute)*33)
		for _, end := range []string{"served", "429", "refused", "canceled", "undone", "dial", "broken"} {
			require.Positive(t, x.ends[end], "%s: %v", end, x.ends)
		}
		x.forgotten()
	})
}

func header(r *http.Request, name string) int64 {
	n, _ := strconv.ParseInt(r.Header.Get(name), 10, 64)
	return n
}

// tierOf is a RateFor.
func tierOf(key string) (int64, time.Duration) { return 1 + int64(len(key)*7), time.Second }

// make makes both Transports again, as they were saved.
func (x *soak) make(saved [2][]byte) {
	key := throttle.WithKey(func(r *http.Request) string { return r.Header.Get("Key") })
	cost := throttle.WithCost(func(r *http.Request) int64 { return header(r, "Cost") })
	settle := throttle.Settle(func(_ *http.Request, resp *http.Response) (int64, bool) {
		n, err := strconv.ParseInt(resp.Header.Get("X-Cost"), 10, 64)
		return n, err == nil
	})
	x.inner = throttle.Must(throttle.New(roundTripper(x.serve), key, cost, throttle.WithMaxKeys(150), throttle.WithMaxQueue(60), throttle.WithLimit(
		throttle.TokenBucket(200, time.Second, throttle.Name("tier"), throttle.RateFor(tierOf), throttle.ClampCost()), throttle.SlidingWindow(300, 10*time.Second, settle, throttle.ClampCost()),
		throttle.FixedWindow(2000, time.Minute, throttle.Start(x.start.Add(7*time.Second)), throttle.ClampCost(), throttle.SettleJSON("usage.tokens")),
		throttle.Pace(500, time.Second), throttle.InFlight(20, throttle.Name("slots")), throttle.Adaptive(throttle.AIMD{Initial: 50, Min: 5}, throttle.Name("learned")),
	)))
	x.outer = throttle.Must(throttle.New(x.inner, cost, throttle.WithoutServerHints(), throttle.WithLimit(
		throttle.TokenBucket(soakPerSec, time.Second, throttle.Name("slow"), throttle.Burst(2*soakStart), throttle.Initial(soakStart), settle), throttle.InFlight(1000),
	), throttle.WithHooks(throttle.Hooks{OnGrant: func(e throttle.GrantEvent) { x.granted(e.Context.Value(soakKey{}).(*soakTicket)) }})))
	for i, tr := range []*throttle.Transport{x.inner, x.outer} {
		if saved[i] != nil {
			var s throttle.Snapshot
			require.NoError(x, json.Unmarshal(saved[i], &s))
			require.NoError(x, tr.Limiter().Restore(s))
		}
	}
	x.last = [4][]uint64{}
}

// run lets everything happen for that long.
func (x *soak) run(saved [2][]byte, length time.Duration) {
	x.make(saved)
	ctx, cancel := context.WithTimeout(x.Context(), length)
	defer cancel()
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			for ctx.Err() == nil {
				time.Sleep(x.upTo(6 * time.Second))
				x.act(ctx)
			}
		})
	}
	for ctx.Err() == nil {
		time.Sleep(time.Minute + time.Nanosecond)
		synctest.Wait()
		x.check()
	}
	all.Wait()
	time.Sleep(time.Minute) // for what is under way by itself
	synctest.Wait()
	x.check()
	require.Zero(x, x.inner.Stats().Waiting+x.outer.Stats().Waiting)
	for _, limit := range x.inner.Limiter().Limits() {
		require.Zero(x, limit.InFlight, limit.Name)
	}
}

func (x *soak) upTo(d time.Duration) time.Duration { return time.Duration(x.intN(int64(d))) }

func (x *soak) intN(n int64) int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.r.Int64N(n)
}

func (x *soak) note(end string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.ends[end]++
}

// spend notes what a request has cost in the end, when it has.
func (x *soak) spend(cost int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.spent += cost
}

// A soakTicket is a request at the outer Transport.
type soakTicket struct {
	cost    int64
	granted bool
}

type soakKey struct{}

func (x *soak) granted(t *soakTicket) {
	x.mu.Lock()
	defer x.mu.Unlock()
	t.granted = true
	x.charged += t.cost
}

func (x *soak) over(t *soakTicket) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if t.granted {
		x.charged -= t.cost
	}
}

func (x *soak) fly(n int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.inFlight += n
}

// wasDown reports whether the server was down for a request lately.
func (x *soak) wasDown() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.dialed > 0 && time.Since(x.start)-x.dialed < 5*time.Minute
}

// serve is the server.
func (x *soak) serve(r *http.Request) (*http.Response, error) {
	now := time.Since(x.start)
	x.mu.Lock()
	down := now < x.downTill
	if x.r.IntN(1500) == 0 {
		x.downTill = now + time.Duration(x.r.Int64N(int64(20*time.Second)))
	}
	if down {
		x.dialed = now
	}
	x.mu.Unlock()
	if down {
		x.note("dial")
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	}
	x.fly(1)
	defer x.fly(-1)
	x.mu.Lock()
	x.sent++
	x.mu.Unlock()
	select {
	case <-time.After(x.upTo(time.Second)):
	case <-r.Context().Done():
		x.spend(header(r, "Cost")) // it may have been served
		x.note("cut")
		return nil, r.Context().Err()
	}
	resp := &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Request: r}
	switch cost := header(r, "Cost"); x.intN(60) {
	case 0:
		x.spend(cost)
		x.note("broken")
		return nil, io.ErrUnexpectedEOF
	case 1:
		resp.StatusCode = 429
		resp.Header.Set("Retry-After", strconv.FormatInt(x.intN(20), 10))
	case 2:
		resp.StatusCode = 503
	case 3, 4:
		resp.Header.Set("X-RateLimit-Limit", "100")
		resp.Header.Set("X-RateLimit-Remaining", strconv.FormatInt(x.intN(30), 10))
		resp.Header.Set("X-RateLimit-Reset", strconv.FormatInt(1+x.intN(30), 10))
	case 5, 6, 7, 8, 9:
		cost = x.intN(2 * cost)
		fallthrough
	default:
		resp.Header.Set("X-Cost", strconv.FormatInt(cost, 10))
	}
	if cost, err := strconv.ParseInt(resp.Header.Get("X-Cost"), 10, 64); err == nil {
		x.spend(cost)
	} else {
		x.spend(header(r, "Cost"))
	}
	resp.Body = io.NopCloser(strings.NewReader(fmt.Sprintf(`{"usage":{"tokens":%d}}`, x.intN(10))))
	return resp, nil
}

// act does one thing.
func (x *soak) act(ctx context.Context) {
	l, key := x.inner.Limiter(), fmt.Sprint("k", x.intN(80))
	ctx, cancel := context.WithTimeout(ctx, x.upTo(time.Minute))
	defer cancel()
	switch x.intN(24) {
	case 0:
		l.Try(throttle.Ask{Key: key, Cost: 1 + x.intN(30)})
	case 1:
		_ = l.SetRate([]string{"sliding-window", "fixed-window", "pace"}[x.intN(3)], 100+x.intN(1000), time.Duration(1+x.intN(int64(20*time.Second))))
	case 2:
		_ = l.SetBurst("tier", 5+x.intN(300))
	case 3:
		l.Hold(key, x.upTo(30*time.Second))
	case 4, 5, 6:
		x.acquire(ctx, key)
	default:
		x.send(ctx, key)
	}
}

// acquire asks the inner Limiter without HTTP.
func (x *soak) acquire(ctx context.Context, key string) {
	g, err := x.inner.Limiter().Acquire(ctx, throttle.Ask{Key: key, Cost: 1 + x.intN(40), Priority: int(x.intN(3)) - 1, MaxWait: new(x.upTo(time.Minute))})
	if err != nil {
		return
	}
	x.fly(1)
	defer x.fly(-1)
	time.Sleep(x.upTo(2 * time.Second))
	switch x.intN(3) {
	case 0:
		g.Cancel()
		return
	case 1:
		_ = g.Settle("tier", x.intN(60))
	}
	g.Done()
	g.Report(throttle.Outcome(1 + x.intN(int64(throttle.OutcomeIgnore))))
}

// send sends a request through both.
func (x *soak) send(ctx context.Context, key string) {
	if x.intN(10) == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		time.AfterFunc(x.upTo(2*time.Second), cancel)
		defer cancel()
	}
	if x.intN(3) == 0 {
		ctx = throttle.ContextWithMaxWait(ctx, x.upTo(20*time.Second))
	}
	req, err := http.NewRequestWithContext(throttle.ContextWithPriority(ctx, int(x.intN(3))-1), http.MethodGet, fmt.Sprintf("http://h%d/f%d", x.intN(5), x.intN(90)), nil)
	require.NoError(x, err)
	req.Header.Set("Key", key)
	req.Header.Set("Cost", strconv.FormatInt(1+x.intN(40), 10))
	ticket := &soakTicket{cost: header(req, "Cost")}
	resp, err := x.outer.RoundTrip(req.WithContext(context.WithValue(req.Context(), soakKey{}, ticket)))
	x.over(ticket)
	switch _, local := throttle.RejectionOf(resp); {
	case local || errors.Is(err, throttle.ErrThrottled):
		x.note("refused")
	case err != nil && ctx.Err() != nil:
		x.note("canceled")
	case err == nil && resp.StatusCode == 429:
		x.note("429")
	case err == nil:
		x.note("served")
	}
	if err != nil {
		return
	}
	if x.intN(8) > 0 {
		_, _ = io.Copy(io.Discard, resp.Body)
	}
	resp.Body.Close()
}

// check checks what must hold at any time.
func (x *soak) check() {
	x.Helper()
	inner, outer := x.inner.Limiter(), x.outer.Limiter()
	for i, s := range []throttle.Stats{inner.Stats(), outer.Stats(), x.inner.Stats(), x.outer.Stats()} {
		now := countersOf(s)
		for k, n := range x.last[i] {
			require.GreaterOrEqual(x, now[k], n, "counter %d of %v fell", k, s)
		}
		x.last[i] = now
		require.LessOrEqual(x, s.Undone, s.Granted)
		require.LessOrEqual(x, s.Buckets, 150)
	}
	if outer.Stats().Undone > 0 {
		x.note("undone")
	}
	flying := 0
	for b := range inner.Buckets() {
		switch b.Limit {
		case "learned":
			flying += b.InFlight
		case "tier":
			if b.Key == "" {
				continue // has the limit's own
			}
			n, per := tierOf(b.Key)
			require.InDelta(x, float64(n)/per.Seconds(), b.Rate, 1e-9, "RateFor of %q", b.Key)
		}
	}
	x.mu.Lock()
	inFlight := x.inFlight
	x.mu.Unlock()
	if x.wasDown() && flying > inFlight {
		flying = inFlight // the others wait for their turn to connect
	}
	require.Equal(x, inFlight, flying, "a bucket with a request in flight was forgotten, or a request is forgotten by its bucket")
	require.LessOrEqual(x, gatesKept(inner), 150)
	for b := range outer.Buckets() {
		if b.Limit == "slow" {
			x.balance(b.Tokens)
		}
	}
}

// countersOf returns what never falls.
func countersOf(s throttle.Stats) []uint64 {
	all := []uint64{s.Granted, s.Undone, s.Delayed, uint64(s.Waited), s.Canceled, s.Exempt, s.ServerRefused, s.Holds.Caller, s.Holds.Server, s.Holds.Adaptive}
	return append(all, s.Rejected[:]...)
}

// gatesKept returns how many gates are kept.
func gatesKept(l *throttle.Limiter) int {
	all := l.Limits()
	return all[len(all)-1].Keys
}

// balance compares the outer bucket with the account of all that was spent.
func (x *soak) balance(tokens float64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	want := float64(soakStart) + soakPerSec*time.Since(x.start).Seconds() - float64(x.spent+x.charged)
	require.InDelta(x, want, tokens, 1, "tokens were minted or lost")
}

// save returns the snapshots of both, as text.
func (x *soak) save() (saved [2][]byte) {
	for i, tr := range []*throttle.Transport{x.inner, x.outer} {
		text, err := json.Marshal(tr.Limiter().Snapshot())
		require.NoError(x, err)
		saved[i] = text
	}
	return saved
}

// forgotten checks that nothing is left a day later.
func (x *soak) forgotten() {
	time.Sleep(24 * time.Hour)
	synctest.Wait()
	l := x.inner.Limiter()
	require.Zero(x, l.Stats().Buckets)
	require.Zero(x, gatesKept(l))
	require.Zero(x, l.Stats().Waiting)
}
