package throttleredis

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/httpthrottle/throttle/internal/lease"
)

// outages are the codes of errors that go away: Redis is starting, failing over, busy or full.
var outages = []string{
	"LOADING", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "BUSY", "OOM", "NOREPLICAS", "MOVED", "ASK", "ERR max number of clients reached",
}

// elsewhere are the codes of errors of a server that is one of a Cluster, and does not have a key.
var elsewhere = []string{"MOVED", "ASK", "CROSSSLOT"}

// classify adds lease.ErrSetup to the chain of an error that retrying does not fix: that of a client that was closed, that of a
// client that is not for a Cluster, and most of those with which Redis responds to the first scripts. A password that is
// changed while processes run, a permission that is missing for a while or a proxy in trouble are faults that pass.
func (s *Store) classify(err error) error { return s.classifyAfter(s.worked.Load(), err) }

func (s *Store) classifyAfter(worked bool, err error) error {
	var response redis.Error
	switch {
	case isUnreadable(err):
		return err
	case errors.Is(err, redis.ErrClosed):
		return fmt.Errorf("%w: %w", lease.ErrSetup, err)
	case !errors.As(err, &response) || errors.Is(err, redis.Nil):
		return err
	case !s.cluster && hasCode(response, elsewhere):
		return fmt.Errorf("%w: a Cluster needs a redis.ClusterClient: %w", lease.ErrSetup, err)
	case worked, hasCode(response, outages):
		return err
	}
	return fmt.Errorf("%w: %w", lease.ErrSetup, err)
}

// hasCode reports whether an error has one of the codes. Redis 6 puts what it says about errors inside of a script before them, as in
// "ERR Error running script (call to f_…): @user_script:1: -OOM command not allowed".
func hasCode(err error, codes []string) bool {
	text := strings.TrimPrefix(err.Error(), "throttleredis: ")
	if _, inside, ok := strings.Cut(text, "@user_script"); ok {
		if _, after, ok := strings.Cut(inside, ": -"); ok {
			text = after
		}
	}
	return slices.ContainsFunc(codes, func(code string) bool { return strings.HasPrefix(text+" ", code+" ") })
}

// A scriptError is the error of one ask. It implements [redis.Error].
type scriptError string

func (e scriptError) Error() string { return "throttleredis: " + string(e) }
func (scriptError) RedisError()     {}

// isUnreadable reports whether the error of an ask is that of a state that is none: a list at its key, a string that something else
// wrote, or the state of a later release. It concerns this budget alone.
func isUnreadable(err error) bool {
	var ask scriptError
	if !errors.As(err, &ask) {
		return false
	}
	text := string(ask)
	return strings.Contains(text, "WRONGTYPE ") || strings.Contains(text, "STATE ") || strings.Contains(text, "data string too short")
}
