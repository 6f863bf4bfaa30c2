package quota

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

// asks returns when the next request asks: at the expected end, or a tenth of a second later if that is over or unknown.
func (l *length) asks(now meter.Instant) meter.Instant {
	if end := l.end(); end > now && end < meter.Never {
		return end
	}
	return now + second/10
}

// play has a window begin at an instant, and ask as the length says until the server, whose windows are that long, accepts a request. It
// returns when that was sent, and how many were refused. Until it is known when to ask, requests ask every tenth of a second.
func (l *length) play(begins meter.Instant, lasts int64) (next meter.Instant, refused int) {
	at := l.asks(begins)
	for ; at < begins+lasts; at = l.asks(at) {
		l.refused(at)
		refused++
	}
	l.began(at, true)
	return at, refused
}

func TestWindowsWithoutAReportedEndAreExpectedToLastAsLong(t *testing.T) {
	for _, lasts := range []int64{second, 10 * second, 60 * second} {
		var l length
		require.Equal(t, meter.Never, l.end())
		at := 7 * second
		l.began(at, false)
		require.Equal(t, meter.Never, l.end(), "nothing has been seen yet")
		total := 0
		for i := range 12 {
			next, refused := l.play(at, lasts)
			if i > 0 {
				require.LessOrEqual(t, refused, 1)
				total += refused
			}
			if i > 8 {
				require.LessOrEqual(t, next-at, lasts+lasts/lengthSure+second/10)
			}
			at = next
		}
		require.LessOrEqual(t, total, 8)
	}
}

// Windows may become longer or shorter.
func TestALengthIsLearnedAgain(t *testing.T) {
	var l length
	at := second
	l.began(at, false)
	for _, lasts := range []int64{10 * second, 3 * second, 20 * second} {
		for range 20 {
			at, _ = l.play(at, lasts)
		}
		next, refused := l.play(at, lasts)
		require.LessOrEqual(t, next-at, lasts+lasts/lengthSure+second/10, "windows of %d s", lasts/second)
		require.LessOrEqual(t, refused, 1)
		at = next
	}
}

// A client that comes later than it could does not show how long the window before was, except that it was shorter.
func TestARestShowsNoLength(t *testing.T) {
	var l length
	l.began(second, false)
	l.began(60*second, false)
	require.Equal(t, meter.Never, l.end())
	l.began(62*second, true)
	require.Equal(t, 63*second, l.end(), "halfway, because no request was refused")
	l.began(90*second, false)
	require.Equal(t, 91*second, l.end())
	l.began(91*second, false)
	require.Equal(t, 91*second+second/2, l.end())
	l.refused(91*second + second/2)
	require.Equal(t, 92*second, l.end(), "one request of each window tries earlier")
	l.refused(92 * second)
	require.Equal(t, meter.Never, l.end(), "it is longer now")
}

// Windows that begin with the clock begin some time before their first request, which differs from window to window. So how far apart the
// first requests of two windows are is not how long a window is.
func TestWindowsThatBeginWithTheClockAreRarelyAskedTooEarly(t *testing.T) {
	const lasts, windows, clients = 10 * second, 200, 100
	refused, late, dice := 0, int64(0), rand.New(rand.NewPCG(1, 2))
	for range clients {
		var (
			l  length
			r  retry
			at = lasts + dice.Int64N(lasts)
		)
		l.began(at, false)
		for range windows {
			ends := at - at%lasts + lasts
			for at = l.asks(at); at < ends; refused++ { // as a quota asks
				r.backoff = max(r.backoff, l.refused(at))
				if end := l.end(); end > at && end < meter.Never {
					at = end
					continue
				}
				r.again(at, dice.Float64())
				at = r.try
			}
			r.backoff = 0
			l.began(at, true)
			late += at - ends
		}
	}
	require.Less(t, refused, clients*windows*4/10)
	require.Less(t, late, clients*windows*lasts/25)
}

// A server may shorten its windows, or begin the next one early because it restarts. Then a window ends earlier than refusals have shown.
func TestNoWindowIsExpectedToEndBeforeItsFirstRequest(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var l length
		at := second
		l.began(at, false)
		for range 40 {
			if lasts := (1 + dice.Int64N(20)) * second; dice.IntN(4) > 0 {
				at, _ = l.play(at, lasts)
			} else {
				at += lasts
				l.began(at, false)
			}
			require.LessOrEqual(t, l.after, at)
			require.GreaterOrEqual(t, l.end(), at)
		}
	}
}
