package supply

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/lease"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

// told books a response to the only part of a call.
func (b *bench) told(c *Call[string], o Outcome) (news bool, event *Event) {
	b.Helper()
	require.True(b, c.Return(false, b.now))
	c.Note(nil, b.now)
	news, event = c.Book(0, &o, true, b.now)
	b.done(c)
	return news, event
}

// leased is a response with a token.
func leased(processes int, hold time.Duration) Outcome {
	return Outcome{LeasedPart: store.LeasedPart{Tokens: 1, AtOnce: 1, Processes: processes, Hold: hold}}
}

// While the store cannot be reached, a lease with waiters is looked at when the grace ends, and one without only when the store
// is asked.
func TestALeaseWithWaitersIsLookedAtWhenTheGraceEnds(t *testing.T) {
	b := down(t, Terms{}, 0, 0)
	n, end := b.lease("a"), b.now+3*second
	_, asks := n.Due(b.now, one(), true)
	require.True(t, asks)
	for _, c := range []struct {
		now   meter.Instant
		waits bool
		want  meter.Instant
	}{{b.now, true, end}, {end - 1, true, end}, {end, true, meter.Never}, {b.now, false, meter.Never}} {
		at, asks := n.Due(c.now, one(), c.waits)
		assert.False(t, asks, "it is queued")
		assert.Equal(t, c.want, at)
	}
	n = newBench(t, Terms{}).lease("up")
	n.Due(second, one(), true)
	at, _ := n.Due(second, one(), true)
	assert.Equal(t, meter.Never, at, "there is no outage")
}

// A budget that cannot be read is looked at when the store may be asked for it again, or when the grace of its waiters ends.
func TestAnUnreadableBudgetIsLookedAtInTime(t *testing.T) {
	for _, grace := range []time.Duration{time.Millisecond, time.Second} {
		b := newBench(t, Terms{Timeout: time.Second, Grace: grace})
		b.wants("a")
		b.told(b.begin(), Outcome{Err: errDown})
		n := b.lease("a")
		require.Greater(t, n.RetryAt(), b.now+24*ms)
		at, asks := n.Due(b.now, one(), true)
		assert.False(t, asks)
		assert.Equal(t, min(n.RetryAt(), b.now+int64(grace)), at)
		at, _ = n.Due(b.now, one(), false)
		assert.Equal(t, n.RetryAt(), at)
		_, asks = n.Due(n.RetryAt(), one(), true)
		assert.True(t, asks)
	}
}

// A lease is looked at again when requests that wait for another limit want tokens.
func TestALeaseIsLookedAtWhenTokensAreWanted(t *testing.T) {
	n := newBench(t, Terms{}).lease("a")
	for _, c := range []struct{ from, want meter.Instant }{{0, meter.Never}, {second, meter.Never}, {second + 1, second + 1}} {
		at, asks := n.Due(second, lease.Demand{From: c.from}, true)
		assert.False(t, asks)
		assert.Equal(t, c.want, at)
	}
}

// Only a process that knows by its terms how many there are, and would use its share, begins with it.
func TestOthersWaitForTheGraceFromTheBeginning(t *testing.T) {
	for _, terms := range []Terms{{Without: ButLocally}, {Without: Nothing, Processes: 4}, {Without: Limit, Processes: 4}} {
		terms.Timeout, terms.Grace = time.Second, time.Minute
		b := down(t, terms, 0, 0)
		n := b.lease("a")
		n.Update(b.now)
		assert.False(t, n.IsAlone())
		assert.Equal(t, b.now+60*second, n.BlockedUntil(), "%+v", terms)
	}
}

// An outage is forgotten if no request has come by the grace (at least a second) and a timeout after the next probe was due.
func TestOutagesAreForgottenAtTheInstant(t *testing.T) {
	for _, grace := range []time.Duration{100 * time.Millisecond, 3 * time.Second} {
		idle := max(int64(grace), second) + 250*ms
		b := down(t, Terms{Timeout: 250 * time.Millisecond, Grace: grace}, 0, 0)
		n := b.lease("a")
		n.Update(b.outage.again + idle)
		require.NotNil(t, n.Out())
		b.wants("b")
		n.Update(b.outage.again + idle + 1)
		require.NotNil(t, n.Out(), "the store is about to be asked")
		b.now = b.outage.again + idle
		c := b.begin()
		n.Update(b.now + 1)
		require.NotNil(t, n.Out(), "it is asked")
		c.Return(true, b.now)
		n.Update(b.now + 1)
		require.NotNil(t, n.Out(), "the response is late")
		c.Return(false, b.now)
		b.outage.again = b.now - idle
		n.Update(b.now)
		require.NotNil(t, n.Out())
		n.Update(b.now + 1)
		require.Nil(t, n.Out())

		b = newBench(t, Terms{Timeout: 250 * time.Millisecond, Grace: grace})
		b.wants("a")
		b.told(b.begin(), Outcome{Err: errDown})
		n = b.lease("a")
		n.Update(n.outage.again + idle)
		require.NotNil(t, n.Out())
		b.now = n.RetryAt()
		b.wants("a")
		n.Update(n.outage.again + idle + 1)
		require.NotNil(t, n.Out(), "the store is about to be asked for it")
		b.told(b.begin(), Outcome{Err: errDown})
		n.Update(n.outage.again + idle + 1)
		require.Nil(t, n.Out())
		require.Zero(t, n.RetryAt())
	}
}

