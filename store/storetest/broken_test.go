package storetest

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle/store"
)

// broken are stores, each of which does one thing wrongly, and the case that finds it.
var broken = map[string]struct {
	found string
	wrong func() store.Store
}{
	"ignores Since": {"ProcessesAreCountedByTheirTimes", func() store.Store {
		return changed{store.NewMemory(), func(p *store.Part) { p.Since = store.MaxSince }}
	}},
	"sends no Since": {"ProcessesAreCountedByTheirTimes", func() store.Store {
		return changed{store.NewMemory(), func(p *store.Part) { p.Since = 0 }}
	}},
	"ignores Whole": {"WholeIsGrantedOrNeed", func() store.Store {
		return changed{store.NewMemory(), func(p *store.Part) { p.Whole = false }}
	}},
	"has no lock": {"AsksAtOneTimeAreGrantedOnce", func() store.Store { return &unlocked{states: make(map[store.Budget][]byte)} }},
}

// A changed store gets other parts than were sent.
type changed struct {
	store.Store
	change func(*store.Part)
}

func (c changed) Lease(ctx context.Context, asks []store.Ask) ([]store.Lease, error) {
	for i := range asks {
		for k := range asks[i].Parts {
			c.change(&asks[i].Parts[k])
		}
	}
	return c.Store.Lease(ctx, asks)
}

// An unlocked store reads a state and writes it later, as over a database without a transaction.
type unlocked struct {
	mu     sync.Mutex // of the map alone
	states map[store.Budget][]byte
}

func (u *unlocked) Lease(_ context.Context, asks []store.Ask) ([]store.Lease, error) {
	leases := make([]store.Lease, len(asks))
	for i, a := range asks {
		book := store.NewBook()
		u.mu.Lock()
		for k := range a.Parts {
			b := &a.Parts[k].Budget
			if err := book.SetState(b, u.states[*b]); err != nil {
				panic(err)
			}
		}
		u.mu.Unlock()
		time.Sleep(time.Microsecond)
		leases[i] = book.Lease(time.Now(), []store.Ask{a})[0]
		u.mu.Lock()
		for k := range a.Parts {
			b := &a.Parts[k].Budget
			u.states[*b] = book.State(b)
		}
		u.mu.Unlock()
	}
	return leases, nil
}

// A test cannot see another one fail, so a process of its own runs it.
func TestWrongStoresFail(t *testing.T) {
	const name = "THROTTLE_WRONG_STORE"
	if wrong := os.Getenv(name); wrong != "" {
		for _, c := range Cases() {
			if c.Name == broken[wrong].found {
				synctest.Test(t, func(t *testing.T) { c.Test(t, broken[wrong].wrong()) })
			}
		}
		return
	}
	for wrong, of := range broken {
		t.Run(wrong, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestWrongStoresFail$")
			cmd.Env = append(os.Environ(), name+"="+wrong)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--- FAIL") {
				t.Errorf("%s does not fail: %v, %s", of.found, err, out)
			}
		})
	}
}
