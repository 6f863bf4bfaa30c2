package lease

import (
	"slices"
	"testing"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
	"github.com/stretchr/testify/assert"
)

func window(kind store.Kind, n int64, per time.Duration) store.Budget {
	return store.Budget{Kind: kind, N: n, Per: per}
}

func TestProcessesGetEvenSharesOfAWindow(t *testing.T) {
	for name, c := range map[string]struct {
		budget  store.Budget
		callers int64
		periods int
		calls   float64 // a token, at most
	}{
		"sliding":              {window(store.Sliding, 500, time.Second), 16, 30, 0.25},
		"fixed":                {window(store.Fixed, 500, time.Second), 16, 30, 0.25},
		"small, sliding":       {window(store.Sliding, 100, time.Second), 16, 30, 1.3},
		"small, fixed":         {window(store.Fixed, 100, time.Second), 16, 30, 1},
		"large, sliding":       {window(store.Sliding, 5000, time.Second), 16, 10, 0.25},
		"large, fixed":         {window(store.Fixed, 5000, time.Second), 16, 10, 0.25},
		"long queues, sliding": {window(store.Sliding, 5000, time.Second), 1000, 30, 0.1},
		"long queues, fixed":   {window(store.Fixed, 5000, time.Second), 1000, 30, 0.1},
		"sliding, 200 ms":      {window(store.Sliding, 500, 200*time.Millisecond), 16, 30, 0.25},
		"sliding, a minute":    {window(store.Sliding, 600, time.Minute), 16, 30, 1},
		"fixed, a minute":      {window(store.Fixed, 600, time.Minute), 16, 30, 1},
		"sliding, an hour":     {window(store.Sliding, 3600, time.Hour), 16, 20, 2},
		"fixed, an hour":       {window(store.Fixed, 3600, time.Hour), 16, 20, 2},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(1, c.budget, 8, c.callers)
			over := time.Duration(c.periods) * c.budget.Per
			f.run(2 * c.budget.Per)
			f.reset()
			f.run(over)
			used := float64(f.used) / float64(c.budget.N) / float64(c.periods)
			least, most := f.shares()
			calls := float64(f.calls) / float64(f.used)
			t.Logf("%.3f of the budget, shares of %.2f to %.2f, %.2f calls a token", used, least, most, calls)
			if used < 0.98 || used > 1.01 || least < 0.85 || most > 1.15 || calls > c.calls {
				t.Errorf("%.3f of the budget, shares of %.2f to %.2f, %.2f calls a token", used, least, most, calls)
			}
		})
	}
}

// shares returns the least and the largest use of a process, as parts of the mean.
func (f *fleet) shares() (least, most float64) {
	var used []float64
	for _, p := range f.processes {
		used = append(used, float64(p.used)*float64(len(f.processes))/float64(f.used))
	}
	return slices.Min(used), slices.Max(used)
}

// Processes use all of a window within milliseconds after it comes in. A process that finds nothing asks again within these milliseconds.
func TestProcessesGetEvenSharesOfAWindowThatIsUsedAtOnce(t *testing.T) {
	for seed := range uint64(5) {
		f := newFleet(seed, window(store.Sliding, 3000, time.Minute), 19, 4)
		f.latency = func() int64 { return int64(2*time.Millisecond) + f.Int64N(int64(200*time.Microsecond)) }
		f.run(2 * time.Minute)
		f.reset()
		f.run(4 * time.Minute)
		least, most := f.shares()
		t.Logf("seed %d: shares of %.2f to %.2f, %.2f calls a token", seed, least, most, float64(f.calls)/float64(f.used))
		if least < 0.85 || most > 1.15 || f.used != 4*3000 || f.calls > f.used/4 {
			t.Errorf("seed %d: %d tokens, shares of %.2f to %.2f, %d calls", seed, f.used, least, most, f.calls)
		}
	}
}

