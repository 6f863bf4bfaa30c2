package throttle

import (
	"cmp"
	"encoding/json"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/concurrency"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
)

// LimitStats are the counters and gauges of one limit, over all of its keys. It is a plain value, and prints as one line.
//
// A request counts as granted in each limit that charged it. Delayed, Canceled, Rejected and Waits count it in only one limit:
// the one that it would have waited for the longest.
//
// The limit "server" stands for the quotas and holds of servers. Its tokens are requests.
type LimitStats struct {
	Name  string `json:"name"`
	Kind  string `json:"kind"`  // bucket, pace, sliding-window, fixed-window, calendar-window, in-flight, adaptive, server, or none without limits
	Keyed bool   `json:"keyed"` // requests have keys in this limit, or some had one; in an adaptive limit, there were two keys at a time

	// Gauges
	Rate      float64   `json:"rate"`                // tokens per second: as set, or as learned by an Adaptive limit that is not Keyed; 0: none
	Capacity  float64   `json:"capacity"`            // tokens when full, as set: the burst, the n of a window, slots; 0: no bound
	Tokens    float64   `json:"tokens"`              // balance now of a limit that is not Keyed; negative: debt; +Inf, in JSON null: no bound
	Keys      int       `json:"keys"`                // buckets kept now, except the one of the key ""
	Waiting   int       `json:"waiting"`             // requests in the queue that this limit applies to
	Callers   int       `json:"callers,omitempty"`   // callers of these, where the limit has FairBy; one that waits for several keys counts for each
	InFlight  int       `json:"in_flight"`           // requests without a response yet, for Adaptive limits and servers; slots in use
	HeldUntil time.Time `json:"held_until,omitzero"` // the latest end of the holds of all keys; zero: none is held

	// Counters
	Granted  uint64       `json:"granted"`  // requests that it was charged for
	Undone   uint64       `json:"undone"`   // of these, the ones that were never used; see Stats
	Delayed  uint64       `json:"delayed"`  // requests granted after a wait for this limit
	Canceled uint64       `json:"canceled"` // requests whose context ended while they waited for this limit
	Rejected Rejections   `json:"rejected"` // requests rejected because of this limit
	Waits    Waits        `json:"waits"`    // the waits of Delayed
	Charged  uint64       `json:"charged"`  // tokens charged, including those by which a settlement raised a cost
	Returned uint64       `json:"returned"` // tokens of Charged that were given back; for InFlight, slots that are free again
	Holds    uint64       `json:"holds"`    // holds set
	Retunes  RetuneCounts `json:"retunes"`  // changes of learned rates
	Evicted  uint64       `json:"evicted"`  // keys forgotten before they were full again, to make room
}

// Waits is a histogram of the waits of the requests that had to wait.
type Waits struct {
	Counts [19]uint64    `json:"counts"` // Counts[i]: of waits up to WaitBounds()[i], and longer than the bound before; the last has no bound
	Sum    time.Duration `json:"sum"`    // in seconds as JSON
}

// WaitBounds returns the upper bounds of [Waits], from 1 ms to 1 h. The slice is a copy.
func WaitBounds() []time.Duration { return append([]time.Duration(nil), bucket.WaitBounds[:]...) }

// Limits returns the state of each limit over all of its keys, in the order of the limits. The last entry is the limit "server":
// the requests that quotas and holds of servers have delayed, rejected and let through. Limits takes the lock for a few
// microseconds, however many keys there are.
func (l *Limiter) Limits() []LimitStats {
	l.mustBeMade()
	all := make([]LimitStats, 0, len(l.core.Limits)+1)
	l.core.LookAtLimits(func(li *bucket.Limit, keys, callers int, now meter.Instant) {
		s := l.limitStatsLocked(li, now)
		s.Keys, s.Callers = keys, callers
		all = append(all, s)
	})
	return all
}

func (l *Limiter) limitStatsLocked(li *bucket.Limit, now meter.Instant) LimitStats {
	c := &li.Counts
	s := LimitStats{
		Name: li.Name, Kind: string(l.policyOf(li).kind), Keyed: li.Keyed || li.Gates, Waiting: c.Waiting, InFlight: li.InFlight(),
		Granted: c.Granted, Undone: c.Undone, Delayed: c.Delayed, Canceled: c.Canceled, Rejected: rejections(&c.Refused), Waits: Waits(c.Waits),
		Charged: c.Charged, Returned: c.Returned, Holds: c.Holds, Retunes: retuneCounts(&c.Retunes), Evicted: c.Evicted,
	}
	if b := li.Single; b != nil {
		s.Capacity = b.Capacity()
		if !li.Keyed {
			b = li.Only()
			s.Rate, s.Tokens = b.PerSecond(now), b.Meter.Tokens(now)
		} else if _, learns := b.Meter.(meter.Rater); !learns {
			s.Rate = li.Shared(li.Rate).PerSecond()
		}
	}
	if held := max(li.AllHeldUntil(), li.KeysHeldUntil()); held > now {
		s.HeldUntil = l.core.Start.Add(time.Duration(held))
	}
	return s
}

