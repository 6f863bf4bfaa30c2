package store

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Memory is a [Store] for tests and for several Limiters in one process. It is a [Book] with a lock and the wall clock. It has no
// goroutine and need not be closed.
type Memory struct {
	mu   sync.Mutex
	book *Book // guarded by mu
}

// NewMemory returns a Memory without any state.
func NewMemory() *Memory { return &Memory{book: NewBook()} }

// Lease implements [Store]. It returns an error only if ctx is done.
func (m *Memory) Lease(ctx context.Context, asks []Ask) ([]Lease, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLate, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.book.Lease(time.Now(), asks), nil
}
