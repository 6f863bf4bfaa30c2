package limiter_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/limiter"
)

// A member of a pool goes out and comes back while 10,000 requests wait there: each is one change under one lock, in which none of them is
// looked at but those that can be granted.
func BenchmarkADoorWithManyWaiters(b *testing.B) {
	l := drive(b, tokenBucket(1, time.Hour))
	door := l.NewDoor(time.Hour)
	for range 10_000 {
		w := l.waiter(ask{})
		w.Claim = limiter.NewClaim(time.Time{})
		_, err := l.EnqueueClaimed(b.Context(), w, door)
		require.NoError(b, err)
	}
	for b.Loop() {
		door.Shut()
		door.Open()
	}
}
