package aimd

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/scene/loop"
)

// This file is a simulation of servers, loads and clients in virtual time.
// One client is a meter and a line of requests. The scenarios and their figures are in scenarios_test.go.

func at(seconds float64) instant { return instant(seconds * float64(second)) }

// A world is one run of a scenario.
type world struct {
	scenario
	loop.Loop
	rng    *rand.Rand
	server *simServer
	found  tally
}

// run plays a scenario.
func (s scenario) run(seed uint64, off ablation) *tally {
	w := &world{scenario: s.withDefaults(), rng: rand.New(rand.NewPCG(seed, 77))}
	w.server = &simServer{world: w, policy: w.policy(w.rng)}
	tenths := int(w.seconds*10) + 1
	w.found = tally{scenario: w.scenario, accepted: make([]int32, tenths), failed: make([]int32, tenths), per: make([]int32, w.clients)}
	for i := range w.clients {
		c := &simClient{world: w, index: i, rtt: w.rtt[i%len(w.rtt)], meter: New(0, w.config, seed*1000+uint64(i)), dice: meter.Dice(seed*1000 + uint64(i))}
		c.meter.control.off = off
		if w.beside {
			c.meter.Beside(0)
		}
		w.After(at(w.stagger*float64(i)), c.start)
	}
	w.Run(at(w.seconds))
	return &w.found
}

// A simClient is one program with a key of its own.
type simClient struct {
	*world
	index   int
	rtt     float64 // one way, seconds
	meter   *Meter
	line    []instant // when the waiters came
	head    int
	callers int // of the saturating kind that are in line or in flight
	wakeAt  instant
	held    instant // nothing is sent before, because the server has asked for that
	dice    meter.Dice
}

func (c *simClient) start() {
	if c.callersAt != nil {
		c.recruit()
	}
	if c.poisson != nil {
		c.arrive()
	}
}

// recruit sees to it that there are as many saturating callers as there should be.
func (c *simClient) recruit() {
	for c.callers < c.callersAt(float64(c.Now())/1e9) {
		c.callers++
		c.line = append(c.line, c.Now())
	}
	c.pump()
	c.After(second/10, c.recruit)
}

// arrive lets requests come at random.
func (c *simClient) arrive() {
	r := c.poisson(float64(c.Now()) / 1e9)
	if r <= 0 {
		c.After(second/10, c.arrive)
		return
	}
	c.After(at(c.rng.ExpFloat64()/r), func() {
		if c.poisson(float64(c.Now())/1e9) > 0 {
			c.line = append(c.line, -c.Now())
			c.found.offered++
			c.pump()
		}
		c.arrive()
	})
}

// pump sends what may go now, and sees to it that it is called again when the next may.
func (c *simClient) pump() {
	if c.whileClientStands(c.pump) {
		return
	}
	for c.head < len(c.line) {
		if c.held > c.Now() {
			c.wake(c.held)
			return
		}
		if !c.meter.Payable(c.Now(), 1) {
			c.wake(c.meter.Ready(c.Now(), 0, 1))
			return
		}
		came := c.line[c.head]
		if c.head++; c.head > 1000 {
			c.line = append(c.line[:0], c.line[c.head:]...)
			c.head = 0
		}
		if came < 0 {
			c.found.waits = append(c.found.waits, float64(c.Now()+came)/1e9)
		}
		c.send(came >= 0)
	}
}

func (c *simClient) wake(at instant) {
	if at == never || c.wakeAt > c.Now() && c.wakeAt <= at {
		return
	}
	c.wakeAt = at
	c.After(at-c.Now(), func() {
		if c.wakeAt == at {
			c.wakeAt = 0
			c.pump()
		}
	})
}

func (c *simClient) oneWay() int64 { return at(c.rtt + c.jitter*(2*c.rng.Float64()-1)) }

