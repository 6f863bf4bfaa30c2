package throttlepage

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTopIsStartOfSorted(t *testing.T) {
	var all []int
	for i := range 1000 {
		all = append(all, i*7919%1009%50) // with duplicates
	}
	got, n := top(slices.Values(all), cmp.Compare[int])
	slices.Sort(all)
	assert.Equal(t, all[:most], got)
	assert.Equal(t, 1000, n)
	got, n = top(slices.Values([]int{2, 1}), cmp.Compare[int])
	assert.Equal(t, []int{1, 2}, got)
	assert.Equal(t, 2, n)
	got, n = top(slices.Values([]int(nil)), cmp.Compare[int])
	assert.Empty(t, got)
	assert.Zero(t, n)
}

func TestLongestQueuesAreShown(t *testing.T) {
	f := &fake{}
	for i := range 2000 {
		f.buckets = append(f.buckets, throttle.BucketStats{Limit: "tenants", Key: fmt.Sprint("key-", i), Waiting: i * 17 % 2000})
	}
	p := newPage(map[string]source{"a": f})
	keys := p.frame(query{}).state[0].Keys
	assert.Len(t, keys, most)
	for i := range keys {
		assert.Equal(t, 1999-i, keys[i].Waiting)
	}
}

func TestKeysAreCutInEveryPart(t *testing.T) {
	long := strings.Repeat("x", 1000)
	f := &fake{
		buckets: []throttle.BucketStats{{Limit: "a", Key: long}},
		servers: []throttle.ServerStats{{Host: long, Account: long, Quotas: []throttle.QuotaStats{{Name: long, Unit: long}}}},
	}
	for part, text := range all(t, newPage(map[string]source{"a": f})) {
		assert.NotContains(t, text, long[:longest+1], part)
		assert.Contains(t, text, long[:longest], part)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPage(map[string]source{"a": &fake{limits: []throttle.LimitStats{{Name: "x"}}}})
		for range 1000 {
			p.frame(query{})
			time.Sleep(fresh)
		}
		l := p.views[0]
		assert.Len(t, l.history, readings)
		assert.Less(t, cap(l.history), 4*readings)
		assert.Equal(t, span, l.last().at.Sub(l.history[0].at))
		time.Sleep(span)
		p.frame(query{})
		assert.Len(t, l.history, 1, "what was not looked at is not shown")
	})
}

func TestManyKeysAreReadSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		few := &fake{stats: throttle.Stats{Buckets: many}}
		crowd := &fake{stats: throttle.Stats{Buckets: many + 1}}
		p := newPage(map[string]source{"few": few, "crowd": crowd})
		for range 20 {
			p.frame(query{})
			time.Sleep(fresh)
		}
		assert.EqualValues(t, 20, few.walked.Load())
		assert.EqualValues(t, 4, crowd.walked.Load())
		assert.EqualValues(t, 20, crowd.read.Load())
	})
}

// Whatever they look for: each reading of all keys takes the Limiter's lock many times.
func TestViewersShareWalksOfAllKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		few, crowd := keys(100), keys(copied)
		p := newPage(map[string]source{"crowd": crowd, "few": few})
		for i := range 30 {
			q := query{Filter: fmt.Sprint("key-", i), Sort: orders[i%len(orders)].Name}
			assert.Equal(t, q.Filter, p.frame(q).state[1].Keys[0].Key)
			time.Sleep(fresh / 10)
		}
		assert.EqualValues(t, 3, few.walked.Load(), "in 3 s")
		assert.EqualValues(t, 1, crowd.walked.Load())
	})
}

func TestTooManyKeysAreNotCopied(t *testing.T) {
	f := keys(copied + 1)
	p := newPage(map[string]source{"a": f})
	for i := range 3 {
		q := query{Filter: fmt.Sprint("key-", i)}
		assert.Equal(t, q.Filter, p.frame(q).state[0].Keys[0].Key)
	}
	assert.Empty(t, p.views[0].all.keys)
	assert.EqualValues(t, 3, f.walked.Load())
}

func TestCopyOfKeysIsForgottenWithoutClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := started(t, map[string]source{"a": keys(100)})
		p.frame(query{})
		p.mu.Lock()
		l := p.views[0]
		assert.Len(t, l.all.keys, 100)
		p.mu.Unlock()
		time.Sleep(2 * seldom)
		synctest.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		assert.Empty(t, l.all)
		assert.Empty(t, l.found)
	})
}

