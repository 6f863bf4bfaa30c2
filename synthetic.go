package throttle

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"

	"github.com/httpthrottle/throttle/internal/problem"
)

type localKey struct{}

// A synthetic is a response that was made here, in one allocation with all that it refers to. The context of its Request
// marks it, and names the response, because that Request, and with it the mark, may be sent again.
type synthetic struct {
	context.Context // of the request that was rejected

	rejection *Rejection
	response  http.Response
	request   http.Request
	text      syntheticBody
	room      problem.Room
}

// Value marks the request of the response.
func (s *synthetic) Value(key any) any {
	if key == (localKey{}) {
		return s
	}
	return s.Context.Value(key)
}

type syntheticBody struct{ bytes.Reader }

func (*syntheticBody) Close() error { return nil }

// A rejecter decides what the caller of a rejected request gets.
type rejecter struct {
	asError bool                                           // the Rejection itself
	shape   func(*Rejection, *http.Request) *http.Response // nil: Response makes the response
}

func (t *rejecter) reject(req *http.Request, r *Rejection) (*http.Response, error) {
	if t.asError || r.onlyError() {
		return nil, r
	}
	if t.shape != nil {
		if made := t.shape(r, req); made != nil {
			return r.shaped(req, made), nil
		}
	}
	return r.Response(req), nil
}

// RejectionOf returns the rejection behind a response that a Transport made, and reports whether a Transport made it. So it
// distinguishes a synthetic 429 from a 429 sent by the server. It looks at the context of the response's Request, which a server
// cannot forge. It needs the response itself, not a copy; http.Client returns the response itself.
func RejectionOf(resp *http.Response) (*Rejection, bool) {
	if resp == nil || resp.Request == nil {
		return nil, false
	}
	if s, ok := resp.Request.Context().Value(localKey{}).(*synthetic); ok && &s.response == resp {
		return s.rejection, true
	}
	return nil, false
}

// Response returns the response that a Transport rejects req with by default: 429 Too Many Requests with Retry-After in whole
// seconds and a problem document (RFC 9457) as its body, in which retry_after has the seconds with a fraction. The body may be
// forwarded to others, because it names no limit, key or reason. For [ReasonFinal] it has no Retry-After, but X-Should-Retry: false, and
// what the server said in its body, as the response of the server would have. For [ReasonShutdown], which a
// Transport returns as an error, it is 503 Service Unavailable with a Retry-After of a second, for the clients of a gateway that ends:
// another process serves them then. [RejectionOf] returns limit, key and reason, [Rejection.Error] puts them into words, and shape.Problem
// makes a response that names them. [RejectionOf] distinguishes the response from one of a server. A function for [WithRejectionResponse]
// can change it and return it.
func (r *Rejection) Response(req *http.Request) *http.Response {
	s := r.respond(req)
	code, status := http.StatusTooManyRequests, "429 Too Many Requests"
	if r.Reason == ReasonShutdown {
		code, status = http.StatusServiceUnavailable, "503 Service Unavailable"
	}
	s.response = http.Response{
		Status: status, StatusCode: code,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: make(http.Header, problem.Fields), Request: &s.request,
	}
	text := s.document(r)
	s.response.ContentLength = int64(len(text))
	s.response.Body = http.NoBody
	if req.Method != http.MethodHead {
		s.text.Reset(text)
		s.response.Body = &s.text
	}
	return &s.response
}

// respond returns a response without content, to be filled in, that is marked as made here.
func (r *Rejection) respond(req *http.Request) *synthetic {
	s := &synthetic{Context: req.Context(), rejection: r}
	s.request = *req.WithContext(s)
	s.response.Request = &s.request
	return s
}

// WriteResponse writes the same response, as a handler in front of the Transport does, such
// as an httputil.ReverseProxy in its ErrorHandler.
func (r *Rejection) WriteResponse(w http.ResponseWriter) {
	resp := r.Response(new(http.Request))
	maps.Copy(w.Header(), resp.Header)
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, resp.Body) // an error is that of the client's connection
}

// document returns the body, and sets the header to go with it.
func (s *synthetic) document(r *Rejection) []byte {
	p := problem.Problem{Wait: r.Wait, Shutdown: r.Reason == ReasonShutdown}
	if said, final := r.Err.(*FinalError); final {
		p.Final, p.Said, p.Code = true, said.Error(), said.Code
	}
	return p.Write(&s.room, s.response.Header)
}

// shaped returns the response that the user's shape has made of a rejection. It fills in what a whole response must have.
func (r *Rejection) shaped(req *http.Request, made *http.Response) *http.Response {
	resp := made
	if by, ok := RejectionOf(made); !ok || by != r { // not made by Response, and the user may return it more than once
		s := r.respond(req)
		s.response = *made
		s.response.Request = &s.request
		resp = &s.response
	}
	if resp.Body != nil && req.Method == http.MethodHead {
		resp.Body.Close() // the caller does not get it
		resp.Body = nil
	}
	switch {
	case resp.Body == nil:
		resp.Body = http.NoBody
	case resp.ContentLength == 0 && resp.Body != http.NoBody:
		resp.ContentLength = -1
	}
	if resp.Header == nil {
		resp.Header = http.Header{}
	}
	if resp.StatusCode == 0 {
		resp.StatusCode = http.StatusTooManyRequests
	}
	if !strings.HasPrefix(resp.Status, strconv.Itoa(resp.StatusCode)+" ") {
		resp.Status = strconv.Itoa(resp.StatusCode) + " " + http.StatusText(resp.StatusCode)
	}
	if resp.Proto == "" {
		resp.Proto, resp.ProtoMajor, resp.ProtoMinor = "HTTP/1.1", 1, 1
	}
	return resp
}
