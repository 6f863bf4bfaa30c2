package throttle

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/httpthrottle/throttle/internal/jsonfinder"
)

// A body is one that a caller reads, watched for what it says that the request cost, and for when it is over: read to its
// end, failed or closed, or, where there are slots to be given back, its request's context ended.
type body struct {
	io.ReadCloser
	grant   *Grant
	own     Grant // for grant to point to, unless it is kept elsewhere
	slots   bool
	watched bool // there are costs to be found, or more

	mu      sync.Mutex  // guards what follows: a context may end, and a body be closed, while it is read
	release func() bool // stops waiting for the end of the context; nil: nobody waits for it
	over    bool
	more    *listener // nil: it has heard enough, or there is none
	costs   []bodyCost
	room    [1]bodyCost
}

// A bodyCost is what a body says of one charge.
type bodyCost struct {
	charge int
	finder jsonfinder.Finder
}

// A halfCloser is an upgraded connection as net/http hands it out; httputil.ReverseProxy asks for CloseWrite.
type halfCloser interface {
	io.Writer
	CloseWrite() error
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.watched {
		b.observe(p[:n]).tell()
	}
	if err != nil {
		b.end(err == io.EOF)
	}
	return n, err
}

// observe takes in what was read. It returns the listener once that has heard enough.
func (b *body) observe(p []byte) (more *listener) {
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

// end gives slots back, and corrects what was charged. Where a body was not read to its end, not all that it costs may
// have been said yet.
func (b *body) end(whole bool) {
	first, release, more := b.first()
	if release != nil {
		release()
	}
	defer more.tell()
	if b.slots {
		b.grant.Done() // be it first or not: whoever closes a body finds that its slots are free
	}
	if !first {
		return
	}
	for i := range b.costs {
		c := &b.costs[i]
		if cost, ok := c.finder.Sum(); ok && (whole || c.finder.All()) {
			_ = b.grant.limiter.settle(b.grant, c.charge, cost) // it may have been settled before
		}
	}
}

// first reports whether this is the first end of all, and returns what stops waiting for the end of the context, and the
// listener if that has not told yet what it heard.
func (b *body) first() (first bool, release func() bool, more *listener) {
	b.mu.Lock()
	defer b.mu.Unlock()
	first, b.over = !b.over, true
	more, b.more = b.more, nil
	return first, b.release, more
}

// follow corrects the charges of a request by the headers of its answer, or has its body watched for that, and keeps its
// slots until that is over. It returns its Grant where that is kept: as it is already, or was not and must be now.
func (t *Transport) follow(req *http.Request, resp *http.Response, g, kept *Grant, more *listener) *Grant {
	slots, costs := t.settle(req, resp, kept.or(g))
	if !slots && costs == 0 && more == nil {
		return kept
	}
	if more != nil {
		more.sent = g.mark.at
	}
	b := &body{ReadCloser: resp.Body, grant: kept, slots: slots, watched: costs > 0 || more != nil, more: more}
	if kept == nil {
		b.own = *g
		b.grant = &b.own
	}
	b.watch(resp, costs)
	if slots {
		b.until(req.Context())
	}
	resp.Body = b.as(resp.Body)
	return b.grant
}

// settle corrects the charges of a request by the headers of its answer. It returns whether there are slots to be kept
// until the body is over, and for how many charges that may tell what they cost.
func (t *Transport) settle(req *http.Request, resp *http.Response, g *Grant) (slots bool, costs int) {
	read := resp.Body != nil && resp.Body != http.NoBody
	charges := g.charges()
	for i := range charges {
		c := &charges[i]
		if f := c.limit.settles; f != nil {
			if cost, ok := f(req, resp); ok {
				_ = t.limiter.settle(g, i, cost) // what is wrong is ignored, as SettleFunc says
				continue
			}
		}
		switch {
		case !read:
		case c.limit.kind == kindInFlight:
			c.kept = !c.limit.untilHeaders
			slots = slots || c.kept
		case c.limit.costAt != nil && isJSON(resp):
			c.told = true
			costs++
		}
	}
	return slots, costs
}

// watch prepares to find so many costs.
func (b *body) watch(resp *http.Response, costs int) {
	if costs == 0 {
		return
	}
	if b.costs = b.room[:0]; costs > len(b.room) {
		b.costs = make([]bodyCost, 0, costs)
	}
	events := mediaType(resp) == eventStream
	charges := b.grant.charges()
	for i := range charges {
		if c := &charges[i]; c.told {
			b.costs = append(b.costs, bodyCost{i, c.limit.costAt.Finder(events)})
		}
	}
}

// until has the body be over when the context ends.
func (b *body) until(ctx context.Context) {
	release := context.AfterFunc(ctx, func() { b.end(false) })
	b.mu.Lock()
	defer b.mu.Unlock()
	b.release = release
}

// as returns b as something that can be written to, if the body of an upgraded connection could.
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

const eventStream = "text/event-stream"

// isJSON reports whether the body of a response is to be read as JSON or as events: if it is of no other type, and not
// compressed, which it is only where the caller asked for that.
func isJSON(resp *http.Response) bool {
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return false
	}
	if c := resp.Header.Get("Content-Encoding"); c != "" && !strings.EqualFold(c, "identity") {
		return false
	}
	kind := mediaType(resp)
	return kind == "" || kind == eventStream || strings.Contains(kind, "json")
}

func mediaType(resp *http.Response) string {
	kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	return strings.ToLower(strings.TrimSpace(kind))
}