// send sends a request, and takes in its answer.
func (c *simClient) send(saturating bool) {
	charged := c.meter.Take(c.Now(), c.Now(), 1, true)
	start := c.Now()
	c.found.sendTimes = append(c.found.sendTimes, float32(float64(c.Now())/1e9))
	done := false
	var finish func(o Outcome, retryAfter time.Duration)
	finish = func(o Outcome, retryAfter time.Duration) {
		if done || c.whileClientStands(func() { finish(o, retryAfter) }) {
			return
		}
		done = true
		c.found.count(c, start, o)
		c.meter.Answered(c.Now(), charged, start, 1, o, retryAfter)
		if d := int64(retryAfter); o == Throttled && d > 0 && !c.meter.control.off.pause {
			c.held = max(c.held, c.Now()+d+c.dice.Jitter(d))
		}
		if saturating {
			if c.callers <= c.callersAt(float64(c.Now())/1e9) {
				c.line = append(c.line, c.Now())
			} else {
				c.callers--
			}
		}
		c.pump()
	}
	c.After(c.oneWay(), func() { c.server.serve(finish, c.oneWay) })
	if c.timeout > 0 {
		c.After(at(c.timeout), func() { finish(Unavailable, 0) })
	}
}

// whileClientStands puts off what a client that stands still would do now, and reports whether it did.
func (c *simClient) whileClientStands(do func()) bool {
	if c.clientStands == nil {
		return false
	}
	d := at(c.clientStands(float64(c.Now()) / 1e9))
	if d > 0 {
		c.After(d, do)
	}
	return d > 0
}

// serve answers a request that has come, or does so once the server no longer stands still.
func (s *simServer) serve(finish func(Outcome, time.Duration), back func() int64) {
	if s.stands != nil {
		if d := at(s.stands(float64(s.Now()) / 1e9)); d > 0 {
			s.After(d, func() { s.serve(finish, back) })
			return
		}
	}
	o, d, retryAfter := s.answer(s.Now())
	if d < 0 { // hangs
		return
	}
	if o == Unavailable && retryAfter > 0 {
		o = Throttled
	}
	if s.stands != nil {
		d += at(s.stands(float64(s.Now()+d) / 1e9))
	}
	s.After(d+back(), func() { finish(o, retryAfter) })
}

// An outage is a time in which nothing is served.
type outage struct {
	from, to float64
	hangs    bool
}

// A scenario is a server, a load, and a time.
type scenario struct {
	name    string
	seconds float64

	clients int
	stagger float64
	config  Config
	beside  bool      // a limit in flight, which heeds the rest
	rtt     []float64 // one way, by client
	jitter  float64
	timeout float64

	callersAt func(t float64) int
	poisson   func(t float64) float64

	policy  func(*rand.Rand) policy
	refusal Outcome
	service func(r *rand.Rand, t float64) float64
	faults  float64
	fault   Outcome
	outage  *outage

	refusing             float64                 // seconds that a refusal takes
	stands, clientStands func(t float64) float64 // seconds for which the server, or each client, stands still from t on

	limit   func(t float64) float64 // what the oracle sends
	changes []float64               // when recovery is looked at
	share   float64                 // of the limit that counts as found; 0.8
}

func logNormal(median, sigma float64) func(*rand.Rand, float64) float64 {
	return func(r *rand.Rand, _ float64) float64 { return median * math.Exp(sigma*r.NormFloat64()) }
}

func constant(x float64) func(float64) float64 { return func(float64) float64 { return x } }
func crowd(n int) func(float64) int            { return func(float64) int { return n } }

func (s scenario) withDefaults() scenario {
	if s.seconds == 0 {
		s.seconds = 300
	}
	if s.clients == 0 {
		s.clients = 1
	}
	if s.rtt == nil {
		s.rtt = []float64{0.020}
	}
	if s.jitter == 0 {
		s.jitter = 0.001
	}
	if s.callersAt == nil && s.poisson == nil {
		s.callersAt = crowd(50)
	}
	if s.refusal == 0 {
		s.refusal = Throttled
	}
	if s.service == nil {
		s.service = logNormal(0.010, 0.3)
	}
	if s.share == 0 {
		s.share = 0.8
	}
	if s.refusing == 0 {
		s.refusing = 0.001
	}
	if s.limit == nil {
		s.limit = constant(100)
	}
	return s
}
