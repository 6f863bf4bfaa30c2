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
	// Limit and Key are the bucket that these requests would wait for the longest, after all others could pay; "": they would not wait.
	Limit, Key string
	// Least says that the times are lower bounds: they depend on responses, on other processes, or on what a server reported.
	Least bool
}

// Done returns the time until all of the requests would have been sent.
func (f Forecast) Done() time.Duration { return f.Tenths[9] }

// Forecast returns when n requests like ask would be sent if they came now, behind those that wait, and if no other request came. It
// takes no token and no place in the queue. With n = 0, it returns when the last of the waiting requests will be sent. Each of the n is
// charged what ask costs. It ignores Ask.MaxWait, and assumes that the waiting requests neither give up nor are rejected.
//
// The times are exact to the nanosecond with one limit that has a rate or a window, if no request waits. With one to four such limits and
// a queue they were exact in 99 % of 1,200 random cases, and at most 3 % off in the others. Callers that take turns ([FairBy]) are played
// as if their requests had just come. Learned rates stay as they are now, slots and servers stop nothing, and other processes use nothing of
// [Shared] limits: then Least is true.
//
// It plays up to 100,000 requests, in about 0.2 µs each, behind up to 2,000 that wait, in about 2 µs each, and takes it that others that
// wait are like those. Later ones of the n go on in the same way, but not before each limit by itself could have paid them all. The lock of
// the Limiter is held only while those that wait are copied. After [Limiter.Shutdown], none of the n would ever be sent. The error names each
// fault of ask and n.
func (l *Limiter) Forecast(ask Ask, n int) (Forecast, error) {
	l.mustBeMade()
	r := limiter.Request{User: l.user, Context: context.Background()}
	err := l.charge(&r, noOverrides, &ask)
	if n < 0 {
		err = errors.Join(err, fmt.Errorf("throttle: Forecast of %d requests: the number is negative", n))
	}
	if err != nil {
		return Forecast{}, err
	}
	of, err := l.core.Forecast(&r, l.waiter(&r, noOverrides, &ask), n)
	if err != nil {
		return Forecast{}, err
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
	Since      time.Time // when the request began to wait
	Due        time.Time // when it is expected to be sent, as by Ticket.Due; zero: that is not known
	Least      bool      // Due is the earliest possible time, as in a pool: no members, together, can send it before
}

// waiting returns what a request waits for, and reports whether it does; nil: it does not.
func (l *Limiter) waiting(w *limiter.Waiter) (Waiting, bool) {
	if w == nil {
		return Waiting{}, false
	}
	at, since, due, ok := l.core.WaitsFor(w)
	if !ok {
		return Waiting{}, false
	}
	return Waiting{Limit: at.Limit, Key: at.Key, Since: l.timeOf(since), Due: l.timeOf(due)}, true
}

// timeOf returns an instant as a time; the zero time: it is not known.
func (l *Limiter) timeOf(at meter.Instant) time.Time {
	if at == meter.Never {
		return time.Time{}
	}
	return l.core.Start.Add(time.Duration(at))
}
