package throttletest

import (
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// A Handler enforces limits. It can be served by any http.Server or httptest.Server (with TLS, for instance), called
// without a connection through [Handler.Direct], or run by a [Server], which is ready to use. All its methods may be
// called concurrently, while it serves.
type Handler struct {
	*config
	start time.Time
	specs atomic.Pointer[[]*Limit] // those of rules, for readers without the lock
	done  chan struct{}            // closed by stop

	stalls atomic.Pointer[[]stall] // nil until Stall is called; a new slice at each call

	running sync.WaitGroup // of calls of ServeHTTP; Add is called under mu, and not after closed is set

	// mu guards everything below, and the workers. Nothing sleeps under it and no function of the user is called under
	// it: in a bubble of synctest, time would stand still while a goroutine waits for it. The clock is read once per critical
	// section and under the lock, so instants never run backwards.
	mu       sync.Mutex
	closed   bool
	rules    []*rule
	counts   Counts
	accepted []int64
}

// NewHandler returns a Handler. The times of [Fault.Between] count from now. The error names everything that
// is wrong with the options.
func NewHandler(opts ...Option) (*Handler, error) {
	c, err := newConfig(opts, false)
	if err != nil {
		return nil, err
	}
	return newHandler(c), nil
}

func newHandler(c *config) *Handler {
	h := &Handler{config: c, start: time.Now(), done: make(chan struct{})}
	for i := range c.limits {
		h.rules = append(h.rules, &rule{spec: &c.limits[i], accounts: make(map[string]*account)})
	}
	h.shareSpecsLocked()
	return h
}

func (h *Handler) shareSpecsLocked() {
	specs := make([]*Limit, len(h.rules))
	for i, r := range h.rules {
		specs[i] = r.spec
	}
	h.specs.Store(&specs)
}

// now is nanoseconds since the Unix epoch, but monotonic: the wall clock of the start plus what has passed since.
func (h *Handler) now() int64 { return h.start.UnixNano() + int64(time.Since(h.start)) }

// ServeHTTP serves one request, as the package documentation describes.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	number := h.enter()
	var v verdict
	defer func() { h.leave(v.release) }()
	rng := h.rng(number)
	there, back := h.travel(rng), h.travel(rng)
	h.work(h.after(there), 0)
	f := strikes(h.faults, &attempt{r: r, number: number, since: time.Since(h.start), rng: rng})
	if f != nil && f.kind.strikesFirst() {
		h.fail(w, r, f, h.refusalTime.draw(rng), back)
		return
	}
	claims := h.claims(r)
	v = h.decide(claims, h.service.draw(rng))
	if v.refusal != nil {
		h.work(h.after(h.refusalTime.draw(rng)), back)
		h.refuse(w, r, v)
		return
	}
	h.work(v.done, back)
	r = h.charging(r, claims, v.now)
	if h.words.always {
		h.words.setReset(w.Header(), v.now, v.standings)
	}
	h.words.setFields(w.Header(), v.now, v.standings)
	h.answer(w, r, f)
}

// enter counts a request in, or aborts it once the server is closed.
func (h *Handler) enter() (number int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		panic(http.ErrAbortHandler)
	}
	h.running.Add(1)
	h.counts.Received++
	h.counts.InFlight++
	h.counts.MaxInFlight = max(h.counts.MaxInFlight, h.counts.InFlight)
	return h.counts.Received
}

func (h *Handler) leave(release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if release != nil {
		release()
	}
	h.counts.InFlight--
	h.running.Done()
}

// stop aborts what is running, and everything that comes later.
func (h *Handler) stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.closed = true
		close(h.done)
	}
}

// pause sleeps, and aborts the request if the server is closed.
func (h *Handler) pause(d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	select {
	case <-timer.C:
	case <-h.done:
		timer.Stop()
		panic(http.ErrAbortHandler)
	}
}

// travel is how long one way takes.
func (h *Handler) travel(rng *rand.Rand) time.Duration {
	if h.jitter == 0 {
		return h.trip / 2
	}
	return h.trip/2 - h.jitter + time.Duration(rng.Int64N(2*int64(h.jitter)+1))
}

// claims is what a request costs in each limit, and for whom.
func (h *Handler) claims(r *http.Request) []claim {
	specs := *h.specs.Load()
	claims := make([]claim, len(specs))
	for i, l := range specs {
		if claims[i].cost = l.cost(r); claims[i].cost > 0 {
			claims[i].key = l.key(r)
		}
	}
	return claims
}

// fail plays a fault that comes before the limits.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, f *Fault, took, back time.Duration) {
	h.mu.Lock()
	h.counts.Failed++
	h.mu.Unlock()
	switch f.kind {
	case outage:
		h.work(h.after(took), back)
		f.write(w)
	case hang:
		// net/http notices that the client has gone only after the request's body has been read.
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-r.Context().Done():
		case <-h.done:
		}
		panic(http.ErrAbortHandler)
	case abort:
		panic(http.ErrAbortHandler)
	}
}

func (h *Handler) refuse(w http.ResponseWriter, r *http.Request, v verdict) {
	h.words.setRetryAfter(w.Header(), v.now, v.refusal.Wait)
	h.words.setFields(w.Header(), v.now, v.standings)
	if h.refusal != nil {
		h.refusal(w, r, *v.refusal)
		return
	}
	writeStatus(w, v.refusal.Status)
}

// answer responds to an accepted request, with the fault f if that is not nil.
func (h *Handler) answer(w http.ResponseWriter, r *http.Request, f *Fault) {
	if f == nil {
		h.next.ServeHTTP(w, r)
		return
	}
	h.mu.Lock()
	h.counts.Spoiled++
	h.mu.Unlock()
	switch f.kind {
	case respond:
		f.write(w)
	case cutBody:
		cut := &cutWriter{ResponseWriter: w, left: f.size}
		h.next.ServeHTTP(cut, r)
		cut.cut()
	case slowBody:
		h.next.ServeHTTP(&slowWriter{ResponseWriter: w, size: f.size, rest: func() { h.pause(f.every) }}, r)
	}
}
