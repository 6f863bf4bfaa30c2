package storetest

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/httpthrottle/throttle/store"
)

func bucketGrantsItsBurst(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	b := s.bucket(10, time.Hour, 5)
	s.tokens("two of five", s.one(store.Part{Budget: b, Need: 1, Want: 2}), 2, 2)
	got := s.one(store.Part{Budget: b, Need: 1, Want: 9})
	s.tokens("nine of three", got, 3, 3)
	if got.Wait != 0 {
		t.Errorf("it has to wait %v for what it was granted", got.Wait)
	}
	got = s.one(store.Part{Budget: b, Need: 1, Want: 1})
	s.tokens("one of none", got, 0, 0)
	s.between("the wait", got.Wait, 5*time.Minute, 6*time.Minute)
	if got.Left < 0 || got.Left >= 1 {
		t.Errorf("%v tokens are left", got.Left)
	}
	s.tokens("nothing", s.one(store.Part{Budget: b}), 0, 0)
}

func needOrNothing(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	b := s.bucket(10, time.Hour, 5)
	s.one(store.Part{Budget: b, Want: 3})
	got := s.one(store.Part{Budget: b, Need: 4, Want: 4})
	s.tokens("four of two", got, 0, 0)
	s.between("the wait", got.Wait, 11*time.Minute, 12*time.Minute)
	s.tokens("what there is", s.one(store.Part{Budget: b, Want: 4}), 2, 2)
}

func aheadFromPlenty(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	b := s.bucket(10, time.Hour, 100)
	s.tokens("a quarter of 80", s.one(store.Part{Budget: b, Need: 20, Want: 20, Ahead: 50}), 40, 40)
	s.tokens("as much as asked", s.one(store.Part{Budget: b, Ahead: 5}), 5, 5)
	s.tokens("not all of what is wanted", s.one(store.Part{Budget: b, Want: 90, Ahead: 10}), 55, 55)
}

func promises(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	b := s.bucket(100, time.Second, 1)
	got := s.one(store.Part{Budget: b, Need: 1, Want: 9, Horizon: 60 * time.Millisecond})
	s.tokens("one and half of six", got, 4, 1)
	s.between("the first", got.Next, 9*time.Millisecond, 10*time.Millisecond)
	if got.Left < -3 || got.Left > -2.9 {
		t.Errorf("%v tokens are left, want -3", got.Left)
	}
	time.Sleep(31 * time.Millisecond) // all are due
	if got = s.one(store.Part{Budget: b}); got.Left < 0 || got.Left > 1 {
		t.Errorf("%v tokens are left afterwards", got.Left)
	}
}

func halfOfTheHorizon(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	b := s.bucket(10, time.Hour, 5) // a token each 6 minutes: in the horizon, 20
	p := store.Part{Budget: b, Need: 1, Want: 50, Horizon: 2 * time.Hour}
	got := s.one(p)
	s.tokens("five and half of 20", got, 15, 5)
	s.between("the first", got.Next, 6*time.Minute-time.Second, 6*time.Minute)
	got = s.one(p)
	s.tokens("half of the other half", got, 5, 0)
	s.between("the first", got.Next, 66*time.Minute-time.Second, 66*time.Minute)
	if got.Left > -14.9 || got.Left < -15 {
		t.Errorf("%v tokens are left, want -15", got.Left)
	}
}

func needFurtherAhead(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	b := s.bucket(10, time.Hour, 5)
	s.one(store.Part{Budget: b, Want: 5})
	p := store.Part{Budget: b, Need: 1, Want: 5, Horizon: 12 * time.Minute, Within: 19 * time.Minute}
	s.tokens("half of two", s.one(p), 1, 0)
	for i := range time.Duration(2) {
		got := s.one(p)
		s.tokens("what is needed", got, 1, 0)
		s.between("it", got.Next, (i+2)*6*time.Minute-time.Second, (i+2)*6*time.Minute)
	}
	got := s.one(p)
	s.tokens("beyond", got, 0, 0)
	s.between("the wait", got.Wait, 4*time.Minute, 5*time.Minute)
}