// keys returns a source with so many keys.
func keys(n int) *fake {
	f := &fake{stats: throttle.Stats{Buckets: n}}
	for i := range n {
		f.buckets = append(f.buckets, throttle.BucketStats{Limit: "a", Key: fmt.Sprint("key-", i)})
	}
	return f
}

func TestFiguresAreOfTheLastTwoMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{
			stats:  throttle.Stats{Granted: 1000, Rejected: throttle.Counts[throttle.Reason]{throttle.ReasonDeadline: 7}, ServerRefused: 5},
			limits: []throttle.LimitStats{{Name: "x", Granted: 1000, Delayed: 1000}},
		}
		f.limits[0].Waits.Counts[12] = 1000 // up to 10 s each
		p := newPage(map[string]source{"a": f})
		first := p.views[0].viewed(p)
		assert.Equal(t, "7", first.Tiles[2].Value)
		assert.Equal(t, "since the start, 7 (deadline 7) in all", first.Tiles[2].Note)
		assert.Equal(t, "7.5\u00a0s", first.Limits[0].P50)
		assert.Equal(t, "rejecting", first.Word)
		for range 10 {
			time.Sleep(fresh)
			f.stats.Granted += 20
			f.limits[0].Granted += 20
			p.frame(query{})
		}
		later := p.views[0].viewed(p)
		assert.Equal(t, "20", later.Tiles[0].Value, "granted per second")
		assert.Equal(t, "0", later.Tiles[2].Value)
		assert.Equal(t, "last 10\u00a0s, 7 (deadline 7) in all", later.Tiles[2].Note)
		assert.Equal(t, "0", later.Limits[0].P50)
		assert.Equal(t, "flowing", later.Word)
		assert.Equal(t, "M220,0 240,0", later.Tiles[0].Chart.Path, "one point in 5 s")
	})
}

func (l *watched) viewed(p *Page) limiterView {
	p.frame(query{})
	return l.view(time.Now(), l.find(time.Now(), query{}, plainNames))
}