// A response is news if it is the first, or holds the budget for longer.
func TestNewsAreTheFirstResponseAndAHold(t *testing.T) {
	b := newBench(t, Terms{})
	for i, c := range []struct {
		hold time.Duration
		news bool
	}{{0, true}, {0, false}, {time.Second, true}, {time.Second, false}, {2 * time.Second, true}} {
		if i > 0 {
			b.lease("a").Spend(b.now, 1) // a hold leaves none
		}
		b.lease("a").Due(b.now, one(), true)
		news, _ := b.told(b.begin(), leased(1, c.hold))
		assert.Equal(t, c.news, news, "response %d", i)
	}
}

// A store that does not say how many processes there are has been reached by one at least.
func TestAStoreThatWasReachedHasAProcess(t *testing.T) {
	b := newBench(t, Terms{Timeout: time.Second, Grace: time.Second, Without: ButLocally})
	b.wants("a")
	b.told(b.begin(), leased(0, 0))
	b.lease("a").Take(b.now, b.now, 1, false)
	b.wants("a")
	b.fail(b.begin(), errDown)
	assert.Positive(t, alone(b))
}

// An outage counts once, however many calls fail, and a store that keeps budgets in different places is remembered as one.
func TestAnOutageCountsOnce(t *testing.T) {
	b := newBench(t, Terms{})
	for _, key := range []string{"a", "b"} {
		b.wants(key)
		c := b.begin()
		c.Apart = key == "a"
		b.fail(c, errDown)
		require.EqualValues(t, 1, b.Counts.Outages)
		require.True(t, b.Apart)
		b.now += second
	}
	b = newBench(t, Terms{})
	b.wants("a")
	b.respond(b.begin())
	require.Zero(t, b.Counts.Outages)
	require.False(t, b.Apart)
}

// A process that has its share stops when the store turns out to be set up wrongly.
func TestASetupErrorEndsAShare(t *testing.T) {
	b := down(t, Terms{Timeout: time.Second, Grace: time.Second, Without: Limit}, 1, second)
	n := b.lease("a")
	b.now += second
	n.Update(b.now)
	require.True(t, n.IsAlone())
	for _, c := range []struct {
		err   error
		alone bool
	}{{errDown, true}, {fmt.Errorf("%w: NOPERM", store.ErrSetup), false}} {
		n.Due(b.now, one(), true)
		b.fail(b.begin(), c.err)
		assert.Equal(t, c.alone, n.IsAlone())
		b.now += second
	}
	assert.Equal(t, Shut, n.BlockedUntil())
}

// A call may take twice the usual round trip if that is longer than the Timeout, but not more than four Timeouts.
func TestTheTimeoutFollowsTheRoundTrip(t *testing.T) {
	b := newBench(t, Terms{Timeout: 100 * time.Millisecond, Grace: time.Second})
	for i, c := range []struct{ takes, after time.Duration }{ // how long a call takes, and after which time the next one is given up
		{10 * time.Millisecond, 100 * time.Millisecond},
		{90 * time.Millisecond, 100 * time.Millisecond},  // usually 20 ms
		{150 * time.Millisecond, 300 * time.Millisecond}, // 150 ms; this response was late
		{230 * time.Millisecond, 320 * time.Millisecond}, // 160 ms; this one was not
		{50 * time.Millisecond, 210 * time.Millisecond},  // 105 ms
		{5 * time.Millisecond, 110 * time.Millisecond},   // 55 ms
		{400 * time.Millisecond, 400 * time.Millisecond}, // 400 ms; late
		{400*time.Millisecond + 1, 400 * time.Millisecond},
		{40 * time.Millisecond, 400 * time.Millisecond}, // 220 ms
		{20 * time.Millisecond, 240 * time.Millisecond},
		{20 * time.Millisecond, 140 * time.Millisecond},
		{10 * time.Second, 140 * time.Millisecond}, // no call can wait for that
	} {
		b.now += 10 * second
		b.wants(fmt.Sprint(i))
		call := b.begin()
		late := c.takes > call.Timeout()
		if late {
			b.now += int64(call.Timeout())
			require.True(t, call.Return(true, b.now))
			call.Note(errDown, b.now)
			for k := range call.Parts() {
				call.Book(k, &Outcome{Err: errDown}, false, b.now)
			}
			b.now -= int64(call.Timeout())
		}
		b.now += int64(c.takes)
		call.Arrived(b.now)
		if late {
			require.False(t, call.Return(false, b.now))
		} else {
			b.respond(call)
		}
		b.now += 10 * second
		b.wants(fmt.Sprint(i, " again"))
		next := b.begin()
		require.Equal(t, c.after, next.Timeout(), "after a call of %v", c.takes)
		b.fail(next, errDown)
		b.outage = Outage{}
	}
}

// What a process knows is as old as the latest response, also of another budget, and whether or not calls fail since.
func TestTheAgeIsThatOfTheLatestResponse(t *testing.T) {
	b := newBench(t, Terms{})
	latest := func() []int64 {
		processes, age := b.Latest(b.now)
		return []int64{int64(processes), int64(age)}
	}
	assert.Equal(t, []int64{0, 0}, latest())
	b.wants("a")
	b.told(b.begin(), leased(3, 0))
	assert.Equal(t, []int64{3, 0}, latest())
	b.now += 5 * second
	assert.Equal(t, []int64{3, 5 * second}, latest())
	b.wants("b")
	b.fail(b.begin(), errDown)
	assert.Equal(t, []int64{3, 5 * second}, latest())
	b.now += second
	b.wants("b")
	b.told(b.begin(), leased(2, 0))
	assert.Equal(t, []int64{2, 0}, latest())
}
