package storetest

import (
	"testing"
	"time"

	"github.com/httpthrottle/throttle/store"
)

func sliding(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	const per = 400 * time.Millisecond
	b := s.budget(store.Sliding, 5, per)
	p := store.Part{Budget: b, Need: 1, Want: 3}
	before := time.Now()
	got := s.one(p)
	after := time.Now()
	s.tokens("three of five", got, 3, 3)
	s.between("until", got.Until, per, per)
	p.Need = 3
	got = s.one(p)
	s.tokens("three of two", got, 0, 0)
	s.between("the wait", got.Wait, per-time.Since(before), per)
	p.Need = 1
	s.tokens("what there is", s.one(p), 2, 2)
	p.Want = 1
	time.Sleep(per/2 - time.Since(before))
	if got = s.one(p); time.Since(before) < per {
		s.tokens("half a period later", got, 0, 0)
		s.between("the wait", got.Wait, per-time.Since(before), per)
	}
	time.Sleep(per + 20*time.Millisecond - time.Since(after))
	p.Want = 9
	if got = s.one(p); got.Tokens < 3 {
		t.Errorf("a period later there are %d tokens", got.Tokens)
	}
	p = store.Part{Budget: b, Owe: 100}
	if got = s.one(p); got.Left != -20 {
		t.Errorf("the largest debt leaves %v tokens, want -20", got.Left)
	}
}

func slidingBack(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	b := s.budget(store.Sliding, 5, time.Hour)
	first := s.one(store.Part{Budget: b, Want: 3})
	time.Sleep(time.Millisecond)
	s.one(store.Part{Budget: b, Want: 2})
	s.tokens("what came back", s.one(store.Part{Budget: b, Want: 5, Back: []store.Return{{Tokens: 2, Lease: first.ID}}}), 2, 2)
	time.Sleep(time.Millisecond)
	back := []store.Return{{Tokens: 9, Lease: first.ID}}
	s.tokens("no more than were taken", s.one(store.Part{Budget: b, Want: 5, Back: back}), 1, 1)
	for range 300 { // more than are remembered one by one
		got := s.one(store.Part{Budget: b, Want: 5, Back: back})
		back = []store.Return{{Tokens: got.Tokens, Lease: got.ID}}
		if got.Tokens > 5 {
			t.Fatalf("%d tokens were granted", got.Tokens)
		}
	}
}

func fixed(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	const per = 300 * time.Millisecond
	b := s.budget(store.Fixed, 5, per)
	b.Start = time.Now().Add(-10 * time.Millisecond)
	p := store.Part{Budget: b, Need: 1, Want: 9}
	got := s.one(p)
	s.tokens("all of the window", got, 5, 5)
	s.between("until", got.Until, 0, per)
	ends := got.Until
	if got = s.one(p); got.Tokens == 0 {
		s.between("the wait", got.Wait, 0, ends)
		s.between("the wait and the window", got.Wait, ends-200*time.Millisecond, ends)
	}
	time.Sleep(ends + 2*time.Millisecond)
	p.Want = 5
	s.tokens("the next window", s.one(p), 5, 5)
	if got = s.one(store.Part{Budget: b, Owe: 100}); got.Left < -20 || got.Left > -15 {
		t.Errorf("the largest debt leaves %v tokens, want -20", got.Left)
	}
}

func fixedBack(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	b := s.budget(store.Fixed, 5, time.Hour)
	b.Start = time.Now().Add(-time.Minute)
	old := s.one(store.Part{Budget: b, Want: 5})
	back := []store.Return{{Tokens: 2, Lease: old.ID}}
	s.tokens("what came back", s.one(store.Part{Budget: b, Want: 5, Back: back}), 2, 2)
	time.Sleep(5 * time.Millisecond)
	b.Start = time.Now().Add(-time.Millisecond) // windows begin a millisecond ago, after that lease
	s.tokens("the window that began since", s.one(store.Part{Budget: b, Want: 3}), 3, 3)
	s.tokens("what is left", s.one(store.Part{Budget: b, Want: 9, Back: back}), 2, 2)
}

func calendar(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	b := s.budget(store.Calendar, 5, time.Hour)
	begin := time.Now().Add(-10 * time.Millisecond)
	b.Windows = [4]time.Time{begin.Add(-time.Hour), begin, begin.Add(300 * time.Millisecond), begin.Add(time.Hour)}
	p := store.Part{Budget: b, Need: 1, Want: 9}
	got := s.one(p)
	s.tokens("all of the window", got, 5, 5)
	ends := got.Until
	s.between("until", ends, 0, 300*time.Millisecond)
	if got = s.one(p); got.Tokens == 0 {
		s.between("the wait", got.Wait, 0, ends)
	}
	time.Sleep(min(ends, 300*time.Millisecond) + 2*time.Millisecond) // a slow store may be in the next window already
	got = s.one(p)
	s.tokens("the next window, which is longer", got, 5, 5)
	s.between("until", got.Until, 59*time.Minute, time.Hour-300*time.Millisecond)
}

