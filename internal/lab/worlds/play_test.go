package worlds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"
)

const (
	keyHeader  = "Key"
	costHeader = "Cost"
)

// A fleet is a world at work. It notes what its requests became of, for the checks.
type fleet struct {
	*world
	start     time.Time
	processes []*process
	link      link

	mu       sync.Mutex
	actors   actor
	level    int64 // of the server's bucket, in tokens times its period
	levelAt  time.Duration
	mistakes int // requests that the server is to refuse by mistake
	sent     []sent
	missed   []missed
	lost     []lost
	faults   []string
}

// A process is one of the fleet.
type process struct {
	*fleet
	crew
	actor
	nth       int // in the fleet
	of        int // its crew
	all       []*caller
	lines     [4]actor
	limiter   *throttle.Limiter
	transport *throttle.Transport // nil: there is no server
	cancel    context.CancelFunc
	still     still
	gone      time.Duration // when it leaves, or was killed
}

// A sent is a request that was sent.
type sent struct {
	process         *process
	key             string
	cost            int64
	asked, at, ends time.Duration
	refused         bool          // by the server
	mistaken        bool          // it was wrong
	wait            time.Duration // for which the server asked
}

// A missed is a request that was not sent.
type missed struct {
	process   *process
	key       string
	cost      int64
	asked, at time.Duration
	until     time.Duration // when it had to be sent
	err       error
}

// A lost is a response of the store that a process did not get.
type lost struct {
	process *process
	at      time.Duration
	tokens  map[string]int64 // that were leased, of each limit by its name
}

// play plays a world and returns it as it was at its end.
func play(t *testing.T, w *world) *fleet {
	f := &fleet{world: w}
	synctest.Test(t, func(t *testing.T) {
		f.start = time.Now()
		f.link.make()
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for n, c := range w.crews {
			for range c.size {
				p := f.join(n, c)
				ctx, cancel := context.WithCancel(ctx)
				p.cancel = cancel
				all.Go(func() { p.run(ctx) })
			}
		}
		for _, twist := range w.twists {
			me := f.actor()
			all.Go(func() { twist.play(f, me) })
		}
		time.Sleep(w.lasts)
		cancel()
		all.Wait()
		f.link.set(func() { f.link.down = nil })
		time.Sleep(time.Minute) // what was leased comes back
		f.link.over.Store(true) // processes that are dead call for ever
		time.Sleep(time.Second)
		f.rest()
	})
	return f
}

func (f *fleet) now() time.Duration { return time.Since(f.start) }

// sleepUntil sleeps until an instant of the world.
func (f *fleet) sleepUntil(at time.Duration) { time.Sleep(at - f.now()) }

// fault notes that something is wrong.
func (f *fleet) fault(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = append(f.faults, fmt.Sprintf(format, args...))
}

// An actor acts at instants of its own, one in each 16 µs. No two actors act at the same instant, so their goroutines do not race, and a
// world plays the same each time.
type actor int64

const moments = 1 << 14

// actor returns a new actor.
func (f *fleet) actor() actor {
	if f.actors++; f.actors > moments {
		panic("two actors would act at the same instant")
	}
	return f.actors % moments
}

// sleep sleeps for d, and then until the next instant of the actor.
func (a actor) sleep(f *fleet, d time.Duration) {
	at := int64(f.now() + max(0, d))
	wait := (int64(a) - at%moments + moments) % moments
	f.sleepUntil(time.Duration(at + wait))
}

// join adds a process of a crew.
func (f *fleet) join(of int, c crew) *process {
	p := &process{fleet: f, crew: c, actor: f.actor(), nth: len(f.processes), of: of, gone: c.to}
	for i := range p.lines {
		p.lines[i] = f.actor()
	}
	for n := range c.callers {
		p.all = append(p.all, &caller{
			process: p, actor: f.actor(), r: random(f.seed, "caller", int64(p.nth), int64(n)), key: strconv.Itoa(n % f.keys),
		})
	}
	f.processes = append(f.processes, p)
	return p
}

// run is the life of a process.
func (p *process) run(ctx context.Context) {
	defer p.cancel()
	p.sleep(p.fleet, p.from)
	var err error
	opts := []throttle.Option{throttle.WithLimit(p.make(&line{p}, p.percent)...)}
	if p.server == nil {
		p.limiter, err = throttle.NewLimiter(opts...)
	} else {
		if slices.ContainsFunc(p.limits, func(l limit) bool { return l.kind != "slots" }) { // a request takes one slot
			opts = append(opts, throttle.WithCost(costOf))
		}
		p.transport, err = throttle.New(p, opts...)
	}
	if p.transport != nil {
		p.limiter = p.transport.Limiter()
	}
	if err != nil {
		panic(err)
	}
	p.roll()
	time.AfterFunc(p.to-p.from, p.cancel)
	var all sync.WaitGroup
	for _, c := range p.all {
		all.Go(func() { c.run(ctx) })
	}
	all.Wait()
}

// A caller sends one request after the other.
type caller struct {
	*process
	actor
	r   *rand.Rand
	key string
}

func (c *caller) run(ctx context.Context) {
	if c.every > 0 && !c.together {
		c.pause(time.Duration(c.r.Int64N(int64(c.every))))
	}
	for next := c.now(); ; next += c.every {
		c.pause(next - c.now())
		if ctx.Err() != nil || c.still.isDead() {
			return
		}
		c.request(ctx)
	}
}

