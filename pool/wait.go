package pool

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/httpthrottle/throttle"
)

// A wait is a request that waits at several members.
type wait struct {
	pool   *Pool
	req    *http.Request
	tier   tier
	start  time.Time
	claim  *throttle.Claim
	places []place
	faults []error
}

// A place is that of a request at one member.
type place struct {
	member
	ticket *throttle.Ticket
}

// wait waits until a member grants the request, and sends it. It reports false if none does in time, and there is another tier.
func (w *wait) wait(set *set) (by *member, resp *http.Response, err error, ok bool) {
	within := w.tier.within
	if within >= 0 {
		within = max(0, within-time.Since(w.start))
	}
	w.claim = throttle.NewClaim(within)
	for i := range set.members {
		if w.tier.mask&(1<<i) != 0 {
			w.enter(set.members[i])
		}
	}
	w.claim.Seal()
	if err := w.await(set); err != nil {
		w.leave(nil)
		closeBody(w.req)
		return nil, nil, err, true
	}
	var soonest *place
	least := time.Duration(0)
	for i := range w.places {
		at := &w.places[i]
		if w.claim.Granted(at.ticket) {
			w.leave(at)
			resp, err := at.ticket.RoundTrip(w.req)
			return &at.member, resp, err, true
		}
	}
	for i := range w.places {
		if d, rejected := w.places[i].ticket.Rejection(); rejected && (soonest == nil || d < least) {
			soonest, least = &w.places[i], d
		}
	}
	switch {
	case w.tier.within >= 0:
		return nil, nil, nil, false
	case soonest == nil && len(w.faults) == 0: // all members were replaced at the same time
		w.places = nil
		w.tier.mask = w.pool.set.Load().all
		return w.wait(w.pool.set.Load())
	case soonest == nil:
		closeBody(w.req)
		return nil, nil, errors.Join(w.faults...), true
	}
	resp, err = soonest.ticket.RoundTrip(w.req)
	return nil, resp, err, true
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

var errCanceled = errors.New("pool: request canceled while waiting")

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

// move has the request wait at the members that are new, and not any more at those that were removed.
func (w *wait) move(set *set) {
	stays := make(map[*throttle.Transport]bool, len(set.members))
	for i := range set.members {
		m := set.members[i]
		stays[m.Transport] = true
		if m.After <= w.tier.after && !slices.ContainsFunc(w.places, func(p place) bool { return p.Transport == m.Transport }) {
			w.enter(m)
		}
	}
	w.places = slices.DeleteFunc(w.places, func(p place) bool {
		gone := !stays[p.Transport] && !w.claim.Granted(p.ticket)
		if gone {
			p.ticket.Cancel()
		}
		return gone
	})
}
