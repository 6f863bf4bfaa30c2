package throttle

import (
	"context"
	"io"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/httpthrottle/throttle/internal/content"
	"github.com/httpthrottle/throttle/internal/jsonfinder"
	"github.com/httpthrottle/throttle/internal/limiter"
)

// A body wraps a response body that a caller reads. It finds costs in it, passes its beginning to a bodyHints, and gives
// slots back when it ends: read to its end, failed, closed, or the context of its request ended.
type body struct {
	io.ReadCloser
	resp    *http.Response
	grant   *Grant
	own     Grant // where grant points, unless that is kept elsewhere
	slots   bool
	watched bool        // there are costs to find, or a bodyHints
	done    atomic.Bool // it has ended, and all was done for that

	mu      sync.Mutex  // guards what follows: a context may end, and a body be closed, while it is read
	release func() bool // stops the wait for the end of the context; nil: there is none
	over    bool
	more    *bodyHints // nil: it has read enough, or there is none
	costs   []bodyCost
}

// A bodyCost finds the cost of one charge in a body.
type bodyCost struct {
	charge        int
	finder        jsonfinder.Finder
	by            JSONCostFunc // nil: their sum
	tried         bool         // to settle it
	unsaid        bool         // it is settled, and no hook was called yet
	warns         bool         // the log is to say what responses lack
	charged, cost int64
}

// newBody returns a body with room for that many costs. Finders are large, and most bodies have none.
func newBody(costs int) *body {
	switch costs {
	case 0:
		return new(body)
	case 1:
		b := new(struct {
			body
			room [1]bodyCost
		})
		b.costs = b.room[:0]
		return &b.body
	}
	return &body{costs: make([]bodyCost, 0, costs)}
}

// A halfCloser is an upgraded connection as net/http hands it out; httputil.ReverseProxy asks for CloseWrite.
type halfCloser interface {
	io.Writer
	CloseWrite() error
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.watched {
		b.observe(p[:n]).report()
	}
	if err != nil {
		b.end(err == io.EOF)
	}
	return n, err
}

// observe passes on what was read. It returns the bodyHints once that has enough.
func (b *body) observe(p []byte) (more *bodyHints) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return nil
	}
	for i := range b.costs {
		b.costs[i].finder.Observe(p)
	}
	if b.more != nil && b.more.observe(p) {
		more, b.more = b.more, nil
	}
	return more
}

func (b *body) Close() error {
	defer b.end(false)
	return b.ReadCloser.Close()
}

// end settles charges and gives slots back. A body that was not read to its end may lack a part of the cost: then a
// charge is settled only if every path was found.
func (b *body) end(whole bool) {
	if b.done.Load() {
		return
	}
	first, release, more := b.first()
	if first {
		defer b.finish()
	}
	// It may lapse at this time, and leaves what is to be said to the next call.
	lapses := release != nil && !release()
	defer func() { // also if a hook panics
		b.settle(whole && first)
		if !lapses {
			b.done.Store(true)
		}
	}()
	more.report() // before slots are free, because a refusal concerns the requests that wait for them
}

// settle settles charges, and then gives slots back: a request that gets one is charged of what is really there.
func (b *body) settle(whole bool) {
	func() {
		if b.slots {
			defer b.grant.Done() // each time, so that slots are free when Close returns
		}
		b.settleFound(whole, true)
	}()
	b.say()
}

// lapse settles charges and gives slots back when the context ends. It runs in a goroutine of its own, where no caller could recover
// the panic of a user's function: these are called by the Read or Close that comes next.
func (b *body) lapse() {
	b.mu.Lock()
	first := !b.over
	b.over = true
	b.mu.Unlock()
	b.settleFound(false, false)
	b.grant.Done()
	if first {
		b.finish()
	}
}

// finish reports that the request is not in flight any more.
func (b *body) finish() { b.grant.limiter.core.Finish(b.grant.request.User) }

// settleFound settles the charges whose costs were found. byCaller says that users' functions may be called.
func (b *body) settleFound(whole, byCaller bool) {
	for i := range b.costs {
		c := &b.costs[i]
		if !b.tries(c, byCaller) {
			continue
		}
		if found := c.finder.Found(); (whole || found != 0) && b.resp.StatusCode < 300 && b.policyOf(c).paths.See(found) {
			b.mu.Lock()
			c.warns = true
			b.mu.Unlock()
		}
		switch {
		case !whole && !c.finder.All():
			b.grant.limiter.core.LeaveUnsettled(&b.grant.request, c.charge)
			continue
		}
		cost, ok := c.finder.Sum()
		if c.by != nil {
			cost, ok = c.by(b.resp, c.finder.Numbers())
		}
		if !ok {
			b.grant.limiter.core.LeaveUnsettled(&b.grant.request, c.charge)
			continue
		}
		e, err := b.grant.limiter.correct(&b.grant.request, c.charge, cost)
		b.mu.Lock()
		c.unsaid, c.charged, c.cost = err == nil, e.Charged, e.Cost // there is an error if it was settled before
		b.mu.Unlock()
	}
}

// tries reports whether a charge is to be settled now, which was not tried before.
func (b *body) tries(c *bodyCost, byCaller bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.tried || c.by != nil && !byCaller {
		return false
	}
	c.tried = true
	return true
}

