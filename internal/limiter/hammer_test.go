package limiter_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Grants are counted in real time. The time is read after the last of them, so that a slow
// machine only makes the test easier.
func TestManyGoroutinesGetNoMoreThanTheLimit(t *testing.T) {
	for _, perSecond := range []int64{10_000, 1_000_000} {
		for kind, limit := range map[string]rule{
			"bucket": tokenBucket(perSecond, time.Second, withBurst(100)), "pace": pace(perSecond, time.Second),
			"sliding window": slidingWindow(perSecond/100, 10*time.Millisecond),
		} {
			for _, by := range []string{"Try", "Wait"} {
				t.Run(fmt.Sprint(kind, perSecond, by), func(t *testing.T) {
					l := drive(t, limit)
					ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
					defer cancel()
					var granted atomic.Int64
					var all sync.WaitGroup
					for range 64 {
						all.Go(func() {
							for ctx.Err() == nil {
								if by == "Wait" {
									if l.wait(ctx, ask{}) == nil {
										granted.Add(1)
									}
								} else if _, ok := l.try(ask{}); ok {
									granted.Add(1)
								}
							}
						})
					}
					all.Wait()
					elapsed := l.now()
					most := int64(float64(perSecond)*elapsed.Seconds()) + 1
					switch kind {
					case "bucket":
						most += 100
					case "pace":
						most++
					case "sliding window":
						most = perSecond / 100 * (int64(elapsed/(10*time.Millisecond)) + 1)
					}
					require.LessOrEqual(t, granted.Load(), most, "in %v", elapsed)
					s := l.counts()
					require.Equal(t, uint64(granted.Load()), s.Granted-s.Undone)
					require.Positive(t, granted.Load())
					l.check()
				})
			}
		}
	}
}
