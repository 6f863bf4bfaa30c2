package throttleredis

import (
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/httpthrottle/throttle/internal/lease"
)

// outages are the prefixes of errors that go away: Redis is starting, failing over, busy or full. Every other error from
// Redis means that its set-up or ours is wrong.
var outages = []string{
	"LOADING ", "CLUSTERDOWN ", "MASTERDOWN ", "TRYAGAIN ", "BUSY ", "OOM ", "NOREPLICAS ", "MOVED ", "ASK ",
	"ERR max number of clients reached",
}

// classify adds lease.ErrSetup to the chain of an error that retrying does not fix: most of those that Redis sends, and that of
// a client that was closed.
func classify(err error) error {
	var response redis.Error
	switch {
	case errors.Is(err, redis.ErrClosed):
		return fmt.Errorf("%w: %w", lease.ErrSetup, err)
	case !errors.As(err, &response) || errors.Is(err, redis.Nil):
		return err
	}
	for _, prefix := range outages {
		if strings.HasPrefix(response.Error(), prefix) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", lease.ErrSetup, err)
}
