package saved

import (
	"errors"
	"fmt"
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/allowance"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/concurrency"
	"github.com/httpthrottle/throttle/internal/meter"
)

// BucketOf returns the state that a bucket of a limit of that kind has now, for a State that was begun then. It reports false if a store
// keeps the state, or if it is as good as new.
func BucketOf(b *bucket.Bucket, kind string, now, began meter.Instant) (s Bucket, ok bool) {
	if b.Leased() != nil {
		return s, false
	}
	s = Bucket{Limit: b.Limit.Name, Kind: kind, Key: Key(b.Key), After: time.Duration(now - began)}
	s.Held = time.Duration(max(0, b.HeldByCaller()-now))
	switch m := b.Meter.(type) {
	case meter.Saver:
		state := m.Save(now)
		s.Tokens, s.Debt = state.Tokens, state.Debt
		for _, g := range state.Grants {
			s.Spent = append(s.Spent, Spent{Ago: g.Ago, Cost: g.Cost})
		}
	case *aimd.Meter:
		x := m.Snapshot(now)
		s.Learned = &Learned{Rate: x.Rate, Ceiling: x.Ceiling, Failures: x.Failures, Latency: x.Latency, DearHold: x.DearHold}
	case *concurrency.Meter:
		x := m.Snapshot()
		s.Learned = &Learned{InFlight: x.N, Ceiling: x.Ceiling, Latency: x.Latency}
		s.Held = time.Duration(max(0, b.HeldAlone()-now))
	case *allowance.Meter:
		s.Quota = reported(m.Save(now))
	default:
		if s.Held == 0 {
			return s, false
		}
	}
	s.Share = b.Share().Part()
	_, full := b.Meter.Matters(now)
	return s, s.Held > 0 || s.Learned != nil || s.Share > 0 || full > now
}

// Check returns why a limit of that kind cannot have the state.
func (s *Bucket) Check(li *bucket.Limit, kind string) error {
	switch {
	case s.Kind != "" && s.Kind != kind:
		return fmt.Errorf("it was saved by a limit of kind %s, and this one is of kind %s", s.Kind, kind)
	case (s.Learned != nil) != li.Learns, (s.Quota != nil) != (li.Unit != ""):
		return errNoFit
	case li.Store != nil:
		return errors.New("the limit is Shared: its store keeps what was spent")
	case s.Held < 0:
		return fmt.Errorf("a hold of %v is impossible", s.Held)
	case !(s.Share >= 0 && s.Share <= 1):
		return fmt.Errorf("a share of %v of the estimates is impossible", s.Share)
	case s.Learned != nil && s.Learned.Paused < 0:
		return fmt.Errorf("a pause of %v is impossible", s.Learned.Paused)
	case s.After < 0:
		return errBefore(s.After)
	}
	return nil
}

// HeldFor returns for how long the bucket was held yet.
func (s *Bucket) HeldFor() time.Duration {
	if s.Learned != nil {
		return max(s.Held, s.Learned.Paused)
	}
	return s.Held
}

// Restore replaces the state of a bucket by one that was saved since nanoseconds ago, and that [Bucket.Check] finds no fault with.
func (s *Bucket) Restore(b *bucket.Bucket, since int64, now meter.Instant) error {
	b.RestoreShare(now, bucket.ShareOfPart(s.Share))
	switch m := b.Meter.(type) {
	case meter.Saver:
		state := meter.State{Tokens: s.Tokens, Debt: s.Debt}
		for _, g := range s.Spent {
			state.Grants = append(state.Grants, meter.Granted{Ago: g.Ago, Cost: g.Cost})
		}
		return m.Restore(now, since, state)
	case *aimd.Meter:
		x := s.Learned
		if !m.Learn(now, aimd.Learned{Rate: x.Rate, Ceiling: x.Ceiling, Failures: x.Failures, Latency: x.Latency, DearHold: x.DearHold}) {
			return errNoFit
		}
	case *concurrency.Meter:
		x := s.Learned
		if !m.Learn(now, concurrency.Learned{N: x.InFlight, Ceiling: x.Ceiling, Latency: x.Latency}) {
			return errNoFit
		}
	case *allowance.Meter:
		if !m.Restore(now, since, s.Quota.learned()) {
			return errNoFit
		}
	}
	return nil
}

// reported returns the form of what was learned of a ServerQuota.
func reported(x allowance.Learned) *Reported {
	q := &Reported{Took: x.Took, Held: x.Held}
	for i, h := range x.Hidden {
		q.Hidden[i] = Hidden(h)
	}
	for _, p := range x.Parts {
		q.Parts = append(q.Parts, Part(p))
	}
	return q
}

// learned undoes reported.
func (q *Reported) learned() allowance.Learned {
	x := allowance.Learned{Took: q.Took, Held: q.Held}
	for i, h := range q.Hidden {
		x.Hidden[i] = allowance.Hidden(h)
	}
	for _, p := range q.Parts {
		x.Parts = append(x.Parts, allowance.Part(p))
	}
	return x
}

func errBefore(after time.Duration) error {
	return fmt.Errorf("it cannot have been read %v after the snapshot was taken", after)
}

var errNoFit = errors.New("the saved state does not fit this kind of limit")
