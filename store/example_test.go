package store_test

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/httpthrottle/throttle/store"
)

// A table is a Store over rows of text, such as those of a database. The lock stands for a transaction.
type table struct {
	mu   sync.Mutex
	rows map[string]row // by kind, limit and key
}

type row struct {
	state []byte
	until time.Time // the row may be deleted then
}

func (t *table) Lease(ctx context.Context, asks []store.Ask) ([]store.Lease, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	book, asked := store.NewBook(), make(map[string]store.Budget)
	for _, ask := range asks {
		for _, part := range ask.Parts {
			id := fmt.Sprintf("%q %q %q", part.Budget.Kind, part.Budget.Limit, part.Budget.Key)
			asked[id] = part.Budget
			if err := book.SetState(&part.Budget, t.rows[id].state); err != nil {
				return nil, err
			}
		}
	}
	leases := book.Lease(time.Now(), asks) // by the clock that all processes share
	for id, b := range asked {
		t.rows[id] = row{book.State(&b), book.Until(&b)}
	}
	return leases, nil
}

// A store over anything that can be locked lets a Book decide.
func ExampleBook() {
	var s store.Store = &table{rows: make(map[string]row)}
	day := store.Budget{Kind: store.Fixed, Limit: "daily", N: 1000, Per: 24 * time.Hour}
	for range 2 {
		leases, err := s.Lease(context.Background(), []store.Ask{{Parts: []store.Part{{Budget: day, Need: 1, Want: 600}}}})
		if err != nil {
			fmt.Println(err)
			return
		}
		got := leases[0].Parts[0]
		fmt.Println(got.Tokens, "tokens,", got.Left, "left")
	}
	// Output:
	// 600 tokens, 400 left
	// 400 tokens, 0 left
}

// Package store/storetest tests a store like this one.
func ExampleMemory() {
	s := store.NewMemory()
	slots := store.Budget{Kind: store.Slots, Limit: "exports", N: 3}
	leases, err := s.Lease(context.Background(), []store.Ask{{Parts: []store.Part{{Budget: slots, Want: 5, Holder: "process 1"}}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(leases[0].Parts[0].Tokens, "slots")
	// Output: 3 slots
}