func TestVerdict(t *testing.T) {
	now := time.Now()
	for says, f := range map[string]*fake{
		"flowing: Nothing waits.":                           {},
		"waiting: 1 request waiting.":                       {stats: throttle.Stats{Waiting: 1}, limits: []throttle.LimitStats{{Name: "a", Waiting: 1}}},
		"waiting: 1 request waiting, mostly for limit “b”.": {stats: throttle.Stats{Waiting: 1}, limits: []throttle.LimitStats{{Name: "a", Waiting: 1}, {Name: "b", Waiting: 1, Waits: throttle.Waits{Sum: 1}}}},
		"waiting: 1 request waiting; the last is sent in 5\u00a0s.": {
			stats: throttle.Stats{Waiting: 1}, limits: []throttle.LimitStats{{Name: "server", Kind: throttle.KindServer, Keyed: true}}, forecast: due(5*time.Second, false),
		},
		"waiting: 1 request waiting; the last is sent in 5\u00a0s at the earliest.": {stats: throttle.Stats{Waiting: 1}, forecast: due(5*time.Second, true)},
		"waiting: 1 request waiting. ":                                              {stats: throttle.Stats{Waiting: 1}, forecast: due(math.MaxInt64, true)},
		"waiting: 1 request waiting.  ":                                             {stats: throttle.Stats{Waiting: 1}, limits: []throttle.LimitStats{{Name: "a", Keyed: true}}, forecast: due(5*time.Second, false)},
		"held: Limit “a” is held for 5\u00a0s.":                                     {limits: []throttle.LimitStats{{Name: "a", HeldUntil: now.Add(5 * time.Second)}}},
		"held: h is held for 2\u00a0min.":                                           {servers: []throttle.ServerStats{{Host: "g"}, {Host: "h", HeldUntil: now.Add(2 * time.Minute)}}},
		"held: h asks to wait for 2\u00a0min (too fast).": {
			servers: []throttle.ServerStats{{Host: "g"}, {Host: "h", HeldUntil: now.Add(2 * time.Minute), Last: &throttle.LastRefusal{Status: 429, Verdict: throttle.VerdictTooFast, Until: now.Add(time.Minute)}}},
		},
		"held: h is held for 2\u00a0min (closed).": {
			servers: []throttle.ServerStats{{Host: "h", HeldUntil: now.Add(2 * time.Minute), Guessed: true, Last: &throttle.LastRefusal{Status: 429, Verdict: throttle.VerdictClosed}}},
		},
		"waiting: 1 request waiting, mostly for what servers reported.": {stats: throttle.Stats{Waiting: 1}, limits: []throttle.LimitStats{{Name: "server", Kind: throttle.KindServer, Keyed: true, Waits: throttle.Waits{Sum: 1}}}},
		"waiting: 3 requests waiting, mostly for a quota of h: 2 of 20 left, resets in 9\u00a0s.": {
			stats: throttle.Stats{Waiting: 3}, limits: []throttle.LimitStats{{Name: "server", Kind: throttle.KindServer, Keyed: true, Waits: throttle.Waits{Sum: 1}}},
			servers: []throttle.ServerStats{{Host: "g", Quotas: []throttle.QuotaStats{{Name: "default", Limit: 10, Left: 5}, {Name: "day", Limit: -1, Left: -1}}},
				{Host: "h", Quotas: []throttle.QuotaStats{{Name: "default", Limit: 20, Left: 2, Reset: now.Add(9 * time.Second)}}}},
		},
		"waiting: 9 requests waiting, mostly for limit “a”; most wait at key “k” (7).": {
			stats: throttle.Stats{Waiting: 9}, limits: []throttle.LimitStats{{Name: "a", Keyed: true, Waiting: 9, Waits: throttle.Waits{Sum: 1}}},
			buckets: []throttle.BucketStats{{Limit: "a", Key: "j", Waiting: 2}, {Limit: "a", Key: "k", Waiting: 7}, {Limit: "a", Key: "l"}},
		},
		"held: Limit “a” is held for 5\u00a0s; ReleaseAll ends a hold of this program.": {
			stats: throttle.Stats{Holds: throttle.HoldCounts{Caller: 1}}, limits: []throttle.LimitStats{{Name: "a", HeldUntil: now.Add(5 * time.Second)}},
		},
		"held: Key “k” of limit “a” is held for 5\u00a0s; Release ends a hold of this program.": {
			stats: throttle.Stats{Holds: throttle.HoldCounts{Caller: 1}}, limits: []throttle.LimitStats{{Name: "a", Keyed: true}},
			buckets: []throttle.BucketStats{{Limit: "a", Key: "j"}, {Limit: "a", Key: "k", HeldUntil: now.Add(5 * time.Second)}},
		},
		"rejecting: 5 requests rejected, mostly by limit “b” (no tokens).": {
			stats: throttle.Stats{Rejected: throttle.Counts[throttle.Reason]{throttle.ReasonNoTokens: 4, throttle.ReasonKeys: 1}},
			limits: []throttle.LimitStats{{Name: "a", Rejected: throttle.Counts[throttle.Reason]{throttle.ReasonKeys: 1}},
				{Name: "b", Rejected: throttle.Counts[throttle.Reason]{throttle.ReasonNoTokens: 4}}},
		},
		"rejecting: 5 requests rejected by a quota of h: 0 of 20 left, resets in 9\u00a0s (held). h asks to wait for 9\u00a0s (quota empty).": {
			stats:  throttle.Stats{Rejected: throttle.Counts[throttle.Reason]{throttle.ReasonHeld: 5}},
			limits: []throttle.LimitStats{{Name: "server", Kind: throttle.KindServer, Keyed: true, Rejected: throttle.Counts[throttle.Reason]{throttle.ReasonHeld: 5}}},
			servers: []throttle.ServerStats{{Host: "h", HeldUntil: now.Add(9 * time.Second), Last: &throttle.LastRefusal{Status: 429, Verdict: throttle.VerdictQuota, Until: now.Add(9 * time.Second)},
				Quotas: []throttle.QuotaStats{{Name: "default", Limit: 20, Left: 0, Reset: now.Add(9 * time.Second)}}}},
		},
		"refused: h refuses, and no waiting helps: no_credit: Pay. Once that is mended, ForgetServer ends it. 2 requests rejected.": {
			stats:   throttle.Stats{Rejected: throttle.Counts[throttle.Reason]{throttle.ReasonFinal: 2}},
			servers: []throttle.ServerStats{{Host: "g", HeldUntil: now.Add(time.Minute)}, {Host: "h", Final: &throttle.FinalStats{Code: "no_credit", Message: "Pay."}}},
		},
		"rejecting: 2 requests rejected.":                          {stats: throttle.Stats{Rejected: throttle.Counts[throttle.Reason]{throttle.ReasonMaxWait: 2}}},
		"refused: Servers refused 1 request. 2 requests rejected.": {stats: throttle.Stats{Waiting: 3, ServerRefused: 1, Rejected: throttle.Counts[throttle.Reason]{throttle.ReasonMaxWait: 2}}},
		"flowing: Nothing waits.  ":                                {stats: throttle.Stats{Granted: 100, ServerRefused: 1}},
		"refused: Servers refused 2 requests.":                     {stats: throttle.Stats{Granted: 199, ServerRefused: 2}},
		// A learned rate is found by refusals, each of which it answers by a lower rate.
		"flowing: Nothing waits.   ": {stats: throttle.Stats{Granted: 126, ServerRefused: 17}, limits: []throttle.LimitStats{
			{Name: "a", Kind: "adaptive", Keyed: true, Retunes: throttle.Counts[throttle.Cause]{throttle.CauseThrottled: 11}},
		}},
		"flowing: Nothing waits.    ": {stats: throttle.Stats{Granted: 1200, ServerRefused: 62}, limits: []throttle.LimitStats{
			{Name: "a", Kind: "adaptive-in-flight"}, {Name: "b", Kind: "adaptive", Retunes: throttle.Counts[throttle.Cause]{throttle.CauseThrottled: 2}},
		}},
		"refused: Servers refused 63 requests.": {stats: throttle.Stats{Granted: 1200, ServerRefused: 63}, limits: []throttle.LimitStats{
			{Name: "b", Kind: "adaptive", Retunes: throttle.Counts[throttle.Cause]{throttle.CauseThrottled: 2}},
		}},
		"refused: Servers refused 14 requests.": {stats: throttle.Stats{Granted: 14, ServerRefused: 14}, limits: []throttle.LimitStats{
			{Name: "a", Kind: "adaptive", Retunes: throttle.Counts[throttle.Cause]{throttle.CauseThrottled: 9}},
		}},
		"flowing: Nothing waits. ": {limits: []throttle.LimitStats{{Name: "a", Keyed: true, HeldUntil: now.Add(time.Hour)}}},
	} {
		l := &watched{source: f}
		l.read(now, plainNames)
		v := l.view(now, l.find(now, query{}, plainNames))
		assert.Equal(t, strings.TrimSpace(says), v.Word+": "+v.Says)
		assert.Equal(t, v.Level != "ok" && v.Word != "held" && v.Word != "no store", v.Count != "", "%s: %s", says, v.Count)
	}
}

