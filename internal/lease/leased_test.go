package lease

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/store"
)

const ms = int64(time.Millisecond)

// A bench is a meter on a Book, with a clock that the test sets: in ns, from 1 s on.
type bench struct {
	*testing.T
	*Leased
	book *store.Book
	now  meter.Instant
	trip int64 // how long a question takes, and so long its response
}

func newBench(t *testing.T, b store.Budget) *bench {
	return &bench{T: t, Leased: newLeased(b, Config{Ahead: 10 * time.Millisecond}), book: store.NewBook(), now: int64(time.Second)}
}

// waiting is the demand of n requests of cost 1.
func waiting(n int64) Demand { return waitingOf(1, n) }

func waitingOf(cost, n int64) Demand {
	return Demand{First: cost, All: cost * n, Until: meter.Never}
}

// question asks the store and books the response.
func (b *bench) question(d Demand) (store.Part, store.LeasedPart) {
	b.Helper()
	sent, part := b.now, b.Ask(b.now, d)
	b.now += b.trip
	got := b.book.Lease(time.Unix(0, began+b.now), []store.Ask{{Parts: []store.Part{part}}})[0]
	if got.Err != nil {
		b.Fatal(got.Err)
	}
	b.now += b.trip
	b.Booked(sent, b.now, part, got.Parts[0])
	return part, got.Parts[0]
}

// others takes tokens for another process.
func (b *bench) others(want int64) store.LeasedPart {
	return b.book.Lease(time.Unix(0, began+b.now), []store.Ask{{Parts: []store.Part{{Budget: b.budget, Want: want}}}})[0].Parts[0]
}

func (b *bench) payable(cost int64, want bool) {
	b.Helper()
	if got := b.Payable(b.now, cost); got != want {
		b.Errorf("at %v a cost of %d is payable: %v", time.Duration(b.now), cost, got)
	}
}

func (b *bench) instant(what string, got, want meter.Instant) {
	b.Helper()
	if got != want {
		b.Errorf("%s: %v, want %v", what, time.Duration(got), time.Duration(want))
	}
}

func TestNothingIsPayableBeforeAResponse(t *testing.T) {
	b := newBench(t, bucket(100, time.Second, 10))
	b.payable(1, false)
	b.payable(0, true)
	b.instant("ready", b.Ready(0, 0, 1), meter.Never)
	b.instant("plan", b.Plan(b.now, 5, 1), b.now)
	b.instant("plan of too much", b.Plan(b.now, 0, 11), meter.Never)
	b.instant("ask, nothing waiting", b.AskAt(b.now, Demand{}), meter.Never)
	b.instant("ask", b.AskAt(b.now, waiting(1)), b.now)
	b.Ask(b.now, waiting(1))
	b.instant("ask while a question is under way", b.AskAt(b.now, waiting(1)), meter.Never)
}

func TestPromisedTokensArePayableAtTheirInstant(t *testing.T) {
	b := newBench(t, bucket(300, time.Second, 2))
	b.trip = ms
	_, got := b.question(waiting(6)) // 2 at once, and of 15 in the horizon 6 may be promised
	if got.Tokens != 6 || got.AtOnce != 2 {
		t.Fatalf("%+v", got)
	}
	came := b.now
	b.payable(2, true)
	b.payable(3, false)
	next := came + int64(got.Next)
	for k, at := range []int64{next, next + 3_333_334, next + 6_666_667, next + 10_000_000} {
		n := int64(k) + 3
		b.instant("ready", b.Ready(0, 0, n), at)
		b.instant("ready after others", b.Ready(0, n-1, 1), at)
		b.now = at - 1
		b.payable(n, false)
		b.now = at
		b.payable(n, true)
	}
	b.instant("ready for more than is promised", b.Ready(0, 0, 7), meter.Never)
}

