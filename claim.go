package throttle

import (
	"cmp"
	"errors"
	"net/http"
	"time"

	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/quota"
)

// TryRoundTrip sends a request if its limits allow it now and no request waits before it. Otherwise it returns false and leaves the
// request, its body and all limits as they are. The response and the error are those of [Transport.RoundTrip]. A dry run sends
// every request.
func (t *Transport) TryRoundTrip(req *http.Request) (resp *http.Response, sent bool, err error) {
	t.mustBeMade()
	c := callOf(req)
	defer t.leave(&c) // if a function of the user panics, the body is closed
	if t.limiter.dry || t.isExempt(&c) {
		c.at = elsewhere
		resp, err = t.RoundTrip(req)
		return resp, true, err
	}
	r := limiter.Request{User: t.user, Context: req.Context()}
	granted := false
	if t.isHinted() {
		granted, _ = t.enterByGate(&c, &r) // a request that has ended is not sent either
	} else {
		t.charge(&c, &r, nil)
		granted = c.ended() == nil && t.limiter.core.Now(&r, nil)
	}
	if !granted {
		c.at = elsewhere
		return nil, false, nil
	}
	resp, _, err = t.send(&c, &r)
	return resp, true, err
}

// A Claim has a request wait at several Transports until the first of them grants it. The others never charge it.
type Claim struct {
	claim  *limiter.Claim
	within time.Duration
}

// NewClaim returns a Claim for one request, which waits for at most the time within at each Transport, or for less if the Transport or the
// context says so; negative: there is no other bound.
func NewClaim(within time.Duration) *Claim { return &Claim{limiter.NewClaim(), within} }

// Done returns a channel that is closed when one of the Tickets is granted or, after Seal, when all are rejected or canceled.
func (c *Claim) Done() <-chan struct{} { return c.claim.Done() }

// Seal says that all Transports were asked. It is called once.
func (c *Claim) Seal() { c.claim.Seal() }

// Granted reports whether that Ticket was granted; the others are not. Once Done is closed, that stays so.
func (c *Claim) Granted(t *Ticket) bool { return t.waiter != nil && c.claim.Winner() == t.waiter }

// Enqueue takes a place in the queue for a request, with its costs and its keys, and behind what its server has asked for.
// [Ticket.RoundTrip] sends it; until then, its body is not touched. A rejection is not an error here, because Ticket.RoundTrip returns it.
// The error is the cause of a context that has ended, says why there is no rate for a key, or that the Transport has [WithDryRun], under
// which no request waits.
//
// With a Claim, the request waits at several Transports. Cancel the Tickets that are not granted: they are counted neither as canceled nor
// as rejected. If Done is closed already, the Ticket is neither granted nor rejected. Without a Claim (nil), the request waits here alone.
func (t *Transport) Enqueue(req *http.Request, c *Claim) (*Ticket, error) {
	t.mustBeMade()
	if t.limiter.dry {
		return nil, errDryTicket
	}
	//lint:ignore SA1019 http.Client sets Cancel with its Timeout
	if err := limiter.Ended(req.Context(), req.Cancel); err != nil {
		return nil, err
	}
	if c == nil {
		c = NewClaim(-1)
		defer c.Seal()
	}
	of := callOf(req)
	r := limiter.Request{User: t.user, Context: req.Context()}
	t.charge(&of, &r, nil)
	w := r.Waiter()
	t.prepareToWait(&of, w)
	t.findGate(&of, w)
	if w.Gate != nil { // until Ticket.RoundTrip, the caller may change the request
		w.Gate.Traits = quota.Fixed(w.Gate.Traits)
	}
	w.Claim = c.claim
	if c.within >= 0 && (w.MaxWait < 0 || c.within < w.MaxWait) {
		w.MaxWait = c.within
	}
	waits, err := t.limiter.core.EnqueueClaimed(req.Context(), w)
	if err != nil {
		return nil, err
	}
	if waits && of.receipt != nil {
		of.receipt.wait(t.limiter, w)
	}
	return &Ticket{limiter: t.limiter, waiter: w, decided: c.Done(), claimed: &claimed{t, c, waits}}, nil
}

var (
	errDryTicket = errors.New("throttle: a Transport with WithDryRun lets no request wait, so it has no Tickets")
	errNoTicket  = errors.New("throttle: the Ticket was not granted, was used before, or is not of a Transport")
)

// RoundTrip sends the request for which a Transport made the Ticket, or one like it, as the Transport would: it waits until the Ticket is
// decided, returns a rejection as a response or an error, and closes the body. It is an error if another Ticket of the [Claim] was granted.
func (t *Ticket) RoundTrip(req *http.Request) (*http.Response, error) {
	c := t.claimed
	if c == nil || t.used.Swap(true) {
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
	core, w := t.limiter.core, t.waiter
	of := callOf(req)
	defer c.by.leave(&of)
	rejected, err := false, error(nil)
	switch winner := c.claim.claim.Winner(); {
	case winner == w:
		if c.waits {
			err = core.Await(ctx, cancel, w)
		}
		if err == nil {
			resp, _, err := c.by.sendWaited(&of, w)
			return resp, err
		}
	case winner == nil && core.RefusalOf(w) != nil:
		rejected, err = true, core.Refuse(ctx, w)
	default:
		t.leave()
		err = cmp.Or(limiter.Ended(ctx, cancel), errNoTicket)
	}
	resp, _, err := c.by.turnAway(req, err, rejected)
	return resp, err
}

// Rejection returns how long it would have been until the Ticket of a Transport could have been granted, and reports whether it was
// rejected. Once Done of the [Claim] is closed, and none of its Tickets is granted, that stays so.
func (t *Ticket) Rejection() (wait time.Duration, rejected bool) {
	if t.claimed == nil {
		return 0, false
	}
	r := t.limiter.core.RefusalOf(t.waiter)
	if r == nil {
		return 0, false
	}
	return r.Wait, true
}
