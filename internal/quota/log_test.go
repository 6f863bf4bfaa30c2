package quota

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

// slidingLog is a server with a sliding log of requests that it accepted.
type slidingLog struct {
	limit  int64
	length int64
	late   int64 // by how much the reset is told late
	sent   []meter.Instant
}

func (s *slidingLog) arrive(now meter.Instant) (bool, Tell) {
	s.sent = slices.DeleteFunc(s.sent, func(at meter.Instant) bool { return at <= now-s.length })
	ok := int64(len(s.sent)) < s.limit
	if ok {
		s.sent = append(s.sent, now)
	}
	t := core(s.limit, s.limit-int64(len(s.sent)), s.sent[0]+s.length+s.late)
	t.Refused = !ok
	return ok, t
}

// asksAlways sends requests one by one as early as the gate allows, each answered after trip, until until. It returns how many
// were accepted and refused.
func asksAlways(g *Gate, s modelServer, from, until meter.Instant, trip int64) (accepted, refused int) {
	for now := from; ; {
		if now = g.Ready(now, 0, 1); now >= until {
			return accepted, refused
		}
		g.Take(now, now, 1, false)
		ok, told := s.arrive(now + trip/2)
		if ok {
			accepted++
		} else {
			refused++
		}
		g.Answered(now+trip, now, ok, []Tell{told})
		now += trip
	}
}

// known returns a gate that has learned the log of a server: 5 for 10 s, told 5 s late, each request answered after 10 ms.
func known(t *testing.T) (*slidingLog, *Account, *Gate, meter.Instant) {
	a, g, _ := newFamilies()
	s := &slidingLog{limit: 5, length: 10 * second, late: 5 * second}
	_, refused := asksAlways(g, s, 0, 70*second, 10*milli)
	require.Zero(t, refused)
	require.True(t, a.quotas[0].log.known())
	last := a.quotas[0].log.back(0).at
	return s, a, g, last + 10*milli
}

func TestQuotaUsesASlidingLogThatIsToldLate(t *testing.T) {
	for _, c := range []struct {
		limit, length, late, trip int64
		least                     float64
	}{
		{50, second, second, 2 * milli, 0.95},
		{50, second, 0, 2 * milli, 0.95},
		{5, 10 * second, 5 * second, 10 * milli, 0.85}, // departures are far apart, and so are the bounds
		{1000, 60 * second, second, 2 * milli, 0.95},
	} {
		t.Run(fmt.Sprintf("%d for %ds, %ds late", c.limit, c.length/second, c.late/second), func(t *testing.T) {
			_, g, _ := newFamilies()
			s := &slidingLog{limit: c.limit, length: c.length, late: c.late}
			_, refused := asksAlways(g, s, 0, 10*(c.length+c.late), c.trip)
			require.Zero(t, refused)
			used, refused := asksAlways(g, s, 10*(c.length+c.late), 10*(c.length+c.late)+20*c.length, c.trip)
			require.Zero(t, refused)
			require.GreaterOrEqual(t, float64(used), c.least*20*float64(c.limit))
		})
	}
}

func TestQuotaOpensWhenARequestHasLeftAKnownLog(t *testing.T) {
	_, a, g, now := known(t)
	l := &a.quotas[0].log
	require.GreaterOrEqual(t, l.most, 10*second)
	require.Less(t, l.most, 12*second)
	oldest := l.back(4)
	requireReady(t, g, now, oldest.answered+l.most)
	// A reserve leaves less room.
	require.Equal(t, l.back(2).answered+l.most, g.Ready(now, 2, 1))
	require.Equal(t, l.back(0).answered+l.most, g.Ready(now, 99, 1))
	a.quotas[0].reserve = 2
	require.Equal(t, l.back(2).answered+l.most, g.Ready(now, 0, 1))
	a.quotas[0].reserve = 0
	g.Take(now, now, 1, false)
	require.Less(t, g.Ready(now, 4, 1), meter.Never, "the log is empty then")
	require.Equal(t, meter.Never, g.Ready(now, 5, 1), "it depends on the response when the log is counted from")
}

func TestQuotaWaitsNotLongForAResponse(t *testing.T) {
	_, a, g, now := known(t)
	l := &a.quotas[0].log
	at := g.Ready(now, 0, 1)
	for range 5 {
		at = max(at, l.back(4).answered+l.most)
		g.Take(at, at, 1, false)
	}
	requireReady(t, g, at, l.back(4).at+l.most/8+l.most) // the server may count it late
	sentAt := l.back(4).at
	g.Answered(sentAt+second, sentAt, true, []Tell{core(5, 1, sentAt+20*second)})
	requireReady(t, g, at, sentAt+second+l.most)
}