func TestPromisesOfSeveralLeasesAreDueInOrder(t *testing.T) {
	b := newBench(t, bucket(1000, time.Second, 1))
	r := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		b.runs, b.lots, b.have = nil, nil, 0
		var all []int64
		for id := range int64(1 + r.Int64N(4)) {
			x := run{lot: lot{n: 1 + r.Int64N(20), id: id, void: meter.Never}, start: b.now + r.Int64N(20*ms), taken: r.Int64N(3), rate: meter.Rate{N: 1 + r.Int64N(1000), Per: time.Second}}
			for k := range x.n {
				all = append(all, x.dueAt(k+1))
			}
			b.runs = append(b.runs, x)
		}
		for i := range all {
			for j := range i {
				if all[j] > all[i] {
					all[i], all[j] = all[j], all[i]
				}
			}
		}
		b.schedule()
		for i, at := range all {
			b.instant("ready", b.Ready(0, 0, int64(i)+1), at)
		}
		for i, at := range all {
			b.now = at
			if b.Payable(at, 1); b.have < int64(i)+1 {
				t.Fatalf("%d tokens are there when %d are due", b.have, i+1)
			}
		}
		b.now += int64(time.Second)
	}
}

func TestPaceGrantsACostWithItsFirstToken(t *testing.T) {
	b := newBench(t, store.Budget{Kind: store.Pace, Limit: "l", Key: "k", N: 10, Per: time.Second})
	b.question(waitingOf(3, 1))
	b.payable(4, false)
	b.payable(3, true)
	if _, ok := b.Spend(b.now, 3); !ok {
		t.Fatal("not spent")
	}
	b.payable(1, false)
	start := b.now
	b.question(waitingOf(5, 1))
	b.instant("the next", b.Ready(0, 0, 5), start+300*ms)
	b.instant("part of it", b.Ready(0, 2, 3), start+500*ms)
	b.now = start + 300*ms - 1
	b.payable(5, false)
	b.now++
	b.payable(5, true)
	b.Take(b.now, b.now, 5, true)
	b.payable(1, false)
	if at := b.Plan(b.now, 0, 7); at > start+800*ms || at < start+800*ms-10 {
		t.Errorf("the plan of what is not leased: %v", time.Duration(at))
	}
}

func TestPlanIsALowerBound(t *testing.T) {
	b := newBench(t, bucket(10, time.Second, 5))
	b.others(5)
	b.others(0)
	b.question(waiting(1))
	b.instant("of what is promised", b.Plan(b.now, 0, 1), b.now+100*ms)
	at := b.Plan(b.now, 1, 1)
	if at > b.now+200*ms || at < b.now+200*ms-10 {
		t.Errorf("of the next: in %v", time.Duration(at-b.now))
	}
	w := newBench(t, store.Budget{Kind: store.Fixed, Limit: "l", Key: "k", N: 5, Per: time.Second})
	_, got := w.question(waiting(5))
	ends := w.now + int64(got.Until)
	w.instant("of what is available", w.Plan(w.now, 0, 5), w.now)
	w.instant("of the next window", w.Plan(w.now, 5, 1), ends)
	w.instant("of the one after", w.Plan(w.now, 10, 1), ends+int64(time.Second))
	s := newBench(t, store.Budget{Kind: store.Sliding, Limit: "l", Key: "k", N: 5, Per: time.Second})
	s.question(waiting(5))
	s.instant("of a period", s.Plan(s.now, 5, 1), s.now+int64(time.Second))
	s.instant("of two", s.Plan(s.now, 10, 1), s.now+2*int64(time.Second))
}

func TestTokensOfAWindowAreVoidWhenItIsOver(t *testing.T) {
	b := newBench(t, store.Budget{Kind: store.Fixed, Limit: "l", Key: "k", N: 5, Per: time.Second})
	b.trip = ms
	sent := b.now
	_, got := b.question(waiting(5))
	b.now = voidAt(sent, got.Until) - 1
	b.payable(5, true)
	b.now++
	b.payable(1, false)
	b.GiveBack(got.ID, b.now, 2)
	b.payable(1, false)
}

// A store counts whole µs. So it believes that an ask comes up to 1 µs before it does, and that the window lasts for as much longer.
func TestTokensAreNotUsedInTheNextWindow(t *testing.T) {
	for _, phase := range []meter.Instant{0, 1, 500, 999} {
		b := newBench(t, store.Budget{Kind: store.Fixed, Limit: "l", Key: "k", N: 5, Per: time.Second})
		ends := (b.now/second+1)*second - began%second
		b.now += phase
		b.question(waiting(5))
		b.now = ends - 1001
		b.payable(1, true)
		b.now = ends
		b.payable(1, false)
	}
}

