package headers

import (
	"cmp"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// An element is one value of a header that may list several, as the number and as the moment it may be.
type element struct {
	count  count
	moment moment
	window Maybe[time.Duration] // of the parameter w
}

// A list is all the values of one header. Its lines and what stands between commas count alike.
type list struct {
	elements []element
	commas   bool // some line has several
}

// readable reports whether any of it is what the role wants.
func (l list) readable(role Role) bool {
	return slices.ContainsFunc(l.elements, func(e element) bool {
		if isMoment(role) {
			return e.moment.is == given
		}
		return e.count.ok
	})
}

func isMoment(role Role) bool {
	return role == RoleReset || role == RoleResetAfter || role == RoleWindow
}

// readList reads the lines of a header. What can't be read keeps its place.
func (r *reading) readList(lines []string, role Role, unit TimeUnit) (l list) {
	begin := len(r.elements)
	for _, line := range lines {
		if len(r.elements) >= begin+maxElements {
			break
		}
		text, _ := clean(line)
		e := readElement(text, role, unit, &r.clock)
		if (isMoment(role) && e.moment.is != malformed) || !strings.Contains(text, ",") { // dates have commas
			r.elements = append(r.elements, e)
			continue
		}
		l.commas = true
		for part := range splitQuoted(text, ',') {
			r.elements = append(r.elements, readElement(part, role, unit, &r.clock))
		}
	}
	r.elements = r.elements[:min(len(r.elements), begin+maxElements)]
	l.elements = slices.Clip(r.elements[begin:])
	return l
}

// readElement reads a number or a moment, and a window if it has one, as in 100;w=60.
func readElement(text string, role Role, unit TimeUnit, clock *serverClock) (e element) {
	if strings.Contains(text, "=") {
		for part := range splitQuoted(text, ';') {
			key, value, _ := strings.Cut(part, "=")
			if key == "w" || key == "window" {
				e.window = readWindow(value, Seconds)
			}
		}
	}
	text, _, _ = strings.Cut(text, ";")
	text = trim(text)
	switch {
	case role == RoleWindow:
		if w := readWindow(text, unit); w.Known {
			e.moment = moment{w.Value, given}
		}
	case isMoment(role):
		e.moment = readReset(text, unit, clock)
	default:
		e.count = scanCount(text)
	}
	return e
}

func readReset(text string, unit TimeUnit, clock *serverClock) moment {
	if unit == resetMillis {
		unit = Milliseconds
		if n, ok := scanNumber(text); ok && n.whole >= epochMilli {
			unit = EpochMilliseconds
		}
	}
	return readMoment(text, unit, clock)
}

// readWindow reads a length of time, which is never 0.
func readWindow(text string, unit TimeUnit) Maybe[time.Duration] {
	m := moment{}
	if n, ok := scanNumber(text); ok && unit == Milliseconds {
		m = n.delta(time.Millisecond)
	} else if ok {
		m = n.delta(time.Second)
	} else {
		m.d, m.is = scanDuration(text)
	}
	return m.known().only(m.d > 0)
}

// splitQuoted yields what is between separators outside of double quotes, without white space around it.
func splitQuoted(s string, separator byte) iter.Seq[string] {
	return func(yield func(string) bool) {
		start, quoted := 0, false
		for i := 0; i <= len(s); i++ {
			if i < len(s) && (quoted || s[i] != separator) {
				switch {
				case s[i] == '"':
					quoted = !quoted
				case s[i] == '\\' && quoted:
					i = min(i+1, len(s)-1)
				}
				continue
			}
			if !yield(trim(s[start:i])) {
				return
			}
			start = i + 1
		}
	}
}

// A group is what headers of one bucket, or of several that share their names, say together.
type group struct {
	prefix, name string
	lists        [roles]list
	policies     []element // limits without a remaining quota, such as the second of 100, 100;w=10
	rate         Maybe[float64]
	inFlight     Maybe[int64]
	window       Maybe[time.Duration]
	unit         string
	advisory     bool
}

// put takes a list, unless the group has one for that role: what comes first counts.
func (g *group) put(role Role, l list) {
	if !g.lists[role].readable(role) {
		g.lists[role] = l
	}
}

func (g *group) has(role Role) bool { return len(g.lists[role].elements) > 0 }

// reset returns the i-th of n resets; of a moment and a delay the delay, which no clock can spoil.
func (g *group) reset(i, n int) Maybe[time.Duration] {
	for _, role := range [...]Role{RoleResetAfter, RoleReset} {
		if l := g.lists[role].elements; len(l) == n && l[i].moment.is == given {
			return l[i].moment.known()
		}
	}
	return Maybe[time.Duration]{}
}

// at returns the i-th of n elements for a role, an unreadable one if there aren't n.
func (g *group) at(role Role, i, n int) element {
	if l := g.lists[role].elements; len(l) == n {
		return l[i]
	}
	return element{}
}

// eachBucket calls take for the buckets that the group describes, without those that have no number.
func (g *group) eachBucket(fallback string, take func(Bucket)) {
	g.splitPolicies()
	g.dropThousands()
	g.levelLists()
	n := g.size()
	name := cmp.Or(g.name, fallback)
	for i := range n {
		b := g.bucket(i, n)
		b.Unit = cmp.Or(b.Unit, unitOf(name))
		if b.Name = name; n > 1 {
			b.Name = name + "." + strconv.Itoa(i)
		}
		if b.hasValue() {
			take(b)
		}
	}
}

// size returns how many buckets the group is, going by what matters most.
func (g *group) size() int {
	for _, role := range [...]Role{RoleRemaining, RoleUsed, RoleLimit} {
		if g.has(role) {
			return len(g.lists[role].elements)
		}
	}
	return 1
}

// splitPolicies takes the elements with a window out of a limit that has some without: these repeat it.
func (g *group) splitPolicies() {
	isPolicy := func(e element) bool { return e.window.Known }
	limits := g.lists[RoleLimit].elements
	if !slices.ContainsFunc(limits, isPolicy) || !slices.ContainsFunc(limits, func(e element) bool { return !isPolicy(e) }) {
		return
	}
	for _, e := range limits {
		if isPolicy(e) {
			g.policies = append(g.policies, e)
		}
	}
	g.lists[RoleLimit].elements = slices.DeleteFunc(slices.Clone(limits), isPolicy)
}

// dropThousands drops lists that make no sense together, because 5,000 is one number: they have padded elements, or more
// remains than the limit.
func (g *group) dropThousands() {
	limits, left := g.lists[RoleLimit].elements, g.lists[RoleRemaining].elements
	senseless := false
	for _, role := range [...]Role{RoleLimit, RoleRemaining, RoleUsed} {
		if l := g.lists[role]; l.commas {
			senseless = senseless || slices.ContainsFunc(l.elements, func(e element) bool { return e.count.padded })
		}
	}
	if g.lists[RoleLimit].commas && g.lists[RoleRemaining].commas && len(limits) == len(left) {
		for i := range limits {
			senseless = senseless || (limits[i].count.ok && left[i].count.ok && left[i].count.n > limits[i].count.n)
		}
	}
	for _, role := range [...]Role{RoleLimit, RoleRemaining, RoleUsed} {
		if senseless && g.lists[role].commas {
			g.lists[role] = list{}
		}
	}
}

// levelLists makes one element of each list where they are of different lengths, so that it is not known which belong
// together: the least that remains, or the most that was used, and what stands at the same place beside it.
func (g *group) levelLists() {
	lead, i := RoleRemaining, -1
	if !g.lists[lead].readable(lead) {
		lead = RoleUsed
	}
	leading, unequal := g.lists[lead].elements, false
	for _, role := range [...]Role{RoleLimit, RoleRemaining, RoleUsed, RoleReset, RoleResetAfter} {
		unequal = unequal || g.has(role) && len(g.lists[role].elements) != len(leading)
	}
	for j, e := range leading {
		if e.count.ok && (i < 0 || (e.count.n < leading[i].count.n) == (lead == RoleRemaining) && e.count.n != leading[i].count.n) {
			i = j
		}
	}
	if !unequal || i < 0 || len(leading) == 1 { // a single one counts by itself, as bucket reads it
		return
	}
	for role := range g.lists {
		l := &g.lists[role]
		switch n := len(l.elements); {
		case i < n:
			l.elements = l.elements[i : i+1]
		case n > 1:
			l.elements = nil // there is none beside it
		}
	}
}

func (g *group) bucket(i, n int) Bucket {
	limit, remaining := g.at(RoleLimit, i, n), g.at(RoleRemaining, i, n)
	b := Bucket{
		Limit: limit.count.whole(), Remaining: remaining.count.down(), Used: g.at(RoleUsed, i, n).count.up(),
		InFlight: g.inFlight, Rate: g.rate, Reset: g.reset(i, n),
		Window: firstKnown(limit.window, remaining.window, g.at(RoleWindow, i, n).moment.known(), g.window, windowOf(g.name)),
		Unit:   g.unit, Advisory: g.advisory,
	}
	if !b.Limit.Known && len(g.policies) == 1 && !g.has(RoleLimit) {
		b.Limit = g.policies[0].count.whole()
	}
	b.repair()
	for _, p := range g.policies {
		if b.Limit.Known && p.count.whole() == b.Limit {
			b.Window = firstKnown(b.Window, p.window)
		}
	}
	return b
}

// repair makes sense of numbers that contradict each other: a server that sends a negative limit does not know what is left either, an
// overdrawn bucket is empty, and no more is left than there is.
func (b *Bucket) repair() {
	if b.Limit.Known && b.Limit.Value < 0 {
		b.Limit = Maybe[int64]{}
		b.Remaining = b.Remaining.only(b.Remaining.Value >= 0)
	}
	b.Remaining.Value = max(b.Remaining.Value, 0)
	used, hasUsed := b.Used.Get()
	if !b.Limit.Known && hasUsed && b.Remaining.Known && used <= math.MaxInt64-b.Remaining.Value {
		b.Limit = known(used + b.Remaining.Value)
	}
	if limit, ok := b.Limit.Get(); ok {
		if !b.Remaining.Known && hasUsed {
			b.Remaining = known(max(limit-used, 0))
		}
		b.Remaining.Value = min(b.Remaining.Value, limit)
	}
}

// fill takes from o what b lacks.
func (b *Bucket) fill(o Bucket) {
	b.Limit = firstKnown(b.Limit, o.Limit)
	b.Remaining = firstKnown(b.Remaining, o.Remaining)
	b.Used = firstKnown(b.Used, o.Used)
	b.InFlight = firstKnown(b.InFlight, o.InFlight)
	b.Rate = firstKnown(b.Rate, o.Rate)
	b.Reset = firstKnown(b.Reset, o.Reset)
	b.Window = firstKnown(b.Window, o.Window)
	b.Unit = cmp.Or(b.Unit, o.Unit)
	b.repair()
}

func firstKnown[T any](values ...Maybe[T]) Maybe[T] {
	for _, v := range values {
		if v.Known {
			return v
		}
	}
	return Maybe[T]{}
}

// windowOf returns the length of time that a bucket's name ends with.
func windowOf(name string) Maybe[time.Duration] {
	if number, ok := strings.CutSuffix(name, "Min"); ok { // as in HighCostGet30Min
		digits := number[len(strings.TrimRight(number, "0123456789")):]
		if n, ok := scanNumber(digits); ok {
			return n.delta(time.Minute).known().only(n.whole > 0)
		}
	}
	switch name[strings.LastIndexByte(name, '-')+1:] {
	case "second", "secondly":
		return known(time.Second)
	case "minute":
		return known(time.Minute)
	case "hour", "hourly":
		return known(time.Hour)
	case "day", "daily":
		return known(24 * time.Hour)
	}
	return Maybe[time.Duration]{}
}

// unitOf returns what is counted in a bucket of that name.
func unitOf(name string) string {
	unit := ""
	for token := range strings.SplitSeq(name, "-") {
		switch token {
		case "tokens":
			return token
		case "requests":
			unit = token
		case "complexity", "graphql":
			unit = cmp.Or(unit, "points")
		}
	}
	return unit
}
