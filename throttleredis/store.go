// Package throttleredis keeps the budgets of shared limits in Redis: on one server, in a Sentinel group or in a Cluster. It needs
// Redis 6.0 or newer, or Valkey.
package throttleredis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/httpthrottle/throttle/store"
)

// A Store keeps shared budgets in Redis. It has no Close method, because none of its own goroutines and connections lives longer than
// a second. The caller remains responsible for the client. A Store is safe for concurrent use.
//
// The store uses Redis's clock. If Redis loses a budget's key, the budget starts again: at most one burst of a bucket, or n of a
// window, is granted in addition. If a failover promotes a replica that does not have the latest writes, those writes are lost.
type Store struct {
	client  redis.UniversalClient
	cluster bool
	oneSlot bool
	byLimit bool // the hash tag of a budget without a key is its limit
	prefix  string
	logger  *slog.Logger
	scripts *scripts
	began   time.Time

	dials  dials
	fence  fence
	clocks []clock     // of the only server, or of the server of each slot
	worked atomic.Bool // a script has run: from then on, an error is an outage and not a wrong set-up
}

var (
	_ store.Store     = (*Store)(nil)
	_ store.Explainer = (*Store)(nil)
)

// An Option changes how a [Store] works.
type Option interface{ apply(*Store) error }

type option func(*Store) error

func (f option) apply(s *Store) error { return f(s) }

// Prefix sets the first part of all key names. The default is "throttle". Stores with different prefixes share nothing. The prefix
// must have 1 to 64 bytes, must not begin with #, and must not contain braces, spaces or control characters.
func Prefix(prefix string) Option {
	return option(func(s *Store) error {
		if prefix == "" || strings.HasPrefix(prefix, "#") || isHashed(prefix) || strings.Contains(prefix, " ") {
			return fmt.Errorf("Prefix(%q): want 1 to 64 bytes, no # at the start, no braces, spaces or control characters", prefix)
		}
		s.prefix = prefix
		return nil
	})
}

// OneSlot keeps all keys in one slot of a Cluster, and so on one server. Then a request is charged in all of its limits together.
// Without OneSlot, a Cluster charges limits together only if they count the request by the same key.
func OneSlot() Option {
	return option(func(s *Store) error {
		s.oneSlot = true
		return nil
	})
}

// SlotPerLimit keeps each limit without a key in a slot of a Cluster of its own, by its name, so that several of them are divided among the
// servers. Without it, all budgets without a key are in one slot. Requests are then charged in each of these limits separately. It changes the
// names of their keys, and so begins new budgets; see "Roll-outs" in docs/shared-limits-operate.md. It does not fit OneSlot.
func SlotPerLimit() Option {
	return option(func(s *Store) error {
		s.byLimit = true
		return nil
	})
}

// WithLogger sets a logger for debug messages, such as that Redis has lost the script or that its clock has jumped ahead.
// The default is to log nothing.
func WithLogger(logger *slog.Logger) Option {
	return option(func(s *Store) error {
		if logger == nil {
			return errors.New("WithLogger(nil): a logger is needed")
		}
		s.logger = logger
		return nil
	})
}

// New returns a Store that uses client: a [redis.Client], which may be one of a Sentinel group, or a [redis.ClusterClient].
// It returns an error for a [redis.Ring], because a Ring that loses a server moves keys to other servers, where every budget starts
// again. New sends nothing to Redis; see [Store.Check]. It adds a hook to the client, by which the Store learns why a connection cannot be
// made.
func New(client redis.UniversalClient, opts ...Option) (*Store, error) {
	s := &Store{client: client, prefix: "throttle", logger: slog.New(slog.DiscardHandler), scripts: leaseScripts, began: time.Now()}
	var faults []error
	if c := reflect.ValueOf(client); client == nil || c.Kind() == reflect.Pointer && c.IsNil() {
		faults = append(faults, errors.New("the client is nil"))
	}
	switch client.(type) {
	case *redis.Ring:
		faults = append(faults, errors.New("a redis.Ring moves keys when it loses a server: use a ClusterClient"))
	case *redis.ClusterClient:
		s.cluster = true
	}
	for _, o := range opts {
		if o == nil {
			faults = append(faults, errors.New("an Option is nil"))
			continue
		}
		faults = append(faults, o.apply(s))
	}
	if s.oneSlot && s.byLimit {
		faults = append(faults, errors.New("SlotPerLimit does not fit OneSlot"))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, fmt.Errorf("throttleredis: %w", err)
	}
	s.clocks = make([]clock, 1)
	if s.cluster {
		s.clocks = make([]clock, slotCount)
	}
	s.watch()
	return s, nil
}

