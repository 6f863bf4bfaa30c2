package limiter

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/server"
)

// A User makes requests: a Transport, or the Limiter itself.
type User struct {
	Observer Observer
	// Granted says that the Observer's method of that name is to be called. Rejected says so for the one of that name where nothing needs its
	// result; elsewhere it is called in any case.
	Granted, Rejected bool
	Flies             bool // it says of each request that was granted when it has ended, by Answer.Ended or [Core.Finish]
	Alone             bool // it may be shut down alone, so its requests in flight are counted separately, too

	counts  bucket.Counts // guarded by the lock
	shut    bool          // guarded by the lock: its requests are rejected
	shutAt  meter.Instant // guarded by the lock: since when
	flights flights
}

// flights count requests of Users that Fly: n were sent, of which ended are not in flight any more.
type flights struct {
	n     int64        // guarded by the lock
	ended atomic.Int64 // written without the lock, because requests that are not reported do not take it again
}

// An Observer follows the requests of a User. The Core calls it without its lock, by the goroutine of the request, and with values that
// never change. If Waits or Granted panics, the request is not sent, and nothing is charged for it.
type Observer interface {
	// Waits is called before a request begins to wait. The wait is expected; 0 or the longest Duration: it is not known.
	Waits(at Place, cost int64, wait time.Duration)
	// Granted is called when a request was granted. The place is what it waited for; the zero Limit: it did not wait.
	Granted(at Place, waited time.Duration)
	// Rejected returns the error for a request that is rejected.
	Rejected(ctx context.Context, r Rejection, waited time.Duration) error
	// Canceled is called when the context of a request ended while the request waited.
	Canceled(at Place, cause error, waited time.Duration)
	// Held is called when a response has held a bucket.
	Held(at Place, h Hold)
	// Retuned is called when a response has changed a learned limit.
	Retuned(at Place, r aimd.Retune)
	// Forgot is called when what a server reported was forgotten because there was no room for the reports of all servers.
	Forgot(ctx context.Context, server string)
}

// A Place is where an event happened.
type Place struct {
	Context    context.Context // of the request; nil: none is known
	Limit, Key string
}

// A Hold says that a response has held a bucket.
type Hold struct {
	By      time.Duration
	Server  bool           // it is of what a server said; otherwise a learned limit decided
	Guessed bool           // no server has asked for its end
	Verdict server.Verdict // on the refusal
	Final   error          // what the server said with a final refusal; nil: it is none
}

func placeOf(ctx context.Context, b *bucket.Bucket) Place { return Place{ctx, b.Limit.Name, b.Key} }

// tellNow reports a request that was granted immediately. If the observer panics, the charges are undone.
func (l *Core) tellNow(r *Request) {
	returned := false
	defer func() {
		if !returned {
			l.undo(r)
		}
	}()
	r.User.Observer.Granted(Place{Context: r.Context}, 0)
	returned = true
}

// tellGranted is tellNow for a request that might have waited.
func (l *Core) tellGranted(w *Waiter, at Place, waited time.Duration) {
	returned := false
	defer func() {
		if !returned {
			l.undoWaiter(w)
		}
	}()
	w.user.Observer.Granted(at, waited)
	returned = true
}

// undoWaiter gives back all charges of a request that was granted and is not sent after all.
func (l *Core) undoWaiter(w *Waiter) {
	var r Request
	w.Take(&r)
	l.undo(&r)
}

// tellWaits reports that w begins to wait. If the observer panics, w does not wait.
func (l *Core) tellWaits(w *Waiter, at Place, cost int64, wait time.Duration) {
	returned := false
	defer func() {
		if !returned {
			l.abandon(w) // its caller gets the panic
		}
	}()
	w.user.Observer.Waits(at, cost, wait)
	returned = true
}

// news is what a response has changed.
type news struct {
	retunes []retuned
	holds   []held
	forgot  string // for lack of room; see [quota.Change]
}

// any reports whether there is news.
func (n *news) any() bool { return len(n.retunes)+len(n.holds)+len(n.forgot) > 0 }

// noteRetune notes and counts a notable change of what the meter of a bucket has learned.
func (n *news) noteRetune(b *bucket.Bucket, m learner) {
	if to, ok := m.Retuned(); ok {
		b.Limit.Counts.Retunes[to.Cause]++
		n.retunes = append(n.retunes, retuned{b, to})
	}
}

// A retuned says that a learner has changed its rate notably.
type retuned struct {
	bucket *bucket.Bucket
	aimd.Retune
}

// A held says that a bucket is held because of a response.
type held struct {
	bucket *bucket.Bucket
	Hold
}

// paused returns that a learned limit has paused a bucket, because the server refuses each request, or cannot be reached.
func paused(b *bucket.Bucket, by time.Duration, reached bool) held {
	h := held{b, Hold{By: by, Guessed: true}}
	if reached {
		h.Verdict = server.Closed
	}
	return h
}

// tell reports what a response has changed.
func (u *User) tell(ctx context.Context, n *news) {
	for i := range n.retunes {
		u.Observer.Retuned(placeOf(ctx, n.retunes[i].bucket), n.retunes[i].Retune)
	}
	if n.forgot != "" {
		u.Observer.Forgot(ctx, n.forgot)
	}
	for i := range n.holds {
		h := &n.holds[i]
		u.Observer.Held(placeOf(ctx, h.bucket), h.Hold)
	}
}