func TestAProcessWithLessThanItsShareAsksSooner(t *testing.T) {
	m := leasedOf(window(store.Sliding, 320, 6400*time.Millisecond))
	m.latest.processes = 8
	for mine, want := range map[int64]time.Duration{
		0: 0, 10: 25 * time.Millisecond, 38: 95 * time.Millisecond,
		39: 100 * time.Millisecond, // two more are beyond its share
	} {
		m.inPeriod(now)
		m.leased[m.part%turnParts] = mine
		assert.Equal(t, want, m.pause(now, 2), "it has %d of 40", mine)
	}
}

func TestATurnEndsWhenTheShareIsBack(t *testing.T) {
	m := leasedOf(window(store.Sliding, 320, 64*time.Second)) // it is counted in parts of 4 s
	m.latest.processes = 8
	at := now + 3*second
	m.inPeriod(at)
	m.leased[(m.part+1)%turnParts], m.leased[m.part%turnParts] = 5, 35 // a period ago, and now
	assert.Equal(t, now+4*second, m.shareFrom(40))
	assert.Equal(t, now+64*second, m.shareFrom(45))
	m.endTurn(at, at, &store.Part{}, store.LeasedPart{}) // a turn is 1 to 5 s
	assert.Equal(t, now+4*second, m.again)
	most, beyond := m.allowed(m.again - 1)
	assert.True(t, beyond && most <= 0)
	most, beyond = m.allowed(m.again)
	assert.False(t, beyond)
	assert.EqualValues(t, 5, most)
}

// TestProcessThatNeedsLittleOfAWindowGetsIt has one process that always wants more, and others that want a token five times a
// period. It leaves them tokens that they may not need.
func TestProcessThatNeedsLittleOfAWindowGetsIt(t *testing.T) {
	for name, c := range map[string]struct {
		budget store.Budget
		gets   float64 // of what it wants
	}{
		"sliding": {window(store.Sliding, 500, time.Second), 0.99}, "fixed": {window(store.Fixed, 500, time.Second), 0.99},
		"large, sliding": {window(store.Sliding, 5000, time.Second), 0.99}, "large, fixed": {window(store.Fixed, 5000, time.Second), 0.99},
	} {
		t.Run(name, func(t *testing.T) {
			const periods, each = 30, 5
			b := c.budget
			f := newFleet(1, b, 8, 0)
			f.processes[0].callers = 64
			for i, p := range f.processes[1:] {
				f.comes(p, int64(i)*int64(10*time.Millisecond), int64(b.Per)/each)
			}
			f.run(3 * b.Per)
			f.reset()
			f.run(periods * b.Per)
			used := float64(f.used) / float64(b.N) / periods
			least := f.processes[1].used
			for _, p := range f.processes[1:] {
				least = min(least, p.used)
			}
			t.Logf("%.3f of the budget; %d of %d requests of a small process", used, least, periods*each)
			if used < 0.9 {
				t.Errorf("%.3f of the budget", used)
			}
			if float64(least) < c.gets*periods*each {
				t.Errorf("a process that wanted %d tokens got %d", periods*each, least)
			}
		})
	}
}

// A process uses all of a window of few requests for each process, while the others that share it want nothing. It waits for ten seconds once in
// each window.
func TestAProcessUsesWhatOthersLeaveOfASmallWindow(t *testing.T) {
	for _, kind := range []store.Kind{store.Sliding, store.Fixed} {
		f := newFleet(1, window(kind, 10, time.Minute), 2, 0)
		f.processes[0].callers = 8
		f.at(second, func() {
			f.processes[1].leaves, f.processes[1].callers = 1, 1
			f.step(f.processes[1])
		})
		f.run(time.Minute)
		f.reset()
		f.run(7 * time.Minute)
		t.Logf("%s: %d used, %d calls", kind, f.used, f.calls)
		assert.EqualValues(t, 70, f.used, kind)
		assert.Less(t, f.calls, 2*f.used, kind)
	}
}

