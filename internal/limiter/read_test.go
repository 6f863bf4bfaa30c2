package limiter_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
)

// A request cannot be granted before another one has ended if that has all slots of a bucket from which it needs one.
func TestARequestNeedsABucketOfWhichAnotherHasAll(t *testing.T) {
	l := drive(t, inFlight(2), tokenBucket(10, time.Second))
	slots := l.limit("in-flight")
	w := l.waiter(ask{})
	require.True(t, l.NeedsAllOf(w, slots.Single, 2))
	require.False(t, l.NeedsAllOf(w, slots.Single, 1), "one is left")
	require.False(t, l.NeedsAllOf(l.waiter(ask{Costs: map[string]int64{"in-flight": 0}}), slots.Single, 2), "it needs none")
	require.False(t, l.NeedsAllOf(l.waiter(ask{Key: "a"}), slots.Single, 2), "it needs one of another bucket")
	l.setInFlight("in-flight", 3)
	require.False(t, l.NeedsAllOf(w, slots.Single, 2))
}

// The accounts of all servers, or of one, are looked at in pieces, and what was read is handed over without the lock.
func TestAccountsAreLookedAtInPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 3*limiter.PieceSize + 1
		l := drive(t)
		few := quota.QuotaHint{Name: quota.Unnamed, Limit: 9, Left: 3, Known: true, Ends: true, Reset: time.Second}
		report := func(key quota.Key) {
			r := l.request(ask{})
			require.True(t, l.Now(r, nil))
			l.ReportUngated(r, &key, &limiter.Answer{Outcome: aimd.OK, Hints: &quota.Hints{Quotas: []quota.QuotaHint{few}}})
		}
		for i := range n {
			key := quota.Key{Host: "h"}
			key.Join(0, string(rune('a'+i)))
			report(key)
		}
		report(quota.Key{Host: "other"})
		for host, want := range map[string][]int{"": {64, 64, 64, 2}, "h": {64, 64, 64, 1}, "other": {1}, "none": nil} {
			var pieces []int
			read := 0
			look := func(a *quota.Account, now meter.Instant) {
				require.Zero(t, now)
				read++
			}
			between := func() {
				l.checkUnlocked()
				pieces, read = append(pieces, read), 0
			}
			if host == "" {
				l.LookAtServers(look, between)
			} else {
				l.LookAtServer(host, look, between)
			}
			require.Equal(t, want, pieces, host)
		}
	})
}
