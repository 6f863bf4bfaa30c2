package aimd

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

// A Config is throttle.AIMD, which documents it.
type Config struct {
	Initial, Min, Max float64
	LatencyThreshold  time.Duration
	ErrorThreshold    float64
}

// An ablation switches rules of the controller off, so that tests can show what each of them earns.
type ablation struct {
	round, event, mild, deeper, closed, curve, creep, use, crowd bool // how the rate moves
	pause, hold, part, toll, quota, dear, long                   bool // Retry-After and windows
	errors, verify, silence                                      bool // failures
	inFlight                                                     bool // how many requests may be in flight
}

const (
	defaultInitial = 10.0
	defaultMin     = 1e-5 // a request a day; a lower rate would not be found
	maxRate        = float64(meter.MaxCount)
)

// Validate returns every problem of the configuration.
func (a Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	for _, f := range []struct {
		name  string
		value float64
	}{{"Initial", a.Initial}, {"Min", a.Min}, {"Max", a.Max}, {"ErrorThreshold", a.ErrorThreshold}} {
		if math.IsNaN(f.value) || math.IsInf(f.value, 0) || f.value < 0 {
			fault("AIMD.%s is %v: neither 0 nor a positive number", f.name, f.value)
		}
	}
	if a.Max > 0 && a.Min > a.Max {
		fault("AIMD.Min is %v: above Max, which is %v", a.Min, a.Max)
	}
	if a.Initial > 0 && a.Initial < a.Min {
		fault("AIMD.Initial is %v: below Min, which is %v", a.Initial, a.Min)
	}
	if a.Max > 0 && a.Initial > a.Max {
		fault("AIMD.Initial is %v: above Max, which is %v", a.Initial, a.Max)
	}
	if a.ErrorThreshold > 1 {
		fault("AIMD.ErrorThreshold is %v: above 1", a.ErrorThreshold)
	}
	if a.LatencyThreshold < 0 {
		fault("AIMD.LatencyThreshold is %v: negative", a.LatencyThreshold)
	}
	return errors.Join(faults...)
}

// From returns the configuration with that rate as Initial, if none is set and it is above the default.
func (a Config) From(rate float64) Config {
	if a.Initial == 0 && rate > defaultInitial {
		a.Initial = max(a.Min, min(rate, cmp.Or(a.Max, maxRate), maxRate))
	}
	return a
}

// withDefaults returns a valid configuration with every field set.
func (a Config) withDefaults() Config {
	if a.Max == 0 {
		a.Max = maxRate
	}
	a.Max = min(a.Max, maxRate)
	if a.Min == 0 {
		a.Min = min(defaultMin, a.Max)
		if a.Initial > 0 {
			a.Min = min(a.Min, a.Initial)
		}
	}
	if a.Initial == 0 {
		a.Initial = max(a.Min, min(defaultInitial, a.Max))
	}
	return a
}

// An Outcome is what a response says about load; throttle.Outcome documents the values.
type Outcome uint8

const (
	OK Outcome = iota + 1
	ClientError
	Throttled
	Unavailable
	Error
	Ignore
	Forbidden // a bare 403, which is ClientError or Throttled; see Suspicion
)

// weight returns how much of a failure an Outcome is, as far as it is a guess whether load is the cause.
func (o Outcome) weight() float64 {
	switch o {
	case Throttled, Unavailable:
		return 1
	case Error:
		return 0.4
	}
	return 0
}

// A Retune is a change of the rate, in tokens per second, and its cause.
type Retune struct {
	Cause    Cause
	From, To float64
}

// Learned is what is known of a key, for the next process; throttle.Learned documents the fields.
type Learned struct {
	Rate, Ceiling, Failures, Latency, DearHold float64
}

// valid reports whether a controller can have saved l.
func (l Learned) valid() bool {
	for _, x := range []float64{l.Rate, l.Ceiling, l.Failures, l.Latency, l.DearHold} {
		if math.IsNaN(x) || math.IsInf(x, 0) || x < 0 {
			return false
		}
	}
	return l.Rate > 0
}

// snapshot returns what the key has learned.
func (c *controller) snapshot(now instant) Learned {
	usual, _ := c.failures.Usual()
	l := Learned{Rate: c.rate(now), Ceiling: c.ceiling, Failures: usual, Latency: c.latency.base}
	if c.dear(now) {
		l.DearHold = c.dearHold
	}
	return l
}

// restore makes a new controller resume with what another has learned: from half of the rate, because that is long ago, or
// held a little below it where a touch of the limit is dear. It reports whether l is valid.
func (c *controller) restore(now instant, l Learned) bool {
	if !l.valid() {
		return false
	}
	if l.Ceiling > 0 {
		l.Rate = min(l.Rate, l.Ceiling)
	}
	c.ceiling = c.clamp(l.Rate)
	c.backoff.Learn(nanos(1 / l.Rate))
	c.failures.Recall(l.Failures)
	c.latency.base = l.Latency
	if c.cfg.LatencyThreshold == 0 {
		c.latency.most = max(c.latency.most, c.requests(l.Rate)*l.Latency)
	}
	if l.DearHold > 0 {
		c.holdDear(now, l.DearHold)
		c.set(CauseRestored, beta*l.Rate)
		return true
	}
	c.set(CauseRestored, l.Rate/2)
	return true
}