// A process whose turns are as long as a way to the store and back uses what others leave of a window before it ends.
func TestTheLastTurnTakesTheRestOfAWindow(t *testing.T) {
	f := newFleet(1, window(store.Fixed, 101, time.Second), 3, 0)
	f.latency = func() int64 { return int64(2*time.Millisecond) + f.Int64N(int64(40*time.Millisecond)) }
	f.processes[0].callers = 30
	for i, p := range f.processes[1:] {
		f.comes(p, int64(i)*int64(10*time.Millisecond), int64(1580*time.Millisecond))
	}
	f.run(3 * time.Second)
	f.reset()
	f.run(30 * time.Second)
	used := float64(f.used) / 101 / 30
	t.Logf("used %.3f", used)
	assert.GreaterOrEqual(t, used, .98)
}

func TestProcessTakesItsShareOfAWindowAndThenTurns(t *testing.T) {
	b := newBench(t, window(store.Fixed, 320, time.Second))
	b.latest.known, b.latest.processes = true, 4
	if p := b.Ask(b.now, waiting(200)); p.Want != 80 {
		t.Fatalf("it asks for %d, its share is 80", p.Want)
	}
	b.Booked(b.now, b.now, store.Part{Want: 80, Budget: b.budget}, store.LeasedPart{ID: 1, Tokens: 80, AtOnce: 80, Until: time.Second, Left: 240, Processes: 4})
	if p := b.Ask(b.now, waiting(200)); p.Need != 0 || p.Want != 0 {
		t.Fatalf("it asks for %d, and the window has just begun", p.Want)
	}
	b.now += int64(100 * time.Millisecond)
	b.Booked(b.now, b.now, store.Part{Budget: b.budget}, store.LeasedPart{Left: 240, Until: 900 * time.Millisecond, Processes: 4})
	p := b.Ask(b.now, waiting(200))
	if p.Want != 10 {
		t.Fatalf("it asks for %d beyond its share, a turn is 10", p.Want)
	}
	b.Booked(b.now, b.now, p, store.LeasedPart{ID: 2, Tokens: 10, AtOnce: 10, Until: 900 * time.Millisecond, Left: 220, Processes: 4})
	turn := int64(time.Second) / 32
	if at := b.AskAt(b.now, waiting(200)); at < b.now+turn/4 || at > b.now+turn*5/4 {
		t.Errorf("its next turn is in %v", time.Duration(at-b.now))
	}

	// Used faster than evenly, the window has a token for it later: half of what is beyond a share, after half of the time.
	b.Booked(b.now, b.now, store.Part{Budget: b.budget}, store.LeasedPart{Until: 900 * time.Millisecond, Left: 121, Processes: 4})
	at := b.AskAt(b.now, waiting(200))
	assert.Equal(t, b.now-100*ms+(second-second/32)/2, at)
	most, _ := b.allowed(at)
	assert.EqualValues(t, 1, most)
	most, _ = b.allowed(at - ms)
	assert.Zero(t, most)
}

// TestSmallProcessesWaitForNothingBesideAGreedyOne has one process that always wants more, and seven that want a token every 250 ms.
func TestSmallProcessesWaitForNothingBesideAGreedyOne(t *testing.T) {
	for _, kind := range []store.Kind{store.Sliding, store.Fixed} {
		t.Run(string(kind), func(t *testing.T) {
			b := window(kind, 1000, 10*time.Second)
			f := newFleet(1, b, 8, 0)
			f.processes[0].callers = 64
			var waits []time.Duration
			for i, p := range f.processes[1:] {
				p.leaves = 1
				var came int64
				var comes func()
				comes = func() {
					if p.callers == 0 { // else its latest request still waits
						p.callers, came = 1, f.now
						f.step(p)
					}
					f.at(f.now+int64(250*time.Millisecond), comes)
				}
				p.served = func() { waits = append(waits, time.Duration(f.now-came)) }
				f.at(int64(i)*int64(10*time.Millisecond), comes)
			}
			f.run(30 * time.Second)
			slices.Sort(waits)
			part := float64(f.used) / 1000 / 3
			t.Logf("%d of 840 requests, p50 %v, p90 %v, p99 %v; %.3f of the budget", len(waits), waits[len(waits)/2], waits[len(waits)*9/10], waits[len(waits)*99/100], part)
			if len(waits) < 800 || waits[len(waits)/2] > 10*time.Millisecond || part < 0.9 {
				t.Error("small processes wait")
			}
		})
	}
}

