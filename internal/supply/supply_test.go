package supply

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/lease"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

const (
	ms     = int64(time.Millisecond)
	second = int64(time.Second)
)

var errDown = errors.New("connection refused")

// A bench is a supply over a book, with a clock that the test sets.
type bench struct {
	testing.TB
	*Supply[string]
	book   *store.Book
	leases map[string]*Lease[string]
	now    meter.Instant
}

func newBench(t testing.TB, terms Terms) *bench {
	if terms.Timeout == 0 {
		terms.Timeout, terms.Grace = 250*time.Millisecond, 3*time.Second
	}
	return &bench{t, &Supply[string]{Terms: terms, Limits: []string{"calls"}}, store.NewBook(), make(map[string]*Lease[string]), second}
}

// lease returns the lease of a bucket of 10 a second.
func (b *bench) lease(key string) *Lease[string] {
	if b.leases[key] == nil {
		budget := store.Budget{Kind: store.Bucket, Limit: "calls", Key: key, N: 10, Per: time.Second, Burst: 10, Initial: 10}
		b.leases[key] = b.Lease(key, lease.New(budget, lease.Config{Seed: 1}))
	}
	return b.leases[key]
}

// one is the demand of one request.
func one() lease.Demand { return lease.Demand{First: 1, All: 1, Until: meter.Never} }

// wants has the store asked for a token of each key.
func (b *bench) wants(keys ...string) {
	b.Helper()
	for _, key := range keys {
		_, asks := b.lease(key).Due(b.now, one(), true)
		require.True(b, asks, key)
	}
}

// begin begins a call for all that is to be asked for.
func (b *bench) begin() *Call[string] {
	b.Helper()
	begins, at := b.Begin(b.now)
	require.True(b, begins)
	require.Equal(b, meter.Never, at)
	c := b.Collect(b.now)
	for n := c.Next(); n != nil; n = c.Next() {
		require.True(b, c.Add(n, one()))
		require.Equal(b, 1, c.End())
	}
	require.True(b, c.Send())
	return c
}

// respond books the book's response to a call.
func (b *bench) respond(c *Call[string]) (events []*Event) {
	b.Helper()
	require.True(b, c.Return(false, b.now))
	events = append(events, c.Note(nil, b.now))
	for i, l := range b.book.Lease(time.Unix(0, int64(b.now)), c.Asks) {
		_, e := c.Book(i, &Outcome{LeasedPart: l.Parts[0], Err: l.Err}, true, b.now)
		events = append(events, e)
	}
	b.done(c)
	return events
}

// fail books that a call had no response.
func (b *bench) fail(c *Call[string], err error) *Event {
	b.Helper()
	require.True(b, c.Return(false, b.now))
	e := c.Note(err, b.now)
	for i := range c.Parts() {
		c.Book(i, &Outcome{Err: err}, false, b.now)
	}
	b.done(c)
	return e
}

// done looks for another call, as the owner does when one has returned.
func (b *bench) done(*Call[string]) { b.calls-- }

func TestACallAsksForWhatIsDue(t *testing.T) {
	b := newBench(t, Terms{})
	begins, at := b.Begin(b.now)
	assert.False(t, begins)
	assert.Equal(t, meter.Never, at)
	b.wants("a", "b")
	assert.True(t, b.lease("a").IsQueued())
	assert.Equal(t, []string{"a", "b"}, b.Asking())
	_, asks := b.lease("a").Due(b.now, one(), true)
	assert.False(t, asks, "it is queued already")
	c := b.begin()
	assert.Len(t, c.Asks, 2)
	assert.Equal(t, 2, c.Parts())
	assert.Equal(t, "b", c.Of(1))
	assert.Equal(t, b.now, c.Sent())
	assert.Equal(t, b.Supply, b.lease("a").Supply())
	assert.False(t, b.lease("a").IsQueued())
	at, asks = b.lease("a").Due(b.now, one(), true)
	assert.False(t, asks, "its ask is under way")
	assert.Equal(t, meter.Never, at)
	b.now += 2 * ms
	assert.Equal(t, []*Event{nil, nil, nil}, b.respond(c))
	assert.True(t, b.lease("a").Payable(b.now, 1))
	assert.EqualValues(t, 1, b.Counts.Ok)
	assert.EqualValues(t, 2, b.Counts.Leased)
	assert.NoError(t, b.Err())
}

func TestPartsThatAreAddedTogetherAreOneAsk(t *testing.T) {
	b := newBench(t, Terms{})
	b.wants("a")
	b.Begin(b.now)
	c := b.Collect(b.now)
	require.True(t, c.Add(c.Next(), one()))
	require.True(t, c.Add(b.lease("b"), one()), "for which the store is not to be asked alone")
	require.False(t, c.Add(b.lease("b"), one()), "once")
	assert.Equal(t, 2, c.End())
	assert.Equal(t, 0, c.End())
	assert.Len(t, c.Asks, 1)
	assert.Len(t, c.Asks[0].Parts, 2)
}

