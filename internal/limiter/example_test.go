package limiter_test

import (
	"context"
	"fmt"
	"time"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/meter"
)

// A Core is made from rules, and a request adds a charge for each limit that applies to it.
func ExampleCore() {
	core := limiter.New([]bucket.Rule{{
		Name: "requests", Rate: meter.Rate{N: 2, Per: time.Hour}, Burst: -1, Initial: -1, Share: 1,
		Make: func(now meter.Instant, r meter.Rate, burst int64, _ *meter.Wall) meter.Meter {
			return meter.NewTokenBucket(now, r, burst, burst)
		},
	}}, limiter.Options{MaxQueue: 100, MaxKeys: 100})
	user := new(limiter.User) // requests that may wait need one with an Observer
	for range 3 {
		r := &limiter.Request{User: user, Context: context.Background()}
		r.Add(core.Limits[0], "a key", 1)
		wait, ok := core.Try(r)
		fmt.Println(ok, wait.Round(time.Minute))
	}
	// Output:
	// true 0s
	// true 0s
	// false 30m0s
}
