package tests

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/store"
)

// logged keeps what a Logger writes about processes that disagree, and when.
type logged struct {
	slog.Handler
	start time.Time
	lines *[]string
}

func (h logged) Enabled(context.Context, slog.Level) bool { return true }

func (h logged) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "disagree") {
		*h.lines = append(*h.lines, r.Level.String()+" after "+time.Since(h.start).Round(time.Second).String())
	}
	return nil
}

// While a new rate is deployed, processes disagree. That is worth a line at level Info when it begins, and a warning only if it lasts for ten
// seconds.
func TestADeployWarnsOnlyIfItLasts(t *testing.T) {
	for name, c := range map[string]struct {
		lasts time.Duration
		want  []string
	}{
		"a deploy":        {8 * time.Second, []string{"INFO after 0s"}},
		"a wrong process": {30 * time.Second, []string{"INFO after 0s", "WARN after 10s"}},
	} {
		inBubble(t, name, func(t *testing.T) {
			shared := store.NewMemory()
			var lines []string
			log := throttle.WithLogger(slog.New(logged{slog.DiscardHandler, time.Now(), &lines}))
			process := func(n int64, opts ...throttle.Option) *throttle.Limiter {
				return limiterWith(t, append(opts, throttle.WithLimit(throttle.TokenBucket(n, time.Second, throttle.Name("calls"), throttle.Shared(shared))))...)
			}
			before, after := process(10, log), process(5)
			start := time.Now()
			for time.Since(start) < time.Minute {
				require.NoError(t, after.Wait(t.Context(), throttle.Ask{}))
				if time.Since(start) <= c.lasts {
					require.NoError(t, before.Wait(t.Context(), throttle.Ask{}))
				}
				time.Sleep(time.Second / 4)
			}
			synctest.Wait()
			require.Equal(t, c.want, lines)
		})
	}
}