// pause sleeps for d, and for as long as the process stands still.
func (c *caller) pause(d time.Duration) {
	c.actor.sleep(c.fleet, d)
	c.still.wait(c.fleet, c.actor)
}

const never = time.Duration(math.MaxInt64)

// request makes a request and notes what became of it.
func (c *caller) request(ctx context.Context) {
	asked, until, life := c.now(), never, ctx
	if c.deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.deadline)
		defer cancel()
		until = asked + c.deadline
	}
	if c.maxWait >= 0 {
		ctx = throttle.ContextWithMaxWait(ctx, c.maxWait)
		until = min(until, asked+c.maxWait)
	}
	takes := c.takes
	if c.streams && chance(c.r, streamed) {
		takes *= streamsTake
	}
	s := sent{process: c.process, key: c.key, cost: 1 + c.r.Int64N(c.costs), asked: asked}
	var err error
	if c.server == nil {
		err = c.acquire(ctx, &s, takes)
	} else {
		err = c.send(ctx, &s, takes)
	}
	switch {
	case err == nil:
		c.mu.Lock()
		c.sent = append(c.sent, s)
		c.mu.Unlock()
	case errors.Is(err, throttle.ErrThrottled), errors.Is(err, context.DeadlineExceeded):
		c.mu.Lock()
		c.missed = append(c.missed, missed{c.process, c.key, s.cost, asked, c.now(), until, err})
		c.mu.Unlock()
		c.pause(time.Second / 2)
	case life.Err() == nil:
		c.fault("process %d: %v", c.nth, err)
	}
}

// acquire asks the Limiter itself.
func (c *caller) acquire(ctx context.Context, s *sent, takes time.Duration) error {
	ask := throttle.Ask{Cost: s.cost, Keys: make(map[string]string)}
	for i, l := range c.limits {
		if l.keyed {
			ask.Keys[c.name(i)] = s.key
		}
	}
	g, err := c.limiter.Acquire(ctx, ask)
	if err != nil {
		return err
	}
	s.at = c.now()
	s.ends = c.work(takes)
	g.Done()
	return nil
}

// work is the time between the grant of a request and its end. A process that is killed leaves its requests; one that ends waits for them.
func (c *caller) work(takes time.Duration) (ends time.Duration) {
	c.pause(takes)
	if c.still.isDead() {
		return min(c.now(), c.gone)
	}
	return c.now()
}

func costOf(r *http.Request) int64 {
	n, _ := strconv.ParseInt(r.Header.Get(costHeader), 10, 64)
	return n
}

// send sends a request through the Transport.
func (c *caller) send(ctx context.Context, s *sent, takes time.Duration) error {
	ctx = context.WithValue(ctx, sentKey{}, s)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://server/", nil)
	if err != nil {
		panic(err)
	}
	req.Header.Set(keyHeader, s.key)
	req.Header.Set(costHeader, strconv.FormatInt(s.cost, 10))
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		return err
	}
	if r, ok := throttle.RejectionOf(resp); ok {
		return r
	}
	if c.deadline > 0 { // at the end of its context, a request ends
		takes = min(takes, s.asked+c.deadline-c.now())
	}
	if s.ends = min(c.work(takes), c.gone); c.deadline > 0 {
		s.ends = min(s.ends, s.asked+c.deadline)
	}
	return resp.Body.Close()
}

type sentKey struct{}

// RoundTrip is the server.
func (p *process) RoundTrip(r *http.Request) (*http.Response, error) {
	s := r.Context().Value(sentKey{}).(*sent)
	s.at = p.now()
	resp := &http.Response{StatusCode: http.StatusOK, Header: make(http.Header), Body: io.NopCloser(http.NoBody), Request: r}
	if wait := p.serve(s); wait > 0 {
		s.refused, s.wait = true, (wait+time.Second-1)/time.Second*time.Second
		resp.StatusCode = http.StatusTooManyRequests
		resp.Header.Set("Retry-After", strconv.FormatInt(int64(s.wait/time.Second), 10))
	}
	return resp, nil
}

// serve returns how long a request that the server refuses is to wait; 0: it accepts the request.
func (f *fleet) serve(s *sent) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mistakes > 0 {
		f.mistakes--
		s.mistaken = true
		return 2 * time.Second
	}
	v, now := f.server, f.now()
	f.level = max(0, f.level-v.n*int64(now-f.levelAt)) + s.cost*int64(v.per)
	f.levelAt = now
	over := f.level - v.burst*int64(v.per)
	if over <= 0 {
		return 0
	}
	f.level -= s.cost * int64(v.per)
	return time.Duration(over/v.n) + 1
}

// rest notes what is left a minute after the end.
func (f *fleet) rest() {
	for _, p := range f.processes {
		if p.limiter == nil || p.still.isDead() {
			continue
		}
		if s := p.limiter.Stats(); s.Waiting > 0 {
			f.fault("process %d: %d requests still wait", p.nth, s.Waiting)
		}
		for _, l := range p.limiter.Limits() {
			if l.InFlight > 0 {
				f.fault("process %d: %d slots of %s are still taken", p.nth, l.InFlight, l.Name)
			}
		}
		for _, s := range p.limiter.Stores() {
			if s.Setup > 0 || s.Faulty > 0 {
				f.fault("process %d: the store is set up wrongly, or a budget of it is: %v", p.nth, s.Err)
			}
		}
	}
	if n := f.link.open.Load(); n > 0 {
		f.fault("%d calls of the store are still open", n)
	}
}
