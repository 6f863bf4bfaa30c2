package limiter_test

import (
	"math/rand/v2"
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/concurrency"
	"github.com/httpthrottle/throttle/internal/lease"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/order"
	"github.com/httpthrottle/throttle/internal/supply"
	"github.com/httpthrottle/throttle/store"
)

// This file has a rule for each kind of limit, with the names and the defaults that users know.

// A rule is a rule with the functions that a Core asks its owner for.
type rule struct {
	bucket.Rule
	rateFor func(key string) (n int64, per time.Duration)
	weights func(caller string) int // nil: all callers have the same
	pauses  bool                    // its period is the pause of a slot
}

func (r rule) applyTo(s *setup) { s.rules = append(s.rules, r) }

func (r *rule) weightOf(caller string) int64 {
	if r.weights == nil {
		return 1
	}
	return int64(max(1, min(r.weights(caller), order.MaxWeight)))
}

// terms are what a new meter of a limit is to be.
type terms struct {
	now   meter.Instant
	rate  meter.Rate
	burst int64
	wall  *meter.Wall
}

// newRule returns a rule of n in a period, whose buckets have meters that makes returns. can says what is true of all limits of the kind. The
// name of the limit is the kind, unless the rule is named.
func newRule(kind string, can bucket.Rule, n int64, per time.Duration, opts []ruleOption, makes func(r *rule, t terms) meter.Meter) rule {
	r := &rule{Rule: can}
	r.Name, r.Rate, r.Burst, r.Initial, r.Share = kind, meter.Rate{N: n, Per: per}, -1, -1, 1
	for _, o := range opts {
		o(r)
	}
	r.Make = func(now meter.Instant, rate meter.Rate, burst int64, wall *meter.Wall) meter.Meter {
		return makes(r, terms{now, rate, burst, wall})
	}
	r.Answered = r.Answered && r.Store == nil
	r.Tracked = r.Reported || r.Answered
	return *r
}

func tokenBucket(n int64, per time.Duration, opts ...ruleOption) rule {
	return newRule("bucket", bucket.Rule{Rated: true, Stored: store.Bucket}, n, per, opts, func(r *rule, t terms) meter.Meter {
		return meter.NewTokenBucket(t.now, t.rate, t.burst, r.InitialOf(t.burst))
	})
}

// empty is a bucket of n a second that starts empty.
func empty(n int64, opts ...ruleOption) rule {
	return tokenBucket(n, time.Second, append(opts, withInitial(0))...)
}

// fairly is one whose callers take turns.
func fairly(n int64, opts ...ruleOption) rule { return empty(n, append(opts, fair())...) }

func pace(n int64, per time.Duration, opts ...ruleOption) rule {
	return newRule("pace", bucket.Rule{Rated: true, Stored: store.Pace}, n, per, opts, func(_ *rule, t terms) meter.Meter {
		return meter.NewPace(t.now, t.rate)
	})
}

// evenQuota is a quota whose tokens come back a period after they were used, one by one.
func evenQuota(n int64, per time.Duration, opts ...ruleOption) rule {
	r := newRule("quota", bucket.Rule{Rated: true, Windowed: true, Answered: true, Stored: store.Pace}, n, per, opts, func(_ *rule, t terms) meter.Meter {
		return meter.NewQuota(t.rate)
	})
	if r.Store != nil {
		r.Windowed, r.Share = false, .95*r.Share
	}
	return r
}

func slidingWindow(n int64, per time.Duration, opts ...ruleOption) rule {
	return newRule("sliding-window", bucket.Rule{Rated: true, Windowed: true, Answered: true, Stored: store.Sliding}, n, per, opts,
		func(_ *rule, t terms) meter.Meter { return meter.NewSlidingWindow(t.rate) })
}

func fixedWindow(n int64, per time.Duration, opts ...ruleOption) rule {
	return newRule("fixed-window", bucket.Rule{Rated: true, Windowed: true, Wall: true, Stored: store.Fixed}, n, per, opts, func(r *rule, t terms) meter.Meter {
		return meter.NewFixedWindow(t.now, t.rate, r.Start, t.wall)
	})
}