func TestAWindowThatIsAsGoodAsOverIsAskedForOnce(t *testing.T) {
	b := newBench(t, store.Budget{Kind: store.Fixed, Limit: "l", Key: "k", N: 5, Per: time.Second})
	ends := (b.now/second+1)*second - began%second
	b.now = ends - 1
	b.question(waiting(5))
	b.payable(1, false)
	b.instant("the next ask", b.AskAt(b.now, waiting(5)), ends+999)
	b.now = ends + 999
	b.question(waiting(5))
	b.payable(5, true)
}

// A late timer has a request tried as of an instant before now: then a token that is due in between has its own instant, and one
// that is void at now does not count at all.
func TestATokenThatIsVoidAtNowIsNotReadyBefore(t *testing.T) {
	b := newBench(t, store.Budget{Kind: store.Fixed, Limit: "l", Key: "k", N: 5, Per: time.Second})
	b.trip = ms
	sent := b.now
	_, got := b.question(waiting(5))
	ends := voidAt(sent, got.Until)
	b.Advance(ends-ms, ends-1)
	b.instant("1 ns before the end", b.Ready(ends-ms, 0, 5), ends-ms)
	b.Advance(ends-ms, ends)
	b.instant("at the end", b.Ready(ends-ms, 0, 1), meter.Never)

	p := newBench(t, bucket(300, time.Second, 1))
	_, got = p.question(waiting(2))
	due := p.now + int64(got.Next)
	p.Take(p.now, p.now, 1, true)
	p.Advance(due-1, due+ms)
	p.instant("a promised token", p.Ready(due-1, 0, 1), due)

	s := newSlotBench(t, 2)
	s.question(waiting(2))
	s.Advance(s.void-ms, s.void-1)
	s.is("slots 1 ns before their end", s.Ready(s.void-ms, 0, 2), s.void-ms)
	s.Advance(s.void-ms, s.void)
	s.is("slots at their end", s.Ready(s.void-ms, 0, 1), meter.Never)
}

// What a request needs is reserved whole. What those behind it need comes with it, whole as well or not at all.
func TestWhatARequestNeedsIsReservedWhole(t *testing.T) {
	b := newBench(t, bucket(10, time.Second, 50))
	b.others(45)
	d := waitingOf(20, 3)
	d.Next, d.Whole = 20, 40
	p, got := b.question(d)
	if p.Need != 20 || p.Want != 40 || got.Tokens != 20 || got.AtOnce != 5 {
		t.Errorf("asked %+v, got %+v", p, got)
	}
	b.instant("the request goes", b.Ready(b.now, 0, 20), b.now+int64(1500*time.Millisecond))
	b.instant("nothing changes before", b.AskAt(b.now, waitingOf(20, 1)), meter.Never)
	d.Next, d.Whole = 40, 60
	if p, _ := b.question(d); p.Need != 0 || p.Want != 0 {
		t.Errorf("an ask that is made earlier, to report something, reserves %+v", p)
	}
	at := b.AskAt(b.now, d)
	b.instant("the next one has its tokens reserved when those of the first are due soon", at, b.now+int64(1500*time.Millisecond)-int64(b.lead))
	if p := b.Ask(at, d); p.Need != 20 || p.Want != 40 {
		t.Errorf("asked %+v", p)
	}
	c := newBench(t, store.Budget{Kind: store.Pace, N: 10, Per: time.Second})
	if p := c.Ask(c.now, waitingOf(20, 2)); p.Need != 20 || p.Want != 40 {
		t.Errorf("a pace asked %+v", p)
	}
}

// Time does not help a request whose tokens come after its deadline: the deadline comes nearer as fast as they do. Another one may have them.
func TestNothingIsAskedForInVain(t *testing.T) {
	b := newBench(t, bucket(10, time.Second, 50))
	b.others(50)
	d := waitingOf(20, 1)
	d.Until = b.now + second
	if p, got := b.question(d); p.Need != 20 || got.Tokens != 0 || got.Wait != time.Second {
		t.Errorf("asked %+v, got %+v", p, got)
	}
	b.instant("ask again", b.AskAt(b.now, d), b.now+int64(b.recheck()))
	less, later := d, d
	less.First, later.Until = 11, b.now+2*second-2 // the plan is rounded down
	b.instant("for less", b.AskAt(b.now, less), b.now+int64(b.recheck()))
	b.instant("for a later deadline", b.AskAt(b.now, later), b.now+int64(b.recheck()))
	less.First--
	later.Until += 2
	b.instant("for as much as comes in", b.AskAt(b.now, less), b.now+second)
	b.instant("for a deadline when it comes in", b.AskAt(b.now, later), b.now+second)
}

