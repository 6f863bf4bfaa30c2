package throttle

import (
	"cmp"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/concurrency"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
)

// Stats are the counters and gauges of a Transport or a Limiter. It is a plain value, and prints as one line. To publish it
// with expvar:
//
//	expvar.Publish("throttle", expvar.Func(func() any { return transport.Stats() }))
//
// Under [WithDryRun], Delayed, Waited and Rejected count what would have happened. Limits that need the outcome of requests, such as
// InFlight, are charged for those that are in flight, so their Granted may exceed that of all limits.
//
// A grant is undone if the context ends while the request is being granted, if a hook panics, by [Grant.Cancel], or if the
// request did not reach a server. Granted and Delayed include undone grants, because no counter ever falls.
type Stats struct {
	// Gauges
	Waiting int `json:"waiting"`           // requests in the queue now
	Callers int `json:"callers,omitempty"` // callers with requests in the queue now, where a limit has FairBy
	Buckets int `json:"buckets"`           // buckets kept now in all limits, except those of limits without keys

	// Counters
	Granted  uint64         `json:"granted"`          // requests granted, immediately or after a wait
	Undone   uint64         `json:"undone,omitempty"` // grants that were never used and returned their tokens: see above
	Delayed  uint64         `json:"delayed"`          // requests granted after a wait
	Waited   time.Duration  `json:"waited"`           // their total wait; in seconds as JSON
	Rejected Counts[Reason] `json:"rejected"`         // requests rejected
	Canceled uint64         `json:"canceled"`         // requests whose context ended while they waited
	Exempt   uint64         `json:"exempt,omitempty"` // requests that were exempt; always 0 for a Limiter

	ServerRefused uint64     `json:"server_refused"` // responses by which a server refused, also if its hints are ignored
	Holds         HoldCounts `json:"holds,omitzero"` // holds set; those of Hold and HoldAll count for the Limiter alone

	// Settings
	MaxQueue int  `json:"max_queue"`        // see WithMaxQueue
	MaxKeys  int  `json:"max_keys"`         // see WithMaxKeys
	DryRun   bool `json:"dry_run,omitzero"` // see WithDryRun
}

// Counts has a count for each [Reason] or each [Cause]: index it with one of them.
type Counts[K Reason | Cause] [12]uint64

// All yields every Reason or Cause and its count.
func (c Counts[K]) All() iter.Seq2[K, uint64] {
	return func(yield func(K, uint64) bool) {
		for k := K(1); labelOf(k) != "" && yield(k, c[k]); k++ {
		}
	}
}

// Total returns the sum.
func (c Counts[K]) Total() (n uint64) {
	for _, count := range c.All() {
		n += count
	}
	return n
}

func labelOf[K Reason | Cause](k K) string { return any(k).(interface{ Label() string }).Label() }

// There is room for all.
var (
	_ = Counts[Reason]{bucket.Reasons - 1: 0}
	_ = Counts[Cause]{aimd.Causes - 1: 0}
)

func countsOf[K Reason | Cause](n []uint64) (c Counts[K]) {
	copy(c[:], n)
	return c
}

// HoldCounts counts holds by [Source]. A hold of several limits counts once.
type HoldCounts struct {
	Caller   uint64 `json:"caller"`
	Server   uint64 `json:"server"`
	Adaptive uint64 `json:"adaptive"`
}

// Stats returns the counters of the Limiter, for all its users together.
func (l *Limiter) Stats() Stats {
	l.mustBeMade()
	return l.statsOf(nil)
}

// statsOf returns c as Stats.
func (l *Limiter) statsOf(of *limiter.User) Stats {
	c, callers, buckets := l.core.Counters(of)
	return Stats{
		Waiting: c.Waiting, Callers: callers, Buckets: buckets,
		Granted: c.Granted, Undone: c.Undone, Delayed: c.Delayed, Waited: c.Waited, Canceled: c.Canceled,
		Rejected: countsOf[Reason](c.Rejected[:]), ServerRefused: c.ServerRefused, Holds: HoldCounts(c.Holds),
		MaxQueue: l.maxQueue, MaxKeys: l.maxKeys, DryRun: l.dry,
	}
}

