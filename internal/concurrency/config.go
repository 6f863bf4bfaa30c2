package concurrency

import (
	"errors"
	"fmt"
	"math"

	"github.com/httpthrottle/throttle/internal/aimd"
)

// A Config is throttle.Concurrency, which documents it.
type Config struct{ Initial, Min, Max int64 }

const defaultInitial = 4

// Validate returns every problem of the configuration.
func (c Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	for _, f := range []struct {
		name  string
		value int64
	}{{"Initial", c.Initial}, {"Min", c.Min}, {"Max", c.Max}} {
		if f.value < 0 {
			fault("Concurrency.%s is %d: negative", f.name, f.value)
		}
	}
	if c.Max > 0 && c.Min > c.Max {
		fault("Concurrency.Min is %d: above Max, which is %d", c.Min, c.Max)
	}
	if c.Initial > 0 && c.Initial < c.Min {
		fault("Concurrency.Initial is %d: below Min, which is %d", c.Initial, c.Min)
	}
	if c.Max > 0 && c.Initial > c.Max {
		fault("Concurrency.Initial is %d: above Max, which is %d", c.Initial, c.Max)
	}
	return errors.Join(faults...)
}

// exact is the most requests that a float64 counts one by one, so that no bound is rounded to a higher number.
const exact = 1 << 53

// withDefaults returns a valid configuration with every field set, and none above Max.
func (c Config) withDefaults() Config {
	if c.Max == 0 {
		c.Max = exact
	}
	c.Max = min(c.Max, exact)
	c.Min = min(max(1, c.Min), c.Max)
	if c.Initial == 0 {
		c.Initial = max(c.Min, defaultInitial)
	}
	c.Initial = min(c.Initial, c.Max)
	return c
}

// Learned is what is known of a key, for the next process. Latency is the lowest latency of a lower level, in seconds; 0:
// unknown, as with the Ceiling.
type Learned struct{ N, Ceiling, Latency float64 }

func isUnknown(x float64) bool { return math.IsInf(x, 1) }

// valid reports whether a controller can have saved l.
func (l Learned) valid() bool {
	for _, x := range []float64{l.N, l.Ceiling, l.Latency} {
		if math.IsNaN(x) || math.IsInf(x, 0) || x < 0 {
			return false
		}
	}
	return l.N >= 1
}

// snapshot returns what the key has learned.
func (c *controller) snapshot() Learned {
	l := Learned{N: c.cruise()}
	if !isUnknown(c.refusals.ceiling) {
		l.Ceiling = c.refusals.ceiling
	}
	if !isUnknown(c.best) {
		l.Latency = min(math.MaxFloat64, math.Exp(c.best)) // which may be rounded up to +Inf
	}
	return l
}

// restore makes a new controller resume with what another has learned: from half of n, because that is long ago. It reports
// whether l is valid.
func (c *controller) restore(l Learned) bool {
	if !l.valid() {
		return false
	}
	if l.Ceiling > 0 {
		c.refusals.ceiling = max(1, l.Ceiling)
	}
	if l.Latency > 0 {
		c.best = math.Log(l.Latency)
	}
	c.change(aimd.CauseRestored, max(1, math.Floor(l.N/2)))
	return true
}
