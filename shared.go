package throttle

import (
	"os"
	"reflect"
	"strconv"
	"time"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/supply"
	"github.com/httpthrottle/throttle/store"
)

// An Outage is what happens to requests when a [store.Store] has been unreachable for longer than [StoreGrace].
type Outage uint8

const (
	// OutageReject rejects requests with ReasonStore.
	OutageReject Outage = iota
	// OutageLocalShare lets each process use its even share of the rate, without bursts. The number of processes is the one that
	// the store reported in the 10 s before the outage, or that of ExpectProcesses if it is larger. The share of an InFlight
	// limit is n divided by the number of processes that had slots or waited for some, rounded down, and at least 1. A process
	// that knows no number of processes rejects requests.
	//
	// So set ExpectProcesses. Without it, the number is an estimate that is up to 10 s old, each process has its own, and
	// processes that did not use the store in that time have none: in tests, all processes together used 0.2 to 1.6 of the rate.
	// WithLogger warns of that when the limit is made.
	OutageLocalShare
	// OutagePass sends all requests.
	OutagePass
)

// An Outage has the same number as the core's Without: the arrays have one element, at the index 0.
var (
	_ = [1]struct{}{}[OutageReject-Outage(supply.Nothing)]
	_ = [1]struct{}{}[OutageLocalShare-Outage(supply.ButLocally)]
	_ = [1]struct{}{}[OutagePass-Outage(supply.Limit)]
)

// String returns "reject", "local share" or "pass".
func (o Outage) String() string {
	switch o {
	case OutageReject:
		return "reject"
	case OutageLocalShare:
		return "local share"
	case OutagePass:
		return "pass"
	}
	return "Outage(" + strconv.Itoa(int(o)) + ")"
}

const (
	defaultLeaseAhead   = 10 * time.Millisecond
	defaultStoreTimeout = 250 * time.Millisecond
	defaultStoreGrace   = 3 * time.Second
)

// Shared makes all processes that use the same store share the budgets of a [TokenBucket], [Pace], [Quota], [SlidingWindow],
// [FixedWindow], [CalendarWindow] or [InFlight]. Module throttleredis has a store for Redis, package store/file one for the
// processes of a host, and [store.NewMemory] returns one for the Limiters of a process. Package store documents how to write others.
//
// Limits of the same kind, name and key share a budget, so give the limit a [Name]. All processes should set the same rate. If they
// differ, the stricter rule applies until no process has used it for 10 s; see [store.ErrRule].
//
// The queue, priorities, deadlines and settlements work as for other limits, within each process. The Limiter leases tokens
// for all waiting requests together, and a little ahead ([LeaseAhead]), so most requests do not wait for the store. The store
// never leases more than the limit allows. If the store may have tokens, a request waits for its response, for up to
// [StoreTimeout], even if it may wait for less. [Limiter.Try] does not wait: it asks for the tokens, and a later Try may get
// them. [Limiter.Hold] and a server's Retry-After hold the budgets for all processes. A bucket does not fill meanwhile.
//
// If the store is unreachable, requests that may wait do so for up to [StoreGrace]; other requests are rejected with
// [ReasonStore]. After that, [WithoutStore] decides: by default all requests are rejected. Tokens that the process has already
// leased are used in any case.
//
// The tokens of an InFlight limit are slots. When a request ends, the next request of its process takes its slot. A slot that
// was unused for 100 to 200 ms goes back to the store, unless a waiting request will use it soon and no other process waits.
// While other processes wait, each slot above the process's even share goes back when its request ends. A process renews its
// slots every 3 s. If it dies or cannot reach the store, its slots are free for others 10 s after its latest call. So if a
// process is stopped or disconnected for longer than that while its requests continue, more than n requests are in flight until
// they end. Afterwards the process takes no slots until the store has some. A request that takes several slots needs them free
// at the same instant; requests of other processes that take fewer may be sent before it.
//
// Shared does not work with [WithDryRun]. [Limiter.Snapshot] omits shared budgets, because the store keeps them.
func Shared(s store.Store, opts ...SharedOption) LimitOption {
	return limitOption{text: "Shared", fits: func(k *kind) bool { return k.can.Stored != "" }, shared: true, apply: func(l *Limit) {
		sh := &bucket.Sharing{
			SupplyTerms: bucket.SupplyTerms{Store: s, Terms: supply.Terms{
				Timeout: defaultStoreTimeout, Grace: defaultStoreGrace, Without: supply.Nothing,
			}},
			Ahead: defaultLeaseAhead, Name: processName(),
		}
		l.rule.Store = sh
		switch {
		case s == nil:
			l.fault("Shared(nil): a store is needed")
		case reflect.ValueOf(s).Kind() == reflect.Pointer && reflect.ValueOf(s).IsNil():
			l.fault("Shared: the store is a nil %T", s)
		case !reflect.TypeOf(s).Comparable():
			l.fault("Shared: a %T cannot be compared; use a pointer", s)
		}
		for _, o := range opts {
			if o == nil {
				l.fault("Shared: a SharedOption is nil")
				continue
			}
			o.applyTo(l, sh)
		}
	}}
}

