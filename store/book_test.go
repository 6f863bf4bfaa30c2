package store

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"
)

const someTime = int64(1_763_800_000_000_000)

// lessor asks a Book for one part at a time.
type lessor struct {
	*testing.T
	book *Book
	now  int64
}

func newLessor(t *testing.T) *lessor { return &lessor{t, NewBook(), someTime} }

func (l *lessor) ask(p Part) LeasedPart {
	l.Helper()
	got := l.book.decide(l.now, 0, []Ask{{[]Part{p}}})[0]
	if got.Err != nil {
		l.Fatal(got.Err)
	}
	return got.Parts[0]
}

func (l *lessor) later(d time.Duration) { l.now += d.Microseconds() }

func bucket(n int64, per time.Duration, burst int64) Budget {
	return Budget{Kind: Bucket, Limit: "l", Key: "k", N: n, Per: per, Burst: burst, Initial: burst}
}

func TestBucketFillsToTheUnit(t *testing.T) {
	l := newLessor(t)
	p := Part{Budget: bucket(7, 24*time.Hour, 7), Need: 1, Want: 1}
	for range 7 {
		l.ask(p)
	}
	wait := l.ask(p).Wait
	if want := 12_342_857_143 * time.Microsecond; wait != want { // a seventh of a day, rounded up
		t.Fatalf("the wait is %v, want %v", wait, want)
	}
	l.later(wait - time.Microsecond)
	if got := l.ask(p); got.Tokens != 0 || got.Wait != time.Microsecond {
		t.Errorf("1 µs before: %+v", got)
	}
	l.later(time.Microsecond)
	if got := l.ask(p); got.Tokens != 1 {
		t.Errorf("then: %+v", got)
	}
}

// What comes back to a Pace after it is due is lost, as the next request may be sent by then. A Burst has room for it.
func TestAPaceHasTokensBackUpToItsBurst(t *testing.T) {
	for burst, back := range map[int64]float64{0: 0, 1: 0, 5: 4, 50: 6} {
		l := newLessor(t)
		p := Part{Budget: Budget{Kind: Pace, N: 10, Per: time.Second, Burst: burst}, Need: 10, Want: 10, Within: time.Minute}
		first := l.ask(p)
		if first.AtOnce != 1 {
			t.Errorf("it begins with %+v", first)
		}
		l.later(time.Second)
		if got := l.ask(p); got.AtOnce != 1 {
			t.Errorf("the next request: %+v", got)
		}
		l.later(time.Second)
		p.Need, p.Want = 0, 0
		before := l.ask(p).Left
		p.Back = []Return{{Tokens: 6, Lease: first.ID}}
		if got := l.ask(p).Left - before; got != back {
			t.Errorf("with a burst of %d, %v came back, want %v", burst, got, back)
		}
	}
}

// Processes ask at any instant, and not only at whole µs. Their tokens come as far apart as those of one process, at any time after the bucket
// was full: a server that admits exactly this rate refuses a request that comes 1 ns earlier.
func TestTokensOfAllProcessesAreTheWholeIntervalApart(t *testing.T) {
	for _, n := range []int64{5, 8, 100} {
		for seed := range uint64(20) {
			r := rand.New(rand.NewPCG(seed, 0))
			book, now := NewBook(), time.UnixMicro(someTime)
			p := Part{Budget: bucket(n, time.Second, 1), Need: 1, Want: 1, Within: time.Second}
			var last time.Time
			for range 200 {
				now = now.Add(time.Duration(r.Int64N(int64(2 * time.Second / time.Duration(n)))))
				got := book.Lease(now, []Ask{{[]Part{p}}})[0].Parts[0]
				if got.Tokens == 0 {
					continue
				}
				due := now.Add(got.Next)
				if d := due.Sub(last); d < time.Second/time.Duration(n) {
					t.Fatalf("%d/s, seed %d: the token of %v comes %v after the one before", n, seed, due, d)
				}
				if got.AtOnce == 0 && due.Sub(last) > time.Second/time.Duration(n)+time.Microsecond {
					t.Fatalf("%d/s, seed %d: the token of %v comes %v after the one before", n, seed, due, due.Sub(last))
				}
				last = due
			}
		}
	}
}

