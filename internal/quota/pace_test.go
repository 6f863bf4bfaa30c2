package quota

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

// refuse has a request leave at sent and be refused immediately with a wait of a second. It returns the end of the hold.
func refuse(t *testing.T, a *Account, g *Gate, sent meter.Instant) (end meter.Instant) {
	t.Helper()
	sends(t, g, sent, 1)
	g.Answered(sent, sent, false, nil)
	a.Refused(sent, sent, second, false)
	return a.Until()
}

// burst has n requests leave at now and be accepted.
func burst(t *testing.T, g *Gate, now meter.Instant, n int) {
	t.Helper()
	for range n {
		asks(t, g, now)
	}
}

func TestPaceTrustsAKnownLimitOnceAndThenSpreadsItsBursts(t *testing.T) {
	a, g, _ := newFamilies()
	a.Cover(50, false)
	burst(t, g, second, 50)
	end := refuse(t, a, g, 2*second)
	require.Zero(t, a.pace.rate, "one refusal is no reason to slow down")
	burst(t, g, end, 50)
	end = refuse(t, a, g, end+second+1)
	require.InDelta(t, 50, a.pace.rate, 1e-9, "the burst before the rest counts as accepted")
	burst(t, g, end, 1)
	requireReady(t, g, end, end+second/50)
}

func TestPaceOfAKnownLimitWithoutAnAcceptedRequestIsHalfOfIt(t *testing.T) {
	a, g, _ := newFamilies()
	a.Cover(50, false)
	end := refuse(t, a, g, second)
	refuse(t, a, g, end)
	require.InDelta(t, 25, a.pace.rate, 1e-9)
}

func TestPaceGrowsHalfAWaitAfterItBegan(t *testing.T) {
	a, g, _ := newFamilies()
	burst(t, g, second, 10)
	end := refuse(t, a, g, 2*second)
	require.InDelta(t, 5, a.pace.at(end+second/2), 1e-9, "10 in the first two seconds")
	require.InDelta(t, 10, a.pace.at(end+second/2+2*second), 1e-9)
}

// Only a pause that the client makes by itself is a rest, and what was accepted counts from its end; so it does once the
// rate begins to grow. A pace ends when it is not used for a second, or is faster than any that matters.
func TestPaceCountsFromARestOrFromWhereItGrows(t *testing.T) {
	const s = second
	growing := pace{rate: 5, steady: 10 * s, last: 99 * s / 10, next: 10 * s, since: 5 * s, done: 7}
	fast := pace{rate: paceMost / 2, steady: 10 * s, last: 12 * s, next: 12 * s, since: 10 * s}
	for name, c := range map[string]struct {
		p      pace
		due    meter.Instant
		since  meter.Instant
		done   int64
		before float64
		rate   float64
	}{
		"a second is no rest":              {pace{last: 10 * s, since: 4 * s, done: 70}, 11 * s, 4 * s, 70, 0, 0},
		"a rest":                           {pace{last: 10 * s, since: 4*s + 1, done: 70}, 11*s + 1, 11*s + 1, 0, 10, 0},
		"a rest after less than a second":  {pace{last: 10 * s, since: 99 * s / 10, done: 70}, 10*s + 2*s, 12 * s, 0, 70. / 2.1, 0},
		"a wait for the pace is no rest":   {pace{rate: .5, steady: 90 * s, last: 10 * s, next: 12 * s, since: 4 * s, done: 70}, 12 * s, 4 * s, 70, 0, .5},
		"a rest after a wait for the pace": {pace{rate: .5, steady: 90 * s, last: 10 * s, next: 12 * s, since: 5 * s, done: 70}, 12*s + 1, 12*s + 1, 0, 70. / (7 + 1e-9), .5},
		"before it grows":                  {growing, 10*s - 1, 5 * s, 7, 0, 5},
		"when it grows":                    {growing, 10 * s, 10 * s, 0, 0, 5},
		"while it grows":                   {pace{rate: 5, steady: 10 * s, last: 99 * s / 10, next: 10 * s, since: 10 * s, done: 7}, 10*s + 1, 10 * s, 7, 0, 5},
		"without a pace nothing grows":     {pace{steady: 10 * s, last: 99 * s / 10, since: 5 * s, done: 7}, 10 * s, 5 * s, 7, 0, 0},
		"used within a second":             {pace{rate: 5, steady: 90 * s, last: 10 * s, next: 10 * s, since: 5 * s}, 11 * s, 5 * s, 0, 0, 5},
		"unused for longer":                {pace{rate: 5, steady: 90 * s, last: 10 * s, next: 10 * s, since: 5 * s}, 11*s + 1, 11*s + 1, 0, 0, 0},
		"as fast as a pace can be":         {fast, 12 * s, 10 * s, 0, 0, paceMost / 2},
		"faster":                           {fast, 12*s + 100, 10 * s, 0, 0, 0},
	} {
		p := c.p
		p.take(c.due, c.due)
		require.Equal(t, c.due, p.last, name)
		require.Equal(t, c.since, p.since, name)
		require.Equal(t, c.done, p.done, name)
		require.InDelta(t, c.before, p.before, 1e-9, name)
		require.Equal(t, c.rate, p.rate, name)
	}
}

