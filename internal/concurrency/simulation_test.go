package concurrency

import (
	"math"
	"math/rand/v2"
	"slices"
)

// This file is a simulation of servers, loads and clients in virtual time: a heap of events, no goroutine, no clock. The scenes
// and their figures are in scenes_test.go.

func at(seconds float64) instant { return instant(seconds * float64(second)) }

// An event is what happens at an instant; those of one instant happen in the order in which they were made.
type event struct {
	at  instant
	seq uint64
	do  func()
}

func (e *event) before(f *event) bool { return e.at < f.at || e.at == f.at && e.seq < f.seq }

// A world is one run of a scene.
type world struct {
	scene
	rng    *rand.Rand
	now    instant
	seq    uint64
	events []event // a heap
	server server
	found  tally
}

func (w *world) after(d int64, do func()) {
	w.seq++
	h := append(w.events, event{w.now + max(0, d), w.seq, do})
	i := len(h) - 1
	for i > 0 && h[i].before(&h[(i-1)/2]) {
		h[i], h[(i-1)/2] = h[(i-1)/2], h[i]
		i = (i - 1) / 2
	}
	w.events = h
}

func (w *world) pop() event {
	h := w.events
	first, last := h[0], len(h)-1
	h[0] = h[last]
	h[last] = event{}
	h = h[:last]
	for i := 0; ; {
		c := 2*i + 1
		if c >= last {
			break
		}
		if c+1 < last && h[c+1].before(&h[c]) {
			c++
		}
		if !h[c].before(&h[i]) {
			break
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
	w.events = h
	return first
}

func (w *world) seconds() float64 { return float64(w.now) / 1e9 }

// A scene is a server, a load and a time. Comments give the default.
type scene struct {
	name    string
	length  float64           // seconds; 120
	from    float64           // when measuring begins; 5
	watch   func(now instant) // is called when a request is sent
	poll    instant           // when a request begins that takes the rest of the scene; 0: there is none
	goal    figures           // goodput ≥ 95 %, p99 ≤ 2, refused ≤ 2 %
	best    int64             // the least fixed n that gives 99 % of what any n gives
	clients int               // 1
	stagger float64           // seconds between the starts of clients

	rtt      float64                               // seconds, there and back; 10 ms
	workers  func(t float64) int                   // 16; 0: as many as there are requests
	service  func(r *rand.Rand, t float64) float64 // seconds
	crowd    func(inService int) float64           // how much slower a request is served among so many; 1
	queue    int                                   // requests that may wait, others are refused; 0: any number
	connect  int                                   // requests that may be there, others are refused; 0: any number
	stands   func(t float64) float64               // for how many seconds nothing is worked on from t on
	rate     float64                               // requests per second that are let in; 0: all
	faults   float64                               // share of requests that are refused at random
	headers  float64                               // share of the service time after which the headers come; 1
	others   func(t float64) float64               // requests of others per second
	callers  func(t float64) int                   // that always have a next request; 64
	load     func(t float64) float64               // requests per second that come at random
	bursts   [2]float64                            // so many requests each so many seconds
	patience float64                               // seconds after which callers give up, 0: never
	cancels  bool                                  // they give up although the request is sent
}

// A limiter is a controller of one client, or what it is compared with.
type limiter interface {
	// limit returns how many may be in flight, and when more may go.
	allow(now instant) (n int64, pause instant)
	sent(now instant) int64
	answered(now instant, id int64, sent instant, o outcome) int64
	ended(now instant, id int64)
}

type outcome int

const (
	good outcome = iota
	refusal
	unknown
)

// A tally is what came of a run.
type tally struct {
	ok, refused, sent float64
	latencies         []float64
	per               []float64 // by client
}

func (t *tally) p99() float64 {
	if len(t.latencies) == 0 {
		return math.NaN()
	}
	slices.Sort(t.latencies)
	return t.latencies[len(t.latencies)*99/100]
}

func (t *tally) jain() float64 {
	sum, squares := 0.0, 0.0
	for _, x := range t.per {
		sum += x
		squares += x * x
	}
	return sum * sum / squares / float64(len(t.per))
}

// run plays a scene.
func (s scene) run(seed uint64, newLimiter func() limiter) *tally {
	s = s.withDefaults()
	w := &world{scene: s, rng: rand.New(rand.NewPCG(seed, 77))}
	w.server.world = w
	w.found.per = make([]float64, s.clients)
	for i := range s.clients {
		c := &client{world: w, index: i, limiter: newLimiter()}
		w.after(at(s.stagger*float64(i)), c.start)
	}
	if s.others != nil {
		w.other()
	}
	for len(w.events) > 0 {
		e := w.pop()
		if e.at > at(s.length) {
			break
		}
		w.now = e.at
		e.do()
	}
	return &w.found
}

func (w *world) other() {
	r := w.others(w.seconds())
	if r <= 0 {
		w.after(at(0.1), w.other)
		return
	}
	w.after(at(w.rng.ExpFloat64()/r), func() {
		w.server.arrive(&job{done: func(outcome) {}, over: func() {}})
		w.other()
	})
}

// A client is one program.
type client struct {
	*world
	index    int
	limiter  limiter
	line     []*request
	inFlight int64
	callers  int
	wakeAt   instant
}

type request struct {
	client    *client
	id        int64
	came, at  instant
	sent      bool
	answered  bool
	over      bool
	saturates bool
}

func (c *client) start() {
	if c.scene.callers != nil {
		c.recruit()
	}
	if c.load != nil {
		c.arrive()
	}
	if c.bursts[0] > 0 {
		c.burst()
	}
}

func (c *client) recruit() {
	for c.callers < c.scene.callers(c.seconds()) {
		c.callers++
		c.come(true)
	}
	c.pump()
	c.after(at(0.1), c.recruit)
}

func (c *client) arrive() {
	r := c.load(c.seconds())
	c.after(at(c.rng.ExpFloat64()/r), func() {
		c.come(false)
		c.pump()
		c.arrive()
	})
}

func (c *client) burst() {
	for range int(c.bursts[0]) {
		c.come(false)
	}
	c.pump()
	c.after(at(c.bursts[1]), c.burst)
}

func (c *client) come(saturates bool) {
	r := &request{client: c, came: c.now, saturates: saturates}
	c.line = append(c.line, r)
	if c.patience > 0 {
		c.after(at(c.patience), func() { r.giveUp() })
	}
}

// giveUp ends the request of a caller that has no more patience.
func (r *request) giveUp() {
	c := r.client
	switch {
	case r.over:
	case !r.sent:
		r.over = true
		if i := slices.Index(c.line, r); i >= 0 {
			c.line = slices.Delete(c.line, i, i+1)
		}
		r.next()
	case c.cancels && !r.answered:
		r.end(unknown)
		r.free()
	}
}

func (r *request) next() {
	c := r.client
	if !r.saturates {
		return
	}
	if c.callers > c.scene.callers(c.seconds()) {
		c.callers--
		return
	}
	c.come(true)
}

func (c *client) pump() {
	for len(c.line) > 0 {
		n, pause := c.limiter.allow(c.now)
		if pause > c.now {
			if c.wakeAt <= c.now || c.wakeAt > pause {
				c.wakeAt = pause
				c.after(pause-c.now, c.pump)
			}
			return
		}
		if c.inFlight >= n {
			return
		}
		r := c.line[0]
		c.line = c.line[1:]
		c.send(r)
	}
}

func (c *client) send(r *request) {
	r.sent, r.at = true, c.now
	c.inFlight++
	r.id = c.limiter.sent(c.now)
	if c.watch != nil {
		c.watch(c.now)
	}
	if c.poll > 0 && c.now >= c.poll {
		c.poll = 0
		return
	}
	if c.seconds() >= c.from {
		c.found.sent++
	}
	c.after(at(c.rtt/2), func() {
		c.server.arrive(&job{
			done: func(o outcome) {
				c.after(at(c.rtt/2), func() {
					if !r.answered {
						r.end(o)
					}
				})
			},
			over: func() {
				c.after(at(c.rtt/2), func() {
					if !r.over {
						r.free()
					}
				})
			},
			headers: c.headers,
		})
	})
}

// end takes the headers of the response.
func (r *request) end(o outcome) {
	c := r.client
	r.answered = true
	if c.seconds() >= c.from {
		switch o {
		case good:
			c.found.ok++
			c.found.latencies = append(c.found.latencies, float64(c.now-r.at)/1e9)
			c.found.per[c.index]++
		case refusal:
			c.found.refused++
		}
	}
	r.id = c.limiter.answered(c.now, r.id, r.at, o)
}

// free gives the slot back.
func (r *request) free() {
	c := r.client
	r.over = true
	c.inFlight--
	c.limiter.ended(c.now, r.id)
	r.next()
	c.pump()
}

// A server serves first come, first served.
type server struct {
	world  *world
	busy   int
	line   []*job
	tokens float64
	filled instant
}

type job struct {
	done    func(outcome) // headers
	over    func()
	headers float64
}

func (s *server) refuse(j *job) {
	s.world.after(at(0.001), func() { j.done(refusal); j.over() })
}

func (s *server) arrive(j *job) {
	w := s.world
	if w.rate > 0 {
		s.tokens = min(20, s.tokens+float64(w.now-s.filled)/1e9*w.rate)
		s.filled = w.now
		if s.tokens < 1 {
			s.refuse(j)
			return
		}
		s.tokens--
	}
	full := w.connect > 0 && s.busy+len(s.line) >= w.connect || w.queue > 0 && len(s.line) >= w.queue
	if full || w.faults > 0 && w.rng.Float64() < w.faults {
		s.refuse(j)
		return
	}
	s.line = append(s.line, j)
	s.work()
}

func (s *server) work() {
	w := s.world
	for t := w.seconds(); len(s.line) > 0; {
		if n := w.workers(t); n > 0 && s.busy >= n {
			return
		}
		j := s.line[0]
		s.line = s.line[1:]
		s.busy++
		d := w.service(w.rng, t)
		if w.crowd != nil {
			d *= w.crowd(s.busy)
		}
		total := d
		if w.stands != nil {
			total = w.stopped(t, d)
		}
		if j.headers > 0 && j.headers < 1 {
			w.after(at(total*j.headers), func() { j.done(good) })
			w.after(at(total), func() { j.over(); s.busy--; s.work() })
		} else {
			w.after(at(total), func() { j.done(good); j.over(); s.busy--; s.work() })
		}
	}
}

// stopped returns how long work of d takes from t on, if the server stands still now and then.
func (w *world) stopped(t, d float64) float64 {
	total := d + w.stands(t)
	for step := 0.0; step < total; step += 0.01 {
		if s := w.stands(t + step); s > 0 && step > 0 {
			return total + s
		}
	}
	return total
}

func logNormal(mean, sigma float64) func(*rand.Rand, float64) float64 {
	median := mean * math.Exp(-sigma*sigma/2)
	return func(r *rand.Rand, _ float64) float64 { return median * math.Exp(sigma*r.NormFloat64()) }
}

func exponential(mean float64) func(*rand.Rand, float64) float64 {
	return func(r *rand.Rand, _ float64) float64 { return mean * r.ExpFloat64() }
}

func constant(x float64) func(*rand.Rand, float64) float64 {
	return func(*rand.Rand, float64) float64 { return x }
}

func during(from, to, factor float64, f func(*rand.Rand, float64) float64) func(*rand.Rand, float64) float64 {
	return func(r *rand.Rand, t float64) float64 {
		if t >= from && t < to {
			return factor * f(r, t)
		}
		return f(r, t)
	}
}

func always[T any](x T) func(float64) T { return func(float64) T { return x } }

func between[T any](from, to float64, x, other T) func(float64) T {
	return func(t float64) T {
		if t >= from && t < to {
			return other
		}
		return x
	}
}

func (s scene) withDefaults() scene {
	if s.length == 0 {
		s.length = 120
	}
	if s.from == 0 {
		s.from = 5
	}
	s.clients = max(1, s.clients)
	if s.rtt == 0 {
		s.rtt = 0.010
	}
	if s.workers == nil {
		s.workers = always(16)
	}
	if s.service == nil {
		s.service = logNormal(0.050, 0.5)
	}
	if s.callers == nil && s.load == nil && s.bursts[0] == 0 {
		s.callers = always(64)
	}
	return s
}