// A refusal is exact to the instant, and the figures of a response are not: a process does not ask again and again for what comes in with the
// deadline, also if its first request has its tokens.
func TestARefusalSaysWhenTokensDoNotCome(t *testing.T) {
	for _, kind := range []store.Kind{store.Bucket, store.Pace} {
		b := newBench(t, store.Budget{Kind: kind, N: 10, Per: time.Second, Burst: 50})
		b.trip = ms
		d := waitingOf(20, 2)
		b.question(d)
		if n := b.have + b.promised(); n != 20 {
			t.Fatalf("%s: %d tokens", kind, n)
		}
		d.Next = 40
		last := b.dueAt(b.promised())
		if d.Until = last + 2*second - 2*ms - 1; kind == store.Pace { // a round trip before they can be there
			d.Until = last + second/10 - 2*ms - 1
		}
		at := last - int64(b.lead)
		b.instant("the next one has its tokens asked for when those of the first are due soon", b.AskAt(b.now, d), at)
		if kind == store.Pace {
			d.Joint = true
			b.instant("with those of other buckets, when the first can be sent", b.AskAt(b.now, d), b.now)
			d.Joint = false
		}
		b.now = at
		if p, got := b.question(d); p.Need != 20 || got.Tokens != 0 || got.Wait != time.Microsecond {
			t.Errorf("%s: asked %+v, got %+v", kind, p, got)
		}
		b.instant("ask again", b.AskAt(b.now, d), at+int64(b.recheck()))
		if plan := b.Plan(b.now, 20, 20); plan <= d.Until {
			t.Errorf("%s: it is planned for %v, and can wait until %v", kind, time.Duration(plan), time.Duration(d.Until))
		}
		later := d
		later.Until++
		b.instant("for a later deadline", b.AskAt(b.now, later), b.now+ms)
		faster := *b.Leased
		faster.Retune(b.now, meter.Rate{N: 11, Per: time.Second})
		if plan := faster.Plan(b.now, 20, 20); plan > d.Until {
			t.Errorf("%s: at a higher rate it is planned for %v, and can wait until %v", kind, time.Duration(plan), time.Duration(d.Until))
		}
		b.returns(store.Return{Tokens: 1, Lease: 1}, b.now)
		if plan := b.Plan(b.now, 20, 20); plan > d.Until {
			t.Errorf("%s: with one token more it is planned for %v, and can wait until %v", kind, time.Duration(plan), time.Duration(d.Until))
		}
	}
}

// Where others are promised all tokens that come before a deadline, they are promised the next one, too, as soon as it can be. So a few
// processes ask then, and not all of them.
func TestFewProcessesAskForWhatOthersArePromised(t *testing.T) {
	for _, kind := range []store.Kind{store.Bucket, store.Pace} {
		b := newBench(t, store.Budget{Kind: kind, N: 10, Per: time.Second, Burst: 10})
		sent, within := b.now, time.Second
		d := waitingOf(10, 1)
		d.Until = sent + int64(within)
		asked := b.Ask(sent, d)
		b.Booked(sent, sent, asked, store.LeasedPart{Left: -10, Wait: 500 * time.Millisecond, Processes: 8})
		missing := int64(10)
		if kind == store.Pace {
			missing = 1 // the first token pays
		}
		depth := b.flow(float64(missing) + 10)
		d.Until = sent + depth + second/2 // of the next request
		now := d.Until - depth
		b.instant("with as much time as others are promised", b.AskAt(now, d), now)
		now++
		at := sent + b.chance(sent, b.flow(8*10))
		b.instant("with less", b.AskAt(now, d), max(now, at, sent+second/2))
		d.Until = now
		b.instant("for one that cannot wait", b.AskAt(now, d), now)
		b.latest.processes = 1
		d.Until = sent + depth + second/2
		b.instant("for a process that is alone", b.AskAt(now, d), now)
	}
}

