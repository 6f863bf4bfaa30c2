package headers

import (
	"cmp"
	"iter"
	"regexp"
	"strings"
)

// readField reads a header as the dialect says.
func (r *reading) readField(f *Field, name string, lines []string) {
	switch f.Form {
	case UsedOf:
		r.readUsedOf(f, lines)
	case PerWindow:
		r.readPerWindow(f, lines)
	case Pairs:
		r.readPairs(f, name, lines)
	case NameCount:
		r.readNameCount(f, lines)
	case JSON:
		r.readJSON(f, lines)
	case Family:
		rest, _ := f.is(name)
		var m meaning
		if bucket, ok := cutRole(rest, &m); ok {
			r.fieldGroup(f, joinName(f.Bucket, "-", bucket)).put(m.role, r.readList(lines, m.role, m.unit))
		}
	default:
		r.readPlain(f, lines)
	}
}

func joinName(a, separator, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + separator + b
}

// fieldGroup returns a group by name, and lets it know what f knows of it.
func (r *reading) fieldGroup(f *Field, name string) *group {
	g := r.group("", name)
	g.advisory = g.advisory || f.Advisory
	if f.Window > 0 {
		g.window = known(min(f.Window, ceiling))
	}
	return g
}

// readPlain reads a value by its role alone.
func (r *reading) readPlain(f *Field, lines []string) {
	switch f.Role {
	case RoleNone:
	case RoleRetryAfter:
		if f.Form == Sentence {
			lines = []string{waitIn(first(lines))}
		}
		r.inBody.read(lines, f.Unit, &r.clock)
	case RoleCost:
		r.readCost(lines)
	case RoleReason, RoleScope:
		r.setText(f.Role, first(lines))
	case RoleName:
		r.names[1] = cmp.Or(r.names[1], first(lines))
	case RoleViolated:
		if name := first(lines); name != "" && len(r.signal.Violated) < maxBuckets {
			r.signal.Violated = append(r.signal.Violated, name)
		}
	case RoleRate:
		if n, ok := scanNumber(first(lines)); ok {
			r.fieldGroup(f, f.Bucket).rate = known(n.float())
		}
	case RolePercent:
		r.fieldGroup(f, f.Bucket).putPercent(first(lines))
	case RoleInFlight:
		if n := scanCount(first(lines)).up(); n.Known {
			r.fieldGroup(f, f.Bucket).inFlight = n
		}
	default:
		unit := f.Unit
		if f.Role == RoleReset && unit == ByMagnitude {
			unit = r.dialect.Reset
		} else if f.Role == RoleResetAfter && unit == ByMagnitude {
			unit = Seconds
		}
		r.fieldGroup(f, f.Bucket).put(f.Role, r.readList(lines, f.Role, unit))
	}
}

// inWords is the time in a sentence such as "Please try again in 1m5.23s." or "Please retry after 20 seconds."
var inWords = regexp.MustCompile(`(?i)\b(?:retry|again) (?:in|after) ([0-9][0-9.]*(?:(?:ms|[dhms])(?:[0-9][0-9.]*(?:ms|[hms]))*)?)( ?(?:milli)?sec| ?min)?`)

// waitIn returns the time in a sentence as a duration; "": there is none.
func waitIn(sentence string) string {
	m := inWords.FindStringSubmatch(sentence)
	if m == nil {
		return ""
	}
	switch n := strings.TrimRight(m[1], "."); strings.ToLower(strings.TrimSpace(m[2])) {
	case "millisec":
		return n + "ms"
	case "sec":
		return n + "s"
	case "min":
		return n + "m"
	default:
		return n
	}
}

// parts yields what stands between separators in the lines that may be read.
func parts(lines []string, separators string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, line := range readable(lines) {
			for part := range strings.FieldsFuncSeq(line, func(c rune) bool { return strings.ContainsRune(separators, c) }) {
				if !yield(trim(part)) {
					return
				}
			}
		}
	}
}

func (r *reading) readUsedOf(f *Field, lines []string) {
	for part := range parts(lines, ";,") {
		name, pair, named := strings.Cut(part, "=")
		if !named {
			name, pair = f.Bucket, part
		}
		pair, _, _ = strings.Cut(pair, "(") // a comment, such as the name of an app
		used, limit, _ := strings.Cut(pair, "/")
		u, l := r.readList([]string{used}, RoleUsed, 0), r.readList([]string{limit}, RoleLimit, 0)
		if u.readable(RoleUsed) && l.readable(RoleLimit) {
			g := r.fieldGroup(f, name)
			g.put(RoleUsed, u)
			g.put(RoleLimit, l)
		}
	}
}

func (r *reading) readPerWindow(f *Field, lines []string) {
	for part := range parts(lines, ",") {
		n, seconds, _ := strings.Cut(part, ":")
		l, window := r.readList([]string{n}, f.Role, 0), readWindow(seconds, Seconds)
		if l.readable(f.Role) && window.Known {
			g := r.fieldGroup(f, joinName(f.Bucket, ":", seconds))
			g.window = window
			g.put(f.Role, l)
		}
	}
}

func (r *reading) readNameCount(f *Field, lines []string) {
	for part := range parts(lines, ",") {
		name, n, _ := strings.Cut(part, ";")
		if l := r.readList([]string{n}, f.Role, f.Unit); l.readable(f.Role) {
			r.fieldGroup(f, joinName(f.Bucket, ":", trim(name))).put(f.Role, l)
		}
	}
}

func (r *reading) readPairs(f *Field, header string, lines []string) {
	rest, _ := f.is(header)
	for part := range parts(lines, ",") {
		name, lists := joinName(f.Bucket, ":", rest), map[Role]list{}
		for pair := range splitQuoted(part, ';') {
			key, value, _ := strings.Cut(pair, "=")
			role := RoleNone
			switch key {
			case "b", "name":
				name = joinName(f.Bucket, ":", value)
			case "q", "total", "limit":
				role = RoleLimit
			case "r", "remaining":
				role = RoleRemaining
			case "t", "reset", "resets":
				role = RoleResetAfter
			}
			if role != RoleNone {
				lists[role] = r.readList([]string{value}, role, Seconds)
			}
		}
		g := r.fieldGroup(f, name)
		for role, l := range lists {
			g.put(role, l)
		}
	}
}
