package throttle

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/allowance"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/concurrency"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

// The kinds of limits. A limit without a [Name] is called by its kind.
const (
	KindTokenBucket      = "bucket"
	KindPace             = "pace"
	KindQuota            = "quota"
	KindSlidingWindow    = "sliding-window"
	KindFixedWindow      = "fixed-window"
	KindCalendarWindow   = "calendar-window"
	KindInFlight         = "in-flight"
	KindAdaptive         = "adaptive"
	KindAdaptiveInFlight = "adaptive-in-flight"
	KindServerQuota      = "server-quota"
	KindServer           = "server" // the limit that stands for what servers reported
	KindNone             = "none"   // in a Limiter without limits
)

// A kind is a kind of limits: what they can do, and how they make their meters. A new kind is a value here, and a function that users
// call. Nothing else lists the kinds.
type kind struct {
	name   string
	can    bucket.Rule        // what is true of all limits of the kind
	bursts bool               // it holds a number of tokens, which users set
	clamps bool               // a cost may exceed what a limit can ever pay
	check  func(*Limit) error // returns the faults of its numbers; nil: there can be none
	meter  func(*Limit, terms) meter.Meter
}

// terms are what the meter of a new bucket needs to know. Fraction is already applied.
type terms struct {
	now   meter.Instant
	rate  meter.Rate
	burst int64
	wall  *meter.Wall
}

var (
	kindBucket = &kind{
		name: KindTokenBucket, can: bucket.Rule{Rated: true, Stored: store.Bucket}, bursts: true, clamps: true,
		check: func(l *Limit) error {
			err := l.check(l.rule.Rate)
			if burst := l.rule.BurstOf(l.rule.Rate); l.rule.Initial > burst {
				err = errors.Join(err, fmt.Errorf("Initial(%d) is more than the burst of %d", l.rule.Initial, burst))
			}
			return err
		},
		meter: func(l *Limit, t terms) meter.Meter {
			return meter.NewTokenBucket(t.now, t.rate, t.burst, l.rule.InitialOf(t.burst))
		},
	}
	kindPace = &kind{
		name: KindPace, can: bucket.Rule{Rated: true, Stored: store.Pace}, check: checkRate,
		meter: func(_ *Limit, t terms) meter.Meter { return meter.NewPace(t.now, t.rate) },
	}
	kindQuota = &kind{
		name: KindQuota, can: bucket.Rule{Rated: true, Windowed: true, Answered: true, Stored: store.Pace}, clamps: true, check: checkRate,
		meter: func(_ *Limit, t terms) meter.Meter { return meter.NewQuota(t.rate) },
	}
	kindSliding = &kind{
		name: KindSlidingWindow, can: bucket.Rule{Rated: true, Windowed: true, Answered: true, Stored: store.Sliding}, clamps: true, check: checkRate,
		meter: func(_ *Limit, t terms) meter.Meter { return meter.NewSlidingWindow(t.rate) },
	}
	kindFixed = &kind{
		name: KindFixedWindow, can: bucket.Rule{Rated: true, Windowed: true, Wall: true, Stored: store.Fixed}, clamps: true, check: checkRate,
		meter: func(l *Limit, t terms) meter.Meter {
			return meter.NewFixedWindow(t.now, t.rate, l.rule.Start, t.wall)
		},
	}
	kindCalendar = &kind{
		name: KindCalendarWindow, can: bucket.Rule{Rated: true, Windowed: true, Wall: true, Stored: store.Calendar}, clamps: true, check: checkRate,
		meter: func(l *Limit, t terms) meter.Meter {
			return meter.NewCalendarWindow(t.now, t.rate, meter.Calendar(l.unit), l.zone, t.wall)
		},
	}
	kindInFlight = &kind{
		name: KindInFlight, can: bucket.Rule{Reported: true, Frees: true, Stored: store.Slots}, clamps: true,
		check: func(l *Limit) (err error) {
			if l.rule.Rate.N <= 0 {
				err = fmt.Errorf("InFlight(%d) is not positive", l.rule.Rate.N)
			}
			if l.rateFor != nil && !l.paused {
				err = errors.Join(err, fmt.Errorf("RateFor does not fit a limit of kind %s without a Pause", KindInFlight))
			}
			return err
		},
		meter: func(l *Limit, t terms) meter.Meter {
			if l.paused {
				return meter.NewPausedSlots(t.burst, t.rate)
			}
			return meter.NewSlots(t.burst)
		},
	}
	kindAIMD = &kind{
		name: KindAdaptive, can: bucket.Rule{Reported: true, Learns: true, Hosted: true},
		check: func(l *Limit) error { return l.aimd.validate() },
		meter: func(l *Limit, t terms) meter.Meter {
			m := aimd.New(t.now, aimd.Config(l.aimd).From(l.known), rand.Uint64())
			if l.beside {
				m.Beside(t.now)
			}
			return m
		},
	}
	kindLearned = &kind{
		name: KindAdaptiveInFlight, can: bucket.Rule{Reported: true, Learns: true, Hosted: true, Frees: true},
		check: func(l *Limit) error { return l.flight.validate() },
		meter: func(l *Limit, t terms) meter.Meter {
			return concurrency.New(t.now, concurrency.Config(l.flight), t.wall)
		},
	}
	kindReported = &kind{
		name: KindServerQuota, can: bucket.Rule{Reported: true, Hosted: true},
		check: func(l *Limit) (err error) {
			switch l.rule.Unit {
			case "":
				err = errors.New("ServerQuota: the unit is empty")
			case "requests", "request":
				err = fmt.Errorf("ServerQuota(%q): quotas of requests are kept without a limit", l.rule.Unit)
			}
			return err
		},
		meter: func(_ *Limit, t terms) meter.Meter { return allowance.New(t.wall) },
	}
	kindServer = &kind{name: KindServer} // beside all limits
	kindNone   = &kind{                  // grants everything but what is held
		name: KindNone, can: bucket.Rule{Open: true},
		meter: func(*Limit, terms) meter.Meter { return meter.Unlimited{} },
	}
)

// slots reports whether users set how many requests may be in flight.
func (k *kind) slots() bool { return k.can.Frees && !k.can.Learns }

// isSet reports whether users set the numbers of a limit.
func (k *kind) isSet() bool { return k.can.Rated || k.slots() }

// learns reports whether a limit finds its numbers.
func (k *kind) learns() bool { return k.can.Learns }

// spends reports whether tokens of a limit are gone once they are spent, so that their cost can be corrected.
func (k *kind) spends() bool { return !k.can.Frees }

func checkRate(l *Limit) error { return l.check(l.rule.Rate) }
