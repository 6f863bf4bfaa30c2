package throttlepage

import (
	"fmt"
	"testing"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/stretchr/testify/require"
)

// What a new frame costs, whatever the number of viewers.
func BenchmarkFrame(b *testing.B) {
	for _, keys := range []int{0, 10_000, 100_000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			l, err := throttle.NewLimiter(throttle.WithMaxKeys(200_000), throttle.WithLimit(throttle.TokenBucket(2, time.Hour)))
			require.NoError(b, err)
			for i := range keys {
				require.NoError(b, l.Wait(b.Context(), throttle.Ask{Key: fmt.Sprint("key-", i)}))
			}
			p := newPage(map[string]source{"a": l})
			var f *frame
			for b.Loop() {
				p.read, p.views[0].all = time.Time{}, walk{}
				f = p.frame(query{})
			}
			b.ReportMetric(float64(len(f.content)), "B/event")
		})
	}
}
