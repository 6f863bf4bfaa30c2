package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/httpthrottle/throttle/internal/limiter"
)

// A wait is a request that waits at several members.
type wait struct {
	pool   *Pool
	set    *set
	req    *http.Request
	tried  []*state
	tier   tier
	start  time.Duration // when the request arrived at the pool
	move   *move
	claim  *limiter.Claim
	places []place
	faults []error
}

// A place is that of a request at one member.
type place struct {
	member
	waiter *limiter.Waiter
	waits  bool // it was not decided on arrival
}

// wait waits until a member grants the request, and sends it. The error is errLater if none does in time, and there is another tier, and
// errChanged or errMissed if the request is to wait at other members. With errChanged, it counts among the waits of the set until it does.
func (w *wait) wait() (by *member, resp *http.Response, unsent bool, err error) {
	at, granted, err := w.untilDecided()
	switch {
	case err != nil:
	case granted:
		resp, unsent, err = w.pool.redeem(at, w.req)
		by = &at.member
	default:
		resp, err = at.by.TurnAway(w.req, at.waiter)
	}
	return by, resp, unsent, err
}

// untilDecided waits until a member grants the request, or all have rejected it, and returns the place of that.
func (w *wait) untilDecided() (at *place, granted bool, err error) {
	if !w.set.waits.begin() {
		return nil, false, errMissed
	}
	defer func() {
		w.move.end()
		if err != errChanged {
			w.set.waits.end()
		}
	}()
	w.pool.waiting.Add(1)
	defer w.pool.waiting.Add(-1)
	w.claim = limiter.NewClaim(w.pool.began.Add(w.start))
	closes := true // a function of the user may panic
	defer func() {
		if closes {
			closeBody(w.req)
		}
		w.leave(at)
	}()
	stay := w.tier.mask | w.tier.out
	for i, m := range w.set.members {
		if stay.has(i) {
			w.enter(m)
		} else if w.tier.within >= 0 { // Shutdown of this member waits for the request, too
			m.by.Core().Expect(m.by.User())
			defer m.by.Core().Finish(m.by.User())
		}
	}
	w.move.end()
	w.rejectIfHopeless()
	w.claim.Seal()
	cause := w.await()
	if cause != nil && cause != errChanged {
		return nil, false, cause
	}
	at, closes = w.granted(), false
	switch {
	case at != nil && w.mayGo(at):
		w.pool.delayed.Add(1)
		w.pool.waited.Add(int64(w.pool.now() - w.start))
		return at, true, nil
	case at != nil:
		at.by.Core().Return(at.waiter)
		return at, false, errChanged
	case cause == errChanged:
		return nil, false, errChanged
	case w.tier.within >= 0:
		return nil, false, errLater
	}
	if at = w.first(); at == nil {
		closes = true
		return nil, false, cmp.Or(context.Cause(w.req.Context()), errors.Join(w.faults...))
	}
	at.by.Core().Postpone(at.waiter, w.least())
	return at, false, nil
}

// enter has the request wait at a member, too.
func (w *wait) enter(m member) {
	waiter, err := m.by.Prepare(w.req)
	if err != nil {
		w.faults = append(w.faults, err)
		return
	}
	waiter.Claim = w.claim
	var door *limiter.Door
	if w.tier.doors {
		door = m.door
	}
	if within := w.tier.within; within >= 0 && (waiter.MaxWait < 0 || within < waiter.MaxWait) {
		waiter.MaxWait = within
	}
	waits, err := m.by.Core().EnqueueClaimed(w.req.Context(), waiter, door)
	if err != nil {
		w.faults = append(w.faults, err)
		return
	}
	w.places = append(w.places, place{m, waiter, waits})
	if waits {
		m.by.Show(w.req, waiter, w.showsLeast)
	}
}

// await waits until the request is granted, or no member can grant it. The error is errChanged if it is to wait at other members, or why the
// request has ended.
func (w *wait) await() error {
	for {
		var turned <-chan struct{}
		if w.tier.doors && (w.tier.within >= 0 || len(w.tried) > 0) { // otherwise, it waits at all members
			turned = *w.pool.turned.Load()
			if w.isShutOut() {
				w.claim.Close()
				return errChanged
			}
		}
		select {
		case <-w.claim.Done():
			return nil
		case <-turned:
		case <-w.set.changed:
			w.claim.Close()
			return errChanged
		case <-w.req.Context().Done():
			w.claim.Close()
			return context.Cause(w.req.Context())
		//lint:ignore SA1019 http.Client sets Cancel with its Timeout
		case <-w.req.Cancel:
			w.claim.Close()
			return errCanceled
		}
	}
}

var errCanceled = fmt.Errorf("pool: request canceled while waiting: %w", context.Canceled)