// LimitStats are the counters and gauges of one limit, over all of its keys. It is a plain value, and prints as one line.
//
// A request counts as granted in each limit that charged it. Delayed, Canceled, Rejected and Waits count it in only one limit:
// the one that it would have waited for the longest.
//
// The limit "server" stands for the quotas and holds of servers. Its tokens are requests.
type LimitStats struct {
	Name  string `json:"name"`
	Kind  string `json:"kind"`  // such as KindTokenBucket
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
	Granted   uint64         `json:"granted"`   // requests that it was charged for
	Undone    uint64         `json:"undone"`    // of these, the ones that were never used; see Stats
	Delayed   uint64         `json:"delayed"`   // requests granted after a wait for this limit
	Canceled  uint64         `json:"canceled"`  // requests whose context ended while they waited for this limit
	Rejected  Counts[Reason] `json:"rejected"`  // requests rejected because of this limit
	Waits     Waits          `json:"waits"`     // the waits of Delayed
	Charged   uint64         `json:"charged"`   // tokens charged, including those by which a settlement raised a cost
	Returned  uint64         `json:"returned"`  // tokens of Charged that were given back; for InFlight, slots that are free again
	Estimated uint64         `json:"estimated"` // tokens that requests were charged at first, of those whose cost was settled
	Settled   uint64         `json:"settled"`   // tokens that these did cost
	Holds     uint64         `json:"holds"`     // holds set
	Retunes   Counts[Cause]  `json:"retunes"`   // changes of learned rates
	Evicted   uint64         `json:"evicted"`   // keys forgotten before they were full again, to make room

	// Unread counts the responses whose body it needs and could not read, because the body is compressed: usually the request had an
	// Accept-Encoding, without which net/http decompresses the body. The limit "server" needs what a dialect says of a body.
	Unread uint64 `json:"unread,omitzero"`
	// Warning says what is probably wrong with the limit, for people, once 100 responses have shown it: a path of SettleJSON without a
	// number, or a ServerQuota whose unit no response has named, or in which all requests cost 1. "": nothing is known to be wrong.
	Warning string `json:"warning,omitzero"`
}

// Waits is a histogram of the waits of the requests that had to wait.
type Waits struct {
	Counts [19]uint64    `json:"counts"` // Counts[i]: of waits up to WaitBounds()[i], and longer than the bound before; the last has no bound
	Sum    time.Duration `json:"sum"`    // in seconds as JSON
}

// WaitBounds returns the upper bounds of [Waits], from 1 ms to 1 h, for programs that export or draw them. The slice is a copy.
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
		Name: li.Name, Kind: l.policyOf(li).kind.name, Keyed: li.Keyed || li.Gates, Waiting: c.Waiting, InFlight: li.InFlight(),
		Granted: c.Granted, Undone: c.Undone, Delayed: c.Delayed, Canceled: c.Canceled, Rejected: countsOf[Reason](c.Rejected[:]), Waits: Waits(c.Waits),
		Charged: c.Charged, Returned: c.Returned, Estimated: c.Estimated, Settled: c.Settled, Holds: c.Holds, Retunes: countsOf[Cause](c.Retunes[:]), Evicted: c.Evicted, Unread: c.Unread,
	}
	s.Warning = l.policyOf(li).warning()
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
	Mode       string  `json:"mode"` // what the limit does now, such as ModeStart
}

