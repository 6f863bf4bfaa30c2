package limiter_test

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/meter/metertest"
	"github.com/httpthrottle/throttle/internal/order"
)

// A severalRun does what it likes to a Limiter with several limits, and keeps the accounts of every bucket by itself.
type severalRun struct {
	*testing.T
	r       *rand.Rand
	l       *driven
	rates   map[string]meter.Rate // of the token buckets, by limit
	bursts  map[string]int64
	buckets map[string]*metertest.Bucket // by limit and key
	windows map[string][]metertest.Event
	slots   int64 // taken

	mu      sync.Mutex
	entered int
	decided []*entry
	booked  int
	undone  int // granted, and given back
	waiting map[*entry]bool
}

// An entry is a request that was made.
type entry struct {
	asked    ask
	id       int
	set      string // its buckets
	rank     meter.Instant
	from, to meter.Instant
	err      error
	grant    *grant
	holds    time.Duration // its slots
	cancel   context.CancelFunc
}

func (x *severalRun) now() meter.Instant { return meter.Instant(x.l.now()) }

func newSeveralRun(t *testing.T, r *rand.Rand) *severalRun {
	x := &severalRun{
		T: t, r: r, rates: map[string]meter.Rate{"all": {N: 40, Per: time.Second}, "key": {N: 7, Per: time.Second}, "slow": {N: 3, Per: 2 * time.Second}},
		bursts: map[string]int64{"all": 10, "key": 5, "slow": 6}, buckets: make(map[string]*metertest.Bucket),
		windows: make(map[string][]metertest.Event), waiting: make(map[*entry]bool),
	}
	x.l = drive(t, tokenBucket(40, time.Second, withBurst(10), named("all")), tokenBucket(7, time.Second, withBurst(5), named("key")), tokenBucket(3, 2*time.Second, withBurst(6), named("slow")), slidingWindow(30, 10*time.Second, named("window")), inFlight(maxSlots, named("slots")))
	return x
}

const maxSlots = 6

// enter makes a request over some of the limits.
func (x *severalRun) enter(patient bool) {
	e := &entry{id: x.entered, from: x.now(), asked: ask{Keys: map[string]string{"all": ""}, Costs: make(map[string]int64)}}
	x.entered++
	e.asked.Key = string(rune('a' + x.r.IntN(3)))
	for i, name := range []string{"all", "key", "slow", "window"} {
		burst := []int64{10, 5, 6, 10}[i]
		if x.r.IntN(2) == 0 {
			e.asked.Costs[name] = 1 + x.r.Int64N(burst)/(1+x.r.Int64N(4))
		} else {
			e.asked.Costs[name] = 0
		}
	}
	if e.asked.Costs["slots"] = max(0, x.r.Int64N(6)-3); e.asked.Costs["slots"] > 0 {
		e.asked.Keys["slots"] = ""
		e.holds = time.Duration(x.r.Int64N(int64(time.Second)))
	}
	for _, li := range x.l.Limits {
		if e.asked.Costs[li.Name] > 0 {
			e.set += x.keyOf(e, li.Name) + " "
		}
	}
	if x.r.IntN(5) == 0 {
		e.asked.Priority = x.r.IntN(3) - 1
	}
	e.rank = order.RankOf(e.from, e.asked.Priority)
	ctx, cancel := context.WithCancel(x.Context())
	if !patient {
		if x.r.IntN(4) == 0 {
			e.asked.MaxWait = ptr(time.Duration(x.r.Int64N(int64(20 * time.Second))))
		}
		if x.r.IntN(4) == 0 {
			ctx, cancel = context.WithTimeout(ctx, time.Duration(x.r.Int64N(int64(20*time.Second))))
		}
	}
	e.cancel = cancel
	x.mu.Lock()
	x.waiting[e] = true
	x.mu.Unlock()
	go func() {
		g, err := x.l.acquire(ctx, e.asked)
		x.mu.Lock()
		defer x.mu.Unlock()
		e.grant, e.err, e.to = g, err, x.now()
		x.decided = append(x.decided, e)
		delete(x.waiting, e)
		if err == nil {
			x.hold(e)
		}
	}()
	synctest.Wait()
}

// hold keeps the slots of a request for as long as it takes.
func (x *severalRun) hold(e *entry) {
	cost := e.asked.Costs["slots"]
	if cost == 0 {
		return
	}
	x.slots += cost
	require.LessOrEqual(x, x.slots, int64(maxSlots))
	time.AfterFunc(e.holds, func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		if e.grant != nil { // else it was undone
			x.slots -= cost
			e.grant.done()
			e.grant.done()
		}
	})
}

func (x *severalRun) keyOf(e *entry, limit string) string {
	if key, ok := e.asked.Keys[limit]; ok {
		return limit + "/" + key
	}
	return limit + "/" + e.asked.Key
}

