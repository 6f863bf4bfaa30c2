package throttle

import (
	"cmp"
	"errors"
	"net/http"
	"time"

	"github.com/httpthrottle/throttle/internal/bridge"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/quota"
)

// TryRoundTrip sends a request if its limits allow it now and no request waits before it. Otherwise it returns false and leaves the
// request, its body and all limits as they are. The response and the error are those of [Transport.RoundTrip]. A dry run sends
// every request.
func (t *Transport) TryRoundTrip(req *http.Request) (resp *http.Response, sent bool, err error) {
	resp, sent, _, err = t.tryRoundTrip(req)
	return resp, sent, err
}

// tryRoundTrip is TryRoundTrip, and reports how far the request got.
func (t *Transport) tryRoundTrip(req *http.Request) (resp *http.Response, sent bool, far reach, err error) {
	t.mustBeMade()
	c := callOf(req)
	defer t.leave(&c) // if a function of the user panics, the body is closed
	if t.limiter.dry || t.isExempt(&c) {
		c.at = elsewhere
		resp, far, err = t.roundTrip(req)
		return resp, true, far, err
	}
	c.tries = true
	if _, resp, far, err = t.arrive(&c); c.at == unsent { // a request that has ended is not sent either
		c.at = elsewhere
		return nil, false, reachedNoBase, nil
	}
	return resp, true, far, err
}

// Enqueue takes a place in the queue for a request, with its costs and its keys, and behind what its server has asked for.
// [Ticket.RoundTrip] sends it; until then, its body is not touched. A rejection is not an error here, because Ticket.RoundTrip returns it.
// The error is the cause of a context that has ended, says why there is no rate for a key, or that the Transport has [WithDryRun], under
// which no request waits. To have a request wait at several Transports, use package pool.
//
// Only nil fits what may follow the request. It has no effect, and is for programs that were written when a request could be one of
// several Transports there.
func (t *Transport) Enqueue(req *http.Request, _ ...*struct{}) (*Ticket, error) {
	t.mustBeMade()
	if m := bridge.Asked(req); m != nil { // package pool asks
		t.pooled.Store(true)
		*m = (*member)(t)
		return nil, nil
	}
	w, err := t.asWaiter(req)
	if err != nil {
		return nil, err
	}
	w.Claim = limiter.NewClaim(time.Time{}) // which leaves a rejection to Ticket.RoundTrip
	defer w.Claim.Seal()
	waits, err := t.limiter.core.EnqueueClaimed(req.Context(), w, nil)
	if err != nil {
		return nil, err
	}
	if waits {
		t.limiter.show(req.Context(), w)
	}
	return &Ticket{limiter: t.limiter, waiter: w, decided: w.Claim.Done(), by: t, waits: waits}, nil
}

// asWaiter returns a request as one that waits. The error is one of Enqueue.
func (t *Transport) asWaiter(req *http.Request) (*limiter.Waiter, error) {
	if t.limiter.dry {
		return nil, errDryTicket
	}
	c := callOf(req)
	if err := c.ended(); err != nil {
		return nil, err
	}
	r := limiter.Request{User: t.user, Context: req.Context()}
	t.tariff.charge(&c, &r, nil)
	w := r.Waiter()
	t.prepareToWait(&c, w)
	t.findGate(&c, w)
	if w.Gate != nil { // until the request is sent, the caller may change it
		w.Gate.Traits = quota.Fixed(w.Gate.Traits)
	}
	return w, nil
}

var (
	errDryTicket = errors.New("throttle: a Transport with WithDryRun lets no request wait, so it has no Tickets")
	errNoTicket  = errors.New("throttle: the Ticket was used before, or is not of a Transport")
)

// RoundTrip sends the request for which a Transport made the Ticket, or one like it, as the Transport would: it waits until the Ticket is
// decided, returns a rejection as a response or an error, and closes the body.
func (t *Ticket) RoundTrip(req *http.Request) (*http.Response, error) {
	if t.by == nil || t.used.Swap(true) {
		closeBody(req)
		return nil, errNoTicket
	}
	//lint:ignore SA1019 http.Client sets Cancel with its Timeout
	ctx, cancel := req.Context(), req.Cancel
	select {
	case <-t.decided:
	case <-ctx.Done():
	case <-cancel:
	}
	switch w := t.waiter; {
	case w.Claim.Winner() == w:
		resp, _, err := t.by.sendGranted(req, w, t.waits)
		return resp, err
	case t.limiter.core.RejectionOf(w) != nil:
		return t.by.rejectWaiter(req, w)
	default:
		t.leave()
		closeBody(req)
		return nil, cmp.Or(limiter.Ended(ctx, cancel), errNoTicket)
	}
}

// sendGranted sends a request that was granted.
func (t *Transport) sendGranted(req *http.Request, w *limiter.Waiter, waited bool) (*http.Response, reach, error) {
	c := callOf(req)
	defer t.leave(&c)
	if waited {
		//lint:ignore SA1019 http.Client sets Cancel with its Timeout
		if err := t.limiter.core.Await(req.Context(), req.Cancel, w); err != nil {
			return nil, reachedNoBase, err
		}
	} else if err := c.ended(); err != nil { // it was granted when it came
		t.limiter.core.Return(w)
		return nil, reachedNoBase, err
	}
	return t.sendWaited(&c, w)
}

// rejectWaiter returns what the caller gets for a request that was rejected while it waited.
func (t *Transport) rejectWaiter(req *http.Request, w *limiter.Waiter) (*http.Response, error) {
	defer closeBody(req)
	resp, _, err := t.turnAway(req, t.limiter.core.Reject(req.Context(), w), true)
	return resp, err
}
