package pool_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/pool"
	"github.com/httpthrottle/throttle/retry"
	"github.com/httpthrottle/throttle/store"
)

var oneWorld = flag.Int64("seed", -1, "play the world of this seed alone")

// A world is a pool drawn from a seed: members with limits of several kinds, which fail for a while or respond late, and requests with costs,
// priorities, keys and bounds. What is drawn decides which checks hold of it; see check.
type world struct {
	members  []*worldMember
	requests []worldRequest
	retries  bool
	sticky   bool
	tiers    bool
	failing  bool            // some member fails at some time
	bounded  bool            // some request may not wait for as long as it takes
	changes  []time.Duration // when a member is taken out for a second
	shutdown bool            // once all have arrived
	ordered  bool            // there are neither tiers nor keys, and all members take as long, so requests are sent in the order of their arrival
}

func (w *world) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%d requests, costs to %d, retries %v, sticky %v, tiers %v, bounded %v, changes %v, shutdown %v", len(w.requests), w.requests[0].most, w.retries,
		w.sticky, w.tiers, w.bounded, w.changes, w.shutdown)
	for i, m := range w.members {
		fmt.Fprintf(&text, "; %d: kind %d, %d/s, %d slots, takes %v, after %v, fails with %v or %d from %v to %v", i, m.kind, m.rate, m.slots, m.takes, m.after, m.fails, m.status, m.from, m.to)
	}
	return text.String()
}

// The kinds of limits that a member may have.
const (
	bucketKind = iota
	paceKind
	slidingKind
	fixedKind
	sharedKind   // by a store
	adaptiveKind // learned, at a server with a limit
	serverKind   // none but what the server reports
	kinds
)

type worldMember struct {
	kind     int
	rate     int64
	slots    int64 // 0: no limit of them
	takes    time.Duration
	after    time.Duration
	fails    error // while it fails; nil: it answers with status
	status   int
	from, to time.Duration

	mu      sync.Mutex
	sent    []int // requests that it answered well, in that order
	at      []time.Duration
	died    []int // requests that failed here
	second  int64 // of which left is
	left    int64 // what its server accepts yet in this second, if that has a limit
	refused []int // by that
}

// limits returns the limits of the Transport of a member.
func (m *worldMember) limits() (limits []throttle.Limit) {
	name := throttle.Name("tokens")
	switch m.kind {
	case bucketKind:
		limits = append(limits, throttle.TokenBucket(m.rate, time.Second, name, throttle.Burst(10)))
	case paceKind:
		limits = append(limits, throttle.Pace(m.rate, time.Second, name))
	case slidingKind:
		limits = append(limits, throttle.SlidingWindow(2*m.rate, 2*time.Second, name))
	case fixedKind:
		limits = append(limits, throttle.FixedWindow(2*m.rate, 2*time.Second, name))
	case sharedKind:
		limits = append(limits, throttle.TokenBucket(m.rate, time.Second, name, throttle.Burst(10), throttle.Shared(store.NewMemory())))
	case adaptiveKind:
		limits = append(limits, throttle.Adaptive(throttle.AIMD{Initial: float64(m.rate), Max: 2 * float64(m.rate)}, name))
	}
	if m.slots > 0 {
		limits = append(limits, throttle.InFlight(m.slots))
	}
	return limits
}

// isExact reports whether a member counts by itself all that its limit allows, at any time.
func (m *worldMember) isExact() bool { return m.kind <= fixedKind }

