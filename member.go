package throttle

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/httpthrottle/throttle/internal/bridge"
	"github.com/httpthrottle/throttle/internal/limiter"
)

// A member is a Transport as package pool uses it.
type member Transport

func (m *member) Core() *limiter.Core { return m.limiter.core }

func (m *member) User() *limiter.User { return m.user }

func (m *member) Try(req *http.Request) (resp *http.Response, sent, unsent bool, err error) {
	t := (*Transport)(m)
	resp, sent, far, err := t.tryRoundTrip(req)
	return resp, sent, err != nil && t.isUnsent(req, far, err), err
}

func (m *member) Prepare(req *http.Request) (*limiter.Waiter, error) {
	return (*Transport)(m).asWaiter(req)
}

func (m *member) PrepareAsk(ask any) (*limiter.Waiter, error) {
	of := ask.(Ask)
	r := limiter.Request{User: m.user, Context: context.Background()}
	if err := m.limiter.charge(&r, noOverrides, &of); err != nil {
		return nil, err
	}
	return m.limiter.waiter(&r, noOverrides, &of), nil
}

func (m *member) Show(req *http.Request, w *limiter.Waiter, least func(alone time.Duration) time.Duration) {
	if receipt := overridesOf(req.Context()).receipt; receipt != nil {
		receipt.wait(queued{limiter: m.limiter, waiter: w, least: least})
	}
}

func (m *member) Send(req *http.Request, w *limiter.Waiter, waited bool) (*http.Response, bool, error) {
	t := (*Transport)(m)
	resp, far, err := t.sendGranted(req, w, waited)
	return resp, err != nil && t.isUnsent(req, far, err), err
}

func (m *member) TurnAway(req *http.Request, w *limiter.Waiter) (*http.Response, error) {
	return (*Transport)(m).rejectWaiter(req, w)
}

// isUnsent reports whether a request has certainly not reached the server, given its error, although it has not ended. If the base does
// not report connections, that depends on the error.
func (t *Transport) isUnsent(req *http.Request, far reach, err error) bool {
	//lint:ignore SA1019 http.Client sets Cancel with its Timeout
	if limiter.Ended(req.Context(), req.Cancel) != nil || errors.Is(err, ErrThrottled) {
		return false
	}
	return far == reachedNoServer || bridge.IsDialError(err) && (far == reachedNoBase || t.connections.tracing.Load() != tracingWorks)
}
