package quota

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/server"
)

// The end of a hold is a guess until a server asks for a later one, and again once a guess is later than that.
func TestTheLaterEndOfAHoldIsAGuessOrNot(t *testing.T) {
	a, _, _ := newFamilies()
	assert.False(t, a.Guessed())
	a.Guess(0, 10*second)
	require.True(t, a.Guessed())
	a.Hold(0, second)
	require.True(t, a.Guessed(), "the server asks for less")
	a.Hold(0, 60*second)
	require.False(t, a.Guessed())
	a.Guess(0, 10*second)
	require.False(t, a.Guessed())
	a.Guess(0, 600*second)
	require.True(t, a.Guessed())
	a.server.Hold(0, 3600*second)
	require.False(t, a.Guessed(), "a server has asked for the host's")
}

// A limit that learns adds to a verdict what only it knows, unless something else than too much explains the refusal.
func TestALearnerAddsToAVerdict(t *testing.T) {
	for was, want := range map[server.Verdict][2]server.Verdict{
		server.TooFast:   {server.TooMany, server.Closed},
		server.TooMany:   {server.TooMany, server.Closed},
		server.Closed:    {server.Closed, server.Closed},
		server.Exhausted: {server.Exhausted, server.Exhausted},
		server.ByChance:  {server.ByChance, server.ByChance},
		server.Final:     {server.Final, server.Final},
		server.Done:      {server.Done, server.Done},
	} {
		for i, v := range []server.Verdict{server.TooMany, server.Closed} {
			r := Report{Verdict: was}
			r.Learned(v)
			assert.Equal(t, want[i], r.Verdict, "%v, %v", was, v)
		}
	}
}

// A refusal that nothing explains is of the number in flight where that owns it, of a server that is closed where it may concern the host, and
// otherwise of the rate.
func TestARefusalThatNothingExplainsIsOfTheNumberTheHostOrTheRate(t *testing.T) {
	for _, c := range []struct {
		own  Own
		host bool
		wait time.Duration
		want server.Verdict
	}{
		{want: server.TooFast},
		{wait: time.Second, want: server.TooFast},
		{host: true, want: server.TooFast},
		{host: true, wait: time.Second, want: server.Closed},
		{own: Own{Slots: true, Number: true}, want: server.TooMany},
		{own: Own{Slots: true, Adaptive: true}, want: server.TooFast},
		{own: Own{Slots: true, Number: true}, wait: time.Second, want: server.TooFast},
		{own: Own{Slots: true, Number: true}, host: true, wait: time.Second, want: server.Closed},
	} {
		_, g, _ := newFamilies()
		rep := Report{Reading: Reading{Hints: &Hints{Limited: true, Host: c.host, Wait: c.wait}}, Number: g.Take(0, 0, 1, false), Own: c.own}
		g.Judge(&rep, second)
		assert.Equal(t, c.want, rep.Verdict, "%+v", c)
	}
}

// A bucket is held by what refused its account last: the same verdict is in the change, the account and the cause.
func TestAllReadTheSameVerdict(t *testing.T) {
	a, g, _ := newFamilies()
	n := g.Take(0, 0, 1, false)
	rep := Report{Reading: Reading{Hints: &Hints{Status: 503, Limited: true, Host: true, Wait: 30 * time.Second}}, Number: n}
	c := g.apply(&rep, second)
	assert.Equal(t, server.Closed, c.Verdict)
	assert.False(t, c.Guessed)
	assert.Equal(t, server.Closed, a.LastRefusal(second).Verdict)
	assert.Equal(t, server.Closed, g.Cause(second).Verdict)
	assert.Equal(t, server.Closed, a.server.last.Verdict)
}

// A hold that a body takes back was a longer one than a guess, which is left.
func TestAHoldThatIsTakenBackLeavesAGuess(t *testing.T) {
	a, g, _ := newFamilies()
	burst(t, g, second, 10)
	n := sends(t, g, 2*second, 2)
	denied(g, n-1, 2*second, 2*second, 0, NotBare)
	require.True(t, a.Guessed())
	h := &Hints{Status: 429, Limited: true, Wait: 30 * time.Second, Asked: true}
	g.apply(&Report{Reading: Reading{Hints: h}, Sent: 2 * second, Number: n}, 2*second)
	require.False(t, a.Guessed())
	body := &Hints{Status: 429, Limited: true, Wait: 30 * time.Second, Asked: true, After: h,
		Quotas: []QuotaHint{{Name: "burst", Limit: 10, Known: true, Ends: true, Reset: 30 * time.Second, Violated: true}}}
	g.apply(&Report{Reading: body.Read(2 * second), Sent: 2 * second, Number: n}, 2*second)
	require.Less(t, a.held, 4*second)
	require.True(t, a.Guessed(), "the hold of the first refusal is back")
}

// A refusal whose body says that it is none is not the last one.
func TestARefusalThatWasNoneIsNotTheLastOne(t *testing.T) {
	a, g, _ := newFamilies()
	n := sends(t, g, second, 2)
	denied(g, n-1, second, second, 60*second, NotBare)
	before, cause := a.LastRefusal(second), g.Cause(second)
	h := &Hints{Status: 503, Limited: true, Host: true, Wait: 90 * time.Second, Asked: true}
	c := g.apply(&Report{Reading: Reading{Hints: h}, Sent: second, Number: n, Doubtful: true}, second)
	require.Equal(t, server.Closed, a.LastRefusal(second).Verdict)
	require.True(t, c.Doubt(second, aimd.ClientError))
	require.Equal(t, before, a.LastRefusal(second))
	require.Equal(t, cause, g.Cause(second))
}
