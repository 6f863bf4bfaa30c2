package throttleredis

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/httpthrottle/throttle/store"
)

// modelScripts returns the scripts with a clock that the test sets, and with states that last until the test deletes them.
func modelScripts(t *testing.T, from fs.FS) *scripts {
	t.Helper()
	return newScripts(func(name string) string {
		text, err := fs.ReadFile(from, name+".lua")
		must(t, err)
		source, found := string(text), 0
		for _, r := range [][3]string{
			{"head", "redis.call('TIME')", "{0, redis.call('GET', 'clock')}"},
			{"bucket", "max(1, ceil((max(full * s.tick, s.hold, last) + LINGER - now) / 1000))", "100000000"},
			{"bucket", "max(1, ceil((max(full * s.tick, s.hold) + LINGER - now) / 1000))", "100000000"}, // of the release before
			{"sliding", "max(1, ceil((max(last, s.hold) + LINGER - now) / 1000))", "100000000"},
			{"fixed", "max(1, ceil((max(last, s.hold) + LINGER - now) / 1000))", "100000000"},
			{"fixed", "max(1, ceil((max(s.ends, s.hold) + LINGER - now) / 1000))", "100000000"}, // of the release before
			{"slots", "ceil((max(s.hold, s.closed, s.holders > 0 and now + LEASED or now) + LINGER - now) / 1000)", "100000000"},
			{"slots", "ceil((max(s.hold, s.holders > 0 and now + LEASED or now) + LINGER - now) / 1000)", "100000000"}, // of the release before
		} {
			if r[0] != name {
				continue
			}
			found += strings.Count(source, r[1])
			source = strings.Replace(source, r[1], r[2], 1)
		}
		if found != 1 && name != "asks" {
			t.Fatalf("%s.lua has %d of the places to be replaced, and not one", name, found)
		}
		return source
	})
}

// TestScriptDecidesAsTheBook asks the script and the reference at random and compares every number of their responses.
func TestScriptDecidesAsTheBook(t *testing.T) { // slow: 40,000 calls of a Redis server
	redis := start(t)
	seeds, asks := uint64(4), 10_000
	if testing.Short() {
		seeds, asks = 1, 2_000
	}
	for seed := range seeds {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			c := redis.client(t)
			must(t, c.FlushAll(t.Context()).Err())
			m := newModel(t, c, seed)
			for range asks {
				m.step()
			}
			if m.granted < asks/10 || m.refused < asks/10 || m.returned < asks/100 || m.over < 10 || m.turns < asks/100 {
				t.Errorf("the run says little: %d granted, %d refused, %d returned, %d over, %d turns", m.granted, m.refused, m.returned, m.over, m.turns)
			}
		})
	}
}

// TestReleasesDecideTogether has processes of this release and of the one before, whose scripts are in testdata/previous, take turns with
// the same budgets: during a roll-out, together they decide as one Book, also if it is rolled back. Debts are left out, because the release
// before forgives some, and returns and holds of buckets and paces, because it numbers leases in another way, and lets a blocked bucket fill.
func TestReleasesDecideTogether(t *testing.T) {
	m := newModel(t, start(t).client(t), 1)
	m.before = modelScripts(t, os.DirFS("testdata/previous"))
	for range 2_000 {
		m.step()
	}
	if m.granted < 200 || m.refused < 200 || m.returned < 20 {
		t.Errorf("the run says little: %d granted, %d refused, %d returned", m.granted, m.refused, m.returned)
	}
}

