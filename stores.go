package throttle

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/httpthrottle/throttle/internal/lease"
	"github.com/httpthrottle/throttle/internal/queue"
)

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
	ok, queued, event := l.core.LandOnce(f, outcomes, err, givenUp)
	for some := range slices.Chunk(queued, 64) { // the store is out of reach: some waiters cannot wait so long
		l.core.ReplanSome(some)
	}
	if event != nil {
		l.direct.observer.storeChanged(StoreEvent(*event))
	}
	return ok
}

// A StoreEvent reports that a [Store] went out of reach, is in reach again, or is set up wrongly.
type StoreEvent struct {
	Limits []string      // the names of the limits that use it
	Err    error         // why it is out of reach; with ErrStoreSetup in its chain, the set-up is wrong; nil: it is in reach
	Down   time.Duration // for how long it was out of reach; 0 when it went
}

// StoreStats are the state and the counters of a [Store] in one Limiter: of the calls for all limits that use it in the same
// way.
type StoreStats struct {
	Limits []string `json:"limits"` // the names of the limits
	Up     bool     `json:"up"`     // the latest call succeeded, or there was none
	Err    error    `json:"-"`      // of the latest call, if it failed

	// Counters
	OK       uint64 `json:"ok"`       // calls that succeeded
	Failed   uint64 `json:"failed"`   // calls that failed because the store was out of reach
	Setup    uint64 `json:"setup"`    // calls that failed because of a wrong set-up
	Leased   uint64 `json:"leased"`   // tokens that the store granted
	Returned uint64 `json:"returned"` // tokens that were given back, except slots
	Alone    uint64 `json:"alone"`    // tokens used without the store, by LocalShare or Pass
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
			OK: c.Ok, Failed: c.Failed, Setup: c.Setup, Leased: c.Leased, Returned: c.Returned, Alone: c.Alone,
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

// tryStore calls the store and checks that its response fits what was asked.
func tryStore(ctx context.Context, f *queue.Flight, asks []lease.Ask) (outcomes []queue.Outcome, err error) {
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