// BucketStats is the state of one bucket: of one limit for one key. It prints as one line.
type BucketStats struct {
	Limit     string        `json:"limit"`
	Key       string        `json:"key"`                 // "" if requests have no key; the host, in an adaptive limit of a Transport without keys
	Rate      float64       `json:"rate"`                // tokens per second; 0 for what a server reported, and for InFlight
	Capacity  float64       `json:"capacity"`            // tokens when full: the burst, the n of a window, slots; 0: no bound
	Per       string        `json:"per,omitzero"`        // the length of a window, for people, such as "24h" or "month"; "" for other limits
	Tokens    float64       `json:"tokens"`              // balance now; negative: debt; +Inf, in JSON null: no bound
	Wait      time.Duration `json:"wait"`                // the wait of a request of cost 1 that arrived now: a lower bound with several limits, Adaptive or InFlight; math.MaxInt64: forever
	Waiting   int           `json:"waiting"`             // requests in the queue that this bucket applies to
	Callers   int           `json:"callers,omitempty"`   // callers of these, where the limit has FairBy
	InFlight  int           `json:"in_flight"`           // requests without a response yet, for Adaptive and InFlight limits and servers
	HeldUntil time.Time     `json:"held_until,omitzero"` // end of a hold; zero: not held
	Reset     time.Time     `json:"reset,omitzero"`      // end of the window of a FixedWindow or CalendarWindow; zero: there is none
	Learned   *LearnedStats `json:"learned,omitzero"`    // what an Adaptive or AdaptiveInFlight limit knows; nil: it is none
}

// LearnedStats is what an [Adaptive] limit has learned about a key besides its rate, or what an [AdaptiveInFlight] limit has
// learned.
type LearnedStats struct {
	Ceiling      float64 `json:"ceiling"`        // rate at the last sign of overload, in tokens per second, or requests in flight; 0: there was none
	InFlightMost int     `json:"in_flight_most"` // requests that may be in flight
	// Elasticity is, for an AdaptiveInFlight limit, the rise of the latency in percent for one percent more requests in flight: 0
	// if the server worked on these requests, 1 if they only waited.
	Elasticity float64 `json:"elasticity,omitzero"`
	// Mode is how the rate changes: start (it doubles, because there was no sign of overload yet), below (it approaches the
	// ceiling), above (it moves away from the ceiling), steady (it stays for a while), paused (after Retry-After) or silence (only probes
	// are sent). For an AdaptiveInFlight limit it is start, steady, visit (a lower number is tried), ceiling (refusals bound the
	// number) or paused (after several refusals in a row).
	Mode string `json:"mode"`
}

// Buckets yields the state of every bucket that is kept, each at about the time at which it is yielded, in no particular order.
// Buckets of limits without keys have the key "". An unused bucket of the key "" is omitted where requests have keys, and in a
// Limiter without limits. Quotas and holds of a server that bound requests now are buckets of the limit "server", one for each
// resource that the server counts separately. Their key is the host and the keys by which requests are counted there.
//
// Buckets takes the lock repeatedly, each time for about 0.3 ms and at most 1,024 buckets, so that requests are not delayed for
// longer. For figures of all keys together, [Limiter.Limits] is faster.
func (l *Limiter) Buckets() iter.Seq[BucketStats] {
	l.mustBeMade()
	return func(yield func(BucketStats) bool) {
		var stats []BucketStats
		l.core.Look(func(b *bucket.Bucket, now meter.Instant) { stats = append(stats, l.bucketStatsLocked(b, now)) }, func() bool {
			for i := range stats {
				if !yield(stats[i]) {
					return false
				}
			}
			stats = stats[:0]
			return true
		})
	}
}