// TestReleasesTakeTokensBack has each release take back what it leased, while the other one decides in between.
func TestReleasesTakeTokensBack(t *testing.T) {
	m := newModel(t, start(t).client(t), 1)
	now, before := m.store.scripts, modelScripts(t, os.DirFS("testdata/previous"))
	b := store.Budget{Kind: store.Bucket, Limit: "l", N: 10, Per: time.Second, Burst: 100, Initial: 100}
	for _, promised := range []bool{false, true} {
		for _, one := range []*scripts{now, before} {
			other := now
			if one == now {
				other = before
			}
			ask := func(s *scripts, p store.Part) store.LeasedPart {
				m.store.scripts = s
				return m.askOne(b, p)
			}
			b.Key += "+"
			if promised {
				ask(one, store.Part{Need: 100})
			}
			lease := ask(one, store.Part{Need: 40, Within: time.Minute})
			for range 20 {
				m.now += 1000
				ask(other, store.Part{Need: 1, Within: time.Minute})
				ask(one, store.Part{Need: 1, Within: time.Minute})
			}
			left := ask(one, store.Part{}).Left
			if got := ask(one, store.Part{Back: []store.Return{{Tokens: 30, Lease: lease.ID}}}).Left; got != left+30 {
				t.Errorf("promised %v, this release %v: 30 tokens came back, and %v left became %v", promised, one == now, left, got)
			}
			if got := ask(other, store.Part{Need: 1, Within: time.Minute}); got.Tokens != 1 || got.Left != left+29 {
				t.Errorf("promised %v, this release %v: the other one leases %d tokens, and %v are left", promised, one == now, got.Tokens, got.Left)
			}
		}
	}
}

// TestTheReleaseBeforeKeepsTheDebtOfAWindow has the release before decide about a window that is in debt. In a log, it keeps the debt. When a
// window of the clock ends, it forgives it, as it always did.
func TestTheReleaseBeforeKeepsTheDebtOfAWindow(t *testing.T) {
	m := newModel(t, start(t).client(t), 1)
	scripts := []*scripts{m.store.scripts, modelScripts(t, os.DirFS("testdata/previous"))}
	for kind, left := range map[store.Kind][]float64{store.Sliding: {-15, -15, -5, -5, 5, 5, 10}, store.Fixed: {-15, -15, 10}} {
		m.now -= m.now % 3_600_000_000
		for i, want := range left {
			p := store.Part{Owe: 25}
			if i > 0 {
				p = store.Part{Need: int64(max(1, want+1)) % 11}
			}
			m.store.scripts = scripts[i%2]
			got := m.askOne(store.Budget{Kind: kind, Limit: "l", N: 10, Per: time.Hour}, p)
			if got.Left != want || got.Tokens > 0 {
				t.Errorf("%s, %d h later: %d tokens were granted, and %v are left, want %v", kind, (i+1)/2, got.Tokens, got.Left, want)
			}
			if i%2 == 1 {
				m.now += 3_600_000_000
			}
		}
	}
}

// What a window counts at most, which the script has as a number of its own, is what a Book counts.
func TestAWindowCountsAsMuchAsThatOfABook(t *testing.T) {
	m := newModel(t, start(t).client(t), 1)
	for _, kind := range []store.Kind{store.Sliding, store.Fixed, store.Calendar} {
		b := store.Budget{Kind: kind, Limit: "l", N: 10, Per: time.Hour}
		for i := range b.Windows {
			b.Windows[i] = time.UnixMicro(m.now).Add(time.Duration(i-1) * time.Hour)
		}
		p := store.Part{Budget: b, Owe: 1000}
		want := store.NewBook().Lease(time.UnixMicro(m.now), []store.Ask{{Parts: []store.Part{p}}})[0].Parts[0].Left
		if got := m.askOne(b, p).Left; got != want || got >= 0 {
			t.Errorf("%s: %v tokens are left, and %v of a Book", kind, got, want)
		}
	}
}

// TestADebtOutlastsTheReleaseBefore has the release before decide about a budget that is in debt. It keeps what is owed, so that no more can
// be owed than without it.
func TestADebtOutlastsTheReleaseBefore(t *testing.T) {
	m := newModel(t, start(t).client(t), 1)
	before := modelScripts(t, os.DirFS("testdata/previous"))
	b := store.Budget{Kind: store.Bucket, Limit: "l", N: 1, Per: time.Hour, Burst: 100, Initial: 100}
	ask := func(p store.Part) store.LeasedPart { return m.askOne(b, p) }
	ask(store.Part{Owe: 160})
	m.store.scripts, before = before, m.store.scripts
	var last store.LeasedPart
	for range 20 {
		p := store.Part{Need: 1, Within: 1000 * time.Hour, Horizon: 1000 * time.Hour}
		if last.Tokens > 0 && m.IntN(2) == 0 {
			p.Back = []store.Return{{Tokens: 1, Lease: last.ID}}
		}
		last = ask(p)
	}
	m.store.scripts = before
	left := ask(store.Part{}).Left
	if got := ask(store.Part{Owe: 1000}).Left; got != left-40 {
		t.Errorf("%v tokens left %v, want %v: no more than the burst is owed", left, got, left-40)
	}
}

