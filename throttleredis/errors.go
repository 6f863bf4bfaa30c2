package throttleredis

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/httpthrottle/throttle/store"
)

// outages are the codes of errors that are temporary: Redis is starting, failing over, busy or full.
var outages = []string{
	"LOADING", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "BUSY", "OOM", "NOREPLICAS", "MOVED", "ASK", "ERR max number of clients reached",
}

// elsewhere are the codes with which a server of a Cluster responds if it does not have the key.
var elsewhere = []string{"MOVED", "ASK", "CROSSSLOT"}

// classify adds store.ErrSetup to the chain of an error that retrying does not fix: the client was closed, the client is not for a
// Cluster, or, in most cases, Redis responded to the first scripts with an error. Later errors are temporary, because a password may
// be changed while processes run, a permission may be missing for a while, and a proxy may fail.
func (s *Store) classify(err error) error { return s.classifyAfter(s.worked.Load(), err) }

func (s *Store) classifyAfter(worked bool, err error) error {
	var response redis.Error
	switch {
	case isUnreadable(err):
		return err
	case errors.Is(err, redis.ErrClosed):
		return fmt.Errorf("%w: %w", store.ErrSetup, err)
	case !errors.As(err, &response) || errors.Is(err, redis.Nil):
		return err
	case !s.cluster && hasCode(response, elsewhere):
		return fmt.Errorf("%w: a Cluster needs a redis.ClusterClient: %w", store.ErrSetup, err)
	case worked, hasCode(response, outages):
		return err
	}
	return fmt.Errorf("%w: %w", store.ErrSetup, err)
}

// hasCode reports whether an error has one of the codes. Redis 6 puts a text of its own before errors inside of a script, as in
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

// isUnreadable reports whether an ask failed because its key does not hold a state that can be read: it is a list, a string from
// another program, or the state of a later release. Such an error concerns only this budget.
func isUnreadable(err error) bool {
	var ask scriptError
	if !errors.As(err, &ask) {
		return false
	}
	text := string(ask)
	return strings.Contains(text, "WRONGTYPE ") || strings.Contains(text, "STATE ") || strings.Contains(text, "data string too short")
}