func TestNextTokensAreAskedForBeforeTheLastIsDue(t *testing.T) {
	b := newBench(t, bucket(100, time.Second, 1))
	b.trip = ms
	_, got := b.question(waiting(9))
	if got.Tokens != 3 {
		t.Fatalf("%+v", got)
	}
	last := b.Ready(0, 0, 3)
	b.instant("ask", b.AskAt(b.now, waiting(9)), last-9*ms) // two round trips and 5 ms
	b.instant("ask for no more than that", b.AskAt(b.now, waiting(3)), meter.Never)
	b.instant("ask if the first is short", b.AskAt(b.now, waitingOf(4, 1)), b.now)
}

func TestTheWaitOfTheStoreIsKept(t *testing.T) {
	b := newBench(t, bucket(1, time.Second, 1))
	b.others(1)
	d := waiting(1)
	d.Until = b.now + 10*ms
	p, got := b.question(d)
	if p.Within != 10*time.Millisecond || got.Wait != 950*time.Millisecond {
		t.Fatalf("asked %+v, got %+v", p, got)
	}
	b.instant("ask", b.AskAt(b.now, waiting(1)), b.now+950*ms)
	b.instant("plan", b.Plan(b.now, 0, 1), b.now+int64(time.Second)-1)
}

func TestRecentUseIsLeasedAhead(t *testing.T) {
	b := newBench(t, bucket(1_000_000, time.Second, 1_000_000))
	b.question(waiting(1))
	for range 500 { // 100 tokens a ms
		b.now += ms
		for range 100 {
			if _, ok := b.Spend(b.now, 1); !ok {
				b.question(waiting(1))
				b.Spend(b.now, 1)
			}
		}
		if b.AskAt(b.now, Demand{}) <= b.now {
			b.question(Demand{})
		}
	}
	if target := b.target(); target < 900 || target > 1100 {
		t.Errorf("%d tokens are leased ahead, want some 1,000", target)
	}
	for range 100 { // nothing is used any more
		at := b.AskAt(b.now, Demand{})
		if at == meter.Never {
			break
		}
		b.now = at
		b.question(Demand{})
	}
	b.instant("ask", b.AskAt(b.now, Demand{}), meter.Never)
	if must, _ := b.Matters(b.now); b.have != 0 || must > b.now {
		t.Errorf("%d tokens are left", b.have)
	}
}

func TestNothingIsLeasedAheadIfNothingIsToBe(t *testing.T) {
	b := newBench(t, bucket(1_000_000, time.Second, 1_000_000))
	b.config.Ahead = 0
	for range 100 {
		b.now += ms
		p, _ := b.question(waiting(3))
		b.Take(b.now, b.now, 3, true)
		if p.Ahead != 0 || b.have != 0 {
			t.Fatalf("asked %+v, has %d", p, b.have)
		}
	}
}

func TestNewRateTradesPromises(t *testing.T) {
	b := newBench(t, bucket(1, time.Minute, 1))
	b.others(1)
	b.question(waiting(1))
	b.instant("at the old rate", b.Ready(0, 0, 1), b.now+int64(time.Minute))
	b.Retune(b.now, meter.Rate{N: 10, Per: time.Second})
	b.instant("nothing is promised", b.Ready(0, 0, 1), meter.Never)
	b.instant("ask", b.AskAt(b.now, waiting(1)), b.now)
	b.question(waiting(1))
	b.instant("at the new rate", b.Ready(0, 0, 1), b.now+100*ms)
	b.Resize(b.now, 7)
	if b.Most() != 7 {
		t.Errorf("the burst is %d", b.Most())
	}

	pace := newBench(t, store.Budget{Kind: store.Pace, N: 10, Per: time.Second})
	pace.Resize(pace.now, 7)
	if p := pace.Ask(pace.now, waiting(1)); p.Budget.Burst != 0 {
		t.Errorf("a pace has a burst of %d", p.Budget.Burst)
	}
}

// A promise of the old rate would be used at an instant at which the lower rate has nothing.
func TestALowerRateTradesPromises(t *testing.T) {
	b := newBench(t, bucket(10, time.Second, 1))
	b.others(1)
	b.question(waiting(1))
	b.instant("at the old rate", b.Ready(0, 0, 1), b.now+100*ms)
	b.Retune(b.now, meter.Rate{N: 1, Per: time.Second})
	b.instant("nothing is promised", b.Ready(0, 0, 1), meter.Never)
	b.instant("ask", b.AskAt(b.now, waiting(1)), b.now)
}