// book takes what was granted since the last time from the accounts, in order, and finds that it was there.
func (x *severalRun) book() {
	x.mu.Lock()
	defer x.mu.Unlock()
	fresh := x.decided[x.booked:]
	x.booked = len(x.decided)
	taken := make(map[string][]payment)
	for _, e := range fresh {
		if e.err != nil {
			continue
		}
		for _, c := range e.grant.Request.Charges() {
			if c.Limit().Frees {
				continue
			}
			p := payment{limit: c.Limit().Name, cost: e.asked.Costs[c.Limit().Name], at: e.to, waited: e.to > e.from}
			key := x.keyOf(e, p.limit)
			taken[key] = append(taken[key], p)
		}
	}
	for key, payments := range taken {
		x.pay(key, payments)
	}
}

// A payment is what was taken from one bucket.
type payment struct {
	limit  string
	cost   int64
	at     meter.Instant
	waited bool
}

// pay takes payments from the account of their bucket.
func (x *severalRun) pay(key string, payments []payment) {
	for _, p := range byTime(payments, func(p payment) meter.Instant { return p.at }) {
		if p.limit == "window" {
			x.windows[key] = append(x.windows[key], metertest.Event{At: p.at, Cost: p.cost})
			window := metertest.SlidingWindow{Per: int64(10 * time.Second), Events: x.windows[key]}
			require.LessOrEqual(x, window.Used(p.at), int64(30))
			continue
		}
		m := x.account(p.limit, key)
		m.Take(p.at, p.cost, p.waited)
		missing, _ := m.Level.Float64()
		require.GreaterOrEqual(x, missing, -doubt(m), "%s at %d: what was granted was not there", key, p.at)
	}
}

// doubt returns by how much an account may be wrong: by what comes in within 2 ns.
func doubt(m *metertest.Bucket) float64 { return meter.Rate(m.Rate).PerSecond() * 2e-9 }

func (x *severalRun) account(limit, key string) *metertest.Bucket {
	m := x.buckets[key]
	if m == nil { // as full as it has always been
		m = metertest.NewBucket(0, x.rates[limit], x.bursts[limit], x.bursts[limit])
		x.buckets[key] = m
	}
	return m
}

// balance compares all balances with the accounts.
func (x *severalRun) balance() {
	now := x.now()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.l.Lock()
	defer x.l.Unlock()
	require.Equal(x, x.slots, x.l.Limits[4].Single.Meter.(*meter.Slots).InFlight())
	for _, li := range x.l.Limits[:3] {
		for b := range x.l.bucketsLocked(li) {
			key := b.Key
			m := x.account(li.Name, li.Name+"/"+key)
			want, _ := m.At(now, nil).Float64()
			require.InDelta(x, want, b.Meter.Tokens(now), doubt(m), "%s/%s at %d", li.Name, key, now)
		}
	}
}

// ordered checks that no request overtook another with the same buckets.
func (x *severalRun) ordered() {
	sets := make(map[string][]*entry)
	for _, e := range x.decided {
		sets[e.set] = append(sets[e.set], e)
	}
	for _, all := range sets {
		for _, first := range all {
			for _, e := range all {
				if first.err != nil || e.from >= first.to || e.to <= first.to {
					continue // e did not wait when the first one was granted
				}
				before := first.rank < e.rank || first.rank == e.rank && first.id < e.id
				require.True(x, before, "%d overtook %d, both under %s", first.id, e.id, first.set)
			}
		}
	}
}

// finish waits until every request has been granted or rejected, and checks the accounts and the order.
func (x *severalRun) finish() {
	sleep(24 * time.Hour)
	x.book()
	x.balance()
	x.ordered()
	require.Empty(x, x.waiting, "a request waits forever")
}

func TestSeveralLimitsKeepTheirAccounts(t *testing.T) {
	for seed := range seeds(4) {
		synctest.Test(t, func(t *testing.T) {
			x := newSeveralRun(t, metertest.Seeded(t, seed))
			for op := range 2500 {
				x.enter(true)
				if x.r.IntN(5) == 0 {
					sleep(time.Duration(x.r.Int64N(int64(3 * time.Second))))
				}
				if op%20 == 0 {
					x.book()
					x.balance()
					x.l.check()
				}
			}
			x.finish()
			require.Equal(t, uint64(2500), x.l.counts().Granted)
			x.l.check()
			require.Zero(t, x.l.LineCount())
		})
	}
}