func TestQuotaTakesNoWindowForALog(t *testing.T) {
	for _, trip := range []int64{2 * milli, 25 * milli, 150 * milli} {
		for _, late := range []int64{0, second} {
			a, g, _ := newFamilies()
			s := &lateWindow{windows{limit: 50, length: 5 * second, mostly: map[int64]int64{}}, late}
			for now := meter.Instant(0); now < 100*second; now += second {
				asksAlways(g, s, now, now+second, trip)
				require.False(t, a.quotas[0].log.known())
			}
			require.True(t, a.quotas[0].log.off)
			require.Nil(t, a.quotas[0].log.ring)
		}
	}
}

// lateWindow tells its reset late.
type lateWindow struct {
	windows
	late int64
}

func (s *lateWindow) arrive(now meter.Instant) (bool, Tell) {
	ok, t := s.windows.arrive(now)
	t.Reset, t.Refused = t.Reset+s.late, !ok
	return ok, t
}

// odd are responses to requests that the server may not have counted.
var odd = map[string]func(g *Gate, at meter.Instant){
	"refused":  func(g *Gate, at meter.Instant) { g.Answered(at, at, false, []Tell{core(5, 0, at+second)}) },
	"silent":   func(g *Gate, at meter.Instant) { g.Answered(at, at, true, nil) },
	"not sent": func(g *Gate, at meter.Instant) { g.GiveBack(0, at, 1) },
}

func TestQuotaCountsWhatTheServerMayNotHaveCounted(t *testing.T) {
	for name, odd := range odd {
		t.Run(name, func(t *testing.T) {
			s, a, g, now := known(t)
			l := &a.quotas[0].log
			most := l.most
			at := g.Ready(now, 0, 1)
			g.Take(at, at, 1, false)
			odd(g, at)
			requireReady(t, g, at, l.back(4).answered+most)
			_, refused := asksAlways(g, s, at, at+120*second, 10*milli)
			require.Zero(t, refused)
			require.True(t, l.known())
			require.GreaterOrEqual(t, l.most, 10*second)
		})
	}
}

func TestQuotaLearnsALogAfreshAfterTwoDoubts(t *testing.T) {
	for name, odd := range odd {
		t.Run(name, func(t *testing.T) {
			s, a, g, now := known(t)
			for range 2 {
				now = g.Ready(now, 0, 1)
				g.Take(now, now, 1, false)
				odd(g, now)
			}
			require.False(t, a.quotas[0].log.known())
			now = g.Ready(now, 0, 1)
			_, refused := asksAlways(g, s, now, now+120*second, 10*milli)
			require.LessOrEqual(t, refused, 4)
			require.True(t, a.quotas[0].log.known())
		})
	}
}

func TestQuotaLearnsALogAfreshForAnotherLimit(t *testing.T) {
	s, a, g, now := known(t)
	s.limit = 8
	_, refused := asksAlways(g, s, now, now+200*second, 10*milli)
	require.LessOrEqual(t, refused, 4)
	require.True(t, a.quotas[0].log.known())
	require.Equal(t, int64(8), a.quotas[0].log.limit)
}

// Requests of another client make the log look longer, or contradict it. Either way fewer leave.
func TestQuotaLearnsNoShorterLogFromOtherClients(t *testing.T) {
	for seed := range int64(20) {
		a, g, _ := newFamilies()
		s := &slidingLog{limit: 20, length: 5 * second, late: second}
		sent, refused := 0, 0
		for now := meter.Instant(0); now < 200*second; now += second {
			for i := range (seed + now/(10*second)) % 4 {
				s.arrive(now + i)
			}
			n, r := asksAlways(g, s, now+10, now+second, 20*milli)
			sent, refused = sent+n, refused+r
			l := &a.quotas[0].log
			require.True(t, l.off || l.most >= 5*second)
		}
		require.Less(t, float64(refused), 0.1*float64(sent))
	}
}

func TestQuotaKeepsNoLogOfALargeLimit(t *testing.T) {
	a, g, _ := newFamilies()
	asks(t, g, 0, core(maxLogged+1, 10, second))
	asks(t, g, 1, core(maxLogged+1, 9, second))
	require.Empty(t, a.quotas[0].log.ring)
	asks(t, g, 2, core(maxLogged, 10, second))
	asks(t, g, 3, core(maxLogged, 9, second))
	require.Len(t, a.quotas[0].log.ring, 1)
}

func TestALogKeepsBoundedDepartures(t *testing.T) {
	a, g, _ := newFamilies()
	for i := range int64(500) {
		asks(t, g, i*second, core(5, 4, i*second+milli))
	}
	require.LessOrEqual(t, len(a.quotas[0].log.ring), 5+spareLog)
}