func pace(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	b := s.budget(store.Pace, 10, time.Hour)
	s.tokens("30 at once", s.one(store.Part{Budget: b, Need: 30, Want: 30}), 30, 1)
	got := s.one(store.Part{Budget: b, Need: 1, Want: 1})
	s.tokens("after them", got, 0, 0)
	s.between("the wait", got.Wait, 3*time.Hour-time.Second, 3*time.Hour)
	got = s.one(store.Part{Budget: b, Need: 2, Want: 2, Within: 4 * time.Hour})
	s.tokens("promised", got, 2, 0)
	s.between("the first", got.Next, 3*time.Hour-time.Second, 3*time.Hour)
}

func initial(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	b := s.bucket(10, time.Hour, 5)
	b.Initial = 2
	s.tokens("all there is", s.one(store.Part{Budget: b, Want: 5}), 2, 2)
	b.Limit, b.Initial = "other", 0
	s.tokens("nothing", s.one(store.Part{Budget: b, Want: 5}), 0, 0)
}

func together(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	a, b := s.bucket(10, time.Hour, 5), s.bucket(10, time.Hour, 1)
	b.Limit = "other"
	both := []store.Part{{Budget: a, Need: 1, Want: 1}, {Budget: b, Need: 1, Want: 1}}
	got := s.ask(both...)
	s.tokens("the first", got[0], 1, 1)
	s.tokens("the second", got[1], 1, 1)
	got = s.ask(both...)
	s.tokens("the first, where the second is empty", got[0], 0, 0)
	s.between("the wait for the second", got[1].Wait, 5*time.Minute, 6*time.Minute)
	s.tokens("what the first has left", s.one(store.Part{Budget: a, Want: 5}), 4, 4)
}

func inProportion(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	a, b := s.bucket(10, time.Hour, 100), s.bucket(10, time.Hour, 5)
	b.Limit = "other"
	got := s.ask(store.Part{Budget: a, Need: 4, Want: 80}, store.Part{Budget: b, Need: 1, Want: 20})
	s.tokens("a quarter of what is wanted", got[0], 20, 20)
	s.tokens("all there is", got[1], 5, 5)
}

func comeBack(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	b := s.bucket(10, time.Hour, 5)
	got := s.one(store.Part{Budget: b, Want: 4})
	s.one(store.Part{Budget: b, Want: 1})
	s.tokens("what came back", s.one(store.Part{
		Budget: b, Want: 5, Back: []store.Return{{Tokens: 2, Lease: got.ID}, {Tokens: 1, Lease: got.ID}},
	}), 3, 3)
}

func notTwice(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	b := s.bucket(10, time.Hour, 5)
	first := s.one(store.Part{Budget: b, Want: 2})
	if next := s.one(store.Part{Budget: b, Want: 2}); next.ID == first.ID {
		t.Errorf("two leases have the ID %d", next.ID)
	}
	back := []store.Return{{Tokens: 9, Lease: first.ID}}
	s.tokens("no more than were taken", s.one(store.Part{Budget: b, Want: 9, Back: back}), 3, 3)
}

func notWhatWasLost(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	b := s.bucket(1000, time.Second, 5)
	old := s.one(store.Part{Budget: b, Want: 5})
	time.Sleep(20 * time.Millisecond) // it is full again
	b.N, b.Per = 1, time.Hour
	s.tokens("full", s.one(store.Part{Budget: b, Want: 5}), 5, 5)
	s.tokens("what was lost", s.one(store.Part{Budget: b, Want: 5, Back: []store.Return{{Tokens: 5, Lease: old.ID}}}), 0, 0)
}

func debt(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	b := s.bucket(10, time.Hour, 5)
	got := s.one(store.Part{Budget: b, Owe: 7, Need: 1, Want: 1})
	s.tokens("in debt", got, 0, 0)
	s.between("the wait", got.Wait, 17*time.Minute, 18*time.Minute)
	got = s.one(store.Part{Budget: b, Owe: 1000, Need: 1, Want: 1})
	s.between("the wait in the largest debt", got.Wait, 35*time.Minute, 36*time.Minute)
}

// about checks what is left, except for what comes in meanwhile.
func (s *suite) about(b store.Budget, got store.LeasedPart, left float64) {
	s.Helper()
	if math.Abs(got.Left-left) > .01 {
		s.Errorf("%s: %v tokens are left, want %v", b.Kind, got.Left, left)
	}
}

