package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/httpthrottle/throttle"
)

// A wait is a request that waits at several members.
type wait struct {
	pool   *Pool
	req    *http.Request
	tried  []*state
	tier   tier
	start  time.Duration // when the request came
	claim  *throttle.Claim
	places []place
	undone bool // it was granted by a member that was removed at that instant
	faults []error
}

// A place is that of a request at one member.
type place struct {
	member
	ticket *throttle.Ticket
}

// wait waits until a member grants the request, and sends it. The error is errLater if none does in time, and there is another tier, and
// errChanged if none is known because the members were replaced.
func (w *wait) wait(set *set) (by *member, resp *http.Response, err error) {
	within := w.tier.within
	if within >= 0 {
		within = max(0, within-(w.pool.now()-w.start))
	}
	w.claim = throttle.NewClaim(within)
	var at *place
	ended := false
	defer func() {
		if !ended { // a function of the user has panicked
			closeBody(w.req)
		}
		w.leave(at)
	}()
	for i, m := range set.members {
		if w.tier.mask.has(i) {
			w.enter(m)
		}
	}
	w.claim.Seal()
	if err := w.await(set); err != nil {
		return nil, nil, err
	}
	at, granted := w.decided()
	w.leave(at)
	ended = true
	switch {
	case granted:
		resp, err = w.pool.redeem(at, w.req)
		return &at.member, resp, err
	case at == nil && (w.undone || len(w.places) > 0 || len(w.faults) == 0):
		return nil, nil, errChanged
	case w.tier.within >= 0:
		return nil, nil, errLater
	case at == nil:
		closeBody(w.req)
		return nil, nil, cmp.Or(context.Cause(w.req.Context()), errors.Join(w.faults...))
	}
	resp, err = at.ticket.RoundTrip(w.req)
	return nil, resp, err
}

// await waits until the request is granted, or no member can grant it. The error is why the request has ended.
func (w *wait) await(set *set) error {
	for {
		select {
		case <-w.claim.Done():
			return nil
		case <-set.changed:
			set = w.pool.set.Load()
			w.move(set)
		case <-w.req.Context().Done():
			return context.Cause(w.req.Context())
		//lint:ignore SA1019 http.Client sets Cancel with its Timeout
		case <-w.req.Cancel:
			return errCanceled
		}
	}
}

var errCanceled = fmt.Errorf("pool: request canceled while waiting: %w", context.Canceled)

// decided returns the place that was granted or, if all are rejected, the one that could have been granted first; nil: neither, because
// the members were replaced when the last place was decided.
func (w *wait) decided() (at *place, granted bool) {
	least := time.Duration(0)
	for i := range w.places {
		if w.claim.Granted(w.places[i].ticket) {
			return &w.places[i], true
		}
	}
	for i := range w.places {
		d, rejected := w.places[i].ticket.Rejection()
		if w.undone || !rejected {
			return nil, false
		}
		if at == nil || d < least {
			at, least = &w.places[i], d
		}
	}
	return at, false
}

// enter has the request wait at a member, too.
func (w *wait) enter(m member) {
	ticket, err := m.Transport.Enqueue(w.req, w.claim)
	if err != nil {
		w.faults = append(w.faults, err)
		return
	}
	w.places = append(w.places, place{m, ticket})
}

// leave gives up all places except one.
func (w *wait) leave(but *place) {
	for i := range w.places {
		if at := &w.places[i]; at != but {
			at.ticket.Cancel()
		}
	}
}

// move has the request wait at the members that are new, and no longer at those that were removed.
func (w *wait) move(set *set) {
	now := w.pool.now()
	usable, _ := set.usable(w.tried, 0, now)
	upTo := set.upTo(w.tier.after, usable, now)
	for i, m := range set.members {
		if upTo.has(i) && !slices.ContainsFunc(w.places, func(p place) bool { return p.Transport == m.Transport }) {
			w.enter(m)
		}
	}
	w.places = slices.DeleteFunc(w.places, func(p place) bool {
		gone := set.index(p.Transport) < 0 && !w.claim.Granted(p.ticket)
		if gone {
			p.ticket.Cancel()
			w.undone = w.undone || w.claim.Granted(p.ticket)
		}
		return gone
	})
}
