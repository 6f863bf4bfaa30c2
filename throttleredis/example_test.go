package throttleredis_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// A seldom logs a line a minute of those of go-redis, with the number of the others.
type seldom struct {
	logger *slog.Logger
	next   atomic.Int64 // in ns of Unix time
	others atomic.Int64
}

func (s *seldom) Printf(ctx context.Context, format string, args ...any) {
	now, next := time.Now().UnixNano(), s.next.Load()
	if now < next || !s.next.CompareAndSwap(next, now+int64(time.Minute)) {
		s.others.Add(1)
		return
	}
	s.logger.WarnContext(ctx, "go-redis: "+fmt.Sprintf(format, args...), "others", s.others.Swap(0))
}

// In an outage go-redis logs each failed connection. A Limiter has a line for each outage, with [throttle.WithLogger].
func Example_logging() {
	redis.SetLogger(&seldom{logger: slog.Default()}) // once in the process
}
