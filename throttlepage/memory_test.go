package throttlepage

import (
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// started returns a Page that reads by itself, until the test ends.
func started(t *testing.T, sources map[string]source, opts ...Option) *Page {
	p := newPage(sources, opts...)
	p.start()
	t.Cleanup(p.Close)
	return p
}

func TestPageReadsWithoutClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.each = func() { f.stats.Granted += 50 }
		p := started(t, map[string]source{"a": f})
		time.Sleep(5*time.Second - 1)
		synctest.Wait()
		assert.EqualValues(t, 1, f.read.Load())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		assert.EqualValues(t, 2, f.read.Load())
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		m := &p.views[0].memory
		assert.Len(t, m.ring, kept)
		assert.Equal(t, time.Hour-5*time.Second, m.span())
		for i := range m.ring {
			assert.Equal(t, float32(10), m.at(i).values[granted])
			assert.False(t, m.at(i).gap && i > 0)
		}
	})
}

func TestCloseEndsReadings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		p := started(t, map[string]source{"a": f})
		time.Sleep(12 * time.Second)
		p.Close()
		p.Close()
		before := f.read.Load()
		time.Sleep(time.Hour)
		assert.Equal(t, before, f.read.Load())
		assert.Contains(t, get(p, "/").Body.String(), "Nothing waits.", "a client still sees current figures")
		assert.Equal(t, before+1, f.read.Load())
	})
}

func TestEveryZeroReadsOnlyForClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		p := started(t, map[string]source{"a": f}, Every(0))
		time.Sleep(time.Hour)
		assert.Zero(t, f.read.Load())
		get(p, "/")
		assert.EqualValues(t, 1, f.read.Load())
	})
	for _, d := range []time.Duration{-1, 1, time.Second - 1} {
		assert.Panics(t, func() { New(nil, Every(d)) }, d)
	}
}

// A suspended machine, say: what was granted meanwhile is of no caller knows when.
func TestUnknownTimeIsGapInChart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		p := newPage(map[string]source{"a": f}, Every(0))
		look := func(n int, granted uint64) {
			for range n {
				p.frame(query{})
				time.Sleep(5 * time.Second)
				f.stats.Granted += granted
			}
		}
		look(11, 50)
		time.Sleep(10 * time.Minute)
		f.stats.Granted += 1_000_000
		look(11, 100)
		c := p.views[0].tiles(change{&sample{}, p.views[0].last()}, "")[0].Chart
		assert.Equal(t, 2, strings.Count(c.Path, "M"), c.Path)
		assert.Equal(t, "20/s", c.Top+c.Unit)
		assert.Equal(t, "granted: at most 20/s, now 20/s", c.Title)
	})
}

// A stretch of one height is two points, and a point alone is a dot.
func TestChartOfFewValuesIsShort(t *testing.T) {
	m := memory{}
	add := func(gap bool, values ...float32) {
		for _, v := range values {
			p := point{at: int64(m.n) * 5000, gap: gap}
			p.values[waiting], gap = v, false
			m.ring, m.n = append(m.ring, p), m.n+1
		}
	}
	path := func() string {
		return m.chartOf("", "", func(p *point) float64 { return float64(p.values[waiting]) }).Path
	}
	add(false, 5)
	assert.Empty(t, path(), "one point is no line")
	add(false, 5, 5, 5, 10, 0)
	assert.Equal(t, "M140,20 200,20 220,0 240,40", path())
	add(true, 7)
	assert.Equal(t, "M120,20 180,20 200,0 220,40 M240,12h.1", path())
}

func TestFullChartHas120Points(t *testing.T) {
	m := memory{}
	for i := range 5 * kept {
		s := sample{at: time.Unix(int64(5*i), 0), stats: throttle.Stats{Waiting: i % 7 * (i % 2)}}
		m.take(&s, 5*time.Second)
	}
	c := m.chartOf("waiting", "", func(p *point) float64 { return float64(p.values[waiting]) })
	assert.LessOrEqual(t, strings.Count(c.Path, ","), chartBins+1)
	assert.Equal(t, "10", c.Top)
	assert.Equal(t, time.UnixMilli(c.To).UTC().Format("15:04"), c.End)
	assert.Equal(t, time.Hour-5*time.Second, time.Duration(c.To-c.From)*time.Millisecond)
}

func TestCeilingIsRound(t *testing.T) {
	for x, want := range map[float64]float64{0: 1, 0.3: 0.5, 1: 1, 1.1: 2, 4: 5, 5: 5, 7: 10, 212: 500, 1e6: 1e6} {
		assert.InEpsilon(t, want, ceiling(x), 1e-9, x)
	}
}

func TestEventsHaveTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{
			limits: []throttle.LimitStats{{Name: "x", Rate: 20}},
			stores: []throttle.StoreStats{{Limits: []string{"x"}, Up: true}},
		}
		p := started(t, map[string]source{"a": f})
		step := func(happens func()) {
			f.change(happens)
			time.Sleep(5 * time.Second)
			synctest.Wait()
		}
		step(func() {})
		step(func() {
			f.limits[0].Rejected[throttle.ReasonMaxWait] += 3
			f.stats.Rejected[throttle.ReasonMaxWait] += 3
		})
		step(func() {
			f.limits[0].Rejected[throttle.ReasonMaxWait] += 4
			f.stats.Rejected[throttle.ReasonMaxWait] += 4
		})
		step(func() {})
		step(func() {
			f.limits[0].Rejected[throttle.ReasonMaxWait]++
			f.limits[0].Rejected[throttle.ReasonQueueFull] += 2
		})
		step(func() { f.limits[0].Retunes[throttle.CauseThrottled]++; f.limits[0].Rate = 10 })
		step(func() {
			f.stats.ServerRefused += 3
			f.stats.Holds.Server++
			f.servers = []throttle.ServerStats{{Host: "h", Refused: 2, HeldUntil: time.Now().Add(35 * time.Second)}}
		})
		step(func() { // two accounts are refused by one host
			f.stats.ServerRefused += 6
			f.servers = []throttle.ServerStats{{Host: "h", Refused: 3}, {Host: "h", Account: "x", Refused: 4}, {Host: "i", Refused: 1}}
		})
		step(func() { f.stores[0].Up, f.stores[0].Err = false, assert.AnError })
		step(func() { f.stores[0].Up, f.limits[0].Evicted = true, 9 })
		var got []string
		for _, e := range p.views[0].diary.latest() {
			v := viewOfEvent(&e)
			got = append(got, strings.ReplaceAll(v.when()+" "+v.Text, "\u00a0", " "))
		}
		assert.Equal(t, []string{
			"00:00:45–00:00:50 9 keys of limit “x” forgotten to make room",
			"00:00:50 the store of limit “x” is reachable again",
			"00:00:45 the store of limit “x” is unreachable: " + assert.AnError.Error(),
			"00:00:40 1 request refused by i",
			"00:00:30–00:00:40 7 requests refused by h",
			"00:00:35 1 hold set by a server: h is held for 30 s",
			"00:00:35 1 request refused by servers",
			"00:00:30 limit “x” 20/s → 10/s: throttled",
			"00:00:25 1 request rejected by limit “x”: max wait",
			"00:00:20–00:00:25 2 requests rejected by limit “x”: queue full",
			"00:00:05–00:00:15 7 requests rejected by limit “x”: max wait",
		}, got)
		require.Len(t, p.frame(query{}).state[0].Events, len(got))
	})
}

func TestLast100EventsAreKept(t *testing.T) {
	d := diary{}
	for i := range 1000 {
		at := time.Unix(int64(10*i), 0)
		d.add(event{from: at, to: at.Add(5 * time.Second), kind: kindHeld, n: 1})
	}
	assert.Len(t, d.events, pages)
	assert.Equal(t, time.Unix(9995, 0), d.latest()[0].to)
}

func TestChartsAreSentWhenTheyHaveChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.each = func() { f.stats.Granted += 7 }
		p := started(t, map[string]source{"a": f})
		time.Sleep(time.Minute + time.Second/2)
		v := &viewer{}
		v.watch(t.Context(), p)
		time.Sleep(11 * time.Second)
		v.mu.Lock()
		defer v.mu.Unlock()
		var with []int
		for i, e := range v.events {
			if strings.Contains(e, "svg") {
				with = append(with, i)
			}
		}
		assert.Equal(t, []int{0, 5, 10}, with)
	})
}

func TestFilterAndSort(t *testing.T) {
	f := busy(time.Now())
	p := newPage(map[string]source{"a": f})
	keys := func(path string) (all []string) {
		for _, k := range p.frame(queryOf(request(http.MethodGet, path))).state[0].Keys {
			all = append(all, k.Key)
		}
		return all
	}
	assert.Equal(t, []string{"zenith", "acme"}, keys("/"))
	assert.Equal(t, []string{"acme", "zenith"}, keys("/?sort=key"))
	assert.Equal(t, []string{"zenith", "acme"}, keys("/?sort=left"))
	assert.Equal(t, []string{"zenith", "acme"}, keys("/?sort=nonsense"))
	assert.Equal(t, []string{"acme"}, keys("/?q=%20ACM"))
	assert.Equal(t, []string{"zenith", "acme"}, keys("/?q=tenants"), "by the name of the limit, too")
	assert.Empty(t, keys("/?q=nothing"))
	assert.Len(t, p.frame(query{Filter: "uploads"}).state[0].Servers, 1)
	assert.Contains(t, get(p, "/?q=%22%3E%3Cb%3E&sort=key").Body.String(), `value="&#34;&gt;&lt;b&gt;"`)

	hidden := newPage(map[string]source{"a": f}, HideKeys())
	assert.Empty(t, hidden.frame(query{Filter: "acme"}).state[0].Keys, "a hidden name cannot be guessed")
}

