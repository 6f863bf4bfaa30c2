package limiter_test

import (
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/meter/metertest"
)

// This file is how the model test makes its limits and changes them.

// make makes a Limiter and its model. In some runs requests have a key, and their key a rate of its own.
func (x *modelRun) make() {
	x.limit, x.size = x.rate(), 1+x.r.Int64N(10)
	x.m = &model{fates: make(map[int]fate)}
	var opts []ruleOption
	kind := x.r.IntN(8)
	if kind < 6 && x.r.IntN(2) == 0 {
		x.key = "k"
		x.newRateFor()
		opts = append(opts, withRates(func(string) (int64, time.Duration) { return x.rateFor.N, x.rateFor.Per }))
	}
	clamps := (kind < 3 || kind > 5) && x.r.IntN(3) == 0
	if clamps {
		opts = append(opts, clamped())
	}
	limit := x.makeLimit(kind, opts)
	if clamps {
		x.m.clamps = x.burst
	}
	x.l = drive(x.T, limit)
	x.name = x.l.Limits[0].Name
	if x.size%2 == 0 {
		x.l.SetChecks(int(x.size), func() {})
	}
	synctest.Wait()
}

func (x *modelRun) makeLimit(kind int, opts []ruleOption) rule {
	r, per := x.limit.N, x.limit.Per
	switch kind {
	case 0, 1, 2:
		if x.fixed = kind > 0; x.fixed {
			opts = append(opts, withBurst(x.size))
		} else {
			x.size = r
		}
		now, burst := x.terms()
		initial := burst // as it is each time that the key was forgotten
		if x.key == "" {
			initial = x.r.Int64N(burst + 1)
			opts = append(opts, withInitial(initial))
		}
		x.burst, x.m.ideal = burst, metertest.NewBucket(0, now, burst, initial)
		return tokenBucket(r, per, opts...)
	case 3:
		now, _ := x.terms()
		x.burst, x.m.ideal = x.size, metertest.NewPace(0, now)
		return pace(r, per, opts...)
	case 4: // windows plan exactly for requests of cost 1
		now, _ := x.terms()
		x.burst, x.m.ideal = 1, &metertest.SlidingWindow{N: now.N, Per: int64(now.Per)}
		return slidingWindow(r, per, opts...)
	case 5:
		now, _ := x.terms()
		x.burst, x.m.ideal = 1, &metertest.FixedWindow{N: now.N, Per: int64(now.Per), Unix: time.Now().UnixNano(), Used: make(map[int64]int64)}
		return fixedWindow(r, per, opts...)
	}
	x.burst, x.m.ideal = x.size, &metertest.Slots{N: x.size}
	return inFlight(x.size, opts...)
}

// newRateFor gives the key another rate of its own, or none.
func (x *modelRun) newRateFor() {
	if x.rateFor = (meter.Rate{}); x.r.IntN(3) > 0 {
		x.rateFor = x.rate()
	}
}

// terms returns the rate and the burst that the key has.
func (x *modelRun) terms() (r meter.Rate, burst int64) {
	switch {
	case x.rateFor == meter.Rate{}:
		return x.limit, x.size
	case x.fixed:
		return x.rateFor, x.size
	}
	return x.rateFor, x.rateFor.N
}

// follow has the model do what a change of the terms does.
func (x *modelRun) follow(now meter.Instant) {
	r, burst := x.terms()
	x.m.ideal.Retune(now, r)
	b, ok := x.m.ideal.(*metertest.Bucket)
	_, slots := x.m.ideal.(*metertest.Slots)
	if ok && !b.Paced || slots {
		if ok && burst != x.burst {
			x.m.grants = nil // what the old burst could not hold is lost
		}
		x.burst = burst
		x.m.resize(burst, now)
	}
	if ok && x.bucket() == nil {
		b.Level = b.Burst // it was full, and forgotten
	}
	x.m.replan(now)
}

// bucket returns the only one; nil: it is not there.
func (x *modelRun) bucket() *bucket.Bucket {
	x.l.Lock()
	defer x.l.Unlock()
	if x.key == "" {
		return x.l.Limits[0].Single
	}
	return x.l.Limits[0].Bucket(x.key)
}

// refresh changes the rate of the key, sometimes to an invalid one.
func (x *modelRun) refresh(now meter.Instant) {
	before := x.rateFor
	keys := []string{x.key, "other"}[:x.r.IntN(3)]
	if x.r.IntN(3) > 0 {
		x.newRateFor()
		require.NoError(x, x.l.refresh(x.name, keys...))
		if x.rateFor != before {
			x.follow(now)
		}
		return
	}
	x.rateFor = meter.Rate{N: -1}
	err := x.l.refresh(x.name, keys...)
	require.Equal(x, x.bucket() != nil, err != nil, "%v", err)
	x.rateFor = before
}

// resize changes the burst or the slots, if there are any.
func (x *modelRun) resize(now meter.Instant) {
	n := 1 + x.r.Int64N(10)
	switch b := x.m.ideal.(type) {
	case *metertest.Bucket:
		if b.Paced {
			return
		}
		x.size, x.fixed = n, true
		x.l.setBurst(x.name, n)
	case *metertest.Slots:
		x.size = n
		x.l.setInFlight(x.name, n)
	default:
		return
	}
	x.follow(now)
}

func (m *model) clamp(w *modelWaiter) {
	if m.clamps > 0 {
		w.cost = min(w.cost, m.clamps)
	}
}

// resize sets the most that a request may cost.
func (m *model) resize(most, now meter.Instant) {
	switch of := m.ideal.(type) {
	case *metertest.Bucket:
		of.Resize(now, most)
	case *metertest.Slots:
		of.N = most
	}
	if m.clamps > 0 {
		m.clamps = most
	}
	for _, w := range m.line {
		m.clamp(w)
	}
}
