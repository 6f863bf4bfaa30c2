package quota

import "github.com/httpthrottle/throttle/internal/meter"

const (
	tallyOver = 10 * second // a stretch of a Tally, except the time in which no request comes
	tallyRest = 10 * second // a longer time between two requests counts as that
)

// A Tally counts requests over the last ten to twenty seconds of use, so that the rate of a client is known whenever a refusal comes.
// Without requests its time stands still. The zero Tally has counted none.
type Tally struct {
	from    meter.Instant // when this stretch began
	n       int64         // requests since
	earlier meter.Instant // when the stretch before began
	before  int64         // requests in it
	last    meter.Instant
}

// Add counts a request.
func (t *Tally) Add(now meter.Instant) {
	rest := now - t.last - tallyRest
	switch {
	case t.n == 0:
		t.from, t.earlier = now, now
	case rest > 0:
		t.from, t.earlier = t.from+rest, t.earlier+rest
	}
	if now-t.from >= tallyOver {
		t.earlier, t.before, t.from, t.n = t.from, t.n, now, 0
	}
	t.n, t.last = t.n+1, max(t.last, now)
}

// Without returns the tally without the last n requests.
func (t Tally) Without(n int64) Tally {
	t.n = max(0, t.n-n)
	return t
}

// Lately returns how many requests were counted, and from when on.
func (t *Tally) Lately() (n int64, from meter.Instant) { return t.before + t.n, t.earlier }

// Rate returns how many requests per second were counted lately; 0: none. Less than a second shows no higher rate than a second.
func (t *Tally) Rate(now meter.Instant) float64 {
	n, from := t.Lately()
	return float64(n) * 1e9 / float64(max(now-from, second))
}
