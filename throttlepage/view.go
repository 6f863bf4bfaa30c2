package throttlepage

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/httpthrottle/throttle"
)

const serverLimit = "server" // name and kind of the limit that stands for what servers have reported

// A view is what the template shows. All texts are ready, except that the template escapes them.
type view struct {
	At       string
	Filter   string
	Brief    bool // without charts: the client has them
	Limiters []limiterView
	Calm     calm
}

// calm stands for the Limiters that need no attention, where there are too many to be listed one by one at the top.
type calm struct{ ID, Text string } // of the first one, and how many there are

type limiterView struct {
	ID, Name string
	Level    string // ok, busy or bad: a class of page.css
	Word     string
	Count    string // of what Word says; "": it counts nothing
	Says     string // what a reader should know first
	DryRun   bool
	Open     bool // shown whole, and not only as a line
	Tiles    []tile
	Since    string       // over which time waits and rejections are counted
	Charts   string       // over which time the charts are; "": there are none so far
	Members  []memberView // of a Pool, and all of them together
	Limits   []limitView
	Stores   []storeView
	Servers  []serverView
	Keys     []keyView
	Events   []eventView

	OfServers, OfKeys, OfEvents string // how many are shown if it is unfolded; "": no more

	rejected uint64 // over the time of Since
	waiting  int
}

// severity ranks levels.
var severity = map[string]int{"bad": 2, "busy": 1}

// bySeverity puts the Limiters first that need attention: those that reject the most, and then those at which the most requests wait.
func bySeverity(a, b limiterView) int {
	return cmp.Or(severity[b.Level]-severity[a.Level], cmp.Compare(b.rejected, a.rejected), cmp.Compare(b.waiting, a.waiting), cmp.Compare(a.Name, b.Name))
}

// fold shows the first Limiters whole if there are few, and otherwise the first of those that need attention.
func (v *view) fold() {
	const whole = 6
	few := len(v.Limiters) <= whole
	for i := range v.Limiters {
		v.Limiters[i].Open = few || i < whole && v.Limiters[i].Level != "ok"
	}
	i := slices.IndexFunc(v.Limiters, func(l limiterView) bool { return l.Level == "ok" })
	switch n := len(v.Limiters) - i; {
	case few || i < 0:
	case i == 0:
		v.Calm = calm{v.Limiters[0].ID, plural(uint64(n), "Limiter")}
	default:
		v.Calm = calm{v.Limiters[i].ID, plural(uint64(n), "other")}
	}
}

// A tile is one figure.
type tile struct {
	Label, Value, Note string
	Level              string
	Chart              chart
}

type eventView struct {
	At    string // time, of the end
	Since string // of the beginning, if that is another
	Kind  string
	Text  string
	Level string
}

type limitView struct {
	Name, Kind, Rate string
	Level            string
	Learned          chart
	Mode, Ceiling    string // what else is known of its rate
	Means            string // what Mode means
	Left             gauge
	Keys             string
	Waiting          string
	InFlight         string
	P50, P90         string // of the waits of all requests, those that did not wait included
	Rejected         string
	Held             string
	Unread           string // how many responses
	Warning          string
}

type serverView struct {
	Host, Held string
	More       string
	Quotas     []quotaView
}

// A storeView is what is shown of the store of shared limits.
type storeView struct {
	Limits, Level, State              string
	Calls, Failed, Outages            string // over the time of Since
	P50, P90                          string // of the times of calls
	Leased, Returned, Alone, Troubles string
}

type quotaView struct {
	Name, Unit string
	Left       gauge
	Reset      string
}

type keyView struct {
	Key, Limit, Rate string
	Left             gauge
	Waiting, Next    string
	Held             string
	Level            string
}

