package quota

import (
	"unsafe"

	"github.com/httpthrottle/throttle/internal/meter"
)

const (
	askEvery   = 60 * second    // in which one request asks whether a final refusal still holds
	finalStale = 86400 * second // for which it is remembered while no request asks
)

// A final is a refusal that no waiting ends. Requests are rejected, except one each minute, which asks whether it still holds. An
// accepted response to a request that was sent after the refusal ends it. It is not saved in a snapshot, because to ask costs one request.
//
// It is of all accounts of a group, because it mostly is about money. A nil final is none.
type final struct {
	said  error         // what the server said
	since meter.Instant // when it said so first
	ask   meter.Instant // when the next request asks
	asker asker         // the last request that asked; the zero value: none has
}

// An asker is a request.
type asker struct {
	account *Account
	number  int64 // there
}

// newFinal returns a final refusal that came now.
func newFinal(said error, now meter.Instant) *final {
	return &final{said: said, since: now, ask: meter.AddInstant(now, askEvery)}
}

// next returns when the n-th request from now on may leave, not before from; Never: the one before asks, and its response decides.
func (f *final) next(from meter.Instant, n int64) meter.Instant {
	switch {
	case f == nil:
		return from
	case n > 1:
		return meter.Never
	}
	return max(from, f.ask)
}

// saidAgain takes another final refusal, and reports whether that is news: requests that were sent before the first one, or while another
// asks, say nothing more.
func (f *final) saidAgain(said error, by asker) (news bool) {
	if by != f.asker {
		return false
	}
	f.said = said
	return true
}

// asks notes that a request is sent that asks.
func (f *final) asks(by asker, now meter.Instant) {
	if f != nil {
		f.ask, f.asker = meter.AddInstant(now, askEvery), by
	}
}

// unsent has another request ask, because that one was not sent.
func (f *final) unsent(by asker, now meter.Instant) {
	if f != nil && f.asker == by {
		f.ask, f.asker = now, asker{}
	}
}

// askedBy reports whether that request asks.
func (f *final) askedBy(by asker) bool { return f != nil && f.asker == by }

// accepted takes the response to a request that did what was asked, and returns what is left of the refusal.
func (f *final) accepted(sent meter.Instant) *final {
	if f != nil && sent > f.since {
		return nil
	}
	return f
}

func (f *final) size() int {
	if f == nil {
		return 0
	}
	return int(unsafe.Sizeof(*f)) + len(f.said.Error()) + 64 // the error is about so much larger than its text
}