// Bucket returns the state of one bucket. It reports false if there is no such limit, or no bucket for that key, because a full
// bucket is forgotten within about a second. For what servers reported see [Limiter.Servers].
func (l *Limiter) Bucket(limit, key string) (BucketStats, bool) {
	l.mustBeMade()
	li, err := l.named(limit)
	if err != nil {
		return BucketStats{}, false
	}
	var s BucketStats
	ok := l.core.LookAt(li, key, func(b *bucket.Bucket, now meter.Instant) { s = l.bucketStatsLocked(b, now) })
	return s, ok
}

func (l *Limiter) bucketStatsLocked(b *bucket.Bucket, now meter.Instant) BucketStats {
	s := BucketStats{
		Limit: b.Limit.Name, Key: b.Key, Rate: b.PerSecond(now), Capacity: b.Capacity(), Tokens: b.Meter.Tokens(now),
		Wait: b.Wait(now), Waiting: b.Waiting(), Callers: b.Callers(),
	}
	if b.Limit.Windowed {
		s.Per = l.policyOf(b.Limit).windowText(b.Rate().Per)
	}
	if m, ok := b.Meter.(meter.Flier); ok {
		s.InFlight = int(m.InFlight())
	}
	if held := b.HeldUntil(); held > now {
		s.HeldUntil = l.core.Start.Add(time.Duration(held))
	}
	if m, ok := b.Meter.(meter.Turner); ok {
		if turns := m.Turns(now); turns < meter.Never {
			s.Reset = l.core.Start.Add(time.Duration(turns)).Round(time.Millisecond) // the clocks of time.Time differ a little
		}
	}
	if m, ok := b.Meter.(*aimd.Meter); ok {
		ceiling, most, mode := m.Bounds(now)
		s.Learned = &LearnedStats{Ceiling: ceiling, InFlightMost: most, Mode: mode}
	}
	if m, ok := b.Meter.(*concurrency.Meter); ok {
		n, ceiling, elasticity, mode := m.Bounds(now)
		s.Learned = &LearnedStats{Ceiling: ceiling, InFlightMost: int(n), Elasticity: elasticity, Mode: mode}
	}
	return s
}

// ServerStats is what one server has reported about its limits, to requests that it counts under the same keys. It prints as one line.
type ServerStats struct {
	Host      string       `json:"host"`
	Account   string       `json:"account,omitzero"`    // the keys by which requests are counted there, besides the host, with spaces between; "" if there are none
	HeldUntil time.Time    `json:"held_until,omitzero"` // end of a hold; zero: not held
	Pace      float64      `json:"pace"`                // requests per second that are sent one by one after a refusal; 0: no pace
	Refused   uint64       `json:"refused"`             // responses by which it refused, while it is remembered
	Final     *FinalStats  `json:"final,omitempty"`     // a refusal that no waiting ends, because of which requests are rejected; nil: there is none
	Quotas    []QuotaStats `json:"quotas,omitzero"`     // by name
}

// FinalStats is a refusal that no waiting ends; see [ReasonFinal].
type FinalStats struct {
	Code    string    `json:"code"`    // as in FinalError
	Message string    `json:"message"` //
	Since   time.Time `json:"since"`
	AskAt   time.Time `json:"ask_at"` // from then on, the next request is sent, to ask whether it still holds
}

// String returns what the server said, for people.
func (f *FinalStats) String() string { return (&FinalError{f.Code, f.Message}).Error() }

// QuotaStats is the known state of a quota of a server.
type QuotaStats struct {
	Name     string    `json:"name"` // "default" if the server does not name it
	Unit     string    `json:"unit"` // such as requests or tokens
	Limit    int64     `json:"limit"`
	Left     int64     `json:"left"`           // -1, as for Limit: not known, for example after ForgetServer; requests in flight are not subtracted
	InFlight int64     `json:"in_flight"`      // requests whose responses may report that less is left
	Reset    time.Time `json:"reset,omitzero"` // zero: not known
}

// Servers returns what servers have reported, as far as it is still remembered, ordered by host. It takes the lock for at most 64
// servers at once.
func (l *Limiter) Servers() []ServerStats {
	l.mustBeMade()
	var all []ServerStats
	for some := range l.accounts() {
		all = l.appendServers(all, some)
	}
	slices.SortFunc(all, func(x, y ServerStats) int {
		return cmp.Or(cmp.Compare(x.Host, y.Host), cmp.Compare(x.Account, y.Account))
	})
	return all
}

// Server returns what one server has reported, as [Limiter.Servers] does: an entry for each set of keys by which it counts requests.
// The host is as [ByHost] returns it.
func (l *Limiter) Server(host string) []ServerStats {
	l.mustBeMade()
	var all []ServerStats
	for some := range l.core.AccountsAt(host) {
		all = l.appendServers(all, some)
	}
	slices.SortFunc(all, func(x, y ServerStats) int { return cmp.Compare(x.Account, y.Account) })
	return all
}