// say calls the hook for settled charges, and writes to the log.
func (b *body) say() {
	o := observerOf(&b.grant.request)
	for i := range b.costs {
		c := &b.costs[i]
		unsaid, warns := b.says(c)
		if warns {
			o.suspicious(b.policyOf(c))
		}
		if unsaid {
			at := &b.grant.request.Charges()[c.charge]
			o.settled(SettleEvent{Place{b.grant.request.Context, at.Limit().Name, at.Key}, c.charged, c.cost})
		}
	}
}

// says returns what is to be said of a charge, and was not said before.
func (b *body) says(c *bodyCost) (unsaid, warns bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	unsaid, warns, c.unsaid, c.warns = c.unsaid, c.warns, false, false
	return unsaid, warns
}

// policyOf returns the policy of the limit of a charge.
func (b *body) policyOf(c *bodyCost) *policy {
	return b.grant.limiter.policyOf(b.grant.request.Charges()[c.charge].Limit())
}

// first reports whether the body ends for the first time. It returns what stops the wait for the end of the context, and
// the bodyHints if that has not reported yet.
func (b *body) first() (first bool, release func() bool, more *bodyHints) {
	b.mu.Lock()
	defer b.mu.Unlock()
	first, b.over = !b.over, true
	more, b.more = b.more, nil
	return first, b.release, more
}

// follow has the report settle the charges of a request by the headers of its response, and wraps the body if it may contain costs or
// limits, or if slots are kept until its end. Then the request is in flight until that, and the body has its Grant.
func (t *Transport) follow(c *call, resp *http.Response, r *limiter.Request, s *sent) {
	slots, costs := t.settleByHeaders(c, resp, r, s)
	if !slots && costs == 0 && s.more == nil {
		return
	}
	if s.more != nil {
		s.more.sent = r.At
	}
	b := newBody(costs)
	b.ReadCloser, b.resp, b.grant, b.slots, b.more = resp.Body, resp, s.kept, slots, s.more
	b.watched = costs > 0 || s.more != nil
	if b.grant == nil {
		b.own = Grant{t.limiter, *r}
		b.grant = &b.own
	}
	if s.more != nil {
		s.more.charges = b.grant.request.Charges()
	}
	b.watch(resp, costs)
	if slots {
		b.until(c.req.Context())
	}
	resp.Body = b.as(resp.Body)
	s.kept, c.at = b.grant, elsewhere
}

// settleByHeaders has the report settle the charges of a request by the headers of its response. It reports whether slots are kept
// until the end of the body, and for how many charges the cost may be in the body.
func (t *Transport) settleByHeaders(c *call, resp *http.Response, r *limiter.Request, s *sent) (slots bool, costs int) {
	req, charges, a := c.req, r.Charges(), &s.answer
	for i := range charges {
		of := &charges[i]
		policy := t.limiter.policyOf(of.Limit())
		if f := policy.settles; f != nil {
			if cost, ok := f(req, resp); ok {
				t.limiter.settleWith(r, i, cost, a)
				continue
			}
		}
		switch {
		case of.Limit().Frees:
			of.Kept = !policy.untilHeaders && !content.IsEmpty(req, resp)
			slots = slots || of.Kept
		case policy.costAt == nil:
		default:
			inBody := content.MayHave(req, resp) && content.MayBeJSON(resp.Header)
			if inBody && content.CodingOf(resp.Header) == content.Plain {
				of.ByBody = true
				costs++
				continue
			}
			if policy.costBy != nil {
				if cost, ok := policy.costBy(resp, policy.costAt.None()); ok {
					t.limiter.settleWith(r, i, cost, a)
					continue
				}
			}
			switch {
			case inBody:
				t.observer.unread(t.limiter.core, of.Limit(), req, s.host, resp)
			case resp.StatusCode < 300 && policy.paths.See(0):
				t.observer.suspicious(policy)
			}
		}
	}
	return slots, costs
}

// watch prepares to find that many costs.
func (b *body) watch(resp *http.Response, costs int) {
	if costs == 0 {
		return
	}
	form := jsonfinder.JSON
	switch content.TypeOf(resp.Header) {
	case content.EventStream:
		form = jsonfinder.Events
	case content.AmazonStream:
		form = jsonfinder.Frames
	}
	charges := b.grant.request.Charges()
	for i := range charges {
		if c := &charges[i]; c.ByBody {
			policy := b.grant.limiter.policyOf(c.Limit())
			b.costs = b.costs[:len(b.costs)+1] // in its room, because a finder is large
			cost := &b.costs[len(b.costs)-1]
			cost.charge, cost.by = i, policy.costBy
			cost.finder.Begin(policy.costAt, form)
		}
	}
}

// until makes the body lapse when the context ends.
func (b *body) until(ctx context.Context) {
	if ctx.Done() == nil { // it has no end
		return
	}
	release := context.AfterFunc(ctx, b.lapse)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.release = release
}

// as returns b with the methods to write that the original has, as the body of an upgraded connection.
func (b *body) as(original io.ReadCloser) io.ReadCloser {
	switch w := original.(type) {
	case halfCloser:
		return struct {
			*body
			halfCloser
		}{b, w}
	case io.Writer:
		return struct {
			*body
			io.Writer
		}{b, w}
	}
	return b
}