// TestTheReleaseBeforeForgetsAQueue has the release before decide about a window for which asks wait. It drops their turns, and keeps the rest.
func TestTheReleaseBeforeForgetsAQueue(t *testing.T) {
	m := newModel(t, start(t).client(t), 1)
	now, before := m.store.scripts, modelScripts(t, os.DirFS("testdata/previous"))
	for _, b := range []store.Budget{{Kind: store.Sliding, Limit: "l", N: 2, Per: time.Minute}, {Kind: store.Fixed, Limit: "l", N: 2, Per: time.Minute, Start: time.UnixMicro(m.now)}} {
		m.store.scripts = now
		queue := store.Part{Need: 2, Within: time.Hour, Queue: true}
		lease := m.askOne(b, queue)
		for i := range 3 {
			if got := m.askOne(b, queue); got.Turn != time.Duration(i+1)*time.Minute {
				t.Errorf("%s: turn %d is in %v", b.Kind, i, got.Turn)
			}
		}
		m.store.scripts = before
		if got := m.askOne(b, store.Part{Need: 1}); got.Tokens != 0 || got.Left != 0 || got.Wait != time.Minute {
			t.Errorf("%s: the release before: %+v", b.Kind, got)
		}
		m.store.scripts = now
		if got := m.askOne(b, queue); got.Left != 0 || got.Turn != time.Minute {
			t.Errorf("%s: after it: %+v", b.Kind, got)
		}
		m.store.scripts = before
		if got := m.askOne(b, store.Part{Back: []store.Return{{Tokens: 2, Lease: lease.ID}}}); got.Left != 2 {
			t.Errorf("%s: two tokens come back: %+v", b.Kind, got)
		}
	}
}

// askOne asks the scripts alone.
func (m *model) askOne(b store.Budget, p store.Part) store.LeasedPart {
	m.Helper()
	must(m.T, m.client.Set(m.Context(), "clock", m.now, 0).Err())
	m.store.clocks[0].best.Store(0)
	p.Budget = b
	leases, err := m.store.Lease(m.Context(), []store.Ask{{Parts: []store.Part{p}}})
	must(m.T, err)
	must(m.T, leases[0].Err)
	return leases[0].Parts[0]
}

type model struct {
	*testing.T
	*rand.Rand
	client  *redis.Client
	store   *Store
	book    *store.Book
	now     int64
	base    []store.Budget
	budgets []store.Budget
	seed    uint64
	before  *scripts                  // of the release before, which decide half of the calls; nil: none do
	had     map[string][]store.Return // by key of Redis
	has     map[string]int64          // slots, by key and holder
	places  []int64                   // the latest ones

	granted, refused, returned, over, turns int
}

func newModel(t *testing.T, c *redis.Client, seed uint64) *model {
	m := &model{
		T: t, Rand: rand.New(rand.NewPCG(seed, 1)), client: c, store: newStore(t, c), book: store.NewBook(), now: 1_763_800_000_123_456,
		seed: seed, had: make(map[string][]store.Return), has: make(map[string]int64), places: make([]int64, 8),
	}
	m.store.scripts = modelScripts(t, os.DirFS("scripts"))
	for _, key := range []string{"a", "b"} {
		m.base = append(m.base,
			store.Budget{Kind: store.Bucket, Limit: "l", Key: key, N: 100, Per: time.Second, Burst: 50, Initial: 50},
			store.Budget{Kind: store.Bucket, Limit: "odd", Key: key, N: 7, Per: 24 * time.Hour, Burst: 5, Initial: 3},
			store.Budget{Kind: store.Bucket, Limit: "ms", Key: key, N: 999_983, Per: 24 * time.Hour, Burst: 999_983, Initial: 1_000},
			store.Budget{Kind: store.Bucket, Limit: "s", Key: key, N: 999_999_937, Per: 24 * time.Hour, Burst: 999_999_937, Initial: 100},
			store.Budget{Kind: store.Bucket, Limit: "rounded", Key: key, N: 1_000_000, Per: 85_714_285_715, Burst: 700_000, Initial: 700_000},
			store.Budget{Kind: store.Bucket, Limit: "fast", Key: key, N: 20_000, Per: time.Second, Burst: 10, Initial: 10},
			store.Budget{Kind: store.Bucket, Limit: "deep", Key: key, N: 10, Per: time.Second, Burst: 100_000, Initial: 100_000},
			store.Budget{Kind: store.Pace, Limit: "l", Key: key, N: 30, Per: time.Second},
			store.Budget{Kind: store.Sliding, Limit: "l", Key: key, N: 20, Per: 300 * time.Millisecond},
			store.Budget{Kind: store.Sliding, Limit: "many", Key: key, N: 20_000, Per: 100 * time.Second},
			store.Budget{Kind: store.Fixed, Limit: "l", Key: key, N: 30, Per: 400 * time.Millisecond, Start: time.UnixMicro(123_457)},
			store.Budget{Kind: store.Calendar, Limit: "l", Key: key, N: 30, Per: 400 * time.Millisecond},
			store.Budget{Kind: store.Slots, Limit: "l", Key: key, N: 20},
		)
	}
	m.budgets = slices.Clone(m.base)
	return m
}

