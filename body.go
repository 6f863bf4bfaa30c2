package throttle

import (
	"context"
	"io"
	"net/http"
)

// A body tells when it is over: read to its end, failed, closed, or its request's context ended.
type body struct {
	io.ReadCloser
	over func()
}

// watchBody calls over once, when the body of resp is over, which may be at once.
func watchBody(ctx context.Context, resp *http.Response, over func()) {
	if resp.Body == nil || resp.Body == http.NoBody {
		over()
		return
	}
	b := &body{ReadCloser: resp.Body}
	stop := context.AfterFunc(ctx, over)
	b.over = func() {
		stop()
		over()
	}
	w, writes := resp.Body.(io.Writer) // of a connection that was upgraded
	c, half := resp.Body.(halfCloser)
	switch {
	case half:
		resp.Body = struct {
			*body
			halfCloser
		}{b, c}
	case writes:
		resp.Body = struct {
			*body
			io.Writer
		}{b, w}
	default:
		resp.Body = b
	}
}

// A halfCloser is an upgraded connection as net/http hands it out; httputil.ReverseProxy asks for CloseWrite.
type halfCloser interface {
	io.Writer
	CloseWrite() error
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.over()
	}
	return n, err
}

func (b *body) Close() error {
	defer b.over()
	return b.ReadCloser.Close()
}

// watch keeps the slots of a request, which was answered by resp, until its body is over, and returns its Grant.
func (t *Transport) watch(req *http.Request, resp *http.Response, g *Grant) *Grant {
	slots := false
	for i := range g.charges() {
		c := &g.charges()[i]
		c.kept = c.limit.kind == kindInFlight && !c.limit.untilHeaders
		slots = slots || c.kept
	}
	if !slots {
		return g
	}
	k := new(*g)
	watchBody(req.Context(), resp, k.Done)
	return k
}
