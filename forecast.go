package throttle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/meter"
)

// A Forecast says when requests would be sent that came now, if no other request came; see [Limiter.Forecast].
type Forecast struct {
	// Tenths are the times from now until each tenth of the requests would have been sent; math.MaxInt64: that is not known, or never.
	Tenths [10]time.Duration
	// Limit and Key are the bucket that these requests would wait for the longest, after all others could pay, or because of which a time is
	// not known; "": they would not wait.
	Limit, Key string
	// Least says that the times are estimates, or lower bounds where nothing better is known: they depend on responses, on settled costs, on
	// other processes, or on what a server reported.
	Least bool
}

// Done returns the time until all of the requests would have been sent.
func (f Forecast) Done() time.Duration { return f.Tenths[9] }

// Forecast returns when n requests like ask would be sent if they came now, behind those that wait, and if no other request came. It
// takes no token and no place in the queue. With n = 0, it returns when the last of the waiting requests will be sent: of those that wait
// where ask would, or of all if ask has no key. It ignores Ask.MaxWait, and assumes that the waiting requests neither give up nor are
// rejected.
//
// The times are exact to the nanosecond with one limit that has a rate or a window, if no request waits and costs are not corrected later.
// With one to four such limits and a queue they were exact in 99 % of 1,200 random cases, and at most 3 % off in the others. Callers that
// take turns ([FairBy]) are played as if their requests had just come.
//
// Otherwise, Least is true, and what was seen lately goes on: requests cost in the end what others did ([Settle], [LearnCost]), take slots
// for as long as others, and a rate or a number that was learned stays as it is. What a server reported is played, too: a [ServerQuota]
// refills at its rate, or in windows that are as long as the one before, and holds and quotas stop the requests that wait. Other processes
// use nothing of [Shared] limits. Of what was not seen yet, a time is not known: how long a slot is taken, what requests cost in the end, a
// rate that is still being found, or a window of which no end was seen. If a limit that is known delays the requests, the times are
// lower bounds all the same.
//
// An Ask without a key stands for the host, where a limit counts requests by host and has seen one. If it has seen several, the times of the
// n requests are not known: set the key, or use [Transport.Forecast].
//
// It plays up to 100,000 requests, in about 0.2 µs each, behind up to 2,000 that wait, in about 2 µs each, and takes it that others that
// wait are like those. Later ones of the n go on in the same way, but not before each limit by itself could have paid them all. The lock of
// the Limiter is held only while those that wait are copied. After [Limiter.Shutdown], none of the n would ever be sent. The error names each
// fault of ask and n; it is a [*Rejection] with [ReasonCost] if a limit can never pay the cost.
func (l *Limiter) Forecast(ask Ask, n int) (Forecast, error) {
	l.mustBeMade()
	r := limiter.Request{User: l.user, Context: context.Background()}
	if err := errors.Join(l.charge(&r, noOverrides, &ask), checkNumber(n)); err != nil {
		return Forecast{}, err
	}
	return l.forecast(&r, l.waiter(&r, noOverrides, &ask), n)
}

func checkNumber(n int) error {
	if n < 0 {
		return fmt.Errorf("throttle: Forecast of %d requests: the number is negative", n)
	}
	return nil
}

// forecast returns when n requests like r would be sent.
func (l *Limiter) forecast(r *limiter.Request, w *limiter.Waiter, n int) (Forecast, error) {
	of, rejection, err := l.core.Forecast(r, w, n)
	switch {
	case err != nil:
		return Forecast{}, err
	case rejection != nil:
		return Forecast{}, rejected(rejection)
	}
	f := Forecast{Key: of.Key, Least: of.Least}
	if of.Limit != nil {
		f.Limit = of.Limit.Name
	}
	for i, at := range of.Tenths {
		f.Tenths[i] = bucket.Until(at, of.From)
	}
	return f, nil
}

// A Waiting is what a request in the queue waits for.
type Waiting struct {
	Limit, Key string    // of the bucket that is the last to let it go, as far as is known
	Verdict    Verdict   // why the server stops the request there; 0: it has refused nothing, and no quota is empty
	Since      time.Time // when the request began to wait
	Due        time.Time // when it will probably be sent, given what requests cost and responses reported lately; zero: that is not known
	Least      bool      // Due is the earliest possible time, as in a pool: no members, together, can send it before
}

// waiting returns what a request waits for, and reports whether it does; nil: it does not.
func (l *Limiter) waiting(w *limiter.Waiter) (Waiting, bool) {
	if w == nil {
		return Waiting{}, false
	}
	at, why, since, due, ok := l.core.WaitsFor(w)
	if !ok {
		return Waiting{}, false
	}
	return Waiting{Limit: at.Limit, Key: at.Key, Verdict: Verdict(why), Since: l.timeOf(since), Due: l.timeOf(due)}, true
}

// timeOf returns an instant as a time; the zero time: it is not known.
func (l *Limiter) timeOf(at meter.Instant) time.Time {
	if at == meter.Never {
		return time.Time{}
	}
	return l.core.Start.Add(time.Duration(at))
}