// step moves the clock, changes and loses budgets now and then, and asks.
func (m *model) step() {
	switch r := m.IntN(3000); {
	case r < 3:
		m.now -= m.Int64N(5_000_000)
	case r < 6 && m.seed%2 == 0:
		m.now += m.Int64N(3_600_000_000)
	case r < 12 && m.seed%2 == 0:
		m.now += m.Int64N(20_000_000)
	case r < 60:
		m.now += m.Int64N(200_000 << (m.seed % 4))
	case r < 1000:
		m.now += m.Int64N(20_000)
	}
	pipe := m.client.Pipeline()
	pipe.Set(m.Context(), "clock", m.now, 0)
	lost := m.IntN(len(m.budgets) * 200)
	for i := range m.budgets {
		b := &m.budgets[i]
		if i == lost || m.now >= m.book.Until(b).UnixMicro() {
			must(m.T, m.book.SetState(b, nil))
			pipe.Del(m.Context(), m.store.key(b))
		}
	}
	_, err := pipe.Exec(m.Context())
	must(m.T, err)
	if m.IntN(50) == 0 {
		i := m.IntN(len(m.budgets))
		m.budgets[i] = m.varied(m.base[i])
	}
	asks := make([]store.Ask, 1+m.IntN(4))
	for i := range asks {
		asks[i] = m.ask()
	}
	m.compare(asks)
}

// varied returns a budget with another rate and size.
func (m *model) varied(b store.Budget) store.Budget {
	b.N = 1 + m.Int64N(2*b.N)
	switch b.Kind {
	case store.Bucket:
		b.Burst = 1 + m.Int64N(2*b.Burst)
		b.Initial = m.Int64N(b.Burst + 1)
		if m.IntN(4) == 0 {
			b.Per = []time.Duration{time.Second, time.Minute, 86_399_999_999_999, 7 * time.Second / 3}[m.IntN(4)]
		}
	case store.Pace, store.Sliding, store.Fixed, store.Calendar:
		b.Per = b.Per/2 + time.Duration(m.Int64N(int64(b.Per)))
	}
	return b
}

// ask asks for one, two or three budgets.
func (m *model) ask() store.Ask {
	var a store.Ask
	first := m.IntN(len(m.budgets))
	parts := max(1, m.IntN(6)-2)
	for i := range parts {
		a.Parts = append(a.Parts, m.part(m.budgets[(first+i)%len(m.budgets)]))
	}
	return a
}

func promises(b store.Budget) bool { return b.Kind == store.Bucket || b.Kind == store.Pace }