func TestPromisedTokensAreDueWhenTheLevelIsThere(t *testing.T) {
	l := newLessor(t)
	p := Part{Budget: bucket(3, time.Second, 1), Need: 3, Want: 3}
	p.Need, p.Budget.Burst = 1, 1
	l.ask(p)
	p.Within = time.Second
	for i, want := range []time.Duration{333_334, 666_667, 1_000_000} { // in µs
		if got := l.ask(p); got.Tokens != 1 || got.AtOnce != 0 || got.Next != want*time.Microsecond {
			t.Errorf("promise %d: %+v, want it in %d µs", i, got, want)
		}
	}
	if got := l.ask(p); got.Tokens != 0 || got.Wait != 333_334*time.Microsecond {
		t.Errorf("beyond what may be promised: %+v", got)
	}
}

func TestClockThatGoesBackLetsNoTimePass(t *testing.T) {
	for _, b := range []Budget{
		bucket(10, time.Second, 5), bucket(999_983, 24*time.Hour, 999_983), {Kind: Sliding, N: 5, Per: time.Minute},
		{Kind: Fixed, N: 5, Per: time.Hour}, {Kind: Pace, N: 1, Per: time.Minute},
	} {
		l := newLessor(t)
		all := Part{Budget: b, Want: 1 << 40}
		l.ask(all)
		for range 10 {
			l.later(-3 * time.Hour)
			if got := l.ask(all); got.Tokens != 0 {
				t.Errorf("%s of %d: %d tokens", b.Kind, b.N, got.Tokens)
			}
		}
		l.later(2 * time.Hour)
		if got := l.ask(all); got.Tokens == 0 {
			t.Errorf("%s: nothing after two hours", b.Kind)
		}
	}
}

// TestNoMoreIsInUseThanBurstPlusRate counts, at random, what was leased and not given back.
func TestNoMoreIsInUseThanBurstPlusRate(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 3))
		n, burst := 1+r.Int64N(1000), 1+r.Int64N(1<<r.IntN(20))
		per := []time.Duration{time.Second, 86_399_999_999_999, time.Minute, 7}[r.IntN(4)]
		l := newLessor(t)
		b := bucket(n, per, burst)
		var had []Return
		net := int64(0)
		for range 300 {
			l.now += r.Int64N(1 << r.IntN(22))
			p := Part{Budget: b, Need: r.Int64N(min(burst, 3) + 1), Want: r.Int64N(burst + 2), Ahead: r.Int64N(burst + 2)}
			for len(had) > 0 && r.IntN(2) == 0 {
				i := r.IntN(len(had))
				back := had[i]
				had = append(had[:i], had[i+1:]...)
				p.Back = append(p.Back, back)
				net -= back.Tokens
			}
			if got := l.ask(p); got.Tokens > 0 {
				net += got.Tokens
				had = append(had, Return{r.Int64N(got.Tokens + 1), got.ID})
			}
			most := float64(burst) + float64(l.now-someTime)*1000*float64(n)/float64(per)
			if float64(net) > most*(1+1e-12) {
				t.Fatalf("seed %d: %d tokens are in use, at most %.3f should be", seed, net, most)
			}
		}
	}
}

func TestThinnedPeaksNeverGiveBackTooMuch(t *testing.T) {
	l := newLessor(t)
	b := bucket(1, time.Hour, 10_000)
	var ids []int64
	for range 200 {
		ids = append(ids, l.ask(Part{Budget: b, Want: 10}).ID)
		l.later(time.Second)
	}
	got := l.ask(Part{Budget: b, Back: []Return{{10, ids[199]}}})
	if got.Left < 8010 || got.Left > 8011 {
		t.Errorf("after the latest was given back %v are left", got.Left)
	}
	for _, id := range ids[:199] {
		got = l.ask(Part{Budget: b, Back: []Return{{10, id}}})
	}
	if got.Left > 10_000 || got.Left < 9_000 {
		t.Errorf("after all were given back %v are left", got.Left)
	}
}

