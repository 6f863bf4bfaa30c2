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

// Granted less Undone goes down when a grant is abandoned.
func TestAbandonedGrantsAreNotOnTheWay(t *testing.T) {
	for granted, held := range map[uint64]time.Duration{2: 0, 6: 5} { // the second is this one, and the first was abandoned
		synctest.Test(t, func(t *testing.T) {
			l := drive(t)
			sleep(10)
			l.Counts().Granted, l.Counts().Undone = granted, 1
			few := quota.QuotaHint{Name: quota.Unnamed, Limit: 5000, Left: 3, Known: true, Ends: true, Reset: time.Second}
			a := &limiter.Answer{Outcome: aimd.OK, Hints: &quota.Hints{Quotas: []quota.QuotaHint{few}}}
			l.ReportUngated(&limiter.Request{User: l.user, Mark: limiter.Mark{At: 5, Nth: 2}}, &quota.Key{Host: "h"}, a)
			until := time.Duration(0)
			for some := range l.AccountsAt("h") {
				l.LookAtAccounts(some, func(a *quota.Account, now meter.Instant) { until = time.Duration(max(0, a.Until()-now)) })
			}
			require.Equal(t, held, until, "as long as the first response took, if another request is on the way")
		})
	}
}
