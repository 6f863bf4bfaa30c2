package throttletest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// Charge charges a request more in the limit of that name, as servers do that count what they produce, or less if tokens is negative, as
// servers do that reserve an estimate and correct it when the response ends. It is for the handler of [WithHandler], with its request,
// before it returns:
//
//	throttletest.Charge(r, "tokens", used-estimate) // settled at the end
//	throttletest.Charge(r, "output-tokens", 20)     // for each piece of a stream
//
// A limit that counts only what is produced has a [Cost] of 1, so that it refuses requests while nothing is left. The debt of a bucket is at
// most its burst. What comes back of a window that has ended is lost. It is an error if r is not the request of such a
// handler, if there is no such limit, if it is [InFlight], or if it does not apply to the request.
func Charge(r *http.Request, limit string, tokens int64) error {
	c, ok := r.Context().Value(chargedKey{}).(*charged)
	if !ok {
		return fmt.Errorf("throttletest: Charge(%q, %d): the request is not one of WithHandler", limit, tokens)
	}
	if err := c.charge(limit, tokens); err != nil {
		return fmt.Errorf("throttletest: Charge(%q, %d): %w", limit, tokens, err)
	}
	return nil
}

// A charged is what an accepted request was charged, for Charge.
type charged struct {
	h      *Handler
	claims []claim
	at     int64
}

// chargedKey is the key of a charged in the context of its request.
type chargedKey struct{}

// charging returns a request that its handler may charge more. Without a handler of the user it is the same.
func (h *Handler) charging(r *http.Request, claims []claim, now int64) *http.Request {
	if !h.handles {
		return r
	}
	return r.WithContext(context.WithValue(r.Context(), chargedKey{}, &charged{h, claims, now}))
}

func (c *charged) charge(limit string, tokens int64) error {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()
	for i, r := range c.h.rules {
		if r.spec.name != limit {
			continue
		}
		switch {
		case r.spec.kind == inFlight:
			return errors.New("InFlight counts requests")
		case c.claims[i].cost <= 0:
			return errors.New("the limit does not apply to the request")
		}
		now, a := c.h.now(), r.account(c.h.now(), c.claims[i].key)
		if tokens < 0 {
			a.budget.credit(now, c.at, -tokens)
		} else if tokens > 0 {
			a.budget.charge(now, tokens)
		}
		if len(r.charges) < c.h.record {
			r.charges = append(r.charges, charge{now, tokens, a.id})
		}
		return nil
	}
	return errors.New("there is no such limit")
}

// BodyOf returns the body of a request, which can be read again afterwards: for the functions of [Key], [Cost], [WithKey] and
// [WithCost], where a body names the model that a request is for. If the body cannot be read, it is what could be read.
func BodyOf(r *http.Request) []byte {
	if b, ok := r.Body.(*readBody); ok {
		return b.all
	}
	if r.Body == nil {
		return nil
	}
	all, err := io.ReadAll(r.Body)
	rest := io.Reader(bytes.NewReader(all))
	if err != nil {
		rest = io.MultiReader(rest, unreadable{err})
	}
	r.Body = &readBody{all, rest, r.Body}
	return all
}

// A readBody is a body that was read, and is read again.
type readBody struct {
	all []byte
	io.Reader
	io.Closer
}

// An unreadable is the rest of a body that could not be read.
type unreadable struct{ err error }

func (f unreadable) Read([]byte) (int, error) { return 0, f.err }