// A request that is in flight may reach the server after one that left later.
func TestALogIsNotShorterBecauseARequestIsOnItsWay(t *testing.T) {
	l := newLog(5)
	l.take(1*second, 0)
	l.answer(2*second, 1*second)
	l.take(10*second, 0)
	l.take(12*second, 1)
	l.hear(13*second, 12*second, 4, 5) // the server has counted this one alone
	require.Equal(t, 12*second, l.most)
}

func TestALogIsKnownOnceItsBoundsAreClose(t *testing.T) {
	for _, c := range []struct {
		log   log
		known bool
	}{
		{log{limit: 5, heard: 10, need: 10, least: 8, most: 10}, true},
		{log{limit: 5, heard: 10, need: 10, least: 7, most: 10}, false},
		{log{limit: 5, heard: 9, need: 10, least: 8, most: 10}, false},
		{newLog(-1), false},
		{log{limit: 5, off: true}, false},
	} {
		require.Equal(t, c.known, c.log.known(), "%+v", c.log)
	}
}

// Of u requests in the log, the u-th last is the oldest. It is certain only if it left after the last doubt, and if none of
// those in flight may have been counted between.
func TestALogLearnsFromCertainDepartures(t *testing.T) {
	for name, c := range map[string]struct {
		used        int64
		change      func(*log)
		heard       int64
		least, most int64
	}{
		"none in it":             {0, nil, 0, 0, meter.MaxCount},
		"this one alone":         {1, nil, 1, 0, second + milli},
		"three of four":          {3, nil, 1, 2*second - milli, 3*second + milli},
		"all, and perhaps more":  {4, nil, 0, 0, meter.MaxCount},
		"others on their way":    {2, func(l *log) { l.back(0).inFlight = 1; l.certain = 3 }, 1, second - milli, meter.MaxCount},
		"the oldest on its way":  {2, func(l *log) { l.back(1).answered = 0 }, 1, 0, 2*second + milli},
		"contradicted":           {1, func(l *log) { l.least = 9 * (second + milli) / 8 }, 1, 9 * (second + milli) / 8, second + milli},
		"contradicted for good":  {1, func(l *log) { l.least = 9*(second+milli)/8 + 1 }, 0, 0, 0},
		"certain since a doubt":  {2, func(l *log) { l.certain = 3 }, 1, second - milli, 2*second + milli},
		"certain of no more yet": {2, func(l *log) { l.certain = 2 }, 0, 0, meter.MaxCount},
	} {
		l := newLog(5)
		for at := second; at <= 4*second; at += second {
			l.take(at, 0)
			l.answer(at+milli, at)
		}
		if c.change != nil {
			c.change(&l)
		}
		l.hear(4*second+milli, 4*second, 5-c.used, 5)
		require.Equal(t, []int64{c.heard, c.least, c.most}, []int64{l.heard, l.least, l.most}, name)
		require.Equal(t, c.most == 0, l.off, name)
	}
}

func TestALogForgetsAfterASecondDoubtWithinALimit(t *testing.T) {
	for name, c := range map[string]struct {
		certain int64
		sentAt  meter.Instant
		kept    bool
	}{
		"more than the limit between":  {6, 10 * second, true},
		"as many as the limit between": {5, 10 * second, false},
		"left before the first":        {5, 10*second - 1, true},
	} {
		l := log{limit: 5, heard: 10, need: 10, least: 8, most: 10, certain: c.certain, doubted: 10 * second}
		l.doubt(11*second, c.sentAt)
		require.Equal(t, c.kept, l.known(), name)
		require.Equal(t, map[bool]int64{true: 10, false: 20}[c.kept], l.need, name)
		require.Equal(t, 11*second, l.doubted, name)
		require.Zero(t, l.certain, name)
	}
}

func TestALogFindsRequestsThatLeftAtOneInstant(t *testing.T) {
	l := newLog(5)
	for _, at := range []meter.Instant{1, 2, 2} {
		l.take(at, 0)
	}
	l.answer(3, 2)
	l.answer(4, 2)
	require.Equal(t, meter.Instant(9), l.ready(9, 3), "no more than these are in the log")
	require.Equal(t, []meter.Instant{3, 4, 0}, []meter.Instant{l.back(0).answered, l.back(1).answered, l.back(2).answered})
}

// A window of two requests, spread evenly, looks like a log of half of its length, until requests are refused.
func TestQuotaTakesNoSmallWindowForALogForLong(t *testing.T) {
	for _, limit := range []int64{2, 3, 5} {
		for seed := range uint64(10) {
			w := newWorld(seed, &windows{limit: limit, length: 10 * second, mostly: map[int64]int64{}}, 1)
			w.lost, w.mute, w.back, w.until = 0.03, 0.1, 0.02, 400*second
			w.run()
			require.LessOrEqual(t, w.refused, 8, "%d: seed %d: refused of %d", limit, seed, w.sent)
		}
	}
}