// refuses counts a request against the limit of the server, which has one if the Transport has none of its own, and reports what it responds.
func (m *worldMember) refuses(id int, now time.Duration) (refused bool, h http.Header) {
	if m.kind < adaptiveKind {
		return false, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if second := int64(now / time.Second); second != m.second || m.left == 0 && second == 0 && len(m.sent) == 0 {
		m.second, m.left = second, m.rate
	}
	h = http.Header{}
	if refused = m.left == 0; refused {
		m.refused = append(m.refused, id)
		h.Set("Retry-After", "1")
	} else {
		m.left--
	}
	h.Set("X-Ratelimit-Limit", strconv.FormatInt(m.rate, 10))
	h.Set("X-Ratelimit-Remaining", strconv.FormatInt(m.left, 10))
	h.Set("X-Ratelimit-Reset", "1")
	return refused, h
}

type worldRequest struct {
	at, maxWait time.Duration // negative: no bound
	cost, most  int64
	key         string
}

func drawWorld(r *rand.Rand) *world {
	w := &world{retries: r.IntN(3) == 0, sticky: r.IntN(5) == 0, tiers: r.IntN(4) == 0, failing: r.IntN(2) == 0, bounded: r.IntN(4) == 0, shutdown: r.IntN(4) == 0}
	same, plain := r.IntN(2) == 0, r.IntN(3) == 0
	w.ordered = same && !w.tiers && !w.sticky
	most := int64(1)
	if r.IntN(2) == 0 {
		most = 5
	}
	sum := int64(0)
	for i := range 2 + r.IntN(4) {
		m := &worldMember{rate: 5 + r.Int64N(40), takes: time.Duration(r.Int64N(int64(200 * time.Millisecond)))}
		if same && i > 0 {
			m.takes = w.members[0].takes
		}
		if r.IntN(4) == 0 {
			m.slots = 20
		}
		if !plain {
			m.kind = r.IntN(kinds)
		}
		if w.tiers {
			m.after = time.Duration(r.IntN(3)) * 400 * time.Millisecond
		}
		if w.failing && i > 0 && r.IntN(2) == 0 {
			m.from = time.Duration(r.Int64N(int64(4 * time.Second)))
			m.to = m.from + time.Duration(r.Int64N(int64(6*time.Second)))
			m.fails = []error{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, io.ErrUnexpectedEOF, nil}[r.IntN(3)]
			m.status = []int{500, 502, 401}[r.IntN(3)]
		}
		w.members = append(w.members, m)
		sum += m.rate
	}
	n := int(sum) * (4 + r.IntN(8)) / int(most)
	burst := r.IntN(2) == 0
	at := time.Duration(0)
	for range n {
		if !burst {
			at += time.Duration(r.Int64N(2 * int64(time.Second) * most / sum))
		}
		q := worldRequest{at: at, maxWait: -1, cost: 1 + r.Int64N(most), most: most}
		if w.bounded && r.IntN(3) == 0 {
			q.maxWait = time.Duration(r.Int64N(int64(5 * time.Second)))
		}
		if w.sticky {
			q.key = strconv.Itoa(r.IntN(20))
		}
		w.requests = append(w.requests, q)
	}
	for range r.IntN(3) {
		w.changes = append(w.changes, time.Duration(r.Int64N(int64(5*time.Second))))
	}
	return w
}

type worldKey struct{}

func (m *worldMember) serve(start time.Time) http.RoundTripper {
	return worldServer(func(req *http.Request) (*http.Response, error) {
		if req.Body != nil {
			defer req.Body.Close()
		}
		if now := time.Since(start); now >= m.from && now < m.to {
			m.mu.Lock()
			m.died = append(m.died, req.Context().Value(worldKey{}).(int))
			m.mu.Unlock()
			if m.fails != nil {
				return nil, m.fails
			}
			return &http.Response{StatusCode: m.status, Body: http.NoBody, Request: req}, nil
		}
		refused, h := m.refuses(req.Context().Value(worldKey{}).(int), time.Since(start))
		if refused {
			return &http.Response{StatusCode: 429, Header: h, Body: http.NoBody, Request: req}, nil
		}
		m.mu.Lock()
		m.sent, m.at = append(m.sent, req.Context().Value(worldKey{}).(int)), append(m.at, time.Since(start))
		m.mu.Unlock()
		time.Sleep(m.takes)
		return &http.Response{StatusCode: 200, Header: h, Body: http.NoBody, Request: req}, nil
	})
}

type worldServer func(*http.Request) (*http.Response, error)

func (f worldServer) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// play plays a world, and returns what does not hold.
func (w *world) play(t *testing.T) (faults []string) {
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	start := time.Now()
	var members []pool.Member
	for i, m := range w.members {
		opts := []throttle.Option{throttle.WithLimit(m.limits()...)}
		if m.kind != serverKind {
			opts = append(opts, throttle.WithoutServerHints())
		}
		tr := throttle.Must(throttle.New(m.serve(start), opts...))
		members = append(members, pool.Member{Name: strconv.Itoa(i), Transport: tr, After: m.after})
	}
	var opts []pool.Option
	if w.sticky {
		opts = append(opts, pool.Sticky(func(r *http.Request) string { return r.Header.Get("Key") }, 300*time.Millisecond))
	}
	p := of(t, members, opts...)
	rt := http.RoundTripper(p)
	if w.retries {
		rt = retry.NewClient(p).StandardClient().Transport
	}
	ends := make([]string, len(w.requests))
	results := make([]int, len(w.requests))
	when := make([]time.Duration, len(w.requests))
	var all sync.WaitGroup
	for i, q := range w.requests {
		all.Go(func() {
			time.Sleep(q.at)
			ctx := throttle.ContextWithCost(context.WithValue(t.Context(), worldKey{}, i), q.cost, "tokens")
			if q.maxWait >= 0 {
				ctx = throttle.ContextWithMaxWait(ctx, q.maxWait)
			}
			req, _ := http.NewRequestWithContext(ctx, http.MethodPut, "http://api.example.com/v1", strings.NewReader("x"))
			req.Header.Set("Key", q.key)
			resp, err := rt.RoundTrip(req)
			results[i]++
			when[i] = time.Since(start)
			_, rejected := throttle.RejectionOf(resp)
			switch {
			case errors.Is(err, throttle.ErrThrottled) || rejected:
				ends[i] = "rejected"
			case err != nil:
				ends[i] = "error"
			default:
				ends[i] = strconv.Itoa(resp.StatusCode)
				resp.Body.Close()
			}
		})
	}
	for _, at := range w.changes {
		all.Go(func() {
			time.Sleep(at)
			_ = p.Set(members[:len(members)-1]...)
			time.Sleep(time.Second)
			_ = p.Set(members...)
		})
	}
	last := w.requests[len(w.requests)-1].at
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(53 * time.Millisecond):
			}
			synctest.Wait()
			w.look(p, members, fault)
		}
	}()
	if w.shutdown {
		all.Go(func() {
			time.Sleep(last + time.Millisecond)
			if err := p.Shutdown(t.Context()); err != nil {
				fault("Shutdown: %v", err)
			}
		})
	}
	all.Wait()
	close(stop)
	<-stopped // only one goroutine of a bubble may call Wait
	synctest.Wait()
	w.check(p, members, ends, results, when, fault)
	return faults
}

