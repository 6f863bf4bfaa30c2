package server

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

const minute = 60 * second

func TestAWaitIsAtMostWhatWasSeenExplains(t *testing.T) {
	b := NewBackoff()
	require.Equal(t, meter.Never, b.Until(meter.Never, 1), "nothing was sent, so there is nothing to count from")
	b.Sent(0, true)
	require.Equal(t, Longest-1, b.Until(Longest-1, 1))
	require.Equal(t, Longest, b.Until(meter.Never, 1))
	require.Equal(t, 3*Longest, b.Until(meter.Never, 3), "others are sent before")
	require.Equal(t, meter.Never, b.Until(meter.Never, meter.MaxCount))

	for now := meter.Instant(0); now <= 30*minute; now += minute {
		b.Sent(now, true)
	}
	require.Equal(t, 40*minute, b.Until(meter.Never, 1), "nothing was accepted for half an hour")

	require.Equal(t, 10*minute, b.Wait(second, true))
	require.Equal(t, 10*minute+1, b.Wait(10*minute+1, true))

	b.Sent(36*minute, true)
	b.Accepted(36 * minute)
	require.Equal(t, (36+3*30)*minute, b.Until(meter.Never, 1), "nothing was accepted for half an hour, and one after 36 minutes")
	for range 5 {
		b.Sent(b.Last()+90*minute, true)
		b.Accepted(b.Last())
		require.Equal(t, 90*minute, b.Most(), "a wait alone makes no other one longer")
	}
	for range 100 {
		b.Sent(b.Last()+minute, true)
		b.Accepted(b.Last())
	}
	require.Equal(t, 3*(30*60-100*3)*second, b.Most(), "a gap is forgotten in sixteen times as long")
	for range 1000 {
		b.Sent(b.Last()+minute, true)
		b.Accepted(b.Last())
	}
	require.Equal(t, 3*minute, b.Most(), "gaps of a minute confirm a minute")
	b.Learn(12 * minute)
	require.Equal(t, 36*minute, b.Most())
	for range 100 {
		b.Sent(b.Last()+12*minute, true)
		b.Accepted(b.Last())
	}
	require.Equal(t, 36*minute, b.Most(), "gaps as long as that confirm it")
}

func TestALongWaitIsLongerIfItsEndWasTooEarly(t *testing.T) {
	b := NewBackoff()
	b.Sent(0, true)
	require.Equal(t, 60*minute, b.Asked(60*minute))
	b.Sent(60*minute, true)
	require.Equal(t, 60*minute+60*minute/16, b.Asked(60*minute))
	require.Equal(t, Longest, b.Asked(Longest))
	b.Sent(60*60*minute, true)
	require.Equal(t, 2*60*minute, b.Asked(60*minute))
	b.Accepted(60 * 60 * minute)
	require.Equal(t, 60*minute, b.Asked(60*minute))
}

func TestAServerThatMayBeDownIsAskedAsBeforeForTwoMinutes(t *testing.T) {
	b := NewBackoff()
	b.Sent(0, true)
	b.Sent(2*minute, true)
	require.Equal(t, second, b.Wait(second, true))
	require.Equal(t, 40*second, b.Wait(second, false))
	b.Sent(2*minute+3, true)
	require.Equal(t, 40*second+1, b.Wait(second, true))
}

// A client of a month that has sent a few requests knows no more of the server than one of a minute.
func TestRestsShowNothing(t *testing.T) {
	const month = 30 * 24 * 60 * minute
	b := NewBackoff()
	b.Sent(month, true)
	require.Equal(t, Longest, b.Most(), "before the first request there was nothing to accept")
	b.Accepted(month)
	require.Equal(t, month, b.Sent(2*month, false))
	require.Equal(t, Longest, b.Most())
	b.Accepted(2 * month)
	require.Equal(t, Longest, b.Most(), "a rest is no gap")
	b.Sent(2*month+9*minute, true)
	b.Sent(2*month+10*minute, true)
	b.Accepted(2 * month) // a later response to the same request
	b.Accepted(2*month + 10*minute)
	require.Equal(t, 27*minute, b.Most())
	require.Zero(t, b.Sent(2*month, false), "as of when it was due")
}
