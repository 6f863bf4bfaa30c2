package headers

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Parse returns what a response says about rate limits, by readings that hold for every server. now is the local time at
// which the response arrived. The keys of h may be in any case and order. [Dialect.Parse] and [Reader.Parse] read the dialects
// of single APIs, which may need the body.
func Parse(status int, h http.Header, now time.Time) Signal { return parse(status, h, now, nil) }

func parse(status int, h http.Header, now time.Time, kept *memory) Signal {
	for name := range h {
		if concerns(name) {
			return generic.read(status, h, nil, now, kept)
		}
	}
	return silent(status)
}

// generic is the dialect of servers that have none of their own. It is not to be changed.
var generic Dialect

// silent is the signal of a response that has nothing but its status.
func silent(status int) Signal {
	limited := limits(status)
	return Signal{Limited: limited, Wait: Maybe[time.Duration]{Known: !limited}}
}

// limits reports whether a status by itself means that a limit was exceeded.
func limits(status int) bool {
	return status == http.StatusTooManyRequests || status == 420 || status == 529
}

// mayLimit reports whether a status with a Retry-After or an empty quota means that a limit was exceeded. 430 (Shopify) and 509 (bandwidth
// exceeded) are in no RFC; 418 is how Binance and others answer clients that ignore 429. MusicBrainz sends 503 with an empty quota.
func mayLimit(status int) bool {
	switch status {
	case http.StatusForbidden, http.StatusTeapot, 430, http.StatusServiceUnavailable, 509:
		return true
	}
	return false
}

// Bounds on the work for one response, whatever it holds. Where something is left out, it is what matters least.
const (
	maxHeaders  = 128 // that concern limits
	maxElements = 64  // in the list of one header
	maxLines    = 32  // of a structured field
	maxTold     = 512 // buckets that are looked at
)

// A reading is a response while it is read.
type reading struct {
	dialect *Dialect
	kept    *memory
	status  int
	header  http.Header
	body    []byte
	rule    *Rule // that an event matches; nil: the first one that the response does
	clock   serverClock
	cached  bool // the response comes from a cache, so that its quotas are old

	entries    []entry
	elements   []element // of all lists
	signal     Signal
	coarse     pause // Retry-After
	fine       pause // what refines it
	inBody     pause // the same in the body
	envoy      bool  // Envoy says that it limited the request
	structured []Bucket
	groups     []*group
	unit       string    // see Signal.Unit
	names      [3]string // what the default bucket is called, by resource, bucket, name

	room struct { // of most responses
		entries  [8]entry
		elements [8]element
		groups   [2]*group
		group    [2]group
	}
}

// An entry is a header that concerns limits, with what its name says.
type entry struct {
	*heading
	order int64 // that of the heading, unless there is a field
	lines []string
	field *Field // the dialect's; then the name says nothing more
}

func (d *Dialect) read(status int, h http.Header, body []byte, now time.Time, kept *memory) Signal {
	r := kept.reading()
	r.dialect, r.kept, r.status, r.header, r.body, r.clock.now = d, kept, status, h, body[:min(len(body), BodyBytes)], now
	r.entries, r.elements, r.groups = r.room.entries[:0], r.room.elements[:0], r.room.groups[:0]
	r.collect()
	r.entries = r.entries[:min(len(r.entries), maxHeaders)]
	for _, e := range r.entries {
		r.readPauses(e)
	}
	if !r.cached {
		r.readStructured()
		for _, e := range r.entries {
			r.readEntry(e)
		}
	}
	r.readBody()
	r.conclude()
	signal := r.signal
	kept.end(r)
	return signal
}

// collect finds the headers that matter, and puts first what is worth most: what the dialect names, then the draft's names, then
// X-, then those of vendors; of these the shortest. Keys that differ in case are the same header. What comes out depends on
// neither case nor map. However many headers there are, few are sorted at a time.
func (r *reading) collect() {
	const most = 4 * maxHeaders // names in any case
	full := false               // the first of them are in order
	for name, lines := range r.header {
		switch {
		case equalFold(name, "date"):
			if r.clock.dates != nil { // under another spelling
				lines = values(r.header, name)
			}
			r.clock.dates = lines
			continue
		case equalFold(name, "age"):
			r.cached = r.cached || isCached(lines)
			continue
		case !r.dialect.concerns(name):
			continue
		}
		e := entry{heading: r.kept.heading(name), lines: lines}
		e.order = e.heading.order
		if e.field = r.dialect.field(e.name); e.field != nil {
			e.order = int64(len(e.name))
		}
		switch {
		case full && compare(e, r.entries[most-1]) >= 0:
			continue
		case len(r.entries) == 2*most:
			full = true
			r.cut(most)
		}
		r.entries = append(r.entries, e)
	}
	r.cut(most)
	merged := r.entries[:0]
	for _, e := range r.entries {
		if last := len(merged) - 1; last >= 0 && merged[last].name == e.name {
			merged[last].lines = slices.Concat(merged[last].lines, e.lines)
		} else {
			merged = append(merged, e)
		}
	}
	r.entries = merged
}