// processName returns host and pid, by which the store shows the processes that have slots.
func processName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return host[:min(len(host), 32)] + "-" + strconv.Itoa(os.Getpid())
}

// A SharedOption configures [Shared].
type SharedOption interface {
	applyTo(*Limit, *bucket.Sharing)
}

type shareOption func(*Limit, *bucket.Sharing)

func (f shareOption) applyTo(l *Limit, s *bucket.Sharing) { f(l, s) }

// LeaseAhead sets how much of its recent use a process leases before requests need it. The default is 10 ms, the most is one
// second. With 0, only tokens that requests wait for are leased. Tokens that were not used for 100 ms and three round trips
// are returned. It does not fit an [InFlight] limit, which keeps the slots that its requests give back. More is for a store that is far
// away, so that fewer requests wait for it; 0 is for budgets of a few tokens among many processes.
func LeaseAhead(d time.Duration) SharedOption {
	return shareOption(func(l *Limit, s *bucket.Sharing) {
		s.Ahead = d
		if d < 0 || d > time.Second {
			l.fault("LeaseAhead(%v) is not from 0 to 1s", d)
		}
		if l.kind.can.Frees {
			l.fault("LeaseAhead(%v) does not fit a limit of kind %s, which keeps the slots that its requests give back", d, l.kind.name)
		}
	})
}

// StoreTimeout sets the time after which a call of the store counts as failed. If the store is far away, a call may take twice the
// usual round trip, and at most 4d. The default is 250 ms; it must be positive. The time in which a call waits for its turn does not count; see
// [store.Queuer].
func StoreTimeout(d time.Duration) SharedOption {
	return shareOption(func(l *Limit, s *bucket.Sharing) {
		s.Timeout = d
		if d <= 0 {
			l.fault("StoreTimeout(%v) is not positive", d)
		}
	})
}

// StoreGrace sets how long requests continue to wait while the store is unreachable, counted from the first call that failed.
// Requests whose maximum wait ends earlier are rejected immediately. The default is 3 s.
func StoreGrace(d time.Duration) SharedOption {
	return shareOption(func(l *Limit, s *bucket.Sharing) {
		s.Grace = d
		if d < 0 {
			l.fault("StoreGrace(%v) is negative", d)
		}
	})
}

// ExpectProcesses sets how many processes are expected to share the budgets. In an outage [OutageLocalShare] then gives each
// process at most its share of that number, and a process that starts during the outage has its share immediately. The default is
// 0: only the number that the store reported counts, and all processes together may use far less or more than the rate.
func ExpectProcesses(n int) SharedOption {
	return shareOption(func(l *Limit, s *bucket.Sharing) {
		s.Processes = n
		if n < 0 {
			l.fault("ExpectProcesses(%d) is negative", n)
		}
	})
}

// guessingLimits returns the names of the limits whose processes estimate in an outage how many there are.
func guessingLimits(limits []Limit) (names []string) {
	for i := range limits {
		if sh := limits[i].rule.Store; sh != nil && sh.Without == supply.ButLocally && sh.Processes == 0 {
			names = append(names, limits[i].rule.Name)
		}
	}
	return names
}

// WithoutStore sets what happens when the store has been unreachable for longer than [StoreGrace]. The default is [OutageReject].
func WithoutStore(o Outage) SharedOption {
	return shareOption(func(l *Limit, s *bucket.Sharing) {
		s.Without = supply.Without(o)
		if o > OutagePass {
			l.fault("WithoutStore(%d): want OutageReject, OutageLocalShare or OutagePass", o)
		}
	})
}
