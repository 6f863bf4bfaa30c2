package flight

import "slices"

// A Limiter decides how many requests of a client may be in flight.
type Limiter interface {
	// Allow returns how many may be in flight, and the instant before which none may be sent.
	Allow(now int64) (n, pause int64)
	// Sent is called when a request is sent. Its result is passed to the other methods.
	Sent(now int64) int64
	// Answered is called when the headers arrive. Its result is passed to Ended.
	Answered(now, id, sent int64, o Outcome) int64
	// Ended is called at the end of a body, or of a request without one.
	Ended(now, id int64)
}

// Fixed is a Limiter that always allows the same number.
type Fixed int64

func (f Fixed) Allow(int64) (n, pause int64)                { return int64(f), 0 }
func (f Fixed) Sent(int64) int64                            { return 0 }
func (f Fixed) Answered(int64, int64, int64, Outcome) int64 { return 0 }
func (f Fixed) Ended(int64, int64)                          {}

// Play plays the scene with a Limiter for each client.
func (s Scene) Play(seed uint64, newLimiter func() Limiter) *Tally {
	l := &loop{world: newWorld(s, seed)}
	l.world.now, l.world.after = func() int64 { return l.at }, l.later
	for i := range l.Clients {
		c := &client{loop: l, index: i, limiter: newLimiter()}
		l.after(At(s.Stagger*float64(i)), c.start)
	}
	if l.Others != nil {
		l.others()
	}
	for len(l.events) > 0 {
		e := l.pop()
		if e.at > At(l.Length) {
			break
		}
		l.at = e.at
		e.do()
	}
	return &l.found
}

// A loop is a world whose time is that of the next event.
type loop struct {
	*world
	at     int64
	seq    uint64
	events []event // a heap
}

// An event is what happens at an instant; those of one instant happen in the order in which they were made.
type event struct {
	at  int64
	seq uint64
	do  func()
}

func (e *event) before(f *event) bool { return e.at < f.at || e.at == f.at && e.seq < f.seq }

func (l *loop) later(d int64, do func()) {
	l.seq++
	h := append(l.events, event{l.at + max(0, d), l.seq, do})
	i := len(h) - 1
	for i > 0 && h[i].before(&h[(i-1)/2]) {
		h[i], h[(i-1)/2] = h[(i-1)/2], h[i]
		i = (i - 1) / 2
	}
	l.events = h
}

func (l *loop) pop() event {
	h := l.events
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
	l.events = h
	return first
}

// A client is one program.
type client struct {
	*loop
	index    int
	limiter  Limiter
	line     []*request
	inFlight int64
	callers  int
	wakeAt   int64
}

type request struct {
	client    *client
	id        int64
	at        int64
	sent      bool
	answered  bool
	over      bool
	saturates bool
}

func (c *client) start() {
	if c.Callers != nil {
		c.recruit()
	}
	if c.Load != nil {
		c.arriving()
	}
	if c.Bursts[0] > 0 {
		c.burst()
	}
}

func (c *client) recruit() {
	for c.callers < c.Callers(c.seconds()) {
		c.callers++
		c.come(true)
	}
	c.pump()
	c.after(At(0.1), c.recruit)
}

func (c *client) arriving() {
	r := c.Load(c.seconds())
	c.after(At(c.rng.ExpFloat64()/r), func() {
		c.come(false)
		c.pump()
		c.arriving()
	})
}

func (c *client) burst() {
	for range int(c.Bursts[0]) {
		c.come(false)
	}
	c.pump()
	c.after(At(c.Bursts[1]), c.burst)
}

func (c *client) come(saturates bool) {
	r := &request{client: c, saturates: saturates}
	c.line = append(c.line, r)
	if c.Patience > 0 {
		c.after(At(c.Patience), func() { r.giveUp() })
	}
}

// giveUp ends the request of a caller that gives up.
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
	case c.Cancels && !r.answered:
		r.end(Unknown)
		r.free()
	}
}

func (r *request) next() {
	c := r.client
	if !r.saturates {
		return
	}
	if c.callers > c.Callers(c.seconds()) {
		c.callers--
		return
	}
	c.come(true)
}

func (c *client) pump() {
	for len(c.line) > 0 {
		n, pause := c.limiter.Allow(c.at)
		if pause > c.at {
			if c.wakeAt <= c.at || c.wakeAt > pause {
				c.wakeAt = pause
				c.after(pause-c.at, c.pump)
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
	r.sent, r.at = true, c.at
	c.inFlight++
	r.id = c.limiter.Sent(c.at)
	if c.Watch != nil {
		c.Watch(c.at)
	}
	if c.Poll > 0 && c.at >= c.Poll {
		c.Poll = 0
		return
	}
	if c.measuring() {
		c.found.Sent++
	}
	c.travel(func(o Outcome) {
		if !r.answered {
			r.end(o)
		}
	}, func() {
		if !r.over {
			r.free()
		}
	})
}

// end takes the headers of the response.
func (r *request) end(o Outcome) {
	c := r.client
	r.answered = true
	if c.measuring() {
		c.found.add(c.index, c.at, r.at, o)
	}
	r.id = c.limiter.Answered(c.at, r.id, r.at, o)
}

// free gives the slot back.
func (r *request) free() {
	c := r.client
	r.over = true
	c.inFlight--
	c.limiter.Ended(c.at, r.id)
	r.next()
	c.pump()
}