// look checks that nothing waits at a member that is in and could send it.
func (w *world) look(p *pool.Pool, members []pool.Member, fault func(string, ...any)) {
	s := p.Stats()
	for _, of := range s.Members {
		i, _ := strconv.Atoi(of.Name)
		if of.Waiting == 0 || of.Out || !w.members[i].isExact() {
			continue
		}
		free, tokens := true, 0.
		for b := range members[i].Transport.Limiter().Buckets() {
			if b.Limit == "tokens" {
				tokens = b.Tokens
			} else {
				free = free && b.Tokens >= 1
			}
		}
		if w.members[i].kind == paceKind {
			tokens += 5.001 // any cost can be paid once it has drained
		}
		if free && tokens >= 5.001 {
			fault("%d requests wait at member %d, which has %v tokens", of.Waiting, i, tokens)
		}
	}
}

// check checks what holds in the end.
func (w *world) check(p *pool.Pool, members []pool.Member, ends []string, results []int, when []time.Duration, fault func(string, ...any)) {
	respite := time.Duration(0)
	for _, m := range w.members {
		if m.kind == sharedKind {
			respite = 250 * time.Millisecond // until the store has responded
		}
	}
	count := map[string]int{}
	paid := make([]int64, len(members))
	for i, end := range ends {
		if count[end]++; results[i] != 1 {
			fault("request %d has %d results", i, results[i])
		}
		if end == "rejected" && w.requests[i].maxWait < 0 && !w.shutdown {
			fault("request %d, which may wait for as long as it takes, is rejected", i)
		}
		if q := w.requests[i]; !w.retries && end == "rejected" && q.maxWait >= 0 && when[i] > q.at+q.maxWait+respite {
			fault("request %d is rejected %v after the end of its MaxWait", i, when[i]-q.at-q.maxWait)
		}
	}
	seen, sentAt, diedAt := make([]int, len(ends)), make([]time.Duration, len(ends)), make([]bool, len(ends))
	died, refused := 0, 0
	for i, m := range w.members {
		for k, n := range m.sent {
			seen[n]++
			paid[i] += w.requests[n].cost
			sentAt[n] = m.at[k]
		}
		for _, n := range slices.Concat(m.died, m.refused) {
			diedAt[n] = true
		}
		died += len(m.died)
		refused += len(m.refused)
		s := members[i].Transport.Limiter().Limits()
		if charged := s[0].Charged - s[0].Returned; len(m.died) == 0 && m.kind <= sharedKind && int64(charged) != paid[i] {
			fault("member %d was charged %d, and sent %d: %v %v", i, charged, paid[i], s, w.changes)
		}
		for _, li := range s {
			if li.Waiting != 0 || li.InFlight != 0 {
				fault("member %d: %v", i, li)
			}
		}
	}
	for i, n := range seen {
		if n > 1 || n == 0 && ends[i] == "200" {
			fault("request %d was answered %d times: %s", i, n, ends[i])
		}
	}
	if died == 0 && count["200"]+count["429"]+count["rejected"] != len(ends) || count["429"] > refused {
		fault("no member has failed: %v", count)
	}
	if w.retries && count["200"]+count["429"]+count["rejected"] != len(ends) {
		fault("with package retry: %v", count)
	}
	w.checkOrder(sentAt, when, diedAt, seen, fault)
	if !w.retries && count["error"]+count["500"]+count["502"]+count["401"] > died {
		fault("%d have failed: %v", died, count)
	}
	if s := p.Stats(); s.Waiting != 0 || s.InFlight != 0 || !w.retries && s.Rejected.Total() != uint64(count["rejected"]) {
		fault("%+v: %v", s, count)
	}
	if len(w.changes) == 0 && !w.failing && !w.tiers && !w.sticky && !w.bounded && len(seen) > 0 {
		w.checkUse(when, fault)
	}
}

