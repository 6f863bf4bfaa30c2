package worlds

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/httpthrottle/throttle/store"
)

// A link is the store of a fleet, and the ways to it.
type link struct {
	open atomic.Int64 // calls under way
	over atomic.Bool  // the world has ended

	mu      sync.Mutex
	book    *store.Book
	calls   int
	away    map[int]time.Duration // how far a crew's processes are from it, if not as they were made
	before  map[int]bool          // the crews of the release before
	down    error                 // nil: it can be reached
	longest time.Duration         // way there and back
}

var errDown = errors.New("connection refused")

// errHangs has calls wait until they are given up.
var errHangs = errors.New("no response")

func (k *link) make() {
	k.book, k.away, k.before = store.NewBook(), make(map[int]time.Duration), make(map[int]bool)
}

// set changes something.
func (k *link) set(change func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change()
}

// asBefore returns asks as the release before makes them, and drops of the states of their budgets what that release does not know.
func (k *link) asBefore(asks []store.Ask) (all []store.Ask) {
	for _, a := range asks {
		a.Parts = slices.Clone(a.Parts)
		for i := range a.Parts {
			p := &a.Parts[i]
			p.Queue, p.Queued, p.Whole = false, 0, false
			state := k.book.State(&p.Budget)
			if state == nil {
				continue
			}
			var fields map[string]json.RawMessage
			err := json.Unmarshal(state, &fields)
			for _, name := range []string{"all", "debt", "queue"} {
				delete(fields, name)
			}
			if err == nil {
				state, err = json.Marshal(fields)
			}
			if err == nil {
				err = k.book.SetState(&p.Budget, state)
			}
			if err != nil {
				panic(err)
			}
		}
		all = append(all, a)
	}
	return all
}

// A line is the way of a process to the store.
type line struct{ *process }

// Lease implements [store.Store].
func (l *line) Lease(ctx context.Context, asks []store.Ask) (leases []store.Lease, err error) {
	k := &l.link
	if k.over.Load() {
		return nil, errors.New("the world has ended")
	}
	k.open.Add(1)
	defer k.open.Add(-1)
	first := asks[0].Parts[0].Budget
	call := random(l.seed, first.Limit+first.Key, int64(l.nth), int64(l.now()))
	me := l.lines[call.IntN(len(l.lines))]
	way := func() time.Duration {
		k.mu.Lock()
		defer k.mu.Unlock()
		away, moved := k.away[l.of]
		if !moved {
			away = l.crew.away
		}
		if l.jitter > 0 {
			away += time.Duration(call.Int64N(int64(l.jitter)))
		}
		return away
	}
	there := way()
	me.sleep(l.fleet, there)
	if l.still.isDead() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	k.set(func() {
		k.calls++
		if err = k.down; err != nil {
			return
		}
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", store.ErrLate, ctx.Err())
			return
		}
		if k.before[l.of] {
			asks = k.asBefore(asks)
		}
		if leases = k.book.Lease(time.Now(), asks); k.before[l.of] {
			k.asBefore(asks)
		}
	})
	back := way()
	k.set(func() { k.longest = max(k.longest, there+back) })
	if lose := chance(call, l.lossy); lose || err == errHangs {
		if lose {
			tokens := make(map[string]int64)
			for i, lease := range leases {
				for j, part := range lease.Parts {
					tokens[asks[i].Parts[j].Budget.Limit] += part.Tokens
				}
			}
			l.mu.Lock()
			l.lost = append(l.lost, lost{l.process, l.now(), tokens})
			l.mu.Unlock()
		}
		<-ctx.Done()
		me.sleep(l.fleet, 0)
		return nil, ctx.Err()
	}
	me.sleep(l.fleet, back)
	l.still.wait(l.fleet, me)
	return leases, err
}