// The ask had the old rate, so its tokens are promised by that.
func TestALowerRateTradesWhatAnAskUnderWayIsPromised(t *testing.T) {
	b := newBench(t, bucket(10, time.Second, 1))
	b.others(1)
	asked := b.Ask(b.now, waiting(1))
	b.Retune(b.now, meter.Rate{N: 1, Per: time.Second})
	promised := b.book.Lease(time.Unix(0, began+b.now), []store.Ask{{Parts: []store.Part{asked}}})[0].Parts[0]
	if promised.Tokens != 1 || promised.Next != 100*time.Millisecond {
		t.Fatalf("the store has promised %+v", promised)
	}
	b.Booked(b.now, b.now, asked, promised)
	b.instant("nothing is promised", b.Ready(0, 0, 1), meter.Never)
	b.instant("ask", b.AskAt(b.now, waiting(1)), b.now)
	b.question(waiting(1))
	b.instant("at the new rate", b.Ready(0, 0, 1), b.now+int64(time.Second))
}

// Programs that read their configuration from time to time set the same rate again.
func TestARateThatStaysTradesNothing(t *testing.T) {
	b := newBench(t, bucket(10, time.Second, 1))
	b.others(1)
	b.question(waiting(1))
	b.Retune(b.now, meter.Rate{N: 10, Per: time.Second})
	b.instant("still promised", b.Ready(0, 0, 1), b.now+100*ms)

	f := newFleet(1, store.Budget{Kind: store.Bucket, N: 5, Per: time.Second, Burst: 1}, 8, 2)
	for _, p := range f.processes {
		var again func()
		again = func() {
			p.meter.Retune(f.now, meter.Rate{N: 5, Per: time.Second})
			f.step(p)
			f.at(f.now+int64(time.Second), again)
		}
		f.at(f.Int64N(int64(time.Second)), again)
	}
	f.run(10 * time.Second)
	f.reset()
	f.run(time.Minute)
	if f.used < 297 || f.used > 301 {
		t.Errorf("%d of 300 tokens are used", f.used)
	}
}

func TestSpendAllocatesNothing(t *testing.T) {
	b := newBench(t, bucket(1_000_000, time.Second, 1_000_000))
	b.question(waiting(900_000))
	if n := testing.AllocsPerRun(1000, func() { b.now++; b.Spend(b.now, 1) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkSpend(b *testing.B) {
	m := newLeased(bucket(1_000_000, time.Second, 1_000_000), Config{})
	m.add(lot{n: 1 << 50, id: 1, void: meter.Never})
	m.schedule()
	now := int64(0)
	for b.Loop() {
		now++
		m.Spend(now, 1)
	}
}

// TestFleetNeverUsesMoreThanBurstPlusRate lets processes ask, use, cancel, settle and fail at random.
func TestFleetNeverUsesMoreThanBurstPlusRate(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 4))
		n, burst := 100+r.Int64N(5000), 1+r.Int64N(200)
		f := newFleet(seed, bucket(n, time.Second, burst), 1+r.IntN(8), 1+r.Int64N(20))
		f.lost = float64(r.IntN(3)) / 20
		f.bound = func(at int64) float64 { return float64(burst) + float64(n)*float64(at)/1e9 }
		for range 200 {
			f.run(time.Duration(r.Int64N(20 * ms)))
			p := f.processes[r.IntN(len(f.processes))]
			switch r.IntN(4) {
			case 0:
				p.callers = r.Int64N(20)
			case 1:
				if id, ok := p.meter.Spend(f.now, 1); ok { // a request that is not sent
					p.meter.GiveBack(id, f.now, 1)
				}
			case 2:
				p.cost = 1 + r.Int64N(min(burst, 5))
			case 3:
				if id, ok := p.meter.Spend(f.now, 2); ok {
					cost := r.Int64N(6)
					p.meter.Settle(id, f.now, 2, cost)
					f.used += min(cost, 2)
				}
			}
			f.step(p)
		}
		if f.over > 0.001 {
			t.Errorf("seed %d: %.3f tokens more than burst + rate·t were used", seed, f.over)
		}
	}
}