// view returns what is shown of the last reading, and of what a query finds.
func (l *watched) view(now time.Time, w *selection) limiterView {
	last, first := l.last(), &sample{} // counters since the Limiter was made
	v := limiterView{ID: l.id, Name: printable(l.name), Since: "since the start"}
	if len(l.history) > 1 {
		first = &l.history[0]
		v.Since = "last " + duration(rounded(last.at.Sub(first.at)))
	}
	c := change{first, last}
	v.rejected, v.waiting = c.rejected(), last.stats.Waiting
	v.Level, v.Word, v.Count, v.Says = l.verdict(c, w, now)
	v.DryRun = last.stats.DryRun
	v.Tiles = l.tiles(c, v.Since)
	if d := l.memory.span(); d > 0 {
		v.Charts = "last " + duration(rounded(d))
	}
	if last.pool != nil {
		v.Members = viewOfMembers(c, now)
	}
	for i := range last.limits {
		if li := &last.limits[i]; li.Kind != throttle.KindNone && (li.Kind != serverLimit || len(w.servers) > 0 || li.Unread > 0) {
			v.Limits = append(v.Limits, l.limitView(i, li, c, now))
		}
	}
	for i := range last.stores {
		v.Stores = append(v.Stores, viewOfStore(i, c))
	}
	for i := range w.servers {
		v.Servers = append(v.Servers, viewOfServer(&w.servers[i], now))
	}
	for i := range w.keys {
		v.Keys = append(v.Keys, viewOfKey(&w.keys[i], now))
	}
	for _, e := range l.diary.latest() {
		v.Events = append(v.Events, viewOfEvent(&e))
	}
	v.OfServers = more(len(v.Servers), w.served, "servers and their keys, those that ask to wait first")
	v.OfKeys = more(len(v.Keys), w.matched, "keys")
	v.OfEvents = more(len(v.Events), len(v.Events), "events")
	return v
}

func viewOfEvent(e *event) eventView {
	v := eventView{At: e.to.UTC().Format("15:04:05"), Kind: string(e.kind), Text: e.text(), Level: e.level()}
	if e.n > 1 && e.to.Sub(e.from) > 2*time.Second {
		v.Since = e.from.UTC().Format("15:04:05")
	}
	return v
}

// more returns how many of all are shown, if they are folded.
func more(shown, all int, what string) string {
	const folded = 6 // as in page.css
	if shown <= folded {
		return ""
	}
	return count(uint64(shown)) + " of " + count(uint64(max(shown, all))) + " " + what
}

// rounded returns d in whole minutes, or in seconds if it is less than one.
func rounded(d time.Duration) time.Duration {
	if d >= time.Minute {
		return d.Round(time.Minute)
	}
	return d.Round(time.Second)
}

func (l *watched) tiles(c change, since string) []tile {
	s := &c.last.stats
	chart := func(title, unit string, f figure) chart {
		return l.memory.chartOf(title, unit, func(p *point) float64 { return float64(p.values[f]) })
	}
	all := tile{Label: "granted", Value: count(s.Granted - s.Undone), Note: percent(s.Delayed, s.Granted) + " waited"}
	if len(l.history) > 1 {
		all.Label, all.Note = "granted per second", all.Value+" in all, "+all.Note
		all.Value = number(l.perSecond())
	}
	all.Chart = chart("granted", "/s", granted)
	return []tile{
		all,
		{Label: "waiting now", Value: number(float64(s.Waiting)), Note: c.waits(), Level: level(s.Waiting > 0, "busy"), Chart: chart("waiting", "", waiting)},
		{Label: "rejected", Value: count(c.rejected()), Note: since + inAll(s.Rejected.Total(), s.Rejected.String()), Level: level(c.rejected() > 0, "bad"), Chart: chart("rejected", "/s", rejected)},
		{Label: "refused by servers", Value: count(c.refused()), Note: since + inAll(s.ServerRefused, count(s.ServerRefused)), Level: c.refusedLevel(), Chart: chart("refused by servers", "/s", refused)},
	}
}

// inAll returns a note about n since the start.
func inAll(n uint64, text string) string {
	if n == 0 {
		return ", none in all"
	}
	return ", " + text + " in all"
}

// quiet returns the class of a figure that says that there is nothing.
func quiet(figure string) string {
	if figure == "0" || figure == none || figure == "now" {
		return " quiet"
	}
	return ""
}