// debtBesidePromises charges debts to budgets that have promised more than may be owed.
func debtBesidePromises(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	for _, b := range []store.Budget{s.bucket(10, 1000*time.Hour, 5), s.budget(store.Pace, 10, 1000*time.Hour)} {
		most := map[store.Kind]float64{store.Bucket: 5, store.Pace: 10}[b.Kind]
		for range 10 { // a request that may wait gets what it needs, however much was promised before
			s.one(store.Part{Budget: b, Need: 3, Want: 3, Within: 10_000 * time.Hour})
		}
		left := s.one(store.Part{Budget: b}).Left
		for _, owe := range []int64{2, 1000} {
			s.about(b, s.one(store.Part{Budget: b, Owe: owe}), left-min(float64(owe), most))
		}
		s.about(b, s.one(store.Part{Budget: b, Owe: 1}), left-most)
	}
}

func whole(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	for _, b := range []store.Budget{
		s.bucket(10, time.Hour, 5), s.budget(store.Sliding, 5, time.Hour), s.budget(store.Fixed, 5, time.Hour), s.budget(store.Calendar, 5, time.Hour),
	} {
		s.tokens(string(b.Kind)+": less than is wanted", s.one(store.Part{Budget: b, Need: 1, Want: 6, Whole: true}), 1, 1)
		s.tokens(string(b.Kind)+": as much as is wanted", s.one(store.Part{Budget: b, Need: 1, Want: 3, Whole: true}), 3, 3)
	}
}

func hold(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	for _, b := range []store.Budget{
		s.bucket(10, time.Hour, 5), s.budget(store.Pace, 10, time.Hour), s.budget(store.Sliding, 5, time.Hour),
		s.budget(store.Fixed, 5, time.Hour), s.budget(store.Slots, 5, 0),
	} {
		p := store.Part{Budget: b, Need: 1, Want: 1, Holder: "a"}
		p.Hold = time.Minute
		got := s.one(p)
		s.tokens(string(b.Kind)+" held", got, 0, 0)
		s.between("the hold", got.Hold, time.Minute-time.Second, time.Minute)
		p.Holder, p.Hold = "b", time.Second // a shorter one changes nothing
		got = s.one(p)
		s.tokens(string(b.Kind)+" held for another", got, 0, 0)
		s.between("the hold", got.Hold, time.Minute-time.Second, time.Minute)
		s.between("the wait", got.Wait, got.Hold, got.Hold)
		p.Hold = -1
		s.tokens(string(b.Kind)+" after the hold was ended", s.one(p), 1, 1)
		p.Hold = time.Millisecond
		s.one(p)
		time.Sleep(5 * time.Millisecond)
		p.Hold = 0
		if got = s.one(p); got.Hold != 0 {
			t.Errorf("%s: a hold of a millisecond goes on for %v", b.Kind, got.Hold)
		}
	}
}

func retune(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	b := s.bucket(10, time.Hour, 9)
	got := s.one(store.Part{Budget: b, Want: 3})
	b.N, b.Per, b.Burst, b.Initial = 7, 24*time.Hour, 5, 5
	s.tokens("a lower rate and a smaller burst", s.one(store.Part{Budget: b, Want: 9}), 5, 5)
	s.between("the wait at the new rate", s.one(store.Part{Budget: b, Need: 1}).Wait, 3*time.Hour, 24*time.Hour/7+time.Millisecond)
	b.Burst = 20
	back := []store.Return{{Tokens: 1, Lease: got.ID}}
	s.tokens("a larger burst does not fill it", s.one(store.Part{Budget: b, Want: 9, Back: back, Replace: true}), 0, 0)
}