// checkOrder checks that no request waits that arrived before one that was sent. It does not count what failed and was sent again, and requests
// that may not wait for long, because they wait only where they are expected to be sent in time.
func (w *world) checkOrder(sentAt, when []time.Duration, failed []bool, seen []int, fault func(string, ...any)) {
	if !w.ordered {
		return
	}
	latest, by := time.Duration(0), -1 // when the last one of those was sent that arrived before
	for i := 0; i < len(seen); {
		n := i
		for ; n < len(seen) && w.requests[n].at == w.requests[i].at; n++ {
			if seen[n] == 1 && !failed[n] && sentAt[n] < latest {
				fault("request %d, which arrived after %v, is sent after %v, and request %d, which arrived after %v, after %v", n, w.requests[n].at, sentAt[n], by, w.requests[by].at, latest)
				return
			}
		}
		for ; i < n; i++ {
			if seen[i] == 1 && !failed[i] && w.requests[i].maxWait < 0 && sentAt[i] > latest {
				latest, by = sentAt[i], i
			}
		}
	}
}

// checkUse checks that a pool in which nothing happens uses what its limits allow.
func (w *world) checkUse(when []time.Duration, fault func(string, ...any)) {
	rate, costs, last, bursts := int64(0), int64(0), time.Duration(0), int64(0)
	slow := time.Duration(0)
	for _, m := range w.members {
		if !m.isExact() || m.kind != bucketKind && w.requests[0].most > 1 || m.slots > 0 && float64(m.slots)/max(.001, m.takes.Seconds()) < 1.2*float64(m.rate) {
			return
		}
		rate, slow = rate+m.rate, max(slow, m.takes)
		if m.kind == bucketKind {
			bursts += 10
		}
		if m.kind == slidingKind || m.kind == fixedKind { // which begins with a whole window, and ends with the rest of one
			slow = max(slow, 2*time.Second)
		}
	}
	for i, q := range w.requests {
		costs += q.cost
		last = max(last, when[i])
	}
	ideal := time.Duration(float64(max(0, costs-bursts)) / float64(rate) * float64(time.Second))
	ideal = max(ideal, w.requests[len(w.requests)-1].at)
	if allowed := time.Duration(float64(ideal)/.98) + slow + 700*time.Millisecond; last > allowed { // the last ones wait for 5 tokens of one member
		fault("%d tokens at %d/s take %v, where %v is allowed", costs, rate, last, allowed)
	}
}

// What pool.go and docs/guarantees.md promise holds in worlds drawn from seeds: each request has one result, none is lost that a member could
// have sent, none waits where it could be sent, and limits are used. -seed plays one of them.
func TestWorlds(t *testing.T) {
	from, to := int64(0), int64(60)
	if !testing.Short() {
		from, to = 60, 200 // slow: -short plays those before
	}
	if *oneWorld >= 0 {
		from, to = *oneWorld, *oneWorld+1
	}
	for seed := from; seed < to; seed++ {
		synctest.Test(t, func(t *testing.T) {
			w := drawWorld(rand.New(rand.NewPCG(uint64(seed), 56)))
			if faults := w.play(t); len(faults) > 0 {
				require.Fail(t, fmt.Sprintf("seed %d: %v", seed, w), "%d faults, the first: %s", len(faults), strings.Join(faults[:min(4, len(faults))], "\n"))
			}
		})
	}
}