// isShutOut reports whether all members at which the request waits are out.
func (w *wait) isShutOut() bool {
	for i := range w.places {
		if !w.places[i].isLeftOut() {
			return false
		}
	}
	return len(w.places) > 0
}

// granted returns the place that was granted; nil: none was.
func (w *wait) granted() *place {
	winner := w.claim.Winner()
	for i := range w.places {
		if w.places[i].waiter == winner {
			return &w.places[i]
		}
	}
	return nil
}

// mayGo reports whether a request that was granted may be sent: its member has neither been removed nor gone out meanwhile, unless the
// request is its trial.
func (w *wait) mayGo(at *place) bool {
	return w.pool.set.Load().index(at.Transport) >= 0 && (!w.tier.doors || !at.door.IsShut() || at.waiter.IsTrial())
}

// first returns the place of a request that all members reject, at the one that could have sent it first; nil: no member has decided.
func (w *wait) first() (at *place) {
	least := time.Duration(0)
	for i := range w.places {
		r := w.places[i].by.Core().RejectionOf(w.places[i].waiter)
		if r != nil && (at == nil || r.Wait < least) {
			at, least = &w.places[i], r.Wait
		}
	}
	return at
}

// leave gives up all places except one.
func (w *wait) leave(but *place) {
	for i := range w.places {
		if at := &w.places[i]; at != but && (at.waits || w.claim.Winner() == at.waiter) {
			at.by.Core().Leave(at.waiter)
		}
	}
}

// rejectIfHopeless rejects the request if all members together certainly cannot send it in time.
func (w *wait) rejectIfHopeless() {
	patience := time.Duration(-1)
	for i := range w.places {
		patience = max(patience, w.places[i].by.Core().Patience(w.places[i].waiter))
	}
	if patience < 0 || patience == math.MaxInt64 || w.mayBeSentBy(patience) || w.claim.Winner() != nil {
		return
	}
	least := w.least()
	for i := range w.places {
		w.places[i].by.Core().RejectClaimed(w.places[i].waiter, least)
	}
}

// mayBeSentBy reports whether it is not certain that the request is still waiting after some time.
func (w *wait) mayBeSentBy(within time.Duration) bool {
	return !w.isComplete() || mayBePaid(w.places, 1, within)
}

// isComplete reports whether the requests before this one wait nowhere where it does not, or whether that does not matter, because the next
// tier is behind.
func (w *wait) isComplete() bool { return w.tier.within >= 0 || len(w.places) == len(w.set.members) }

// least returns for how long the request will wait yet at least: the members together cannot have sent it, and all before it, sooner.
func (w *wait) least() time.Duration {
	if !w.isComplete() {
		return 0
	}
	return leastOf(w.places, 1)
}

// showsLeast returns for how much longer the request will wait at least, if a member needs some time alone. If it is to wait for other
// members later, they may send requests before this one meanwhile.
func (w *wait) showsLeast(alone time.Duration) time.Duration {
	if w.tier.within >= 0 {
		return max(0, min(alone, w.start+w.tier.within-w.pool.now()))
	}
	return max(alone, w.least())
}

// leastOf is [wait.least] for the last of n requests like one that waits at some places.
func leastOf(places []place, n int64) time.Duration {
	late := time.Duration(math.MaxInt64) // by then they can
	for i := range places {
		late = min(late, places[i].by.Core().Alone(places[i].waiter, n))
	}
	switch {
	case late == math.MaxInt64: // none can, or that is not known
		return late
	case mayBePaid(places, n, 0):
		return 0
	}
	early := time.Duration(0) // until then they cannot
	for late-early > 1 {
		if at := early + (late-early)/2; mayBePaid(places, n, at) {
			late = at
		} else {
			early = at
		}
	}
	return late
}

// whole is 1, less what is lost by rounding.
const whole = 1 - 1e-9

// mayBePaid reports whether some members could together have paid for the last of n requests like one that waits there, and for all before it,
// by some time from now on. They certainly could not if, in some limit that all of them have, what each could do of the work is together
// less than what is before it at each member that could pay for it alone.
func mayBePaid(places []place, n int64, within time.Duration) bool {
	var all, one [8]limiter.Work
	sums := all[:0]
	for i := range places {
		work := places[i].by.Core().Work(one[:0], places[i].waiter, n, within)
		for j := range work {
			if work[j].Done < whole {
				work[j].All = math.Inf(1)
			}
		}
		if i == 0 {
			sums = append(sums, work...)
			continue
		}
		both := sums[:0]
		for _, sum := range sums {
			for _, of := range work {
				if of.Limit == sum.Limit {
					both = append(both, limiter.Work{Limit: sum.Limit, All: min(sum.All, of.All), Done: sum.Done + of.Done})
				}
			}
		}
		sums = both
	}
	return !slices.ContainsFunc(sums, func(of limiter.Work) bool { return of.Done < of.All*whole })
}
