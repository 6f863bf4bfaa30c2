package throttle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/httpthrottle/throttle/internal/lease"
	"github.com/httpthrottle/throttle/internal/queue"
	"github.com/httpthrottle/throttle/internal/store"
	"github.com/httpthrottle/throttle/internal/supply"
)

// A Store keeps budgets that several processes share. Module throttleredis has one for Redis, [NewMemoryStore] makes one for
// the Limiters of one process, and package storetest tests others. It has one method:
//
//	Lease(ctx context.Context, asks []LeaseAsk) ([]Lease, error)
//
// Lease decides all asks, in one round trip if it can, and returns a [Lease] for each, in order. If it returns an error, each
// ask may still have been carried out, or will be. The error has [ErrStoreSetup] in its chain if retrying does not fix it. Asks
// should not be carried out after the deadline of the context. A store that repeats an ask must count what the ask returns
// once. Lease is called by up to two goroutines of a Limiter, and must return some time after its context is done: a Limiter
// does not wait for that, but does not ask again while two such calls are open.
type Store = store.Store

// A LeaseAsk asks a [Store] for the tokens of one request, or of all requests in one queue. The store grants either every
// part or none.
type LeaseAsk = lease.Ask

// A LeasePart asks for tokens of one budget, and tells the store what was returned, owed and held. Its fields are documented in
// package internal/lease, as are those of the types below.
type LeasePart = lease.Part

// A Lease is the response to a [LeaseAsk]: a part for each of its parts, in order, or an error.
type Lease = lease.Lease

// A LeasedPart tells which tokens of one budget a [Store] has granted.
type LeasedPart = lease.LeasedPart

// A LeaseReturn gives tokens of one lease back to a [Store].
type LeaseReturn = lease.Return

// A StoreBudget names a budget in a [Store], and the rule by which the store computes it.
type StoreBudget = lease.Budget

// A StoreKind is the algorithm of a [StoreBudget].
type StoreKind = lease.Kind

// The kinds of budgets.
const (
	StoreBucket  = lease.Bucket
	StorePace    = lease.Pace
	StoreSliding = lease.Sliding
	StoreFixed   = lease.Fixed
	StoreSlots   = lease.Slots
)

var (
	// ErrStoreSetup is in the chain of an error of a [Store] that retrying does not fix, such as a missing permission.
	// Requests are then rejected immediately, whatever [WithoutStore] says.
	ErrStoreSetup = lease.ErrSetup

	// ErrStoreRule says that another process shares a budget by a stricter rule, which counts: the lower rate, and of equal rates the
	// smaller burst, n or number of slots.
	ErrStoreRule = lease.ErrRule

	// ErrStoreApart is the error of a [Lease] whose parts are in different places, so that the store cannot grant them
	// together. Nothing was carried out. The Limiter asks for each part alone.
	ErrStoreApart = lease.ErrApart
)

// NewMemoryStore returns a [Store] in memory, for tests and for several Limiters in one process. It has no goroutine and need
// not be closed. It keeps a budget until a second after the budget is the same as a new one.
func NewMemoryStore() Store { return store.NewMemory() }

// An Outage says what happens to requests when a [Store] has been unreachable for longer than [StoreGrace].
type Outage uint8

const (
	// OutageReject rejects requests with [ReasonStore].
	OutageReject = Outage(supply.Nothing)
	// OutageLocalShare lets each process use its even share of the rate, by the number of processes that the store told in the 10 s before
	// the outage, or that [ExpectProcesses] says, whichever is larger, and without bursts. Of the slots of an [InFlight] limit, it is
	// n divided by the number of processes that had slots or waited for some, rounded down, and at least 1. A process that knows no number rejects requests.
	OutageLocalShare = Outage(supply.ButLocally)
	// OutagePass lets all requests pass.
	OutagePass = Outage(supply.Limit)
)

