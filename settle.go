package throttle

import (
	"context"
	"errors"
	"net/http"

	"github.com/httpthrottle/throttle/internal/jsonfinder"
)

// A SettleFunc returns the true cost of a request from its response. If ok is false, the cost is unknown and the charge stays.
// A negative cost is ignored. It must not read the body, and must be safe for concurrent use.
type SettleFunc func(*http.Request, *http.Response) (cost int64, ok bool)

// Settle corrects the charge of each request in this limit when the headers of its response arrive, as [Grant.Settle] does. It is
// for APIs that report the cost of a request in the headers. It does not fit an [InFlight] limit.
func Settle(f SettleFunc) LimitOption {
	return limitOption(func(l *Limit) {
		l.settles = f
		if f == nil {
			l.fault("Settle(nil): a function is needed")
		} else if l.kind == kindInFlight {
			l.fault("Settle does not fit a limit of kind %s", l.kind)
		}
	})
}

// SettleJSON corrects the charge of each request in this limit when the body of its response was read or closed, as
// [Grant.Settle] does. The cost is the number at a path of names in the JSON body, such as "usage.total_tokens". It is found while
// the caller reads the body: nothing is delayed, and less than 1 KiB is kept. Over TLS on a loopback socket, reading becomes
// slower by a twentieth; by a fifth for JSON with many quotes, such as JSON within a string; by two fifths for small objects
// within objects.
//
// The numbers at several paths are added up. Alternatives are one path with bars between them: of
// "usage.input_tokens|message.usage.input_tokens", the last number in the body counts. There may be 16 alternatives in all, of at
// most 16 names each. If the body has several values, as lines or server-sent events, the last one with a number counts. A number
// is rounded up; a negative number or one above the range of int64 is ignored. Nothing within an array is found.
//
// The charge stays if no number is found, or if the body is closed before each path had a number: of a figure that grows during a
// stream, do not name the place where it appears first. It also stays if the Content-Type is neither JSON nor text/event-stream
// nor missing, or if the body is compressed; net/http decompresses unless the caller asked for compression. If the limit has
// [Settle] too, that one goes first.
func SettleJSON(paths ...string) LimitOption {
	return limitOption(func(l *Limit) {
		compiled, err := jsonfinder.Compile(paths)
		if l.costAt = compiled; err != nil {
			l.fault("SettleJSON: %w", err)
		} else if l.kind == kindInFlight {
			l.fault("SettleJSON does not fit a limit of kind %s", l.kind)
		}
	})
}

var (
	errUncharged = errors.New("nothing was charged there")
	errReturned  = errors.New("all was given back")
	errSettled   = errors.New("it was settled before")
	errNegative  = errors.New("the cost is negative")
	errSlots     = errors.New("a limit of kind " + string(kindInFlight) + " has no cost to be settled")
)

// A SettleEvent says that a charge was corrected.
type SettleEvent struct {
	Context       context.Context // of the request; nil: none is known
	Limit, Key    string
	Charged, Cost int64 // what was charged first, and what it really cost
}

// settle corrects the i-th charge of a Grant.
func (l *Limiter) settle(g *Grant, i int, cost int64) error {
	c := &g.charges()[i]
	switch {
	case cost < 0:
		return errNegative
	case c.limit.kind == kindInFlight:
		return errSlots
	}
	charged, err := l.correct(g, c, min(cost, maxCount))
	if err == nil {
		g.by.observer.settled(SettleEvent{g.ctx, c.limit.name, c.key, charged, cost})
	}
	return err
}

func (l *Limiter) correct(g *Grant, c *charge, cost int64) (charged int64, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case g.spent&grantReturned != 0:
		return 0, errReturned
	case c.settled:
		return 0, errSettled
	}
	g.spent |= grantSettled
	charged, c.cost, c.settled = c.cost, cost, true
	if cost == charged || c.booked {
		return charged, nil
	}
	now := l.nowLocked()
	b := c.bucket
	if cost > charged {
		b = l.keptLocked(c, now)
	}
	l.markLocked(b)
	l.serveLocked(now) // requests that are due go first
	b.meter.Settle(c.paid, now, charged, cost)
	l.turnLocked(g.caller, b, cost-charged, now)
	if cost < charged {
		c.limit.counts.gave(charged - cost)
		b.since = max(b.since, now)
		l.markLocked(b)
		l.freeLocked(b, now)
	} else {
		c.limit.counts.charged += uint64(cost - charged)
		l.replanLocked(now, b)
		l.owedLocked(b, now)
	}
	l.serveLocked(now)
	return charged, nil
}

// owedLocked turns the debt of a bucket into a hold of its key, if the bucket was forgotten and there is no room for it.
func (l *Limiter) owedLocked(b *bucket, now instant) {
	if b.key == "" || b.place >= 0 {
		return
	}
	if must, _ := b.meter.Matters(now); must > now {
		b.limit.keepHold(b.key, must, now)
	}
}

// keptLocked returns the bucket of the key of a charge. The bucket that was charged may have been forgotten, because it was full
// or to make room, and another may have replaced it. If none has, it is kept again.
func (l *Limiter) keptLocked(c *charge, now instant) *bucket {
	b := c.bucket
	if b.key == "" || b.limit.buckets[b.key] == b {
		return b
	}
	if other := b.limit.buckets[b.key]; other != nil {
		return other
	}
	stale := b.limit.rateFor != nil && b.asked < b.limit.refreshed // the next request asks for its rate
	if stale || l.keys.size() >= l.maxKeys && !l.evictLocked(now, nil, &l.keys) {
		return b // it is not kept; see owedLocked
	}
	if !b.ownRate { // it was not there when the limit was changed
		r, burst := b.limit.terms(rate{})
		b.setTermsLocked(r, burst, now)
	}
	l.keepLocked(b, now)
	return b
}
