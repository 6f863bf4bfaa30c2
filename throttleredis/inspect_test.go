package throttleredis

import (
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/store"
)

func TestBudgetsAreListedAndReset(t *testing.T) {
	s := start(t)
	c := s.client(t)
	st := newStore(t, c)
	for _, kind := range []store.Kind{store.Bucket, store.Pace, store.Sliding, store.Fixed, store.Slots} {
		b := store.Budget{Kind: kind, Limit: "l", Key: "tenant", N: 10, Per: time.Hour, Burst: 5, Initial: 5}
		first := lease1(t, st, store.Part{Budget: b, Need: 1, Want: 1, Holder: "web-1-4711-x", Since: store.MaxSince})
		lease1(t, st, store.Part{Budget: b, Back: []store.Return{{Lease: first.ID}}, Hold: time.Minute, Holder: "web-2", Held: 2, Want: 9})
	}
	must(t, c.LPush(t.Context(), "throttle:1:{bad}l:b", "x").Err())
	must(t, c.Set(t.Context(), "other", "x", 0).Err())
	all, err := st.Budgets(t.Context(), "")
	must(t, err)
	if len(all) != 6 {
		t.Fatalf("%d budgets: %+v", len(all), all)
	}
	if bad := all[0]; bad.Key != "bad" || bad.Err == nil {
		t.Errorf("%+v", bad)
	}
	for _, b := range all[1:] {
		most, left := 10.0, 9.0
		switch store.Kind(b.Kind) {
		case store.Bucket:
			most, left = 5, 4
		case store.Pace:
			most, left = 5, 0
		case store.Slots:
			left = 7
			if len(b.Holders) != 2 || b.Holders[0].Name != "web-1-4711-x" || b.Holders[0].Slots != 1 || b.Holders[1].Wants != 9 {
				t.Errorf("%+v", b.Holders)
			}
		}
		if b.Limit != "l" || b.Key != "tenant" || b.Most != most || math.Abs(b.Left-left) > 0.1 || b.Held < 50*time.Second || b.Expires <= 0 || b.Err != nil {
			t.Errorf("%+v", b)
		}
		if rate := 10.0 / 3600; b.Kind != string(store.Slots) && math.Abs(b.PerSecond-rate) > rate/1000 {
			t.Errorf("%s: %v per second", b.Kind, b.PerSecond)
		}
		must(t, st.Reset(t.Context(), b.Name))
	}
	if err := st.Reset(t.Context(), "other"); err == nil {
		t.Error("a key of something else was deleted")
	}
	if err := st.Reset(t.Context(), all[1].Name); err == nil {
		t.Error("a budget was reset twice")
	}
	some, err := st.Budgets(t.Context(), "bad")
	if err != nil || len(some) != 1 {
		t.Errorf("%v, %+v", err, some)
	}
}

// A budget is held and released by the name of its key, whatever its kind, and nothing else of it changes.
func TestBudgetsAreHeldAndReleased(t *testing.T) {
	c := start(t).client(t)
	st := newStore(t, c)
	for _, kind := range []store.Kind{store.Bucket, store.Pace, store.Sliding, store.Fixed, store.Slots} {
		b := store.Budget{Kind: kind, Limit: "l", N: 1000, Per: time.Second, Burst: 5, Initial: 5}
		lease1(t, st, store.Part{Budget: b, Need: 1, Want: 1, Holder: "a"})
		name := st.key(&b)
		must(t, st.Hold(t.Context(), name, time.Hour))
		part := store.Part{Budget: b, Need: 1, Want: 1, Holder: "b"}
		if p := lease1(t, st, part); p.Tokens != 0 || p.Hold < 59*time.Minute || p.Hold > time.Hour {
			t.Errorf("%s: %+v", kind, p)
		}
		if left := c.PTTL(t.Context(), name).Val(); left < time.Hour {
			t.Errorf("%s: the hold is forgotten after %v", kind, left)
		}
		must(t, st.Hold(t.Context(), name, 0))
		if p := lease1(t, st, part); p.Tokens != 1 && kind != store.Pace || p.Hold != 0 {
			t.Errorf("%s: %+v", kind, p)
		}
	}
	if err := st.Hold(t.Context(), "throttle:1:{}none:b", time.Second); err == nil || !strings.Contains(err.Error(), "there is no key") {
		t.Error(err)
	}
	if err := st.Hold(t.Context(), "other", time.Second); err == nil || !strings.Contains(err.Error(), "is not the key of a budget") {
		t.Error(err)
	}
	must(t, c.Set(t.Context(), "throttle:1:{}other:b", "\x02 of a later release", 0).Err())
	if err := st.Hold(t.Context(), "throttle:1:{}other:b", time.Second); err == nil || !strings.Contains(err.Error(), "STATE") {
		t.Error(err)
	}
}

func TestHoldersAreNamedByHostAndPid(t *testing.T) {
	s := start(t)
	l := limiterOn(t, s.addr(), slotsOf(2))
	g, err := l.Acquire(t.Context(), throttle.Ask{})
	must(t, err)
	defer g.Done()
	all, err := newStore(t, s.client(t)).Budgets(t.Context(), "")
	must(t, err)
	host, err := os.Hostname()
	must(t, err)
	want := host[:min(len(host), 32)] + "-" + strconv.Itoa(os.Getpid()) + "-"
	if len(all) != 1 || len(all[0].Holders) != 1 || !strings.HasPrefix(all[0].Holders[0].Name, want) {
		t.Errorf("%+v: no holder begins with %q", all, want)
	}
}

// The windows that have begun since the last ask have paid what was owed.
func TestTheDebtOfAWindowIsReadAsItIsNow(t *testing.T) {
	s := start(t)
	st := newStore(t, s.client(t))
	for kind, left := range map[store.Kind][]float64{store.Sliding: {-15, -5, 5, 10}, store.Fixed: {-15, -5, 5, 10}, store.Calendar: {-15, 10, 10, 10}} {
		b := store.Budget{Kind: kind, Limit: "l", Key: string(kind), N: 10, Per: time.Hour}
		for i := range b.Windows {
			b.Windows[i] = time.Now().Truncate(time.Hour).Add(time.Duration(i-1) * time.Hour)
		}
		b.Start = b.Windows[1]
		lease1(t, st, store.Part{Budget: b, Owe: 25})
		state, err := s.client(t).Get(t.Context(), st.key(&b)).Result()
		must(t, err)
		_, f := doubles(state)
		for hours, want := range left {
			of := BudgetState{Kind: string(kind)}
			must(t, readState(&of, state, int64(f[0])+int64(hours)*3_600_000_000))
			if of.Left != want {
				t.Errorf("%s, %d h later: %v tokens are left, want %v", kind, hours, of.Left, want)
			}
		}
	}
}