func (m *model) part(b store.Budget) store.Part {
	most := b.N
	if b.Kind == store.Bucket {
		most = b.Burst
	}
	p := store.Part{Budget: b, Need: m.Int64N(min(most, 8) + 1), Since: time.Duration(m.Int64N(int64(30 * time.Second)))}
	p.Want = p.Need + m.Int64N(20)
	if b.Kind == store.Calendar {
		p.Budget.Windows = m.windows(b.Per)
	}
	p.Replace = m.IntN(100) == 0
	p.Whole = m.before == nil && m.IntN(4) == 0 // the processes of that release send neither
	if p.Queue = m.before == nil && p.Since%2 == 0; p.Queue {
		p.Queued = m.places[m.IntN(len(m.places))]
	}
	if m.IntN(10) == 0 {
		p.Need = min(most, p.Need*p.Need*p.Need)
		p.Want = m.Int64N(1 << 40)
	}
	if m.IntN(3) == 0 {
		p.Ahead = m.Int64N(20)
	}
	if m.IntN(2) == 0 {
		p.Horizon = time.Duration(m.Int64N(int64(100 * time.Millisecond)))
	}
	if m.IntN(4) == 0 {
		p.Within = time.Duration(m.Int64N(int64(5 * time.Second)))
	}
	switch m.IntN(300) {
	case 0:
		p.Hold = time.Duration(m.Int64N(int64(time.Second)))
	case 1:
		p.Hold = -1
	}
	if m.before != nil && promises(b) {
		p.Hold = 0
	}
	if m.IntN(12) == 0 {
		if p.Owe = m.Int64N(4); m.IntN(50) == 0 {
			p.Owe = m.Int64N(most + 3)
		}
		if m.before != nil {
			p.Owe = 0
		}
	}
	if b.Kind == store.Slots {
		p.Holder = fmt.Sprint("process-", m.IntN(4))
		if p.Held = m.Int64N(1 + m.has[b.Key+p.Holder]); m.IntN(200) == 0 { // it has slots that the store has forgotten
			p.Held = m.Int64N(50)
		}
		if m.IntN(100) > 0 {
			p.Since = store.MaxSince
		}
	}
	if m.before != nil && promises(b) {
		return p
	}
	key := m.store.key(&b)
	for len(m.had[key]) > 0 && m.IntN(2) == 0 {
		i := m.IntN(len(m.had[key]))
		r := m.had[key][i]
		m.had[key] = append(m.had[key][:i], m.had[key][i+1:]...)
		r.Tokens = m.Int64N(r.Tokens + 2)
		p.Back = append(p.Back, r)
		m.returned++
	}
	return p
}

// windows returns windows that are not of one length, by a clock that may be some windows off.
func (m *model) windows(per time.Duration) (all [4]time.Time) {
	i := m.now / per.Microseconds()
	if m.IntN(20) == 0 {
		i += m.Int64N(7) - 3
	}
	for k := range all {
		n := i + int64(k) - 1
		all[k] = time.UnixMicro(n*per.Microseconds() + n%3*10_000)
	}
	return all
}

func (m *model) compare(asks []store.Ask) {
	m.Helper()
	m.store.clocks[0].best.Store(0) // the clock of the test stands still between calls
	if m.before != nil && m.IntN(2) == 0 {
		m.store.scripts, m.before = m.before, m.store.scripts
	}
	got, err := m.store.Lease(m.Context(), asks)
	must(m.T, err)
	want := m.book.Lease(time.UnixMicro(m.now), asks)
	for i := range asks {
		if (got[i].Err == nil) != (want[i].Err == nil) {
			m.Fatalf("now %d, ask %+v:\nthe script: %v\nthe book: %v", m.now, asks[i], got[i].Err, want[i].Err)
		}
		if got[i].Err != nil {
			continue
		}
		for k := range got[i].Parts {
			if m.before != nil && promises(asks[i].Parts[k].Budget) {
				got[i].Parts[k].ID, want[i].Parts[k].ID = 0, 0
			}
		}
		if !reflect.DeepEqual(got[i].Parts, want[i].Parts) {
			m.Fatalf("now %d, ask %+v:\nthe script: %+v\nthe book:   %+v", m.now, asks[i], got[i].Parts, want[i].Parts)
		}
		for k, p := range got[i].Parts {
			if part := &asks[i].Parts[k]; part.Holder != "" {
				m.has[part.Budget.Key+part.Holder] = part.Held + p.Tokens
				m.over += int(p.Over)
			}
			if p.Turn > 0 {
				m.turns++
				m.places[m.turns%len(m.places)] = p.ID
			}
			if p.Tokens == 0 {
				m.refused++
				continue
			}
			m.granted++
			key := m.store.key(&asks[i].Parts[k].Budget)
			if m.had[key] = append(m.had[key], store.Return{Tokens: p.Tokens, Lease: p.ID}); len(m.had[key]) > 30 {
				m.had[key] = m.had[key][10:]
			}
		}
	}
}
