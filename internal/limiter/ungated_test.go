package limiter_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/quota"
)

// The body of a response may report what its headers did not: a refusal or a quota makes the server known, and nothing does not.
func TestABodyMakesAServerKnownOnlyIfItSaysSomething(t *testing.T) {
	quotas := []quota.QuotaHint{{Name: quota.Unnamed, Limit: 9, Left: 3, Known: true, Ends: true, Reset: time.Second}}
	for _, c := range []struct {
		hints   quota.Hints
		servers int
	}{
		{quota.Hints{}, 0},
		{quota.Hints{Limited: true, Wait: time.Minute, Asked: true}, 1},
		{quota.Hints{Quotas: quotas}, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := drive(t)
			c.hints.After = new(quota.Hints)
			l.ReportUngated(&limiter.Request{User: l.user}, &quota.Key{Host: "h"}, &limiter.Answer{Outcome: aimd.OK, Hints: &c.hints})
			require.Equal(t, c.servers, l.accounts(), "%+v", c.hints)
		})
	}
}

// A rejection says the most that its limit can pay only where the cost is the reason.
func TestARejectionSaysTheMostThatALimitPaysOnlyForACost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, tokenBucket(5, time.Second))
		for cost, most := range map[int64]int64{6: 5, 5: 0} {
			w := l.waiter(ask{Cost: cost, MaxWait: new(time.Millisecond)})
			l.Limits[0].Single.Meter.Take(0, 0, 1, false)
			_, err := l.Enqueue(t.Context(), w)
			require.Equal(t, most, requireRejection(t, err).Most, "cost %d: %v", cost, err)
		}
	})
}
