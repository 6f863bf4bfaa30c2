package limiter

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"time"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/lease"
	"github.com/httpthrottle/throttle/internal/supply"
	"github.com/httpthrottle/throttle/store"
)

// This file calls stores, without the lock, in a goroutine of its own.

// call calls a store until there is nothing to ask for. If a call takes too long, it is given up, and later calls ask for the same again.
func (l *Core) call(s *bucket.Supply) {
	for {
		runtime.Gosched() // goroutines that are ready, as those that the latest response woke, may ask with the next call
		f := l.collect(s)
		if f == nil {
			return
		}
		ctx, end := l.limitCall(f)
		outcomes, err := ask(ctx, f)
		if err != nil && err == ctx.Err() {
			err = noResponse(s.Store, f.Timeout())
		}
		end()
		if !l.land(f, outcomes, err, false) {
			return
		}
	}
}

// limitCall returns the context of a call, which ends when the call takes too long: then it is given up, except while it waits for its turn.
func (l *Core) limitCall(f *bucket.Call) (ctx context.Context, end func()) {
	giveUp := func() { l.land(f, nil, noResponse(f.Supply.Store, f.Timeout()), true) }
	queue, ok := f.Supply.Store.(store.Queuer)
	if !ok {
		ctx, cancel := context.WithTimeout(context.Background(), f.Timeout())
		stop := context.AfterFunc(ctx, giveUp)
		return ctx, func() { stop(); cancel() }
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	var timer *time.Timer
	timer = time.AfterFunc(math.MaxInt64, func() {
		switch {
		case ctx.Err() != nil: // the call has just ended
		case queue.Queuing():
			timer.Reset(f.Timeout())
		default:
			cancel(context.DeadlineExceeded)
			giveUp()
		}
	})
	timer.Reset(f.Timeout())
	return ctx, func() { timer.Stop(); cancel(nil) }
}

// noResponse returns the error of a call that took too long.
func noResponse(s store.Store, after time.Duration) error {
	if s, ok := s.(store.Explainer); ok {
		if cause := s.Cause(); cause != nil {
			return fmt.Errorf("throttle: no response from the store within %v: %w", after, cause)
		}
	}
	return fmt.Errorf("throttle: no response from the store within %v", after)
}

// land books the response of a call, or that there is none. It reports false if the call was given up before.
func (l *Core) land(f *bucket.Call, outcomes []supply.Outcome, err error, givenUp bool) bool {
	ok, queued, events := l.book(f, outcomes, err, givenUp)
	for some := range slices.Chunk(queued, 64) { // the store is unreachable: some waiters cannot wait so long
		l.replanSome(some)
	}
	for _, e := range events {
		l.storeEvent(e)
	}
	return ok
}

// ask asks the store. If the store keeps the parts of an ask in different places, it asks for each part separately.
func ask(ctx context.Context, f *bucket.Call) ([]supply.Outcome, error) {
	outcomes, err := tryStore(ctx, f, f.Asks)
	if err != nil {
		return nil, err
	}
	var single []store.Ask
	var places []int
	i := 0
	for _, ask := range f.Asks {
		for _, part := range ask.Parts {
			if len(ask.Parts) > 1 && errors.Is(outcomes[i].Err, store.ErrApart) {
				single, places = append(single, store.Ask{Parts: []store.Part{part}}), append(places, i)
			}
			i++
		}
	}
	if len(single) == 0 {
		return outcomes, nil
	}
	f.Apart = true
	again, err := tryStore(ctx, f, single)
	for j, i := range places {
		if err != nil {
			outcomes[i] = supply.Outcome{Err: err}
		} else {
			outcomes[i] = again[j]
		}
	}
	return outcomes, nil
}

// tryStore calls the store and checks that its response fits what was asked. The panic of a store, which no caller could recover
// here, is an error.
func tryStore(ctx context.Context, f *bucket.Call, asks []store.Ask) (outcomes []supply.Outcome, err error) {
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
		return nil, fmt.Errorf("%w: it returned %d leases for %d asks", store.ErrSetup, len(leases), len(asks))
	}
	outcomes = make([]supply.Outcome, 0, f.Parts())
	for i := range asks {
		err := leases[i].Err
		if n, want := len(leases[i].Parts), len(asks[i].Parts); err == nil && n != want {
			err = fmt.Errorf("%w: it returned %d parts for an ask of %d", store.ErrSetup, n, want)
		}
		for j := range asks[i].Parts {
			o := supply.Outcome{Err: err}
			if err == nil {
				o.LeasedPart = leases[i].Parts[j]
				o.Err = lease.Check(&o.LeasedPart, &asks[i].Parts[j])
			}
			outcomes = append(outcomes, o)
		}
	}
	return outcomes, nil
}
