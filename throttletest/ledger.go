package throttletest

import (
	"fmt"
	"net/http"
	"time"
)

// A rule is one limit at work. All of it is guarded by Handler.mu; *spec itself never changes.
type rule struct {
	spec     *Limit
	accounts map[string]*account
	refused  int64
	charges  []charge
}

// An account is one limit for one key.
type account struct {
	id     int32 // of the key, for the recording
	budget budget
	banned int64 // until this instant
}

// A claim is what a request costs in one limit. It is made outside the lock, because it calls functions of the user.
type claim struct {
	key  string
	cost int64
}

// A verdict is what the server decided about a request.
type verdict struct {
	now       int64
	refusal   *Refusal
	done      int64      // without a refusal: the instant at which the service ends
	standings []standing // if the server reports them
	release   func()     // gives InFlight its slots back; may be nil
}

func (r *rule) account(now int64, key string) *account {
	a, ok := r.accounts[key]
	if !ok {
		a = &account{id: int32(len(r.accounts)), budget: newBudget(now, *r.spec), banned: now}
		r.accounts[key] = a
	}
	return a
}

// check is the budget's, except that a ban comes first.
func (a *account) check(now, cost int64) (time.Duration, bool) {
	wait, ok := a.budget.check(now, cost)
	if now < a.banned {
		return max(wait, time.Duration(a.banned-now)), false
	}
	return wait, ok
}

// punish bans the key after this limit has refused it.
func (a *account) punish(l *Limit, now int64) {
	if l.ban > 0 && (now >= a.banned || l.untilQuiet) {
		a.banned = satAdd(now, int64(l.ban))
	}
}

func (a *account) standing(l *Limit, now int64, whenFull bool) standing {
	left, more, full := a.budget.left(now)
	if now < a.banned {
		left = 0
		more, full = max(more, time.Duration(a.banned-now)), max(full, time.Duration(a.banned-now))
	}
	if whenFull {
		more = full
	}
	return standing{limit: l, left: left, reset: more}
}

// decide accepts a request in all limits at one instant, or in none.
func (h *Handler) decide(claims []claim, service time.Duration) verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := verdict{now: h.now()}
	v.refusal = h.judgeLocked(v.now, claims)
	if v.refusal == nil {
		h.acceptLocked(&v, claims, service)
	} else {
		h.refuseLocked(&v, claims)
	}
	if h.words.speaksOfLimits() {
		for i, r := range h.rules {
			if claims[i].cost > 0 {
				v.standings = append(v.standings, r.account(v.now, claims[i].key).standing(r.spec, v.now, h.words.whenFull))
			}
		}
	}
	return v
}

// judgeLocked asks every limit and then the workers. Of several limits that refuse, the one with the longest wait is named.
func (h *Handler) judgeLocked(now int64, claims []claim) (refusal *Refusal) {
	for i, r := range h.rules {
		if claims[i].cost <= 0 {
			continue
		}
		a := r.account(now, claims[i].key)
		if _, ok := a.check(now, claims[i].cost); ok {
			continue
		}
		r.refused++
		a.punish(r.spec, now)
		wait, _ := a.check(now, claims[i].cost)
		if refusal == nil || wait > refusal.Wait {
			refusal = &Refusal{Limit: r.spec.name, Status: r.spec.status, Wait: wait}
		}
	}
	if refusal == nil && h.workers != nil && !h.workers.check(now) {
		h.counts.QueueFull++
		refusal = &Refusal{Status: http.StatusServiceUnavailable}
	}
	return refusal
}

// refuseLocked counts a refused request. Since it may be charged as well, the wait is known only afterwards.
func (h *Handler) refuseLocked(v *verdict, claims []claim) {
	h.counts.Refused++
	for i, r := range h.rules {
		if !r.spec.counts || claims[i].cost <= 0 {
			continue
		}
		a := r.account(v.now, claims[i].key)
		a.budget.charge(v.now, claims[i].cost)
		if wait, ok := a.check(v.now, claims[i].cost); !ok {
			v.refusal.Wait = max(v.refusal.Wait, wait)
		}
	}
}

func (h *Handler) acceptLocked(v *verdict, claims []claim, service time.Duration) {
	var delay time.Duration
	for i, r := range h.rules {
		cost := claims[i].cost
		if cost <= 0 {
			continue
		}
		a := r.account(v.now, claims[i].key)
		delay = max(delay, a.budget.charge(v.now, cost))
		if s, ok := a.budget.(*slots); ok {
			v.release = chain(v.release, func() { s.release(cost) })
		}
		if len(r.charges) < h.record {
			r.charges = append(r.charges, charge{v.now, cost, a.id})
		}
	}
	ready := v.now + int64(delay)
	if v.done = ready + int64(service); h.workers != nil {
		v.done = h.workers.serve(v.now, ready, service)
	}
	h.counts.Accepted++
	if len(h.accepted) < h.record {
		h.accepted = append(h.accepted, v.now)
	}
}

func chain(first, second func()) func() {
	if first == nil {
		return second
	}
	return func() { first(); second() }
}

// SetRate changes a limit to n per period while the server runs. The burst and the balances stay, except that a [FixedWindow]
// of another length starts from zero. It is an error if there is no such limit, if it is [InFlight], or if a value is invalid.
func (h *Handler) SetRate(limit string, n int64, per time.Duration) error {
	return h.change(limit, func(old Limit) (Limit, error) {
		if old.kind == inFlight {
			return old, fmt.Errorf("throttletest: SetRate(%q): InFlight has no rate: use SetLimit", limit)
		}
		old.n, old.per = n, per
		return old, nil
	})
}

// SetLimit replaces the limit of that name while the server runs. The new limit gets its name, its bans, and, if both are of
// the same kind, its balances. It is an error if there is no such limit, or if the new one is invalid.
func (h *Handler) SetLimit(limit string, to Limit) error {
	return h.change(limit, func(old Limit) (Limit, error) {
		if to.name != "" && to.name != old.name {
			return old, fmt.Errorf("throttletest: SetLimit(%q): the new limit has another name, %q", limit, to.name)
		}
		to := h.completed(to)
		to.name = old.name
		return to, nil
	})
}

func (h *Handler) change(name string, f func(Limit) (Limit, error)) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.rules {
		if r.spec.name != name {
			continue
		}
		to, err := f(*r.spec)
		if err != nil {
			return err
		}
		if to, err = to.validated(); err != nil {
			return fmt.Errorf("throttletest: limit %q: %w", name, err)
		}
		r.become(h.now(), &to)
		h.shareSpecsLocked()
		return nil
	}
	return fmt.Errorf("throttletest: there is no limit named %q", name)
}

func (r *rule) become(now int64, to *Limit) {
	same := r.spec.kind == to.kind
	r.spec = to
	for _, a := range r.accounts {
		if same {
			a.budget.retune(now, *to)
		} else {
			a.budget = newBudget(now, *to)
		}
	}
}
