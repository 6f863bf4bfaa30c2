package limiter

import (
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
	"github.com/httpthrottle/throttle/internal/server"
)

// An Answer is the outcome of a request that was granted. The zero answer has no news.
type Answer struct {
	Outcome aimd.Outcome
	Unsent  bool         // it never reached the server
	Ended   bool         // it is not in flight any more, and Finish is not called for it
	Hints   *quota.Hints // nil: the server sent none
	Traits  quota.Traits // what the server may count the request by
	Doubts  *Doubts      // of a failure about which the body may say more; nil: it says nothing more
	Charges []Charge     // of the request whose body it is, which was reported before

	settles uint8             // the charges that are settled with the report, as bits
	costs   [fewCharges]int64 // their true costs; after the report, what they were charged at first

	Named uint64 // after the report: the charges whose units it has named, as bits

	verdict server.Verdict // on it, where the request passed no gate
	ofPart  bool           // and a refusal is one of a part, as in finding
}

// Settle has the report settle the i-th charge, too, which saves it a critical section of its own. It reports false if there is no room.
func (a *Answer) Settle(i int, cost int64) bool {
	if i >= fewCharges {
		return false
	}
	a.settles |= 1 << i
	a.costs[i] = cost
	return true
}

// Settles reports whether the report settles charges, or has.
func (a *Answer) Settles() bool { return a.settles != 0 }

// Settled returns what the i-th charge was at first, if the report has settled it.
func (a *Answer) Settled(i int) (charged int64, ok bool) {
	if i >= fewCharges || a.settles&(1<<i) == 0 {
		return 0, false
	}
	return a.costs[i], true
}

// settleAnswerLocked settles the charges of a request that the answer settles.
func (l *Core) settleAnswerLocked(r *Request, a *Answer, now meter.Instant) {
	for i := range a.costs {
		if a.settles&(1<<i) == 0 {
			continue
		}
		charged, err := l.settleLocked(r, i, a.costs[i], now)
		if a.costs[i] = charged; err != nil {
			a.settles &^= 1 << i
		}
	}
}

// retryAfter returns for how long the server asks the client to wait; 0: it does not.
func (a *Answer) retryAfter() time.Duration {
	if a.Hints == nil {
		return 0
	}
	return a.Hints.Wait
}

// Doubts are what a failure has changed, until its body has been read.
type Doubts struct {
	As      aimd.Outcome // what the body shows; 0: the failure stands
	ends    []doubt
	refused []refusedUnit // by limits in units of servers
}

// A doubt ends a doubt about what a failure has changed at a bucket. end takes what the body shows, and reports whether it has undone
// the change.
type doubt struct {
	bucket *bucket.Bucket
	end    func(now meter.Instant, as aimd.Outcome) (undone bool)
}

func (d *Doubts) add(b *bucket.Bucket, end func(now meter.Instant, as aimd.Outcome) bool) {
	d.ends = append(d.ends, doubt{b, end})
}

// Any reports whether there are doubts.
func (d *Doubts) Any() bool { return len(d.ends) > 0 || len(d.refused) > 0 }

// take returns the doubts, once.
func (d *Doubts) take() (all []doubt) {
	if d != nil {
		all, d.ends = d.ends, nil
	}
	return all
}

// A learner is a meter that learns from the outcomes of requests.
type learner interface {
	// Answered takes the outcome of a request, and returns what stands for charged from then on.
	Answered(now meter.Instant, charged int64, sent meter.Instant, cost int64, o aimd.Outcome, retryAfter time.Duration) int64
	// Doubt is called before Answered for a failure about which the body may say more; see [Doubts]. Stand is called before any other
	// failure.
	Doubt(now meter.Instant, charged int64, sent meter.Instant, cost int64) func(now meter.Instant, as aimd.Outcome) bool
	Stand()
	// Belied takes that a request was refused after all which was answered as one that the server accepted: its body says so. It returns what
	// stands for charged from then on.
	Belied(now meter.Instant, charged int64, sent meter.Instant, cost int64, retryAfter time.Duration) int64
	Gave()                                               // notes that the server has accepted requests, maybe before there was a meter
	Refund(charged int64, now meter.Instant, cost int64) // as GiveBack, for a request that was answered
	Retuned() (aimd.Retune, bool)
}

// An answered is a meter in which a request counts until some time after its response. Answered reports whether that was moved.
type answered interface {
	Answered(charged int64, now meter.Instant) bool
}

// A trier is a learner that tests its limit with single requests. Tries reports whether a request was one of those: a bare refusal of
// it says nothing of the other limits. Tests reports whether there is a trial of whether load causes failures, which takes all of them.
type trier interface {
	Tries(charged int64) bool
	Tests() bool
}

// A resumer is a meter that pauses because of what servers reported.
type resumer interface{ Resume(now meter.Instant) }
