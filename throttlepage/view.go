package throttlepage

import (
	"fmt"
	"strings"
	"time"

	"github.com/httpthrottle/throttle"
)

const serverLimit = "server" // name and kind of the limit that stands for what servers have said

// A view is what the template shows. All texts are ready, except that the template escapes them.
type view struct {
	At       string
	Limiters []limiterView
}

type limiterView struct {
	Name    string
	Level   string // ok, busy or bad: a class of page.css
	Word    string
	Says    string // what a reader should know first
	DryRun  bool
	Tiles   []tile
	Since   string // over which time waits and rejections are counted
	Limits  []limitView
	Servers []serverView
	Keys    []keyView

	OfServers, OfKeys string // how many are shown if it is unfolded; "": no more
}

// A tile is one figure.
type tile struct {
	Label, Value, Note string
	Level              string
	Line               line
}

type limitView struct {
	Name, Kind, Rate string
	Level            string
	Learned          line
	Note             string // what else is known of its rate
	Left             gauge
	Keys             string
	Waiting          string
	InFlight         string
	P50, P90         string // of the waits of all requests, those that did not wait included
	Rejected         string
	Held             string
}

type serverView struct {
	Host, Held string
	More       string
	Quotas     []quotaView
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

// view returns what is shown of the last reading.
func (l *watched) view(now time.Time) limiterView {
	last, first := l.last(), &sample{} // counters since the Limiter was made
	v := limiterView{Name: printable(l.name), Since: "since the start"}
	if len(l.history) > 1 {
		first = &l.history[0]
		v.Since = "last " + duration(rounded(now.Sub(first.at)))
	}
	c := change{first, last}
	v.Level, v.Word, v.Says = l.verdict(c, now)
	v.DryRun = last.stats.DryRun
	v.Tiles = l.tiles(c, v.Since)
	for i := range last.limits {
		if li := &last.limits[i]; li.Kind != "none" && (li.Kind != serverLimit || len(l.servers) > 0) {
			v.Limits = append(v.Limits, l.limitView(li, c, now))
		}
	}
	for i := range l.servers {
		v.Servers = append(v.Servers, viewOfServer(&l.servers[i], now))
	}
	for i := range l.keys {
		v.Keys = append(v.Keys, viewOfKey(&l.keys[i], now))
	}
	v.OfServers = more(len(v.Servers), l.served, "servers and their keys, those that ask to wait first")
	v.OfKeys = more(len(v.Keys), last.stats.Buckets, "keys, the longest queues first")
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
	granted := tile{Label: "granted", Value: count(s.Granted - s.Undone), Note: percent(s.Delayed, s.Granted) + " waited"}
	if len(l.history) > 1 {
		granted.Label, granted.Note = "granted per second", granted.Value+" in all, "+granted.Note
		granted.Value = number(l.perSecond())
		granted.Line = lineOf(l.history, "granted per second", grantedPerSecond)
	}
	waiting := tile{Label: "waiting now", Value: number(float64(s.Waiting)), Note: c.waits(), Level: level(s.Waiting > 0, "busy")}
	waiting.Line = lineOf(l.history, "waiting", func(_, b *sample) float64 { return float64(b.stats.Waiting) })
	return []tile{
		granted, waiting,
		{Label: "rejected", Value: count(c.rejected()), Note: since + inAll(s.Refused.Total(), s.Refused.String()), Level: level(c.rejected() > 0, "bad")},
		{Label: "refused by servers", Value: count(c.refused()), Note: since + inAll(s.ServerRefused, count(s.ServerRefused)), Level: c.refusedLevel()},
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

// verdict returns how the Limiter is in a word and a sentence or two.
func (l *watched) verdict(c change, now time.Time) (level, word, says string) {
	var all []string
	tell := func(lv, w, format string, args ...any) {
		if len(all) == 0 {
			level, word = lv, w
		}
		all = append(all, fmt.Sprintf(format, args...))
	}
	if c.refusedLevel() == "bad" {
		tell("bad", "refused", "Servers refused %s.", plural(c.refused(), "request"))
	}
	if n := c.rejected(); n > 0 {
		tell("bad", "rejecting", "%s rejected.", plural(n, "request"))
	}
	if held := l.heldBy(now); held != "" {
		tell("busy", "held", "%s.", held)
	}
	if n := c.last.stats.Waiting; n > 0 {
		tell("busy", "waiting", "%s waiting%s.", plural(uint64(n), "request"), c.mostly())
	}
	if len(all) == 0 {
		tell("ok", "flowing", "Nothing waits.")
	}
	return level, word, strings.Join(all[:min(2, len(all))], " ")
}

// mostly returns which limit requests waited for the longest.
func (c change) mostly() string {
	name := c.slowest()
	if name == "" {
		return ""
	}
	return ", mostly for limit “" + name + "”"
}

// heldBy returns which server, or which limit without keys, is held and for how long.
func (l *watched) heldBy(now time.Time) string {
	if len(l.servers) > 0 && l.servers[0].HeldUntil.After(now) { // the longest is first
		return fmt.Sprintf("%s asks to wait for %s", l.servers[0].Host, duration(l.servers[0].HeldUntil.Sub(now)))
	}
	for _, li := range l.last().limits {
		if !li.Keyed && li.HeldUntil.After(now) {
			return fmt.Sprintf("Limit “%s” is held for %s", printable(li.Name), duration(li.HeldUntil.Sub(now)))
		}
	}
	return ""
}

func (l *watched) limitView(li *throttle.LimitStats, c change, now time.Time) limitView {
	before := c.first.limit(li.Name)
	waits := waitsOf(li, &before)
	v := limitView{
		Name: printable(li.Name), Rate: rate(li.Rate),
		Waiting: number(float64(li.Waiting)), InFlight: none,
		P50: waits.quantile(0.5), P90: waits.quantile(0.9),
		Rejected: count(grown(li.Refused.Total(), before.Refused.Total())),
		Held:     held(li.HeldUntil, now),
		Level:    level(li.Waiting > 0, "busy"),
	}
	if li.Kind != li.Name { // as it is by default
		v.Kind = strings.ReplaceAll(li.Kind, "-", " ")
	}
	if li.InFlight > 0 || li.Kind == "in-flight" || li.Kind == "adaptive" {
		v.InFlight = number(float64(li.InFlight))
	}
	switch {
	case li.Kind == serverLimit:
		v.Kind, v.Left = "what servers said", gauge{Text: none}
	case li.Keyed:
		v.Keys = plural(uint64(li.Keys), "key")
	default:
		v.Left, v.Note = gaugeOf(li.Tokens, li.Capacity), noteOf(l.single[li.Name], now)
		v.Learned = lineOf(l.history, "rate", func(_, b *sample) float64 { return b.limit(li.Name).Rate })
		if v.Learned.flat {
			v.Learned = line{}
		}
	}
	return v
}

// noteOf returns what a limit without keys has learned, or when its window ends.
func noteOf(b throttle.BucketStats, now time.Time) string {
	switch {
	case b.Learned != nil && b.Learned.Ceiling > 0:
		return b.Learned.Mode + ", ceiling " + rate(b.Learned.Ceiling)
	case b.Learned != nil:
		return b.Learned.Mode
	case b.Reset.After(now):
		return "resets in " + duration(b.Reset.Sub(now))
	}
	return ""
}

func viewOfServer(s *throttle.ServerStats, now time.Time) serverView {
	v := serverView{Host: s.Host, Held: held(s.HeldUntil, now)}
	var more []string
	if s.Party != "" {
		more = append(more, s.Party)
	}
	if s.Pace > 0 {
		more = append(more, "then "+rate(s.Pace))
	}
	if s.Refused > 0 {
		more = append(more, "refused "+count(s.Refused))
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
		v.Quotas = append(v.Quotas, shown)
	}
	return v
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

// held returns for how long until, "" if that is over.
func held(until, now time.Time) string {
	if !until.After(now) {
		return ""
	}
	return duration(until.Sub(now))
}