// accounts yields all accounts at servers, a few at a time.
func (l *Limiter) accounts() iter.Seq[[]*quota.Account] {
	return l.core.AccountsIf(func(*quota.Key) bool { return true })
}

func (l *Limiter) appendServers(all []ServerStats, some []*quota.Account) []ServerStats {
	l.core.LookAtAccounts(some, func(a *quota.Account, now meter.Instant) {
		if s := l.serverStatsLocked(a, now); s.Pace > 0 || s.Final != nil || s.Refused > 0 || s.Quotas != nil || !s.HeldUntil.IsZero() {
			all = append(all, s)
		}
	})
	return all
}

func (l *Limiter) serverStatsLocked(a *quota.Account, now meter.Instant) ServerStats {
	s := ServerStats{Host: a.Key.Host, Account: a.Key.Account(), Refused: uint64(a.Limited)}
	if held := a.Until(); held > now {
		s.HeldUntil = l.core.Start.Add(time.Duration(held))
	}
	if said, since, ask := a.Final(); said != nil {
		e := said.(*FinalError)
		s.Final = &FinalStats{e.Code, e.Message, l.core.Start.Add(time.Duration(since)), l.core.Start.Add(time.Duration(ask))}
	}
	pace, quotas := a.State(now)
	s.Pace = pace
	for _, q := range quotas {
		stats := QuotaStats{Name: q.Name, Unit: cmp.Or(q.Unit, "requests"), Limit: q.Limit, Left: q.Left, InFlight: q.InFlight}
		if q.Reset < meter.Never {
			stats.Reset = l.core.Start.Add(time.Duration(q.Reset))
		}
		s.Quotas = append(s.Quotas, stats)
	}
	return s
}

// This file shows statistics: as text, as JSON with durations in seconds and names in snake case, and in logs.

// String returns the counters in one line, for people.
func (s Stats) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "granted %d%s, rejected %v, canceled %d", s.Granted, waitedText(s.Delayed, s.Waited, ""), s.Rejected, s.Canceled)
	if s.Exempt > 0 {
		fmt.Fprintf(&b, ", exempt %d", s.Exempt)
	}
	if s.ServerRefused > 0 {
		fmt.Fprintf(&b, ", refused by servers %d", s.ServerRefused)
	}
	fmt.Fprintf(&b, "; %d waiting now", s.Waiting)
	return b.String()
}

// waitedText returns how many requests waited, and how long on average; "" if none did.
func waitedText(n uint64, sum time.Duration, more string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d waited, %v on average%s)", n, rounded(time.Duration(uint64(sum)/n), false), more)
}

// mostText returns a bound that nine of ten waits did not exceed; "" if there were none.
func (w Waits) mostText() string {
	all := uint64(0)
	for _, n := range w.Counts {
		all += n
	}
	if all == 0 {
		return ""
	}
	rest, bounds := 0.9*float64(all), WaitBounds()
	for i, n := range w.Counts[:len(bounds)] {
		if rest -= float64(n); rest <= 0 {
			return ", 90 % of these at most " + bounds[i].String()
		}
	}
	return ", 10 % of these more than " + bounds[len(bounds)-1].String()
}

// MarshalJSON returns an object with a member for each field; waited is in seconds.
func (s Stats) MarshalJSON() ([]byte, error) {
	type fields Stats // without methods
	return json.Marshal(struct {
		fields
		Waited float64 `json:"waited"`
	}{fields(s), s.Waited.Seconds()})
}

// LogValue returns a group with the attributes granted, delayed, waited, rejected, canceled, server_refused and waiting.
func (s Stats) LogValue() slog.Value {
	return slog.GroupValue(slog.Uint64("granted", s.Granted), slog.Uint64("delayed", s.Delayed), slog.Duration("waited", s.Waited),
		slog.Uint64("rejected", s.Rejected.Total()), slog.Uint64("canceled", s.Canceled), slog.Uint64("server_refused", s.ServerRefused),
		slog.Int("waiting", s.Waiting))
}

// String returns the total, and the counts of the reasons that occurred.
func (r Rejections) String() string {
	var some []string
	for reason, n := range r.All() {
		if n > 0 {
			some = append(some, reason.String()+" "+strconv.FormatUint(n, 10))
		}
	}
	if len(some) == 0 {
		return "0"
	}
	return fmt.Sprintf("%d (%s)", r.Total(), strings.Join(some, ", "))
}