func TestSlidingLogStaysBounded(t *testing.T) {
	l := newLessor(t)
	b := Budget{Kind: Sliding, N: 5000, Per: 10 * time.Second}
	granted := make(map[int64]int64)
	for range 20_000 {
		l.later(time.Duration(900+l.now%200) * time.Microsecond)
		if got := l.ask(Part{Budget: b, Want: 1}); got.Tokens > 0 {
			granted[l.now] = got.Tokens
		}
		s := l.book.accounts[account{kind: Sliding}].(*slidingState)
		if len(s.log) >= exactEvents || l.now > someTime+b.Per.Microseconds() && len(s.log) < slices64/4 {
			t.Fatalf("%d entries", len(s.log))
		}
	}
	all, window := int64(0), int64(0)
	for at, n := range granted {
		all += n
		if at > l.now-b.Per.Microseconds() {
			window += n
		}
	}
	if window > b.N || all < 2*b.N*64/66*9/10 {
		t.Errorf("%d in the last period, %d in all", window, all)
	}
}

func TestStatesAreForgottenWhenTheyAreAsGoodAsNew(t *testing.T) {
	l := newLessor(t)
	for i := range 1000 {
		b := bucket(10, time.Second, 5)
		b.Key = string(rune('a' + i))
		l.ask(Part{Budget: b, Want: 5})
	}
	if l.later(1499 * time.Millisecond); l.now >= l.book.Until(&Budget{Kind: Bucket, Limit: "l", Key: "a"}).UnixMicro() {
		t.Error("it may be forgotten less than a second after it is full")
	}
	l.book.forget(l.now, 10_000)
	if n := len(l.book.accounts); n != 1000 {
		t.Errorf("%d states are left too early", n)
	}
	if l.later(time.Millisecond); l.now < l.book.Until(&Budget{Kind: Bucket, Limit: "l", Key: "a"}).UnixMicro() {
		t.Error("it may be forgotten a second after it is full")
	}
	l.book.forget(l.now, 20)
	if n := len(l.book.accounts); n != 980 {
		t.Errorf("%d states are left after a look at 20", n)
	}
	l.book.forget(l.now, 1000)
	if n := len(l.book.accounts); n != 0 {
		t.Errorf("%d states are left", n)
	}
}

func TestInitialCountsForAStateThatWasForgotten(t *testing.T) {
	l := newLessor(t)
	b := bucket(10, time.Second, 5)
	b.Initial = 2
	if got := l.ask(Part{Budget: b, Want: 9}); got.Tokens != 2 {
		t.Errorf("new: %+v", got)
	}
	l.later(600 * time.Millisecond)
	if got := l.ask(Part{Budget: b, Want: 9}); got.Tokens != 5 {
		t.Errorf("full: %+v", got)
	}
	l.book.SetState(&b, nil)
	if got := l.ask(Part{Budget: b, Want: 9}); got.Tokens != 2 {
		t.Errorf("lost: %+v", got)
	}
}

func TestLeasesOfALostStateGiveNothingBack(t *testing.T) {
	l := newLessor(t)
	b := bucket(1, time.Hour, 5)
	old := l.ask(Part{Budget: b, Want: 5})
	l.book.SetState(&b, nil)
	l.later(time.Millisecond)
	l.ask(Part{Budget: b, Want: 5})
	if got := l.ask(Part{Budget: b, Want: 5, Back: []Return{{5, old.ID}}}); got.Tokens != 0 {
		t.Errorf("%+v", got)
	}
}