// TestTokensOfAWindowAreUsedInTime has responses that arrive half a period late now and then, as on a busy machine, or after SIGSTOP.
func TestTokensOfAWindowAreUsedInTime(t *testing.T) {
	const n, per = 500, time.Second
	f := newFleet(1, window(store.Sliding, n, per), 8, 16)
	near := f.latency
	f.latency = func() int64 {
		if f.IntN(20) == 0 {
			return int64(200*time.Millisecond) + f.Int64N(int64(per))
		}
		return near()
	}
	f.timeout = int64(10 * time.Second)
	var at []int64
	for _, p := range f.processes {
		p.served = func() { at = append(at, f.now) }
	}
	f.run(20 * time.Second)
	late := int64(per - 20*time.Millisecond) // the margin
	most, first := 0, 0
	for i := range at {
		for at[i]-at[first] >= late {
			first++
		}
		most = max(most, i+1-first)
	}
	t.Logf("at most %d in %v; %.3f of the budget", most, time.Duration(late), float64(f.used)/n/20)
	if most > n {
		t.Errorf("%d of %d were used in %v", most, n, time.Duration(late))
	}
}

// TestProcessesGetTheirShareOfASlidingWindowInEachPeriod has windows whose tokens all come in at the same time: each process, the last
// one to ask as well, gets its share.
func TestProcessesGetTheirShareOfASlidingWindowInEachPeriod(t *testing.T) {
	for seed := range uint64(5) {
		f := newFleet(seed, window(store.Sliding, 90, 5*time.Second), 15, 8)
		f.run(10 * time.Second)
		for period := range 10 {
			f.reset()
			f.run(5 * time.Second)
			for i, p := range f.processes {
				if p.used != 6 {
					t.Errorf("process %d used %d of 90 in period %d, seed %d", i, p.used, period, seed)
				}
			}
		}
	}
}

// TestWhatCannotBeDividedIsUsed has windows of which an even share of each process leaves some tokens.
func TestWhatCannotBeDividedIsUsed(t *testing.T) {
	for _, c := range []struct {
		n         int64
		per       time.Duration
		processes int
	}{{17, 2 * time.Second, 2}, {35, 2 * time.Second, 10}, {190, 2 * time.Second, 25}} {
		f := newFleet(1, window(store.Sliding, c.n, c.per), c.processes, 8)
		f.latency = func() int64 { return 2*ms + f.Int64N(40*ms) }
		f.run(20 * time.Second)
		f.reset()
		f.run(20 * c.per)
		if used := float64(f.used) / 20 / float64(c.n); used < .98 {
			t.Errorf("%d processes use %.3f of %d in %v", c.processes, used, c.n, c.per)
		}
	}
}

// With fewer tokens than processes, none is always the first to ask, although all ask when the next token comes in.
func TestProcessesTakeTurnsWithTooFewTokens(t *testing.T) {
	f := newFleet(1, window(store.Sliding, 6, 2*time.Second), 21, 8)
	f.latency = func() int64 { return 160 * ms }
	f.run(10 * time.Second)
	f.reset()
	f.run(2 * time.Minute)
	least, most := f.shares()
	used := float64(f.used) / 6 / 60
	t.Logf("%.3f of the window, shares of %.2f to %.2f", used, least, most)
	assert.GreaterOrEqual(t, least, .5)
	assert.LessOrEqual(t, most, 1.5)
	assert.GreaterOrEqual(t, used, .9)
}