func TestACallWithoutAnAskIsOver(t *testing.T) {
	b := newBench(t, Terms{})
	b.wants("a")
	b.Begin(b.now)
	c := b.Collect(b.now)
	n := c.Next()
	assert.False(t, c.Add(n, lease.Demand{}), "the request has gone")
	assert.Zero(t, c.End())
	assert.False(t, c.Send())
	assert.Zero(t, b.calls)
}

func TestManyAsksTakeTwoCalls(t *testing.T) {
	for keys, want := range map[int][]int{1: {1}, 15: {15}, 16: {8, 8}, 40: {20, 20}, 300: {128, 128}} {
		b := newBench(t, Terms{})
		for i := range keys {
			b.wants(fmt.Sprint(i))
		}
		var got []int
		for range want {
			got = append(got, len(b.begin().Asks))
		}
		assert.Equal(t, want, got)
		if len(want) == MostCalls {
			begins, _ := b.Begin(b.now)
			assert.False(t, begins, "two are under way")
		}
	}
}

func TestACallThatIsGivenUpProbesWhenItReturns(t *testing.T) {
	b := newBench(t, Terms{})
	b.wants("a")
	c := b.begin()
	b.now += 250 * ms
	require.True(t, c.Return(true, b.now))
	require.NotNil(t, c.Note(errDown, b.now))
	c.Book(0, &Outcome{Err: errDown}, false, b.now)
	require.False(t, c.Return(true, b.now), "once")
	b.wants("a")
	begins, at := b.Begin(b.now)
	assert.False(t, begins)
	assert.GreaterOrEqual(t, at, b.now+25*ms)
	assert.Less(t, at, b.now+25*ms+25*ms/2)
	b.now += ms
	require.False(t, c.Return(false, b.now), "it comes too late to be booked")
	begins, _ = b.Begin(b.now)
	assert.True(t, begins)
}

func TestNoMoreThanTwoCallsHang(t *testing.T) {
	b := newBench(t, Terms{})
	var calls []*Call[string]
	for range MostCalls {
		b.wants("a")
		b.now += second
		c := b.begin()
		calls = append(calls, c)
		require.True(t, c.Return(true, b.now))
		c.Note(errDown, b.now)
		c.Book(0, &Outcome{Err: errDown}, false, b.now)
	}
	b.now += second
	b.wants("a")
	begins, at := b.Begin(b.now)
	assert.False(t, begins)
	assert.Equal(t, meter.Never, at, "until one returns")
	calls[0].Return(false, b.now)
	begins, _ = b.Begin(b.now)
	assert.True(t, begins)
}

func TestProbesAreMadeOneByOneAndLessAndLessOften(t *testing.T) {
	b := newBench(t, Terms{})
	b.wants("a", "b", "c")
	require.NotNil(t, b.fail(b.begin(), errDown))
	for _, wait := range []int64{25, 50, 100, 200, 250, 250} {
		_, asks := b.lease("a").Due(b.now, one(), true)
		require.True(t, asks)
		begins, at := b.Begin(b.now)
		require.False(t, begins)
		require.GreaterOrEqual(t, at-b.now, wait*ms)
		require.Less(t, at-b.now, wait*ms*3/2)
		b.now = at - 1
		begins, _ = b.Begin(b.now)
		require.False(t, begins)
		b.now = at
		c := b.begin()
		require.Len(t, c.Asks, 1)
		begins, _ = b.Begin(b.now)
		require.False(t, begins, "one probe at a time")
		require.Nil(t, b.fail(c, errDown), "it was reported")
	}
	assert.ErrorIs(t, b.Err(), errDown)
}

func TestEventsSayWhatHasChanged(t *testing.T) {
	b := newBench(t, Terms{})
	setup := fmt.Errorf("%w: NOPERM", store.ErrSetup)
	b.wants("a")
	assert.Equal(t, &Event{Limits: []string{"calls"}, Err: errDown}, b.fail(b.begin(), errDown))
	b.now += second
	b.wants("a")
	assert.Equal(t, &Event{Limits: []string{"calls"}, Err: setup, Down: time.Second}, b.fail(b.begin(), setup))
	b.now += second
	b.wants("a")
	assert.Equal(t, &Event{Limits: []string{"calls"}, Down: 2 * time.Second}, b.respond(b.begin())[0])
	assert.Equal(t, Counts{Ok: 1, Failed: 1, Setup: 1, Leased: 1, Outages: 1}, b.Counts)
}