// String returns the state of the bucket in one line, for people.
func (b BucketStats) String() string {
	text := quota.Plain(b.Limit)
	if b.Key != "" {
		text += " " + strconv.Quote(b.Key)
	}
	switch {
	case math.IsInf(b.Tokens, 0):
		text += ": no bound"
	case b.Capacity > 0:
		text += ": " + number(b.Tokens) + " of " + number(b.Capacity)
	default:
		text += ": " + number(b.Tokens) + " tokens"
	}
	switch {
	case b.Per != "":
		text += " per " + b.Per
	case b.Rate > 0:
		text += ", " + rateText(b.Rate)
	}
	if !b.Reset.IsZero() {
		text += ", resets at " + b.Reset.Format(resetFormat(b.Reset, b.Per))
	}
	if b.Waiting > 0 {
		text += fmt.Sprintf(", %d waiting", b.Waiting)
	}
	if b.InFlight > 0 {
		text += fmt.Sprintf(", %d in flight", b.InFlight)
	}
	return text + heldText(b.HeldUntil)
}

// windowText returns the length of a window of a limit, without zeros at its end.
func (p *policy) windowText(per time.Duration) string {
	if p.kind == kindCalendar {
		return p.unit.String()
	}
	text := per.String()
	for _, zero := range []struct{ after, text string }{{"m", "0s"}, {"h", "0m"}} {
		if strings.HasSuffix(text, zero.after+zero.text) {
			text = strings.TrimSuffix(text, zero.text)
		}
	}
	return text
}

// resetFormat returns the format of the end of a window: with seconds if there are some, and with the date if it may be after
// tomorrow's midnight.
func resetFormat(at time.Time, per string) string {
	format := "15:04 MST"
	if at.Second() != 0 || at.Nanosecond() != 0 {
		format = "15:04:05.999 MST"
	}
	if d, err := time.ParseDuration(per); per != "day" && (err != nil || d > 24*time.Hour) {
		format = "2006-01-02 " + format
	}
	return format
}

// rateText returns a rate per second, or per the first longer unit in which it is at least 1.
func rateText(perSecond float64) string {
	for _, unit := range []struct {
		seconds float64
		name    string
	}{{1, "/s"}, {60, "/min"}, {3600, "/h"}} {
		if perSecond*unit.seconds >= 1 {
			return number(perSecond*unit.seconds) + unit.name
		}
	}
	return number(perSecond*86400) + "/day"
}

func heldText(until time.Time) string {
	if until.IsZero() {
		return ""
	}
	return ", held until " + until.Format(time.RFC3339)
}

// bounded returns nil for +Inf, which JSON does not know.
func bounded(f float64) *float64 {
	if math.IsInf(f, 0) {
		return nil
	}
	return &f
}

// secondsOf returns a wait in seconds; nil: it never ends.
func secondsOf(d time.Duration) *float64 {
	if d == math.MaxInt64 {
		return nil
	}
	return new(d.Seconds())
}

// MarshalJSON returns an object with a member for each field. wait is in seconds, null if it never ends; tokens is null without a
// bound.
func (b BucketStats) MarshalJSON() ([]byte, error) {
	type fields BucketStats // without methods
	return json.Marshal(struct {
		fields
		Tokens *float64 `json:"tokens"`
		Wait   *float64 `json:"wait"`
	}{fields(b), bounded(b.Tokens), secondsOf(b.Wait)})
}

// String returns the state of the limit in one line, for people.
func (s LimitStats) String() string {
	text := quota.Plain(s.Name) + ": granted " + strconv.FormatUint(s.Granted, 10)
	text += waitedText(s.Delayed, s.Waits.Sum, s.Waits.mostText())
	text += fmt.Sprintf(", rejected %v, canceled %d; %d waiting now", s.Rejected, s.Canceled, s.Waiting)
	if !s.Keyed && !math.IsInf(s.Tokens, 0) {
		text += ", " + number(s.Tokens) + " tokens"
	}
	if s.InFlight > 0 {
		text += fmt.Sprintf(", %d in flight", s.InFlight)
	}
	if s.Keyed {
		text += fmt.Sprintf(", %d keys", s.Keys)
	}
	return text + heldText(s.HeldUntil)
}