// The modes of a learned rate, or of a learned number in flight.
const (
	ModeStart   = "start"   // it doubles, because there was no sign of overload yet
	ModeBelow   = "below"   // the rate approaches the ceiling
	ModeAbove   = "above"   // the rate moves away from the ceiling
	ModeSteady  = "steady"  // it stays for a while
	ModePaused  = "paused"  // after Retry-After, or after several refusals in a row
	ModeSilence = "silence" // the server does not respond, so only probes are sent
	ModeVisit   = "visit"   // a lower number in flight is tried
	ModeCeiling = "ceiling" // refusals bound the number in flight
)

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
		l.core.LookAtBuckets(func(b *bucket.Bucket, now meter.Instant) { stats = append(stats, l.bucketStatsLocked(b, now)) }, func() bool {
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
	ok := l.core.LookAtBucket(li, key, func(b *bucket.Bucket, now meter.Instant) { s = l.bucketStatsLocked(b, now) })
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

// ServerStats is what one server has reported about its limits, to requests that it counts together, as far as is known. It prints
// as one line.
type ServerStats struct {
	Host      string       `json:"host"`
	Account   string       `json:"account,omitzero"`    // the keys by which requests are counted there, besides the host, with spaces between; "" if there are none
	For       string       `json:"for,omitzero"`        // which requests, if it counts some separately: the parts by which its API counts, such as the model, or one of them, such as GET /search/code
	HeldUntil time.Time    `json:"held_until,omitzero"` // end of a hold; zero: not held
	Guessed   bool         `json:"guessed,omitzero"`    // no response has asked for that end, so it is this client's own
	Pace      float64      `json:"pace"`                // requests per second that are sent one by one after a refusal; 0: no bound
	PaceWhy   string       `json:"pace_why,omitzero"`   // why at that rate, in words
	Refused   uint64       `json:"refused"`             // responses by which it refused, while it is remembered
	Last      *LastRefusal `json:"last,omitempty"`      // the last of these, because of which requests may wait, or that of other keys that holds the whole host; nil: there was none
	Final     *FinalStats  `json:"final,omitempty"`     // a refusal that no waiting ends, because of which requests are rejected; nil: there is none
	Quotas    []QuotaStats `json:"quotas,omitzero"`     // by name
}

// LastRefusal is the last response by which a server refused a request because of a limit.
type LastRefusal struct {
	Status  int       `json:"status"`
	Verdict Verdict   `json:"verdict"` // why
	At      time.Time `json:"at"`
	Until   time.Time `json:"until,omitzero"` // until when it asked the client to wait; zero: it did not say
}

// FinalStats is a refusal that no waiting ends; see [ReasonFinal].
type FinalStats struct {
	Code    string    `json:"code"`    // as in FinalError
	Message string    `json:"message"` // as in FinalError
	Since   time.Time `json:"since"`
	AskAt   time.Time `json:"ask_at"` // from then on, the next request is sent, to ask whether it still holds
}

// QuotaStats is the known state of a quota of a server.
type QuotaStats struct {
	Name     string    `json:"name"` // "default" if the server does not name it
	Unit     string    `json:"unit"` // such as requests or tokens
	Limit    int64     `json:"limit"`
	Left     int64     `json:"left"`           // -1, as for Limit: not known, for example after ForgetServer; requests in flight are not subtracted
	InFlight int64     `json:"in_flight"`      // requests whose responses may report that less is left
	Reset    time.Time `json:"reset,omitzero"` // zero: not known

	HeldUntil time.Time `json:"held_until,omitzero"` // no request is sent before: a refusal asked for that, nothing is left for this client, or what is left is spread; zero: nothing holds it
}

// Servers returns what servers have reported, as far as it is still remembered, ordered by host. It takes the lock for at most 64
// servers at once.
func (l *Limiter) Servers() []ServerStats {
	l.mustBeMade()
	var all, some []ServerStats // joined without the lock
	l.core.LookAtServers(func(a *quota.Account, now meter.Instant) { some = l.appendServerLocked(some, a, now) }, func() {
		all, some = append(all, some...), some[:0]
	})
	slices.SortFunc(all, func(x, y ServerStats) int {
		return cmp.Or(cmp.Compare(x.Host, y.Host), cmp.Compare(x.Account, y.Account), cmp.Compare(x.For, y.For))
	})
	return all
}

// Server returns what one server has reported, as [Limiter.Servers] does: an entry for each set of keys by which it counts requests.
// The host is as [ByHost] returns it.
func (l *Limiter) Server(host string) []ServerStats {
	l.mustBeMade()
	var all []ServerStats
	l.core.LookAtServer(host, func(a *quota.Account, now meter.Instant) { all = l.appendServerLocked(all, a, now) }, func() {})
	slices.SortFunc(all, func(x, y ServerStats) int {
		return cmp.Or(cmp.Compare(x.Account, y.Account), cmp.Compare(x.For, y.For))
	})
	return all
}

// appendServerLocked appends what was reported about an account, if it says anything.
func (l *Limiter) appendServerLocked(all []ServerStats, a *quota.Account, now meter.Instant) []ServerStats {
	if s := l.serverStatsLocked(a, now); s.Pace > 0 || s.Final != nil || s.Refused > 0 || s.Quotas != nil || !s.HeldUntil.IsZero() {
		all = append(all, s)
	}
	return all
}

func (l *Limiter) serverStatsLocked(a *quota.Account, now meter.Instant) ServerStats {
	s := ServerStats{Host: a.Key.Host, Account: a.Key.Account(), For: cmp.Or(a.Key.Parts, a.Example), Refused: uint64(a.Limited)}
	if held := a.Until(); held > now {
		s.HeldUntil, s.Guessed = l.core.Start.Add(time.Duration(held)), a.Guessed()
	}
	if since, ask, said := a.Final(); said != nil {
		e := said.(*FinalError)
		s.Final = &FinalStats{e.Code, e.Message, l.core.Start.Add(time.Duration(since)), l.core.Start.Add(time.Duration(ask))}
	}
	if last := a.LastRefusal(now); last.Status > 0 {
		s.Last = &LastRefusal{Status: int(last.Status), Verdict: Verdict(last.Verdict), At: l.core.Start.Add(time.Duration(last.At))}
		if last.Asked > 0 {
			s.Last.Until = s.Last.At.Add(time.Duration(last.Asked))
		}
	}
	_, why := a.Pace(now)
	pace, quotas := a.State(now)
	s.Pace, s.PaceWhy = pace, why.String()
	for _, q := range quotas {
		stats := QuotaStats{Name: q.Name, Unit: cmp.Or(q.Unit, "requests"), Limit: q.Limit, Left: q.Left, InFlight: q.InFlight}
		if q.Reset < meter.Never {
			stats.Reset = l.core.Start.Add(time.Duration(q.Reset))
		}
		if q.HeldUntil > 0 {
			stats.HeldUntil = l.core.Start.Add(time.Duration(q.HeldUntil))
		}
		s.Quotas = append(s.Quotas, stats)
	}
	return s
}

// windowText returns the length of a window of a limit, without zeros at its end.
func (p *policy) windowText(per time.Duration) string {
	if p.unit != 0 {
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

// StoreStats are the state and the counters of a [store.Store] in one Limiter, for all limits that use it in the same way.
type StoreStats struct {
	Limits []string `json:"limits"` // the names of the limits
	Up     bool     `json:"up"`     // the latest call succeeded, or there was none
	Err    error    `json:"-"`      // of the latest call, if it failed

	Processes int           `json:"processes"` // that use a budget, as the store estimated in its latest response; 0: there was none
	Age       time.Duration `json:"age"`       // of that response: what the process knows of the budgets is at least as old

	// Counters
	OK       uint64 `json:"ok"`       // calls that succeeded
	Failed   uint64 `json:"failed"`   // calls that failed because the store was unreachable
	Setup    uint64 `json:"setup"`    // calls that failed because of a wrong set-up
	Leased   uint64 `json:"leased"`   // tokens that the store granted
	Returned uint64 `json:"returned"` // tokens that were given back, except slots
	Alone    uint64 `json:"alone"`    // tokens used without the store, by OutageLocalShare or OutagePass
	Outages  uint64 `json:"outages"`  // how often the store became unreachable
	Faulty   uint64 `json:"faulty"`   // asks that failed although the store decided others, for example because a state is unreadable
	Differs  uint64 `json:"differs"`  // asks that were decided by the stricter rule of another process

	Latency Waits `json:"latency"` // of calls that returned before the StoreTimeout
}

// Stores returns the state of each [store.Store], in the order of the limits that use them. It returns nothing without a [Shared]
// limit.
func (l *Limiter) Stores() []StoreStats {
	l.mustBeMade()
	states := l.core.StoreStates()
	all := make([]StoreStats, len(states))
	for i := range states {
		s := &states[i]
		c := &s.Counts
		all[i] = StoreStats{
			Limits: slices.Clone(s.Limits), Up: s.Err == nil, Err: s.Err, Processes: s.Processes, Age: s.Age,
			OK: c.Ok, Failed: c.Failed, Setup: c.Setup, Leased: c.Leased, Returned: c.Returned, Alone: c.Alone, Outages: c.Outages, Faulty: c.Faulty, Differs: c.Differs, Latency: Waits(s.Latency),
		}
	}
	return all
}