func TestWrongPartsAreSetupErrors(t *testing.T) {
	ok := Part{Budget: bucket(1, time.Second, 5), Need: 1}
	for name, change := range map[string]func(*Part){
		"kind":    func(p *Part) { p.Budget.Kind = "x" },
		"n":       func(p *Part) { p.Budget.N = 0 },
		"period":  func(p *Part) { p.Budget.Per = -1 },
		"burst":   func(p *Part) { p.Budget.Burst = 0 },
		"initial": func(p *Part) { p.Budget.Initial = 6 },
		"need":    func(p *Part) { p.Need = 6 },
		"size":    func(p *Part) { p.Budget.Per, p.Budget.Burst = 1<<62, 1<<60 },
		"holder":  func(p *Part) { p.Budget.Kind = Slots },
	} {
		p := ok
		change(&p)
		if got := NewBook().decide(0, 0, []Ask{{[]Part{p}}})[0]; !errors.Is(got.Err, ErrSetup) {
			t.Errorf("%s: %v", name, got.Err)
		}
	}
}

func FuzzNumbersStayExact(f *testing.F) {
	f.Add(int64(10), int64(time.Second), int64(5), int64(1), int64(5), int64(3), int64(time.Second), int64(2))
	f.Add(int64(1)<<60, int64(1)<<62, int64(1)<<60, int64(1)<<60, int64(-1), int64(1)<<60, int64(1)<<62, int64(1)<<60)
	f.Fuzz(func(t *testing.T, n, per, burst, need, want, ahead, within, owe int64) {
		for _, kind := range []Kind{Bucket, Pace, Sliding, Fixed} {
			book, now := NewBook(), someTime
			b := Budget{Kind: kind, N: n, Per: time.Duration(per), Burst: burst, Initial: burst}
			for range 4 {
				p := Part{Budget: b, Need: need, Want: want, Ahead: ahead, Within: time.Duration(within), Horizon: time.Duration(within), Owe: owe,
					Hold: time.Duration(ahead), Since: time.Duration(want)}
				got := book.decide(now, 0, []Ask{{[]Part{p}}})[0]
				if got.Err != nil {
					return
				}
				if q := got.Parts[0]; q.Tokens < 0 || q.AtOnce < 0 || q.AtOnce > q.Tokens || q.Next < 0 || q.Wait < 0 || q.Tokens > 0 && q.Tokens < need {
					t.Fatalf("%+v: %+v", p, q)
				}
				for _, s := range book.accounts {
					if s, ok := s.(*bucketState); ok && (s.level > s.full || s.level < -3*mostUnits) {
						t.Fatalf("%+v: a level of %d of %d", p, s.level, s.full)
					}
				}
				now += 1000
			}
		}
	})
}

// What is given back of promised tokens is bounded by leases since they were due, as in a bucket that takes them then: it was empty when
// others took them, so no more than its burst less their tokens can have been lost.
func TestPromisedTokensAreGivenBackAsIfTakenWhenDue(t *testing.T) {
	l := newLessor(t)
	b := bucket(100, time.Second, 200)
	need := func() LeasedPart { return l.ask(Part{Budget: b, Need: 100, Want: 100, Within: time.Minute}) }
	back := func(tokens, id int64) float64 {
		before := l.ask(Part{Budget: b}).Left
		return l.ask(Part{Budget: b, Back: []Return{{tokens, id}}}).Left - before
	}
	need()
	need()
	first, second := need(), need() // due in one second, and in two
	l.later(time.Second - time.Microsecond)
	if got := back(10, first.ID); got != 10 {
		t.Errorf("of ten that are not due yet, %v came back", got)
	}
	for range 2 { // each takes 100 as soon as there are as many: there is room for 100
		l.later(time.Second)
		need()
	}
	if got := back(90, first.ID); got != 90 {
		t.Errorf("of 90, %v came back", got)
	}
	if got := back(100, second.ID); got != 10 {
		t.Errorf("of 100 beside 90, %v came back, and there was room for ten more", got)
	}
}
