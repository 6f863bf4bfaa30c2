package bucket

import (
	"errors"
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
)

// An Answer is the outcome of a request that was granted. The zero answer has no news.
type Answer struct {
	Outcome aimd.Outcome
	Unsent  bool         // it never reached the server
	Hints   *quota.Hints // nil: the server sent none
	Doubts  *Doubts      // of a failure about which the body may say more; nil: it says nothing more

	Explained bool // an empty quota explains a refusal, as far as is known where the request passed no gate
}

// Doubts are what a failure has changed, until its body has been read.
type Doubts struct {
	As   aimd.Outcome // what the body shows; 0: the failure stands
	ends []Doubt
}

// A Doubt ends a doubt about what a failure has changed at a bucket. End takes what the body shows, and reports whether it has undone
// the change.
type Doubt struct {
	Bucket *Bucket
	End    func(now meter.Instant, as aimd.Outcome) (undone bool)
}

func (d *Doubts) Add(b *Bucket, end func(now meter.Instant, as aimd.Outcome) bool) {
	d.ends = append(d.ends, Doubt{b, end})
}

// Any reports whether there are doubts.
func (d *Doubts) Any() bool { return len(d.ends) > 0 }

// Take returns the doubts, once.
func (d *Doubts) Take() (all []Doubt) {
	if d != nil {
		all, d.ends = d.ends, nil
	}
	return all
}

// retryAfter returns how long to stay away, by the server; 0 if it did not say.
func (a *Answer) RetryAfter() time.Duration {
	if a.Hints == nil {
		return 0
	}
	return a.Hints.Wait
}

// A learner is a meter that learns from the outcomes of requests.
type Learner interface {
	meter.Holder
	// Answered takes the outcome of a request, and returns what stands for charged from then on.
	Answered(now meter.Instant, charged int64, sent meter.Instant, cost int64, o aimd.Outcome, retryAfter time.Duration) int64
	// Doubt is called before Answered for a failure about which the body may say more; see [Doubt]. Stand is called before other failures.
	Doubt(now meter.Instant, charged int64, sent meter.Instant, cost int64) func(now meter.Instant, as aimd.Outcome) bool
	Stand()
	Refund(charged int64, now meter.Instant, cost int64) // as GiveBack, for a request that was answered
	Retuned() (aimd.Retune, bool)
}

// An answered is a meter in which a request counts until some time after its response. Answered reports whether that was moved.
type Answered interface {
	Answered(charged int64, now meter.Instant) bool
}

// A trier is a learner that tests its limit with single requests. Tries reports whether a request was one of those: a bare refusal of
// it says nothing of the other limits.
type Trier interface{ Tries(charged int64) bool }

// news is what a response has changed.
type News struct {
	Retunes []Retuned
	Holds   []HeldEvent
	Forgot  string // for lack of room; see [quota.Change]
}

// retuned says that a learner has changed its rate notably.
type Retuned struct {
	Bucket *Bucket
	aimd.Retune
}

// A HeldEvent says that a bucket is held because of a response.
type HeldEvent struct {
	Bucket *Bucket
	By     time.Duration
	Final  error // what the server said with a final refusal; nil: it is none
}

// A Yielder is a meter that may have to be kept only because of what a server asked for.
type Yielder interface {
	Yields(now meter.Instant) (until meter.Instant, ok bool)
}

// A resumer is a meter that pauses because of what servers reported.
type Resumer interface{ Resume(now meter.Instant) }

var (
	ErrReturned = errors.New("all was given back")
	ErrSettled  = errors.New("it was settled before")
)