// cut sorts the entries, and keeps the first n.
func (r *reading) cut(n int) {
	slices.SortFunc(r.entries, compare)
	r.entries = r.entries[:min(len(r.entries), n)]
}

func compare(a, b entry) int {
	if c := cmp.Compare(a.order, b.order); c != 0 {
		return c
	}
	if c := strings.Compare(a.name, b.name); c != 0 {
		return c
	}
	return slices.Compare(a.lines, b.lines)
}

// lines returns the lines of a header that was collected.
func (r *reading) lines(name string) []string {
	for _, e := range r.entries {
		if e.name == name {
			return e.lines
		}
	}
	return nil
}

// isCached says of the lines of Age whether the response comes from a cache, so that its quotas are old.
func isCached(lines []string) bool {
	return slices.ContainsFunc(lines, func(line string) bool {
		age, ok := scanNumber(trim(line))
		return ok && age.whole > 0
	})
}

// rank returns the rank of a header of that name, which no field of a dialect names.
func rank(name string) int {
	if isKnown(name) {
		return 0
	}
	switch prefix, rest, _, _ := cutStem(name); {
	case prefix != "" && prefix != "x":
		return 5
	case rest == "" && name != "ratelimit":
		return 4
	case prefix == "x":
		return 3
	case name != "ratelimit" && name != "ratelimit-policy":
		return 2
	}
	return 1
}

// readPauses reads what counts even if the response comes from a cache.
func (r *reading) readPauses(e entry) {
	switch e.name {
	case "retry-after":
		r.coarse.read(e.lines, ByMagnitude, &r.clock)
	case "retry-after-ms", "x-ms-retry-after-ms", "x-amz-retry-after":
		r.fine.read(e.lines, Milliseconds, &r.clock)
	case "x-retry-in", "x-retry-after":
		r.fine.read(e.lines, ByMagnitude, &r.clock)
	case "x-complexity", "x-ms-request-charge":
		r.readCost(e.lines)
	case "x-envoy-ratelimited":
		r.envoy = first(e.lines) != "" && !strings.EqualFold(first(e.lines), "false")
	case "x-should-retry":
		r.signal.NoRetry = noRetry(r.header)
	case "stripe-rate-limited-reason":
		r.setText(RoleReason, first(e.lines))
	}
	if e.field == nil && e.role == RoleRetryAfter {
		unit := e.unit
		if unit == Seconds {
			unit = ByMagnitude
		}
		r.fine.read(e.lines, unit, &r.clock)
	}
}

// readEntry reads what a header says about quotas.
func (r *reading) readEntry(e entry) {
	if e.field != nil {
		r.readField(e.field, e.name, e.lines)
		return
	}
	switch e.role {
	case RoleNone, RoleRetryAfter:
	case RoleCost:
		r.readCost(e.lines)
	case RoleReason, RoleScope:
		r.setText(e.role, first(e.lines))
	case RoleName:
		if i := slices.Index([]string{"resource", "bucket", "name"}, e.name[strings.LastIndexByte(e.name, '-')+1:]); e.bucket == "" && i >= 0 {
			r.names[i] = first(e.lines)
		}
	default:
		unit := e.unit
		if e.role == RoleReset && unit == ByMagnitude {
			unit = r.dialect.Reset
		}
		r.group(e.prefix, e.bucket).put(e.role, r.readList(e.lines, e.role, unit))
	}
}

// readCost takes the first line that is a number, unless the cost is known.
func (r *reading) readCost(lines []string) {
	for _, line := range readable(lines) {
		if n, ok := scanNumber(line); ok && !r.signal.Cost.Known {
			r.signal.Cost = known(n.float())
		}
	}
}

// setText sets the reason or the scope, unless it is known.
func (r *reading) setText(role Role, text string) {
	switch {
	case role == RoleReason && r.signal.Reason == "":
		r.signal.Reason = text
	case role == RoleScope && r.signal.Scope == "":
		r.signal.Scope = text
	}
}

// first returns the first line that may be read and is not empty.
func first(lines []string) string {
	for _, line := range lines {
		if text, ok := clean(line); ok && text != "" {
			return text
		}
	}
	return ""
}

// group returns the group of a bucket by its vendor's prefix and its name.
func (r *reading) group(prefix, name string) *group {
	for _, g := range r.groups {
		if g.prefix == prefix && g.name == name {
			return g
		}
	}
	var g *group
	if n := len(r.groups); n < len(r.room.group) {
		g = &r.room.group[n]
	} else {
		g = new(group)
	}
	g.prefix, g.name = prefix, name
	r.groups = append(r.groups, g)
	return g
}

// values returns the lines of a header, whatever the case of its keys.
func values(h http.Header, name string) []string {
	var found [][]string
	for key, lines := range h {
		if len(key) == len(name) && strings.EqualFold(key, name) {
			found = append(found, lines)
		}
	}
	slices.SortFunc(found, slices.Compare)
	return slices.Concat(found...)
}
