package throttletest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// errAborted is the error of a request whose connection would have been closed before the response.
var errAborted = errors.New("throttletest: the server closed the connection before it answered")

// Direct returns a RoundTripper that calls the Handler without a connection, for simulations of many requests. It has the
// same limits, latencies and faults, and works inside and outside a bubble of testing/synctest. It is about three times as
// fast as a connection in memory, and its goroutines end with the request.
//
// It does not do what HTTP itself does. The response arrives when the Handler has returned, so its body does not stream, and
// [SlowBody] delays the whole response. Informational responses, trailers and upgrades do not arrive at all. If the context of
// the request ends, the client stops waiting, but the Handler continues, as it does behind a connection.
func (h *Handler) Direct() http.RoundTripper { return direct{h} }

type direct struct{ h *Handler }

func (d direct) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	closeBody := sync.OnceFunc(func() {
		if req.Body != nil {
			_ = req.Body.Close()
		}
	})
	if req.URL == nil {
		closeBody()
		return nil, errors.New("throttletest: the request has no URL")
	}
	if ctx.Err() != nil {
		closeBody()
		return nil, context.Cause(ctx)
	}
	a := &answer{header: make(http.Header)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer closeBody()
		a.err = d.serve(a, serverRequest(req))
	}()
	select {
	case <-done:
		return a.response(req)
	case <-ctx.Done():
		closeBody() // frees a Handler that reads a body which never ends
		return nil, context.Cause(ctx)
	}
}

// serve turns a panic of the Handler into an error, as net/http turns it into a closed connection.
func (d direct) serve(a *answer, r *http.Request) (err error) {
	defer func() {
		switch p := recover(); p {
		case nil:
		case http.ErrAbortHandler:
			err = errAborted
		default:
			err = fmt.Errorf("throttletest: the handler panicked: %v", p)
		}
	}()
	d.h.ServeHTTP(a, r)
	return nil
}

// serverRequest is a client's request as a server sees it.
func serverRequest(req *http.Request) *http.Request {
	r := req.WithContext(req.Context())
	r.Header = req.Header.Clone()
	if r.Header == nil {
		r.Header = make(http.Header)
	}
	if r.Host == "" {
		r.Host = req.URL.Host
	}
	if r.Method == "" {
		r.Method = http.MethodGet
	}
	r.RequestURI = req.URL.RequestURI()
	r.URL = &url.URL{Path: req.URL.Path, RawPath: req.URL.RawPath, RawQuery: req.URL.RawQuery}
	r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/1.1", 1, 1
	r.RemoteAddr = "direct"
	if r.Body == nil {
		r.Body = http.NoBody
	}
	return r
}

// An answer is a ResponseWriter that keeps what is written. Only the goroutine of the Handler touches it until that is done.
type answer struct {
	header  http.Header // as the Handler sees it
	sent    http.Header // as it was at WriteHeader; nil before that
	status  int
	body    bytes.Buffer
	flushed bool
	err     error
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	if a.sent != nil || status < 200 {
		return
	}
	a.status, a.sent = status, a.header.Clone()
	if a.sent.Get("Date") == "" {
		a.sent.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	}
}

func (a *answer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	if a.status == http.StatusNoContent || a.status == http.StatusNotModified {
		return 0, http.ErrBodyNotAllowed
	}
	return a.body.Write(p)
}

func (a *answer) Flush() {
	a.WriteHeader(http.StatusOK)
	a.flushed = true
}

// response is what the client gets. Like net/http, an aborted answer of which nothing has been flushed is none.
func (a *answer) response(req *http.Request) (*http.Response, error) {
	if a.err != nil && !a.flushed {
		return nil, a.err
	}
	a.WriteHeader(http.StatusOK)
	resp := &http.Response{
		Status:     fmt.Sprintf("%d %s", a.status, http.StatusText(a.status)),
		StatusCode: a.status,
		Proto:      "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header:        a.sent,
		ContentLength: int64(a.body.Len()),
		Request:       req,
	}
	body := io.Reader(&a.body)
	switch {
	case req.Method == http.MethodHead:
		body = http.NoBody
	case a.err != nil:
		resp.ContentLength = -1
		body = io.MultiReader(body, broken{})
	}
	resp.Body = io.NopCloser(body)
	return resp, nil
}

// broken is the end of a body that was cut short.
type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