// The clocks of processes may differ from the store's by a window.
func calendarOfOthers(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	b := s.budget(store.Calendar, 10, time.Hour)
	begin := b.Windows[1]
	for _, hours := range []int{-1, 0, 1} {
		for i := range b.Windows {
			b.Windows[i] = begin.Add(time.Duration(hours+i-1) * time.Hour)
		}
		got := s.one(store.Part{Budget: b, Want: 3})
		s.tokens("of a window", got, 3, 3)
		s.between("until", got.Until, 50*time.Minute, time.Hour)
		begin := got.ID
		s.left(b, s.one(store.Part{Budget: b, Back: []store.Return{{Tokens: 1, Lease: begin}}}), float64(10-2*(hours+2)))
	}
	b.Per = 10 * time.Minute // by the rule of another process, which is not as strict
	for i := range b.Windows {
		b.Windows[i] = begin.Add(time.Duration(i-1) * 10 * time.Minute)
	}
	got := s.one(store.Part{Budget: b, Want: 3})
	s.tokens("of the same window", got, 3, 3)
	s.between("until", got.Until, 50*time.Minute, time.Hour)
}

func slots(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	b := s.budget(store.Slots, 5, 0)
	of := func(holder string, held, want int64) store.LeasedPart {
		t.Helper()
		return s.one(store.Part{Budget: b, Holder: holder, Held: held, Need: min(want, 1), Want: want})
	}
	s.tokens("a's", of("a", 0, 3), 3, 3)
	s.tokens("a's once more, its response being lost", of("a", 0, 3), 3, 3)
	s.tokens("b's", of("b", 0, 3), 2, 2)
	got := of("c", 0, 1)
	s.tokens("c's", got, 0, 0)
	s.between("the wait", got.Wait, time.Millisecond, time.Second)
	if got.Processes != 3 {
		t.Errorf("%d processes, want 3", got.Processes)
	}
	s.tokens("a keeps one", of("a", 1, 0), 0, 0)
	s.tokens("c's then", of("c", 0, 9), 2, 2)
	of("c", 0, 0)
	of("b", 0, 0)
	if got = of("a", 1, 0); got.Left != 4 || got.Processes != 1 {
		t.Errorf("%v slots are left, of %d processes; want 4, 1", got.Left, got.Processes)
	}
}

func slotsPass(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	b := s.budget(store.Slots, 5, 0)
	of := func(holder string, held, want int64) store.LeasedPart {
		t.Helper()
		return s.one(store.Part{Budget: b, Holder: holder, Held: held, Need: min(want, 1), Want: want})
	}
	of("a", 0, 5)
	of("b", 0, 3)
	if got := of("a", 5, 2); got.Left != -3 {
		t.Errorf("%v slots are left; want -3, because b waits for three", got.Left)
	}
	s.tokens("what a gives back and wants again", of("a", 3, 4), 0, 0)
	s.tokens("b's", of("b", 0, 3), 2, 2)
	if got := of("a", 3, 0); got.Left != -1 {
		t.Errorf("%v slots are left; want -1, because b waits for one more", got.Left)
	}
	of("b", 2, 0)
	s.tokens("what a gives back and wants again while nothing waits", of("a", 1, 4), 2, 2)
}

func slotsUnknown(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	b := s.budget(store.Slots, 5, 0)
	of := func(holder string, held, want int64, since time.Duration) store.LeasedPart {
		t.Helper()
		return s.one(store.Part{Budget: b, Holder: holder, Held: held, Need: min(want, 1), Want: want, Since: since})
	}
	s.tokens("those of a process that the store need not know", of("a", 0, 3, store.MaxSince), 3, 3)
	got := of("b", 4, 1, time.Second)
	s.tokens("those of one with slots that the store does not know", got, 0, 0)
	s.between("wait", got.Wait, 3*time.Second, 4*time.Second)
	if got.Over != 2 {
		t.Errorf("%d slots of b are over; want 2, because a has three of the five", got.Over)
	}
	if got = of("b", 2, 0, time.Second); got.Over != 0 {
		t.Errorf("%d slots of b are over, although the store knows them", got.Over)
	}
	s.tokens("what another one gave back", of("a", 3, 0, time.Second), 0, 0)
	s.tokens("those of a third one", of("c", 0, 1, store.MaxSince), 0, 0)

	b = s.budget(store.Slots, 5, 0)
	s.tokens("those of a process that the store should know", of("a", 0, 1, time.Second), 0, 0)
}

func slotsExpire(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	b := s.budget(store.Slots, 5, 0)
	got := s.one(store.Part{Budget: b, Holder: "dies", Want: 4})
	s.between("until", got.Until, store.SlotLease, store.SlotLease)
	s.tokens("what it left", s.one(store.Part{Budget: b, Holder: "lives", Want: 4}), 1, 1)
	time.Sleep(store.SlotLease / 2)
	s.tokens("while it may live", s.one(store.Part{Budget: b, Holder: "lives", Held: 1, Want: 4}), 0, 0)
	time.Sleep(store.SlotLease/2 + 10*time.Millisecond)
	s.tokens("then", s.one(store.Part{Budget: b, Holder: "lives", Held: 1, Want: 4}), 4, 4)
}
