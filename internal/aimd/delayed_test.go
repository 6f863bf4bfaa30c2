package aimd

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle/internal/meter"
)

// A server that delays requests accepts them late, and refuses at once what it has no room for. So each response to an accepted request may
// come after the next pause has begun, and the refusals are no event that lasts.
func TestWhatIsAcceptedLateEndsAnEventOfRefusals(t *testing.T) {
	const now = 1000 * second
	for okAt, want := range map[instant]float64{now - second: 100, now - second + 1: 0.99 * 64} { // a silence ends with an accepted response
		k := newController(Config{Initial: 100}, 0, 1)
		k.ceiling, k.workedFrom, k.paused, k.asked, k.spared, k.okAt = 200, now-second, second, true, true, okAt
		k.accepted = meter.MeanRate{Value: 3, At: now}
		k.throttled(now, ticket{}, second)
		assert.InDelta(t, want, k.current, 1e-9)
	}
	accepted, refused := delayed(600 * second)
	assert.Greater(t, accepted, 600*3*85/100)
	assert.Less(t, refused, accepted/20)
}

// delayed returns what a server accepts and refuses that answers three requests a second, one after the other, and lets five wait.
func delayed(d int64) (accepted, refused int) {
	const work, back = second / 3, 20 * second / 1000
	type response struct {
		at instant
		t  ticket
		ok bool
	}
	k := newController(Config{}, 0, 1)
	var waiting []response
	var next, free instant
	for now := instant(0); now < d; now += second / 1000 {
		for len(waiting) > 0 && waiting[0].at <= now {
			r := waiting[0]
			waiting = waiting[1:]
			if r.ok {
				k.result(now, r.t, OK, time.Duration(now-r.t.at), 0)
			} else {
				k.result(now, r.t, Throttled, time.Duration(now-r.t.at), time.Second)
			}
		}
		if max(k.gate(now), k.pausedUntil) > now || next > now {
			continue
		}
		r := response{at: now + back, t: k.send(now, 1)}
		if free-now <= 5*work {
			free = max(free, now) + work
			r.at, r.ok = free+back, true
			accepted++
		} else {
			refused++
		}
		waiting = append(waiting, r)
		slices.SortStableFunc(waiting, func(x, y response) int { return cmp.Compare(x.at, y.at) })
		next = now + nanos(1/k.rate(now))
	}
	return accepted, refused
}
