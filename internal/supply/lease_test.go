package supply

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

// down returns a bench whose store reported a number of processes of key a, ago before it became unreachable.
func down(t *testing.T, terms Terms, processes int, ago int64) *bench {
	t.Helper()
	b := newBench(t, terms)
	if processes > 0 {
		b.wants("a")
		c := b.begin()
		require.True(t, c.Return(false, b.now))
		c.Note(nil, b.now)
		c.Book(0, &Outcome{LeasedPart: store.LeasedPart{Tokens: 1, AtOnce: 1, Processes: processes}}, true, b.now)
		b.done(c)
		b.lease("a").Take(b.now, b.now, 1, false)
	}
	b.now += ago
	b.wants("a")
	b.fail(b.begin(), errDown)
	return b
}

func TestRequestsWaitForTheGrace(t *testing.T) {
	b := down(t, Terms{}, 1, second)
	n, since := b.lease("a"), b.now
	n.Update(since)
	assert.Equal(t, since+3*second, n.BlockedUntil())
	n.Update(since + 3*second - 1)
	assert.Equal(t, since+3*second, n.BlockedUntil())
	n.Update(since + 3*second)
	assert.Equal(t, Shut, n.BlockedUntil())
	at, _ := n.Due(since, one(), true)
	assert.LessOrEqual(t, at, since+3*second, "its waiters are looked at then")
}

func TestAWrongSetUpIsWaitedForInNoMode(t *testing.T) {
	for _, without := range []Without{Nothing, ButLocally, Limit} {
		b := newBench(t, Terms{Timeout: time.Second, Grace: time.Second, Without: without})
		b.wants("a")
		b.fail(b.begin(), fmt.Errorf("%w: NOPERM", store.ErrSetup))
		n := b.lease("a")
		assert.True(t, n.Out().isSetup())
		n.Update(b.now + 2*second)
		assert.Equal(t, Shut, n.BlockedUntil())
		assert.False(t, n.IsAlone())
	}
}

func TestAllPassAfterTheGrace(t *testing.T) {
	b := down(t, Terms{Timeout: time.Second, Grace: time.Second, Without: Limit}, 0, 0)
	n := b.lease("a")
	n.Update(b.now + second - 1)
	assert.False(t, n.IsAlone())
	n.Update(b.now + second)
	assert.True(t, n.IsAlone())
	assert.Zero(t, n.BlockedUntil())
	assert.True(t, n.Payable(b.now+second, 10))
	n.Take(b.now+second, b.now+second, 7, false)
	assert.EqualValues(t, 7, b.Counts.Alone)
}

// alone returns how many tokens a process uses in the 10 s after the grace; -1: it rejects requests.
func alone(b *bench) (used int) {
	n := b.lease("a")
	n.Update(b.now + int64(b.Grace))
	if !n.IsAlone() {
		return -1
	}
	for at := b.now + int64(b.Grace); at < b.now+int64(b.Grace)+10*second; at += ms {
		if n.Payable(at, 1) {
			n.Take(at, at, 1, false)
			used++
		}
	}
	return used
}

func TestTheShareInAnOutageIsByTheProcessesOfTheLastTenSeconds(t *testing.T) {
	for name, c := range map[string]struct {
		told   int
		ago    int64
		expect int
		used   int // of 10/s
	}{
		"told":                          {4, second, 0, 24},
		"told 10 s ago":                 {4, 10 * second, 0, 24},
		"told before":                   {4, 10*second + 1, 0, -1},
		"never told":                    {0, 0, 0, -1},
		"expected":                      {0, 0, 5, 20},
		"more were told than expected":  {8, second, 5, 12},
		"fewer were told than expected": {1, second, 5, 19},
		"told before, and expected":     {1, 11 * second, 5, 19},
	} {
		t.Run(name, func(t *testing.T) {
			b := down(t, Terms{Timeout: time.Second, Grace: time.Second, Without: ButLocally, Processes: c.expect}, c.told, c.ago)
			assert.Equal(t, c.used, alone(b))
		})
	}
}

// Eight processes that start one after the other, ask once and then meet an outage use no more than the rate.
func TestStaggeredProcessesUseNoMoreThanTheRate(t *testing.T) {
	for _, apart := range []int64{second, 12 * second} {
		all := 0
		for i := range 8 {
			told := i + 1
			if apart > int64(store.MaxSince) {
				told = 1 // the ones before do not count any more
			}
			b := down(t, Terms{Timeout: time.Second, Grace: time.Second, Without: ButLocally, Processes: 8}, told, int64(8-i)*apart)
			all += max(0, alone(b))
		}
		assert.LessOrEqual(t, all, 100, "in 10 s at 10/s")
	}
}

func TestAProcessThatStartsInAnOutageHasItsShareImmediately(t *testing.T) {
	b := down(t, Terms{Timeout: time.Second, Grace: time.Minute, Without: ButLocally, Processes: 2}, 0, 0)
	n := b.lease("a")
	n.Update(b.now)
	assert.True(t, n.IsAlone())
	assert.Zero(t, n.BlockedUntil())
	b = down(t, Terms{Timeout: time.Second, Grace: time.Minute, Without: ButLocally, Processes: 2}, 2, second)
	n = b.lease("a")
	n.Update(b.now)
	assert.False(t, n.IsAlone(), "a process that has reached the store waits for the grace")
	assert.Equal(t, b.now+60*second, n.BlockedUntil())
}

func TestOtherBudgetsOfAStoreShowTheNumberOfProcesses(t *testing.T) {
	b := newBench(t, Terms{Timeout: time.Second, Grace: time.Second, Without: ButLocally})
	b.wants("told")
	c := b.begin()
	c.Return(false, b.now)
	c.Note(nil, b.now)
	c.Book(0, &Outcome{LeasedPart: store.LeasedPart{Processes: 5}}, true, b.now)
	b.done(c)
	b.now += second
	b.wants("a")
	b.fail(b.begin(), errDown)
	assert.Equal(t, 19, alone(b))
}

func TestAnOutageThatNoCallLookedAtForLongIsForgotten(t *testing.T) {
	b := down(t, Terms{}, 1, second)
	n := b.lease("a")
	idle := b.outage.again + 3*second + 250*ms
	n.Update(idle)
	require.NotNil(t, n.Out())
	n.Update(idle + 1)
	require.Nil(t, n.Out())
	begins, at := b.Begin(idle + 1)
	assert.False(t, begins)
	assert.Equal(t, meter.Never, at)
}

func TestLeasesPayAgainAfterAnOutage(t *testing.T) {
	b := down(t, Terms{Timeout: time.Second, Grace: time.Second, Without: Limit}, 1, second)
	n := b.lease("a")
	b.now += second
	n.Update(b.now)
	require.True(t, n.IsAlone())
	n.Take(b.now, b.now, 1, false)
	at, asks := n.Due(b.now, one(), false)
	require.True(t, asks, "each request is one more reason to probe")
	assert.Equal(t, meter.Never, at)
	b.respond(b.begin())
	assert.False(t, n.IsAlone())
	assert.Zero(t, n.BlockedUntil())
}