// String returns "refuse", "local share" or "pass".
func (o Outage) String() string {
	switch o {
	case OutageReject:
		return "refuse"
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

// Shared makes all processes that use the same store share the budgets of a [TokenBucket], [Pace], [SlidingWindow],
// [FixedWindow] or [InFlight]. Budgets with the same kind of limit, name of the limit and key are the same budget, so give the limit a
// [Name]. All processes should set the same rate; if they differ, the stricter one counts until no process has asked by it for 10 s; see
// [ErrStoreRule].
//
// The queue, priorities, deadlines and settlements work as for other limits, within each process. The Limiter leases tokens
// from the store for all waiting requests at once and a little ahead ([LeaseAhead]), so most requests do not wait for the
// store. The store never leases more than the limit allows. A request that may wait for less than [StoreTimeout] still waits up
// to that long for a response of the store, if the tokens may be there. [Limiter.Try] does not; it asks for the tokens, so
// that a later Try may get them. [Limiter.Hold] and a server's Retry-After hold the budgets for all processes.
//
// If the store is unreachable, requests that may wait go on waiting for [StoreGrace]. Others, and later all, are rejected with
// [ReasonStore] or served as [WithoutStore] says. Available tokens are used in any case.
//
// The tokens of an InFlight limit are slots. A request that ends gives its slot to the next request of its process. A slot that
// was unused for 100 to 200 ms goes back to the store, and so does a slot above the process's even share when its request ends
// and other processes wait. A process renews its slots every 3 s. The slots of a process that dies, or that does not reach the
// store, are free for others 10 s after its latest call. So if a process is stopped or cut off for longer than that while its
// requests go on, more than n are in flight until they end: the process takes no more slots then until the store has some.
// A request that takes several slots needs them free at the same instant; requests of other processes that take fewer may go
// before it.
//
// Shared does not work with [WithDryRun]. [Limiter.Snapshot] leaves shared budgets out, because the store keeps them.
func Shared(s Store, opts ...SharedOption) LimitOption {
	return limitOption(func(l *Limit) {
		sh := &queue.Sharing{
			SupplyTerms: queue.SupplyTerms{Store: s, Terms: supply.Terms{
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
		if _, ok := l.kind.inStore(); !ok {
			l.fault("Shared does not fit a limit of kind %s", l.kind)
		}
		for _, o := range opts {
			if o == nil {
				l.fault("Shared: a SharedOption is nil")
				continue
			}
			o.applyTo(l, sh)
		}
	})
}

// processName returns host and pid, by which the store shows the processes that have slots.
func processName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return host[:min(len(host), 32)] + "-" + strconv.Itoa(os.Getpid())
}

// inStore returns what a store calls the kind, and whether limits of it can be shared.
func (k limitKind) inStore() (lease.Kind, bool) {
	switch kind := lease.Kind(k); k {
	case kindBucket, kindPace, kindSliding, kindFixed, kindInFlight:
		return kind, true
	}
	return "", false
}

// A SharedOption configures [Shared].
type SharedOption interface{ applyTo(*Limit, *queue.Sharing) }

type shareOption func(*Limit, *queue.Sharing)

func (f shareOption) applyTo(l *Limit, s *queue.Sharing) { f(l, s) }

// LeaseAhead sets how much of its recent use a process leases before requests need it. The default is 10 ms, the most is one
// second. With 0, only tokens that requests wait for are leased. Tokens that were not used for 100 ms are returned. It does not fit
// an [InFlight] limit, which keeps the slots that its requests give back.
func LeaseAhead(d time.Duration) SharedOption {
	return shareOption(func(l *Limit, s *queue.Sharing) {
		s.Ahead = d
		if d < 0 || d > time.Second {
			l.fault("LeaseAhead(%v) is not from 0 to 1s", d)
		}
		if l.kind == kindInFlight {
			l.fault("LeaseAhead(%v) does not fit a limit of kind %s, which keeps the slots that its requests give back", d, l.kind)
		}
	})
}

// StoreTimeout sets after which time a call of the store counts as failed. The default is 250 ms; it must be positive.
func StoreTimeout(d time.Duration) SharedOption {
	return shareOption(func(l *Limit, s *queue.Sharing) {
		s.Timeout = d
		if d <= 0 {
			l.fault("StoreTimeout(%v) is not positive", d)
		}
	})
}

// StoreGrace sets for how long requests go on waiting when the store is unreachable, counted from the first call that failed.
// Requests whose time ends before are rejected immediately. The default is 3 s.
func StoreGrace(d time.Duration) SharedOption {
	return shareOption(func(l *Limit, s *queue.Sharing) {
		s.Grace = d
		if d < 0 {
			l.fault("StoreGrace(%v) is negative", d)
		}
	})
}

// ExpectProcesses sets how many processes are expected to share the budgets. In an outage [OutageLocalShare] then gives each at most its part
// of so many, and a process that starts in an outage has its share immediately. The default is 0: only what the store told counts.
func ExpectProcesses(n int) SharedOption {
	return shareOption(func(l *Limit, s *queue.Sharing) {
		s.Processes = n
		if n < 0 {
			l.fault("ExpectProcesses(%d) is negative", n)
		}
	})
}

// WithoutStore sets what happens when the store has been unreachable for longer than [StoreGrace]. The default is [OutageReject].
func WithoutStore(o Outage) SharedOption {
	return shareOption(func(l *Limit, s *queue.Sharing) {
		s.Without = supply.Without(o)
		if o > OutagePass {
			l.fault("WithoutStore(%d): want Refuse, LocalShare or Pass", o)
		}
	})
}

// callStore calls a store until there is nothing to ask for. A call that takes too long is given up: what it asked for is asked for
// again, by other calls, whenever it returns.
func (l *Limiter) callStore(s *queue.Supply) {
	for {
		runtime.Gosched() // requests that are ready to run, as those that the latest response has granted, may ask with the next call
		f := l.core.Board(s)
		if f == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), s.Timeout)
		noResponse := func() error { return fmt.Errorf("throttle: no response from the store within %v", s.Timeout) }
		stop := context.AfterFunc(ctx, func() { l.land(f, nil, noResponse(), true) })
		outcomes, err := call(ctx, f)
		stop()
		if err != nil && err == ctx.Err() {
			err = noResponse()
		}
		cancel()
		if !l.land(f, outcomes, err, false) {
			return
		}
	}
}

// land books the response of a call, or that there is none. It reports false if the call was given up before.
func (l *Limiter) land(f *queue.Flight, outcomes []queue.Outcome, err error, givenUp bool) bool {
	ok, queued, events := l.core.LandOnce(f, outcomes, err, givenUp)
	for some := range slices.Chunk(queued, 64) { // the store is unreachable: some waiters cannot wait so long
		l.core.ReplanSome(some)
	}
	for _, e := range events {
		l.direct.observer.storeChanged(StoreEvent(e))
	}
	return ok
}

// A StoreEvent reports that a [Store], or one budget in it, became unreachable, is reachable again, or is set up wrongly. An event about
// one budget has its Key: its state is unreadable, or is readable again. An Err with [ErrStoreRule] in its chain is a warning: the
// budget is reachable. A Limiter reports it once.
type StoreEvent struct {
	Limits []string      // the names of the limits that use it
	Key    string        // of the budget, if the event is about one
	Err    error         // why it is unreachable; with ErrStoreSetup in its chain, the set-up is wrong; nil: it is reachable
	Down   time.Duration // for how long it was unreachable; 0 when it went
}

// StoreStats are the state and the counters of a [Store] in one Limiter: of the calls for all limits that use it in the same
// way.
type StoreStats struct {
	Limits []string `json:"limits"` // the names of the limits
	Up     bool     `json:"up"`     // the latest call succeeded, or there was none
	Err    error    `json:"-"`      // of the latest call, if it failed

	// Counters
	OK       uint64 `json:"ok"`       // calls that succeeded
	Failed   uint64 `json:"failed"`   // calls that failed because the store was unreachable
	Setup    uint64 `json:"setup"`    // calls that failed because of a wrong set-up
	Leased   uint64 `json:"leased"`   // tokens that the store granted
	Returned uint64 `json:"returned"` // tokens that were given back, except slots
	Alone    uint64 `json:"alone"`    // tokens used without the store, by OutageLocalShare or OutagePass
	Outages  uint64 `json:"outages"`  // how often the store became unreachable
	Faulty   uint64 `json:"faulty"`   // asks that failed while the store decided others, such as those for a state that is unreadable
	Differs  uint64 `json:"differs"`  // asks that were decided by the stricter rule of another process

	Latency Waits `json:"latency"` // of calls that returned before the [StoreTimeout]
}

// Stores returns the state of each [Store], in the order of the limits that use them. It returns nothing without a [Shared]
// limit.
func (l *Limiter) Stores() []StoreStats {
	l.mustBeMade()
	states := l.core.StoreStates()
	all := make([]StoreStats, len(states))
	for i := range states {
		s := &states[i]
		c := &s.Counts
		all[i] = StoreStats{
			Limits: slices.Clone(s.Limits), Up: s.Err == nil, Err: s.Err,
			OK: c.Ok, Failed: c.Failed, Setup: c.Setup, Leased: c.Leased, Returned: c.Returned, Alone: c.Alone, Outages: c.Outages, Faulty: c.Faulty, Differs: c.Differs, Latency: Waits(s.Latency),
		}
	}
	return all
}

// call asks the store. It asks for each part alone where the store has them in different places.
func call(ctx context.Context, f *queue.Flight) ([]queue.Outcome, error) {
	outcomes, err := tryStore(ctx, f, f.Asks)
	if err != nil {
		return nil, err
	}
	var apart []lease.Ask
	var places []int
	i := 0
	for _, ask := range f.Asks {
		for _, part := range ask.Parts {
			if len(ask.Parts) > 1 && errors.Is(outcomes[i].Err, lease.ErrApart) {
				apart, places = append(apart, lease.Ask{Parts: []lease.Part{part}}), append(places, i)
			}
			i++
		}
	}
	if len(apart) == 0 {
		return outcomes, nil
	}
	f.Apart = true
	again, err := tryStore(ctx, f, apart)
	for j, i := range places {
		if err != nil {
			outcomes[i] = queue.Outcome{Err: err}
		} else {
			outcomes[i] = again[j]
		}
	}
	return outcomes, nil
}

// tryStore calls the store and checks that its response fits what was asked. The panic of a store, which no caller could recover
// here, is an error.
func tryStore(ctx context.Context, f *queue.Flight, asks []lease.Ask) (outcomes []queue.Outcome, err error) {
	defer func() {
		if p := recover(); p != nil {
			outcomes, err = nil, fmt.Errorf("throttle: the store panicked: %v", p)
		}
	}()
	leases, err := f.Supply.Store.Lease(ctx, asks)
	if err != nil {
		return nil, err
	}
	if len(leases) != len(asks) {
		return nil, fmt.Errorf("%w: it returned %d leases for %d asks", lease.ErrSetup, len(leases), len(asks))
	}
	outcomes = make([]queue.Outcome, 0, f.Parts())
	for i := range asks {
		err := leases[i].Err
		if n, want := len(leases[i].Parts), len(asks[i].Parts); err == nil && n != want {
			err = fmt.Errorf("%w: it returned %d parts for an ask of %d", lease.ErrSetup, n, want)
		}
		for j := range asks[i].Parts {
			o := queue.Outcome{Err: err}
			if err == nil {
				o.LeasedPart = leases[i].Parts[j]
				o.Err = o.Check(&asks[i].Parts[j])
			}
			outcomes = append(outcomes, o)
		}
	}
	return outcomes, nil
}