func stricter(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	for _, c := range []struct{ strict, loose store.Budget }{
		{s.bucket(10, time.Hour, 5), s.bucket(600, 60*time.Hour, 600)},
		{s.bucket(10, time.Hour, 9), s.bucket(20, time.Hour, 5)},
		{s.budget(store.Pace, 10, time.Hour), s.budget(store.Pace, 11, time.Hour)},
		{s.budget(store.Sliding, 5, time.Hour), s.budget(store.Sliding, 60, 12*time.Hour)},
		{s.budget(store.Fixed, 5, time.Hour), s.budget(store.Fixed, 60, 12*time.Hour)},
		{s.budget(store.Slots, 5, 0), s.budget(store.Slots, 6, 0)},
	} {
		all := int64(0)
		for i := range 10 {
			b := []store.Budget{c.strict, c.loose}[i%2]
			b.Key, b.Limit = c.strict.Key, c.strict.Limit
			got := s.one(store.Part{Budget: b, Holder: "a", Want: 3})
			if all += got.Tokens; got.Differs != (i%2 == 1) {
				t.Errorf("%s: ask %d: another rule counts: %v", b.Kind, i, got.Differs)
			} else if rate := float64(got.N) * float64(c.strict.Per); got.Differs && rate != float64(c.strict.N)*float64(got.Per) && (b.Kind != store.Slots || got.N != c.strict.N) {
				t.Errorf("%s: the rule that counts is %d per %v, want %d per %v", b.Kind, got.N, got.Per, c.strict.N, c.strict.Per)
			}
		}
		most := map[store.Kind]int64{store.Bucket: c.strict.Burst, store.Pace: 1, store.Sliding: 5, store.Fixed: 5, store.Slots: 30}[c.strict.Kind]
		if all > most {
			t.Errorf("%s: %d tokens by two rules, at most %d by the stricter one", c.strict.Kind, all, most)
		}
		b := c.loose
		b.Key, b.Limit = c.strict.Key, c.strict.Limit
		if got := s.one(store.Part{Budget: b, Holder: "a", Replace: true}); got.Differs {
			t.Errorf("%s: a rule that replaces the other does not count", b.Kind)
		}
	}
}

// promisesByStricter asks for promised tokens by a rule that does not count.
func promisesByStricter(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	for _, kind := range []store.Kind{store.Bucket, store.Pace} {
		strict := s.budget(kind, 1, time.Hour)
		strict.Burst, strict.Initial = 1, 1
		loose := strict
		loose.N = 4
		s.one(store.Part{Budget: strict, Need: 1, Want: 1})
		got := s.one(store.Part{Budget: loose, Need: 1, Want: 1, Within: 2 * time.Hour, Horizon: 4 * time.Hour})
		if got.Tokens != 1 || got.AtOnce != 0 || got.Next < 59*time.Minute || got.Next > time.Hour {
			t.Errorf("%s: a token that is due in an hour by the rule that counts, and in 15 minutes by the one of the ask: %+v", kind, got)
		}
	}
}

// wantsNothing asks for more than there is beside a part that wants nothing, such as one that only gives tokens back.
func wantsNothing(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	for _, b := range []store.Budget{s.bucket(1, time.Hour, 5), s.budget(store.Sliding, 5, time.Hour), s.budget(store.Fixed, 5, time.Hour), s.budget(store.Slots, 5, 0)} {
		other := s.bucket(1, time.Hour, 5)
		other.Limit = "other"
		leases, err := s.store.Lease(t.Context(), []store.Ask{{Parts: []store.Part{{Budget: other}, {Budget: b, Need: 1, Want: 100, Holder: "a"}}}})
		if err == nil {
			err = leases[0].Err
		}
		if err != nil {
			t.Fatal(err)
		}
		s.tokens(string(b.Kind), leases[0].Parts[1], 5, 5)
		s.tokens(string(b.Kind)+" beside it", leases[0].Parts[0], 0, 0)
	}
}

// sameBudgetTwice asks for one budget in two parts, of which each alone could be granted.
func sameBudgetTwice(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	for _, b := range []store.Budget{s.bucket(1, time.Hour, 5), s.budget(store.Sliding, 5, time.Hour), s.budget(store.Fixed, 5, time.Hour), s.budget(store.Slots, 5, 0)} {
		p := store.Part{Budget: b, Need: 3, Want: 3, Holder: "a"}
		leases, err := s.store.Lease(t.Context(), []store.Ask{{Parts: []store.Part{p, p}}})
		if err == nil && len(leases) > 0 {
			err = leases[0].Err
		}
		if !errors.Is(err, store.ErrSetup) {
			t.Errorf("%s: the error is %v", b.Kind, err)
		}
		s.tokens(string(b.Kind)+", which was charged nothing", s.one(store.Part{Budget: b, Need: 5, Want: 5, Holder: "a"}), 5, 5)
	}
}

func (s *suite) setupError(p store.Part) {
	s.Helper()
	leases, err := s.store.Lease(s.Context(), []store.Ask{{Parts: []store.Part{p}}})
	if err == nil {
		err = leases[0].Err
	}
	if !errors.Is(err, store.ErrSetup) {
		s.Errorf("%+v: the error is %v", p, err)
	}
}