// A refusal within 20 waits of the last one shows that the client's own limit is too fast; then, a limit that is near what
// was accepted is spread evenly, and one far above it is replaced. The rate grows 20 waits later.
func TestPaceAfterARefusalThatIsNotIsolated(t *testing.T) {
	for name, c := range map[string]struct {
		p      pace
		own    float64
		sentAt meter.Instant
		rate   float64
		steady meter.Instant
	}{
		"isolated":                       {pace{waited: second, since: 19 * second, done: 80}, 50, 21*second + 1, 0, 0},
		"after 20 waits":                 {pace{waited: second, since: 19 * second, done: 80}, 50, 21 * second, 50, 42 * second},
		"the first":                      {pace{since: 19 * second, done: 80}, 50, 21 * second, 0, 0},
		"far below its limit":            {pace{waited: second, since: 19 * second, done: 79}, 50, 21 * second, 39.5, 22*second + second/2},
		"a short wait counts":            {pace{waited: second, since: 21 * second, done: 10}, 50, 21*second + 1, 0, 0},
		"no limit of its own":            {pace{since: 19 * second, done: 20}, 0, 21 * second, 10, 22*second + second/2},
		"no limit, none accepted":        {pace{since: 19 * second}, 0, 21 * second, 1, 22 * second},
		"none accepted since a rest":     {pace{since: 19 * second, before: 8}, 0, 21 * second, 8, 22*second + second/2},
		"before it grows":                {pace{rate: 10, steady: 21*second + 1, next: 21 * second, since: 19 * second, done: 40}, 0, 21 * second, 9, 42 * second},
		"before it grows, at the least":  {pace{rate: 1, steady: 21*second + 1, next: 21 * second, since: 19 * second}, 0, 21 * second, 1, 42 * second},
		"once it grows":                  {pace{rate: 10, steady: 21 * second, next: 21 * second, since: 19 * second, done: 40}, 0, 21 * second, 20, 42 * second},
		"once it grows, none accepted":   {pace{rate: 10, steady: 21 * second, next: 21 * second, since: 19 * second}, 0, 21 * second, 10, 42 * second},
		"a wait of 10 s says no more":    {pace{since: 20 * second, done: 20}, 0, 21 * second, 20. / 10, 22*second + 5*second},
		"a pace that is over":            {pace{rate: 10, steady: 90 * second, next: 20*second - 1, since: 19 * second, done: 40}, 0, 21 * second, 20, 22*second + second/2},
		"a pace that is not over yet":    {pace{rate: 10, steady: 90 * second, next: 20 * second, since: 19 * second, done: 40}, 0, 21 * second, 9, 42 * second},
		"its own limit, none ever taken": {pace{waited: second, since: 19 * second}, 50, 21 * second, 25, 22 * second},
	} {
		p, wait := c.p, second
		if name == "a wait of 10 s says no more" {
			wait = 60 * second
		}
		p.refused(22*second, c.sentAt, wait, &Account{own: c.own, covered: c.own > 0})
		require.InDelta(t, c.rate, p.rate, 1e-9, name)
		if c.rate > 0 {
			require.Equal(t, c.steady, p.steady, name)
		}
		require.Equal(t, 22*second, p.next, name)
		require.Equal(t, 22*second, p.since, name)
		require.Zero(t, p.done, name)
	}
}
