// Package store defines the interface of stores for shared budgets, and implements it in memory.
//
// It is a package of its own because a store needs a lock, a clock and a context. Package lease, the arithmetic, has none of
// them, and the queue, which makes the asks, never calls a store.
package store

import (
	"context"
	"sync"
	"time"

	"github.com/httpthrottle/throttle/internal/lease"
)

// A Store keeps the state of shared budgets and grants leases of them, by the rules of [lease.Book].
//
// Lease decides all asks, in one round trip if possible, and returns a [lease.Lease] for each, in order. If it returns an
// error, each ask may still have been carried out, or will be. Asks should not be carried out after the deadline of ctx. The
// caller may give up earlier than Lease returns. A store that repeats an ask must count its returns once.
//
// The error has [lease.ErrSetup] in its chain if retrying does not fix it. Lease is called from several goroutines.
type Store interface {
	Lease(ctx context.Context, asks []lease.Ask) ([]lease.Lease, error)
}

// Memory is a [Store] for tests, and for several Limiters in one process: a [lease.Book] with a lock and the wall clock.
type Memory struct {
	mu   sync.Mutex
	book *lease.Book // guarded by mu
}

// NewMemory returns a Memory without any state.
func NewMemory() *Memory { return &Memory{book: lease.NewBook()} }

// Lease implements [Store]. It returns an error only if ctx is done.
func (m *Memory) Lease(ctx context.Context, asks []lease.Ask) ([]lease.Lease, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now().UnixMicro()
	leases := m.book.Lease(now, asks)
	m.book.Forget(now, 2*len(asks)) // more than asks can add, so that unused states go in time
	return leases, nil
}