// The row of a server says why it refused last, and whether the end of its hold is a guess.
func TestTheRowOfAServerHasItsVerdict(t *testing.T) {
	now := time.Now()
	s := throttle.ServerStats{Host: "h", HeldUntil: now.Add(5 * time.Second), Refused: 3, Last: &throttle.LastRefusal{Status: 429, Verdict: throttle.VerdictTooMany, At: now.Add(-2 * time.Second)}}
	v := viewOfServer(&s, now)
	assert.Equal(t, "5\u00a0s", v.Held)
	assert.Equal(t, "refused 3 · last 429 2\u00a0s ago, too many at a time", v.More)
	s.Guessed = true
	assert.Equal(t, "5\u00a0s, guessed", viewOfServer(&s, now).Held)
	assert.Empty(t, viewOfServer(&s, now.Add(time.Minute)).Held)
}

// due returns a forecast in which the last request that waits is sent after d.
func due(d time.Duration, least bool) (f throttle.Forecast) {
	f.Tenths[9], f.Least = d, least
	return f
}

func TestLimiterWithoutLimitsHasNoRows(t *testing.T) {
	l, err := throttle.NewLimiter()
	require.NoError(t, err)
	p := newPage(map[string]source{"a": l})
	assert.Empty(t, p.views[0].viewed(p).Limits)
}

func TestCanceledWaitsAreCounted(t *testing.T) {
	f := &fake{stats: throttle.Stats{Canceled: 12}}
	p := newPage(map[string]source{"a": f})
	assert.Equal(t, "p90 wait –, 12 gave up", p.views[0].viewed(p).Tiles[1].Note)
}
