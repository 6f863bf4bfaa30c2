package flight

import (
	"slices"

	"github.com/httpthrottle/throttle/internal/scene/loop"
)

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
	l := &run{world: newWorld(s, seed)}
	l.world.now, l.world.after = l.Now, l.After
	for i := range l.Clients {
		c := &client{run: l, index: i, limiter: newLimiter()}
		l.after(At(s.Stagger*float64(i)), c.start)
	}
	if l.Others != nil {
		l.others()
	}
	l.Run(At(l.Length))
	return &l.found
}

// A run is a world whose time is that of its next event.
type run struct {
	*world
	loop.Loop
}

// A client is one program.
type client struct {
	*run
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
		n, pause := c.limiter.Allow(c.Now())
		if pause > c.Now() {
			if c.wakeAt <= c.Now() || c.wakeAt > pause {
				c.wakeAt = pause
				c.after(pause-c.Now(), c.pump)
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
	r.sent, r.at = true, c.Now()
	c.inFlight++
	r.id = c.limiter.Sent(c.Now())
	if c.Watch != nil {
		c.Watch(c.Now())
	}
	if c.Poll > 0 && c.Now() >= c.Poll {
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
		c.found.add(c.index, c.Now(), r.at, o)
	}
	r.id = c.limiter.Answered(c.Now(), r.id, r.at, o)
}

// free gives the slot back.
func (r *request) free() {
	c := r.client
	r.over = true
	c.inFlight--
	c.limiter.Ended(c.Now(), r.id)
	r.next()
	c.pump()
}
