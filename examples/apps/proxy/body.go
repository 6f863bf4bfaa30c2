package main

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
)

// bodyMost is how much of the body of a request is read before it waits, in bytes.
const bodyMost = 4 << 20

// A sentBody is the body of a request that was read from its client before the request waits: Go's server notices that a client has left
// only after that. With GetBody, the Transport finds the model in it, and net/http sends it again if the server has closed an
// idle connection. It is kept until it was sent and a response has arrived, and not while that is read.
type sentBody struct{ bytes atomic.Pointer[[]byte] }

// readBody reads the body of a request, if it is not too long. It returns nil if there is none, or if it stays with the request.
func readBody(r *http.Request) (*sentBody, error) {
	if r.ContentLength == 0 || r.ContentLength > bodyMost {
		return nil, nil
	}
	text := bytes.NewBuffer(make([]byte, 0, max(r.ContentLength, 0)+bytes.MinRead))
	if _, err := text.ReadFrom(io.LimitReader(r.Body, bodyMost+1)); err != nil {
		return nil, err
	}
	if text.Len() > bodyMost {
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(text, r.Body), r.Body}
		return nil, nil
	}
	s, b := new(sentBody), text.Bytes()
	s.bytes.Store(&b)
	r.ContentLength, r.GetBody, r.TransferEncoding = int64(len(b)), s.open, nil
	r.Body, _ = s.open()
	return s, nil
}

// drop is called once a response has arrived.
func (s *sentBody) drop() {
	if s != nil {
		s.bytes.Store(nil)
	}
}

func (s *sentBody) open() (io.ReadCloser, error) {
	b := s.bytes.Load()
	if b == nil {
		return nil, errors.New("the body is not kept after a response")
	}
	return io.NopCloser(&bodyReader{*b}), nil
}

// A bodyReader reads a sentBody, and keeps only what is left.
type bodyReader struct{ left []byte }

func (r *bodyReader) Read(p []byte) (n int, err error) {
	n = copy(p, r.left)
	if r.left = r.left[n:]; len(r.left) == 0 {
		r.left, err = nil, io.EOF
	}
	return n, err
}