// A process that could not use its tokens in time, because its requests wait for another limit, gets its share all the same.
func TestTokensThatGoBackDoNotCountAsAShare(t *testing.T) {
	for _, kind := range []store.Kind{store.Sliding, store.Fixed} {
		m := leasedOf(window(kind, 90, 5*time.Second))
		m.latest = response{known: true, processes: 3, left: 90, ends: now + 5*second}
		allowed := func(want int64) {
			t.Helper()
			most, beyond := m.allowed(now)
			assert.Equal(t, want, most, kind)
			assert.False(t, beyond, kind)
		}
		allowed(30)
		m.endTurn(now, now, &store.Part{Need: 1}, store.LeasedPart{Tokens: 20, Left: 70})
		allowed(10)
		m.returns(store.Return{Tokens: 5, Lease: 1}, now)
		allowed(15)
		m.Late(now, store.Part{}, &store.LeasedPart{Tokens: 5, ID: 2})
		m.Late(now, store.Part{Back: []store.Return{{Tokens: 5, Lease: 1}}}, nil)
		allowed(15)
		m.returns(store.Return{Tokens: 50, Lease: 1}, now)
		allowed(30)
	}
}

func TestTheLargestCountOfFourPeriodsIsThatOfAWindow(t *testing.T) {
	for _, kind := range []store.Kind{store.Sliding, store.Fixed} {
		m := leasedOf(window(kind, 90, 5*time.Second))
		assert.Equal(t, 15, m.count(now, 15))
		assert.Equal(t, 15, m.count(now+20*second, 8))
		assert.Equal(t, 8, m.count(now+20*second+1, 8))
		assert.Equal(t, 9, m.count(now+20*second+2, 9))
	}
	m := leasedOf(bucket(90, 5*time.Second, 1))
	assert.Equal(t, 15, m.count(now, 15))
	assert.Equal(t, 8, m.count(now, 8))
}

func TestASlidingWindowOpensWhenTokensComeInTogether(t *testing.T) {
	opened := func(before float64, wait time.Duration, tokens int64, left float64) bool {
		m := leasedOf(window(store.Sliding, 100, 10*time.Second))
		m.latest = response{known: true, sent: now, left: before, ends: now + int64(wait), processes: 10}
		m.open(now+second, now+second+ms, &store.LeasedPart{Tokens: tokens, Left: left})
		return m.opened == now+second+ms
	}
	assert.True(t, opened(0, 0, 0, 90), "one share is used")
	assert.True(t, opened(80, 0, 0, 90))
	assert.False(t, opened(80, 0, 0, 89), "9 came in, and evenly, it would be 10")
	assert.False(t, opened(0, 0, 10, 20), "two shares more than evenly")
	assert.True(t, opened(0, 0, 10, 21))
	assert.True(t, opened(10, 0, 10, 31))
	assert.False(t, opened(10, 0, 10, 30))
	assert.True(t, opened(0, time.Second, 10, 11), "they have just come in")
	assert.False(t, opened(0, time.Second, 10, 10))
}

func TestTokensThatCannotBeDividedAreForAllThatAsk(t *testing.T) {
	free := func(mine int64, left float64) int64 {
		m := leasedOf(window(store.Sliding, 35, 10*time.Second))
		m.latest, m.opened = response{known: true, left: left, processes: 10}, now
		return m.freeBeyond(mine, now)
	}
	assert.EqualValues(t, 5, free(3, 5))
	assert.EqualValues(t, 1, free(3, 1))
	assert.Negative(t, free(3, 6), "one may be a part of another one's share")
}

// TestAnAskReachesTheStoreWhenATokenComesIn has a process that is alone. An ask that came earlier would cost it a round trip.
func TestAnAskReachesTheStoreWhenATokenComesIn(t *testing.T) {
	b := newBench(t, window(store.Sliding, 1, 2*time.Second))
	asks := func(way int64) (at, comes meter.Instant) {
		b.trip = way
		sent := b.now
		b.question(waiting(1))
		b.Take(b.now, b.now, 1, true)
		return b.AskAt(b.now, waiting(1)), sent + way + 2*second
	}
	at, comes := asks(80 * ms)
	assert.Equal(t, comes, at+80*ms)
	b.now = at
	at, comes = asks(100 * ms)
	assert.Equal(t, comes+17*ms+ms/2, at+80*ms, "the next one may be as fast as the first")
	b.now = at
	at, comes = asks(70 * ms)
	assert.Equal(t, comes, at+70*ms)
}
