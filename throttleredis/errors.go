package throttleredis

import (
	"errors"
	"fmt"
	"slices"
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

// elsewhere are the prefixes of errors of a server that is one of a Cluster, and does not have a key.
var elsewhere = []string{"MOVED ", "ASK ", "CROSSSLOT "}

// classify adds lease.ErrSetup to the chain of an error that retrying does not fix: most of those that Redis sends, and that of
// a client that was closed.
func (s *Store) classify(err error) error {
	var response redis.Error
	switch {
	case errors.Is(err, redis.ErrClosed):
		return fmt.Errorf("%w: %w", lease.ErrSetup, err)
	case !errors.As(err, &response) || errors.Is(err, redis.Nil):
		return err
	case !s.cluster && hasPrefix(response, elsewhere):
		return fmt.Errorf("%w: a Cluster needs a redis.ClusterClient: %w", lease.ErrSetup, err)
	case hasPrefix(response, outages):
		return err
	}
	return fmt.Errorf("%w: %w", lease.ErrSetup, err)
}

func hasPrefix(err error, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(err.Error(), prefix) })
}