// A server accepts a megabyte of them.
func TestLongQueryIsCutBeforeAnythingElse(t *testing.T) {
	f := &fake{buckets: []throttle.BucketStats{{Limit: "a", Key: strings.Repeat("X", 2*longest)}, {Limit: "a", Key: "y"}}}
	r := request(http.MethodGet, "/?q="+strings.Repeat("X", 1<<20))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	q := queryOf(r)
	runtime.ReadMemStats(&after)
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<10))
	assert.Len(t, newPage(map[string]source{"a": f}).frame(q).state[0].Keys, 1, "it finds the name that is shown")
}

func TestWorstLimitersComeFirst(t *testing.T) {
	sources := map[string]source{
		"a": &fake{}, "b": &fake{stats: throttle.Stats{Waiting: 1}}, "c": &fake{stats: throttle.Stats{Rejected: throttle.Counts[throttle.Reason]{throttle.ReasonCost: 1}}}, "d": &fake{},
		"e": &fake{}, "f": &fake{}, "g": &fake{},
	}
	v := newPage(sources).frame(query{}).view
	var names, open string
	for _, l := range v.Limiters {
		names += l.Name
		if l.Open {
			open += l.Name
		}
	}
	assert.Equal(t, "cbadefg", names)
	assert.Equal(t, "cb", open, "of many Limiters, the others are folded")
	assert.Equal(t, "5 others", v.Calm.Text, "and counted at the top")
	assert.Equal(t, v.Limiters[2].ID, v.Calm.ID)
	delete(sources, "b")
	assert.Empty(t, newPage(sources).frame(query{}).view.Calm, "six are listed")
	sources["b"], sources["c"] = &fake{}, &fake{}
	assert.Equal(t, "7 Limiters", newPage(sources).frame(query{}).view.Calm.Text)
}

func TestTextIsThePageInPlainText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPage(map[string]source{"github": busy(time.Now()), "idle": &fake{}})
		text := get(p, "/text").Body.String()
		for _, want := range []string{
			"throttle, 00:00:00 UTC\n", "\ngithub: rejecting. 3 requests rejected. api.example.com is held for 34 s.\n",
			"  learned   23.4/s  0.8         12       9          0    0    0         below, ceiling 26/s\n",
			"  zenith  tenants 10/s  −4 / 20  29       2.9 s    held 5 s\n", "\nidle: flowing. Nothing waits.\n",
		} {
			assert.Contains(t, text, want)
		}
		assert.Equal(t, "text/plain; charset=utf-8", get(p, "/text").Header().Get("Content-Type"))
		assert.NotContains(t, get(p, "/text?limiter=l1").Body.String(), "github")
	})
}

// Changes of a rate are one event only if they follow each other. Where a rate had several causes to change, the event says so.
func TestEventsOfARateKeepTheirDirections(t *testing.T) {
	d, at := diary{}, time.Now()
	limit := throttle.LimitStats{Name: "x", Rate: 8}
	step := func(rate float64, causes ...throttle.Cause) {
		before := limit
		limit.Rate = rate
		for _, c := range causes {
			limit.Retunes[c]++
		}
		d.noteRetunes(event{from: at, to: at.Add(time.Second), limit: "x"}, &limit, &before)
		at = at.Add(time.Second)
	}
	step(9, throttle.CauseGrowth)
	step(10, throttle.CauseGrowth)
	step(7, throttle.CauseThrottled)
	step(8, throttle.CauseGrowth)
	step(6, throttle.CauseGrowth, throttle.CauseThrottled)
	step(5, throttle.CauseGrowth, throttle.CauseThrottled)
	var got []string
	for i := range d.events {
		got = append(got, d.events[i].text())
	}
	assert.Equal(t, []string{
		"limit “x” 8/s → 10/s: growth", "limit “x” 10/s → 7/s: throttled", "limit “x” 7/s → 8/s: growth",
		"limit “x” changed 2 rates: growth", "limit “x” changed 2 rates: throttled",
	}, got)
}

// Limiters of one state are in the order of what they reject, and then of how many requests wait.
func TestLimitersThatRejectTheMostComeFirst(t *testing.T) {
	rejects := func(n uint64, waiting int) *fake {
		return &fake{stats: throttle.Stats{Waiting: waiting, Rejected: throttle.Counts[throttle.Reason]{throttle.ReasonMaxWait: n}}}
	}
	p := newPage(map[string]source{"a": rejects(0, 0), "b": rejects(3, 0), "c": rejects(0, 7), "d": rejects(1005, 0), "e": rejects(3, 2), "f": rejects(0, 1)})
	var got []string
	for _, l := range p.frame(query{}).view.Limiters {
		got = append(got, strings.TrimSpace(l.Name+" "+l.Word+" "+l.Count))
	}
	assert.Equal(t, []string{"d rejecting 1,005", "e rejecting 3", "b rejecting 3", "c waiting 7", "f waiting 1", "a flowing"}, got)
}
