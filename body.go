package throttle

import (
	"context"
	"io"
	"net/http"
	"sync"
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

// keep holds the slots of a request, which was answered by resp, until its body is over.
func (t *Transport) keep(req *http.Request, resp *http.Response, s *receipt) {
	var kept []tracked
	for i := range s.len() {
		c := s.charge(i)
		if c.bucket.limit.kind == kindInFlight && !c.bucket.limit.untilHeaders {
			c.kept = true
			kept = append(kept, *c)
		}
	}
	if kept != nil {
		watchBody(req.Context(), resp, sync.OnceFunc(func() { t.limiter.release(kept) }))
	}
}