func level(is bool, name string) string {
	if is {
		return name
	}
	return ""
}

func (l *watched) limitView(i int, li *throttle.LimitStats, c change, now time.Time) limitView {
	before := c.first.limit(li.Name)
	waits := waitsOf(li, &before)
	v := limitView{
		Name: printable(li.Name), Rate: rate(li.Rate),
		Waiting: number(float64(li.Waiting)), InFlight: none,
		P50: waits.quantile(0.5), P90: waits.quantile(0.9),
		Rejected: count(grown(li.Rejected.Total(), before.Rejected.Total())),
		Held:     held(li.HeldUntil, now),
		Level:    level(li.Waiting > 0, "busy"),
		Warning:  printable(li.Warning),
	}
	if li.Unread > 0 {
		v.Unread = plural(li.Unread, "compressed response") + " unread"
	}
	if li.Kind != li.Name { // as it is by default
		v.Kind = strings.ReplaceAll(li.Kind, "-", " ")
	}
	if li.InFlight > 0 || li.Kind == throttle.KindInFlight || li.Kind == throttle.KindAdaptive || li.Kind == throttle.KindAdaptiveInFlight {
		v.InFlight = number(float64(li.InFlight))
	}
	switch {
	case li.Kind == serverLimit:
		v.Kind, v.Left = "reported by servers", gauge{Text: none}
	case li.Keyed:
		v.Keys = plural(uint64(li.Keys), "key")
	default:
		v.Left = gaugeOf(li.Tokens, li.Capacity)
		v.Mode, v.Ceiling = noteOf(l.single[li.Name], now)
		v.Means = modes[v.Mode]
		v.Learned = l.memory.chartOf("rate", "/s", func(p *point) float64 {
			if i < len(p.rates) {
				return float64(p.rates[i])
			}
			return 0
		})
		if v.Learned.flat {
			v.Learned = chart{}
		}
	}
	return v
}

// modes says what the modes of learned rates mean, as the documentation of throttle.LearnedStats does.
var modes = map[string]string{
	throttle.ModeStart:   "The rate doubles until there is a first sign of too much.",
	throttle.ModeBelow:   "The rate approaches the ceiling, at which there last was too much.",
	throttle.ModeAbove:   "The rate has passed the ceiling and grows faster and faster.",
	throttle.ModeSteady:  "The rate stays where it is for a while: requests do not use all of it, or it has just changed.",
	throttle.ModePaused:  "A server asked to wait.",
	throttle.ModeSilence: "Responses do not come, so only probes are sent.",
	throttle.ModeVisit:   "A lower number in flight is tried for a moment, to compare the latencies.",
	throttle.ModeCeiling: "Refusals say how many requests may be in flight.",
}

// noteOf returns what a limit without keys has learned, or when its window ends.
func noteOf(b throttle.BucketStats, now time.Time) (mode, ceiling string) {
	switch {
	case b.Learned != nil && b.Rate == 0 && b.Learned.InFlightMost > 0: // of an AdaptiveInFlight limit
		return b.Learned.Mode, "at most " + number(float64(b.Learned.InFlightMost)) + " in flight"
	case b.Learned != nil && b.Learned.Ceiling > 0:
		return b.Learned.Mode, "ceiling " + rate(b.Learned.Ceiling)
	case b.Learned != nil:
		return b.Learned.Mode, ""
	case b.Reset.After(now):
		return "", "resets in " + duration(b.Reset.Sub(now))
	}
	return "", ""
}