// Requests are canceled and rejected, keys are held, and rates change.
func TestSeveralLimitsUnderAllThatCanHappen(t *testing.T) {
	for seed := range seeds(8) {
		synctest.Test(t, func(t *testing.T) {
			x := newSeveralRun(t, metertest.Seeded(t, seed))
			var watch watch
			for op := range 1500 {
				x.anything()
				watch.look(x.l)
				if op%10 == 0 {
					x.book()
					x.balance()
					x.l.check()
				}
			}
			x.finish()
			x.l.check()
			stats, granted := x.l.counts(), 0
			for _, e := range x.decided {
				if e.err == nil {
					granted++
				}
			}
			require.Equal(t, uint64(granted+x.undone), stats.Granted)
			require.Equal(t, uint64(len(x.decided)+x.undone), stats.Granted+stats.rejected()+stats.Canceled+uint64(x.preCancelled()))
		})
	}
}

// preCancelled returns how many came with a context that was over, which are not counted.
func (x *severalRun) preCancelled() (n int) {
	for _, e := range x.decided {
		if e.from == e.to && errors.Is(e.err, context.DeadlineExceeded) && !errors.Is(e.err, errRejected) {
			n++
		}
	}
	return n
}

func (x *severalRun) anything() {
	switch x.r.IntN(12) {
	case 0, 1, 2:
		sleep(time.Duration(x.r.Int64N(int64(3 * time.Second))))
	case 3:
		x.mu.Lock()
		waiting := slices.SortedFunc(maps.Keys(x.waiting), func(a, b *entry) int { return a.id - b.id })
		x.mu.Unlock()
		for _, e := range waiting {
			if x.r.IntN(4) == 0 {
				e.cancel()
				synctest.Wait()
			}
		}
	case 4:
		if x.r.IntN(4) == 0 {
			x.l.hold([]string{"", "a", "b", "c"}[x.r.IntN(4)], time.Duration(x.r.Int64N(int64(15*time.Second))))
		}
	case 5:
		if x.r.IntN(8) == 0 {
			x.change()
		}
	case 6: // what is never used is given back immediately
		x.book()
		x.enter(false)
		x.undo()
	case 7:
		x.book()
		x.enter(false)
		x.book()
		x.settle()
	default:
		x.enter(false)
	}
	synctest.Wait()
}

// undo gives back what the last request was granted, if it did not wait, and strikes it from the accounts.
func (x *severalRun) undo() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.decided) != x.booked+1 {
		return
	}
	if e := x.decided[x.booked]; e.err == nil && e.id == x.entered-1 {
		e.grant.cancel()
		e.grant = nil
		x.slots -= e.asked.Costs["slots"]
		x.decided = slices.Delete(x.decided, x.booked, x.booked+1)
		x.undone++
	}
}

// settle corrects what the last request was charged, if it did not wait, and the accounts as well.
func (x *severalRun) settle() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.decided) == 0 {
		return
	}
	e := x.decided[len(x.decided)-1]
	if e.err != nil || e.id != x.entered-1 || e.to != x.now() {
		return
	}
	for _, name := range []string{"all", "key", "slow", "window"} {
		charged := e.asked.Costs[name]
		if charged == 0 || x.r.IntN(2) == 0 {
			continue
		}
		cost := x.r.Int64N(2*charged + 1)
		require.NoError(x, e.grant.settle(name, cost))
		require.Error(x, e.grant.settle(name, cost))
		key := x.keyOf(e, name)
		if name == "window" {
			all := x.windows[key]
			all[len(all)-1].Cost += cost - charged
			continue
		}
		m := x.account(name, key)
		if cost > charged {
			m.Owe(x.now(), cost-charged)
		} else {
			m.GiveBack(charged - cost)
		}
	}
}

// openAccounts opens one for each bucket that there is, and closes those of buckets that were forgotten, full.
func (x *severalRun) openAccounts() {
	x.l.Lock()
	defer x.l.Unlock()
	kept := make(map[string]*metertest.Bucket)
	for _, li := range x.l.Limits[:3] {
		for b := range x.l.bucketsLocked(li) {
			key := li.Name + "/" + b.Key
			kept[key] = x.account(li.Name, key)
		}
	}
	x.buckets = kept
}

// change sets another rate or burst.
func (x *severalRun) change() {
	name := []string{"all", "key", "slow"}[x.r.IntN(3)]
	x.book()
	x.openAccounts()
	now := x.now()
	if x.r.IntN(2) == 0 {
		r := meter.Rate{N: 1 + x.r.Int64N(60), Per: time.Duration(1+x.r.Int64N(3)) * time.Second}
		x.rates[name] = r
		x.l.setRate(name, r.N, r.Per)
	} else {
		x.bursts[name] = 1 + x.r.Int64N(12)
		x.l.setBurst(name, x.bursts[name])
	}
	for key, m := range x.buckets {
		if strings.HasPrefix(key, name+"/") {
			m.Retune(now, x.rates[name])
			m.Resize(now, x.bursts[name])
		}
	}
}