func TestAnUnreadableBudgetIsOutOfReachAlone(t *testing.T) {
	b := newBench(t, Terms{})
	b.wants("bad", "good")
	c := b.begin()
	require.True(t, c.Return(false, b.now))
	require.Nil(t, c.Note(nil, b.now))
	news, event := c.Book(0, &Outcome{Err: errDown}, true, b.now)
	require.True(t, news)
	assert.Equal(t, &Event{Limits: []string{"calls"}, Key: "bad", Err: errDown}, event)
	news, event = c.Book(1, &Outcome{LeasedPart: store.LeasedPart{Tokens: 1, AtOnce: 1, Processes: 1}}, true, b.now)
	require.True(t, news, "the first response says how many processes there are")
	require.Nil(t, event)
	b.done(c)
	assert.Nil(t, b.lease("good").Out())
	assert.Zero(t, b.lease("good").BlockedUntil())
	assert.ErrorIs(t, b.lease("bad").Out().Err(), errDown)
	assert.Equal(t, b.now+3*second, b.lease("bad").BlockedUntil())
	assert.EqualValues(t, 1, b.Counts.Faulty)
	at, asks := b.lease("bad").Due(b.now, one(), true)
	assert.False(t, asks)
	assert.Equal(t, b.lease("bad").RetryAt(), at)
	b.now = at
	b.wants("bad")
	assert.Equal(t, &Event{Limits: []string{"calls"}, Key: "bad", Down: time.Duration(at - second)}, b.respond(b.begin())[1])
	assert.Zero(t, b.lease("bad").RetryAt())
}

// Processes disagree while a new configuration is deployed. That is reported when it begins, and again if it lasts for ten seconds.
func TestADifferingRuleIsReportedTwiceAndCounted(t *testing.T) {
	b := newBench(t, Terms{})
	b.wants("a")
	strict := func() {
		other := b.book.Lease(time.Unix(0, int64(b.now)), []store.Ask{{Parts: []store.Part{{
			Budget: store.Budget{Kind: store.Bucket, Limit: "calls", Key: "a", N: 1, Per: time.Second, Burst: 10, Initial: 10},
		}}}})
		require.NoError(t, other[0].Err)
	}
	strict()
	events := b.respond(b.begin())
	require.NotNil(t, events[1])
	assert.ErrorIs(t, events[1].Err, store.ErrRule)
	assert.Equal(t, "a", events[1].Key)
	b.now += second
	b.lease("a").Take(b.now, b.now, 1, false)
	b.wants("a")
	assert.Nil(t, b.respond(b.begin())[1])
	b.now += 9*second - 1
	strict()
	b.lease("a").Take(b.now, b.now, 1, false)
	b.wants("a")
	assert.Nil(t, b.respond(b.begin())[1])
	b.now += second
	b.lease("a").Take(b.now, b.now, 1, false)
	b.wants("a")
	again := b.respond(b.begin())[1]
	require.NotNil(t, again)
	assert.Equal(t, &Event{Limits: []string{"calls"}, Key: "a", Err: store.ErrRule, Down: time.Duration(11*second - 1)}, again)
	assert.EqualValues(t, 4, b.Counts.Differs)
	assert.NoError(t, b.Err())
}

func TestSupplyCountsAsItIsUsedAtRandom(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		b := newBench(t, Terms{})
		var open, hung []*Call[string]
		for range 500 {
			b.now += r.Int64N(100 * ms)
			switch r.IntN(5) {
			case 0, 1:
				b.lease(fmt.Sprint(r.IntN(40))).Due(b.now, one(), true)
			case 2:
				if begins, at := b.Begin(b.now); begins {
					c := b.Collect(b.now)
					for n := c.Next(); n != nil; n = c.Next() {
						c.Add(n, one())
						c.End()
					}
					if c.Send() {
						open = append(open, c)
					}
				} else {
					require.Greater(t, at, b.now)
				}
			case 3:
				if len(open) == 0 {
					continue
				}
				c := open[0]
				open = open[1:]
				switch r.IntN(3) {
				case 0:
					b.respond(c)
				case 1:
					b.fail(c, errDown)
				default:
					require.True(t, c.Return(true, b.now))
					c.Note(errDown, b.now)
					for i := range c.Parts() {
						c.Book(i, &Outcome{Err: errDown}, false, b.now)
					}
					hung = append(hung, c)
				}
			default:
				if len(hung) > 0 {
					require.False(t, hung[0].Return(false, b.now))
					hung = hung[1:]
				}
			}
			require.Equal(t, len(open), b.calls)
			require.Equal(t, len(open), b.sent)
			require.Equal(t, len(hung), b.late)
			require.LessOrEqual(t, b.calls, MostCalls)
			require.LessOrEqual(t, b.late, MostCalls)
			for key, n := range b.leases {
				queued := 0
				for _, k := range b.Asking() {
					if k == key {
						queued++
					}
				}
				require.Equal(t, n.IsQueued(), queued == 1, "once, or not")
			}
		}
	}
}