func viewOfServer(s *throttle.ServerStats, now time.Time) serverView {
	v := serverView{Host: s.Host, Held: held(s.HeldUntil, now)}
	if v.Held != "" && s.Guessed {
		v.Held += ", guessed"
	}
	var more []string
	if s.Account != "" {
		more = append(more, s.Account)
	}
	if s.For != "" {
		more = append(more, printable(s.For))
	}
	if s.Final != nil {
		more = append(more, "no waiting helps: "+printable(s.Final.String()))
	}
	if s.Pace > 0 {
		then := "paced at " + rate(s.Pace)
		if v.Held != "" {
			then = "then " + rate(s.Pace)
		}
		if s.PaceWhy != "" {
			then += ", " + s.PaceWhy
		}
		more = append(more, then)
	}
	if s.Refused > 0 {
		more = append(more, "refused "+count(s.Refused))
	}
	if s.Last != nil {
		more = append(more, "last "+count(uint64(s.Last.Status))+" "+duration(now.Sub(s.Last.At))+" ago, "+s.Last.Verdict.String())
	}
	v.More = strings.Join(more, " · ")
	for _, q := range s.Quotas {
		shown := quotaView{Name: q.Name, Left: quotaGauge(q), Reset: none}
		if q.Unit != q.Name {
			shown.Unit = q.Unit
		}
		if q.Reset.After(now) {
			shown.Reset = duration(q.Reset.Sub(now))
		}
		if q.HeldUntil.After(now) {
			shown.Left.Text += ", next in " + duration(q.HeldUntil.Sub(now))
		}
		v.Quotas = append(v.Quotas, shown)
	}
	return v
}

func viewOfStore(i int, c change) storeView {
	now, before := &c.last.stores[i], throttle.StoreStats{}
	if i < len(c.first.stores) {
		before = c.first.stores[i]
	}
	calls := grown(now.OK+now.Failed+now.Setup, before.OK+before.Failed+before.Setup)
	failed := grown(now.Failed+now.Setup, before.Failed+before.Setup)
	leased := grown(now.Leased, before.Leased)
	var times waits
	for k, n := range now.Latency.Counts {
		times.some = append(times.some, grown(n, before.Latency.Counts[k]))
	}
	v := storeView{
		Limits: limitsOf(now), State: "reachable", Calls: count(calls), Failed: count(failed), Outages: count(grown(now.Outages, before.Outages)),
		P50: times.quantile(0.5), P90: times.quantile(0.9), Leased: count(leased), Returned: count(grown(now.Returned, before.Returned)),
		Alone: count(grown(now.Alone, before.Alone)), Level: level(failed > 0, "busy"),
	}
	if !now.Up {
		v.Level, v.State = "bad", "unreachable"
	}
	var troubles []string
	if n := grown(now.Differs, before.Differs); n > 0 {
		troubles = append(troubles, "another process has a stricter rule")
	}
	if n := grown(now.Faulty, before.Faulty); n > 0 {
		troubles = append(troubles, plural(n, "ask")+" about an unreadable budget")
	}
	v.Troubles = strings.Join(troubles, ", ")
	return v
}

// limitsOf returns which limits use a store.
func limitsOf(s *throttle.StoreStats) string {
	names := make([]string, len(s.Limits))
	for i, name := range s.Limits {
		names[i] = "“" + printable(name) + "”"
	}
	return strings.Join(names, ", ")
}

func viewOfKey(b *throttle.BucketStats, now time.Time) keyView {
	v := keyView{
		Key: b.Key, Limit: printable(b.Limit), Rate: rate(b.Rate), Left: gaugeOf(b.Tokens, b.Capacity),
		Waiting: number(float64(b.Waiting)), Held: held(b.HeldUntil, now), Level: level(b.Waiting > 0, "busy"),
		Next: duration(b.Wait),
	}
	if b.Wait <= 0 {
		v.Next = "now"
	}
	return v
}

// quotaGauge returns what is left of a quota, of which a server may not say everything.
func quotaGauge(q throttle.QuotaStats) gauge {
	switch {
	case q.Left < 0 && q.Limit < 0:
		return gauge{Text: none}
	case q.Left < 0:
		return gauge{Text: "? / " + number(float64(q.Limit))}
	}
	return gaugeOf(float64(q.Left), float64(q.Limit))
}

// held returns the time until then, "" if it has passed.
func held(until, now time.Time) string {
	if !until.After(now) {
		return ""
	}
	return duration(until.Sub(now))
}
