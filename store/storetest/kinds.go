package storetest

import (
	"testing"
	"time"

	"github.com/httpthrottle/throttle/store"
)

func windowAhead(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	for _, kind := range []store.Kind{store.Sliding, store.Fixed, store.Calendar} {
		b := s.budget(kind, 100, time.Hour)
		got := s.one(store.Part{Budget: b, Need: 20, Want: 20, Ahead: 50})
		s.tokens(string(kind)+": a quarter of 80", got, 40, 40)
		s.left(b, got, 60)
		s.tokens(string(kind)+": not all of what is wanted", s.one(store.Part{Budget: b, Want: 90, Ahead: 10}), 60, 60)
	}
}

func needOfOthers(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	for _, kind := range []store.Kind{store.Sliding, store.Fixed, store.Calendar, store.Slots} {
		b := s.budget(kind, 5, time.Hour)
		s.one(store.Part{Budget: b, Want: 3, Holder: "a"})
		got := s.one(store.Part{Budget: b, Need: 3, Want: 3, Holder: "b"})
		s.tokens(string(kind)+": three of two", got, 0, 0)
		if got.Wait <= 0 {
			t.Errorf("%s: the wait is %v", kind, got.Wait)
		}
		s.tokens(string(kind)+": what there is", s.one(store.Part{Budget: b, Need: 1, Want: 3, Holder: "b"}), 2, 2)
	}
}

func debtOfOthers(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	for kind, full := range map[store.Kind]float64{store.Pace: 1, store.Sliding: 5, store.Fixed: 5, store.Calendar: 5} {
		b := s.budget(kind, 5, time.Hour)
		s.left(b, s.one(store.Part{Budget: b}), full)
		s.left(b, s.one(store.Part{Budget: b, Owe: 3}), full-3)
		got := s.one(store.Part{Budget: b, Owe: 3, Need: 1, Want: 1})
		s.tokens(string(kind)+" in debt", got, 0, 0)
		s.left(b, got, full-6)
	}
}

func pacePromises(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	b := s.budget(store.Pace, 10, time.Hour) // in the horizon, 20
	got := s.one(store.Part{Budget: b, Need: 1, Want: 50, Horizon: 2 * time.Hour})
	s.tokens("one and half of 20", got, 11, 1)
	s.between("the first", got.Next, 6*time.Minute-time.Second, 6*time.Minute)
	s.left(b, got, -10)
}

func paceBack(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	b := s.budget(store.Pace, 10, time.Hour)
	first := s.one(store.Part{Budget: b, Need: 30, Want: 30})
	s.left(b, first, -29)
	if next := s.one(store.Part{Budget: b, Need: 1, Want: 1, Within: 4 * time.Hour}); next.ID == first.ID {
		t.Errorf("two leases have the ID %d", next.ID)
	}
	s.left(b, s.one(store.Part{Budget: b, Back: []store.Return{{Tokens: 20, Lease: first.ID}}}), -10)
}

// left checks how many tokens a store reports as left. Of a Pace, a part of another one may have come in meanwhile.
func (s *suite) left(b store.Budget, got store.LeasedPart, want float64) {
	s.Helper()
	if more := got.Left - want; more != 0 && (b.Kind != store.Pace || more < 0 || more >= 0.5) {
		s.Errorf("%s: %v tokens are left, want %v", b.Kind, got.Left, want)
	}
}