// Lease decides the asks by scripts, all in one pipeline. One script decides up to 32 parts of asks, or one ask; in a Cluster,
// they are of the same slot.
//
// The error has store.ErrSetup in its chain if Redis refused the first scripts of this Store for a reason that retrying does not
// fix. Other errors mean that Redis is unreachable. Once a first response has arrived, Redis does not carry out asks after the
// deadline of ctx.
//
// Lease may return up to two seconds after the deadline, or after eight times its timeout if that is longer, so that the next call
// can use a connection that is slow or is still being made.
func (s *Store) Lease(ctx context.Context, asks []store.Ask) ([]store.Lease, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", store.ErrLate, err)
	}
	leases := make([]store.Lease, len(asks))
	calls := s.calls(asks, leases)
	patient, cancel := patientOf(ctx)
	defer cancel()
	s.run(patient, ctx, calls)
	var failed error
	failures := 0
	for _, c := range calls {
		err := c.err
		if err == nil {
			err = c.read(leases)
		}
		if err != nil {
			err = s.classify(err)
			for _, i := range c.asks {
				leases[i] = store.Lease{Err: err}
			}
			failed = err
			failures += len(c.asks)
			continue
		}
		for _, i := range c.asks {
			if err := leases[i].Err; err == nil {
				s.worked.Store(true)
			} else {
				if leases[i].Err = s.classify(err); !isUnreadable(err) {
					failed = leases[i].Err
					failures++
				}
			}
		}
	}
	if failed != nil {
		s.reload(ctx, failed)
	}
	if failures == len(asks) && failed != nil {
		return nil, failed
	}
	return leases, nil
}

// patientOf returns a context for the connection of a call: its deadline is later than that of the call.
func patientOf(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return ctx, func() {}
	}
	return context.WithTimeout(context.WithoutCancel(ctx), max(2*time.Second, 8*time.Until(deadline)))
}

// run runs the scripts of all calls under the patient context; ctx has their deadline. It repeats those that were late by Redis's
// clock, because that clock may have jumped ahead.
func (s *Store) run(patient, ctx context.Context, calls []*call) {
	late := s.send(patient, ctx, calls)
	if ctx.Err() == nil && len(late) > 0 {
		s.logger.DebugContext(ctx, "throttleredis: repeating scripts that were late by Redis's clock", "scripts", len(late))
		late = s.send(patient, ctx, late)
	}
	for _, c := range late {
		c.err = errLate
	}
}

// send runs the scripts of all calls once. It returns those that were late by Redis's clock.
func (s *Store) send(patient, ctx context.Context, calls []*call) (late []*call) {
	for _, c := range calls {
		s.stamp(ctx, c)
	}
	sent := time.Since(s.began).Microseconds()
	replaced := s.exec(patient, calls)
	arrived := time.Since(s.began).Microseconds()
	for _, c := range calls {
		c.err = cmp.Or(replaced, c.err) // a master that has taken over has no script yet
		if c.err != nil {
			continue
		}
		now, isLate := c.now()
		if now > 0 {
			c.early = s.clocks[c.clock].responded(now, sent, arrived)
		}
		if isLate {
			late = append(late, c)
		}
	}
	return late
}

// stamp sets the instant of Redis's clock after which the script does nothing.
func (s *Store) stamp(ctx context.Context, c *call) {
	c.notAfter(0)
	if deadline, ok := ctx.Deadline(); ok {
		if at, known := s.clocks[c.clock].at(deadline.Sub(s.began).Microseconds()); known {
			c.notAfter(at)
		}
	}
}

// reload makes a ClusterClient look up where the slots are. On its own it does so once a minute, and callers would wait for that after
// the master of their key has failed.
func (s *Store) reload(ctx context.Context, err error) {
	if cluster, ok := s.client.(*redis.ClusterClient); ok && !errors.Is(err, errLate) {
		cluster.ReloadState(ctx)
	}
}

var errLate = fmt.Errorf("throttleredis: Redis's clock was past the deadline of the context: %w", store.ErrLate)