// MarshalJSON returns an object with a member for each field. tokens is null without a bound.
func (s LimitStats) MarshalJSON() ([]byte, error) {
	type fields LimitStats // without methods
	return json.Marshal(struct {
		fields
		Tokens *float64 `json:"tokens"`
	}{fields(s), bounded(s.Tokens)})
}

// MarshalJSON returns an object with a member for each field; sum is in seconds.
func (w Waits) MarshalJSON() ([]byte, error) {
	type fields Waits // without methods
	return json.Marshal(struct {
		fields
		Sum float64 `json:"sum"`
	}{fields(w), w.Sum.Seconds()})
}

// LogValue returns a group with the attributes limit, granted, delayed, waited, rejected, canceled, waiting and in_flight, and
// held_until if a key is held.
func (s LimitStats) LogValue() slog.Value {
	return heldGroup(s.HeldUntil, slog.String("limit", s.Name), slog.Uint64("granted", s.Granted), slog.Uint64("delayed", s.Delayed),
		slog.Duration("waited", s.Waits.Sum), slog.Uint64("rejected", s.Rejected.Total()), slog.Uint64("canceled", s.Canceled),
		slog.Int("waiting", s.Waiting), slog.Int("in_flight", s.InFlight))
}

// String returns what the server reported in one line, for people.
func (s ServerStats) String() string {
	said := []string{"refused " + strconv.FormatUint(s.Refused, 10)}
	if s.Final != nil {
		said = append(said, "refuses finally ("+s.Final.String()+")")
	}
	for _, q := range s.Quotas {
		said = append(said, q.String())
	}
	if s.Pace > 0 {
		said = append(said, "paced at "+number(s.Pace)+"/s")
	}
	return strings.TrimSpace(quota.Plain(s.Host)+" "+printable(s.Account)) + ": " + strings.Join(said, ", ") + heldText(s.HeldUntil)
}

// String returns what is left of the quota, for people.
func (q QuotaStats) String() string {
	name := quota.Plain(q.Name)
	text := name + ": unknown"
	if q.Left >= 0 {
		text = name + ": " + strconv.FormatInt(q.Left, 10)
	}
	if q.Limit >= 0 {
		text += " of " + strconv.FormatInt(q.Limit, 10)
	}
	text += " " + quota.Plain(q.Unit) + " left"
	if !q.Reset.IsZero() {
		text += " until " + q.Reset.Format(time.RFC3339)
	}
	return text
}

// printable returns keys as ServerStats.Account has them, and anything else quoted.
func printable(keys string) string {
	if strings.ContainsFunc(keys, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(keys)
	}
	return keys
}

// LogValue returns a group with the attributes host, account, refused, pace and quotas, final if there is a final
// refusal, and held_until if the server is held.
func (s ServerStats) LogValue() slog.Value {
	quotas := make([]string, len(s.Quotas))
	for i, q := range s.Quotas {
		quotas[i] = q.String()
	}
	attrs := []slog.Attr{
		slog.String("host", s.Host), slog.String("account", s.Account), slog.Uint64("refused", s.Refused),
		slog.Float64("pace", s.Pace), slog.String("quotas", strings.Join(quotas, ", ")),
	}
	if s.Final != nil {
		attrs = append(attrs, slog.String("final", s.Final.String()))
	}
	return heldGroup(s.HeldUntil, attrs...)
}

// heldGroup returns a group, with held_until if that is not zero.
func heldGroup(until time.Time, attrs ...slog.Attr) slog.Value {
	if !until.IsZero() {
		attrs = append(attrs, slog.Time("held_until", until))
	}
	return slog.GroupValue(attrs...)
}

// number returns a figure with four digits, or a whole one, for people: 8,000.
func number(f float64) string {
	if f == math.Trunc(f) && math.Abs(f) < 1e15 {
		text := strconv.FormatFloat(f, 'f', 0, 64)
		for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
			text = text[:i] + "," + text[i:]
		}
		return text
	}
	return strconv.FormatFloat(f, 'g', 4, 64)
}

// LogValue returns a group with the attributes limit, key, rate, tokens, waiting and in_flight, and held_until if it is held. A
// bucket without a bound has no attribute tokens.
func (b BucketStats) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String("limit", b.Limit), slog.String("key", b.Key), slog.Float64("rate", b.Rate)}
	if !math.IsInf(b.Tokens, 0) { // which a JSONHandler cannot write
		attrs = append(attrs, slog.Float64("tokens", b.Tokens))
	}
	return heldGroup(b.HeldUntil, append(attrs, slog.Int("waiting", b.Waiting), slog.Int("in_flight", b.InFlight))...)
}