// periodOf is the mean length of a unit of the calendar.
var periodOf = map[meter.Calendar]time.Duration{meter.Day: 24 * time.Hour, meter.Week: 7 * 24 * time.Hour, meter.Month: 2_629_746 * time.Second}

func calendarWindow(n int64, unit meter.Calendar, zone *time.Location, opts ...ruleOption) rule {
	opts = append(opts, func(r *rule) {
		r.Windows = func(wall *meter.Wall) lease.Windows { return meter.NewCalendars(unit, zone, wall) }
	})
	return newRule("calendar-window", bucket.Rule{Rated: true, Windowed: true, Wall: true, Stored: store.Calendar}, n, periodOf[unit], opts,
		func(_ *rule, t terms) meter.Meter { return meter.NewCalendarWindow(t.now, t.rate, unit, zone, t.wall) })
}

func inFlight(n int64, opts ...ruleOption) rule {
	return newRule("in-flight", bucket.Rule{Reported: true, Frees: true, Stored: store.Slots}, n, 1, opts, func(r *rule, t terms) meter.Meter {
		if r.pauses {
			return meter.NewPausedSlots(t.burst, t.rate)
		}
		return meter.NewSlots(t.burst)
	})
}

func adaptive(c aimd.Config, opts ...ruleOption) rule {
	return newRule("adaptive", bucket.Rule{Reported: true, Learns: true}, 0, 0, opts, func(_ *rule, t terms) meter.Meter {
		return aimd.New(t.now, c.From(0), rand.Uint64())
	})
}

func adaptiveInFlight(c concurrency.Config, opts ...ruleOption) rule {
	return newRule("adaptive-in-flight", bucket.Rule{Reported: true, Learns: true, Frees: true}, 1, 1, opts, func(_ *rule, t terms) meter.Meter {
		return concurrency.New(t.now, c, t.wall)
	})
}

// unlimited grants everything but what is held.
func unlimited() rule {
	return newRule("none", bucket.Rule{Open: true}, meter.MaxCount, 1, nil, func(*rule, terms) meter.Meter { return meter.Unlimited{} })
}

type ruleOption func(*rule)

func named(name string) ruleOption         { return func(r *rule) { r.Name = name } }
func withBurst(n int64) ruleOption         { return func(r *rule) { r.Burst = min(n, meter.MaxCount) } }
func withInitial(n int64) ruleOption       { return func(r *rule) { r.Initial = n } }
func withFraction(part float64) ruleOption { return func(r *rule) { r.Share = part } }
func startingAt(t time.Time) ruleOption    { return func(r *rule) { r.Start = t } }
func clamped() ruleOption                  { return func(r *rule) { r.Clamps = true } }
func keyed() ruleOption                    { return func(r *rule) { r.Keyed = true } }
func hosted() ruleOption                   { return func(r *rule) { r.Hosted = true } }
func fair() ruleOption                     { return func(r *rule) { r.Fair = true } }

func withWeights(f func(caller string) int) ruleOption { return func(r *rule) { r.weights = f } }

func withRates(f func(key string) (n int64, per time.Duration)) ruleOption {
	return func(r *rule) { r.Asks, r.rateFor = true, f }
}

// withPause has a slot rest between two requests.
func withPause(d time.Duration) ruleOption {
	return func(r *rule) { r.Rate.Per, r.pauses = d, true }
}

// shared has the budget be in a store.
func shared(s store.Store, opts ...sharedOption) ruleOption {
	return func(r *rule) {
		r.Store = &bucket.Sharing{
			SupplyTerms: bucket.SupplyTerms{Store: s, Terms: supply.Terms{Timeout: 250 * time.Millisecond, Grace: 3 * time.Second, Without: supply.Nothing}},
			Ahead:       10 * time.Millisecond, Name: "test",
		}
		for _, o := range opts {
			o(r.Store)
		}
	}
}

type sharedOption func(*bucket.Sharing)

func leaseAhead(d time.Duration) sharedOption { return func(s *bucket.Sharing) { s.Ahead = d } }
func storeGrace(d time.Duration) sharedOption { return func(s *bucket.Sharing) { s.Grace = d } }
func expectProcesses(n int) sharedOption      { return func(s *bucket.Sharing) { s.Processes = n } }
func withoutStore(without supply.Without) sharedOption {
	return func(s *bucket.Sharing) { s.Without = without }
}
