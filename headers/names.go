package headers

import (
	"slices"
	"strings"
)

// A Role is what a header, or a member of a body, means for a bucket or for the response.
type Role uint8

const (
	RoleNone Role = iota
	RoleLimit
	RoleRemaining
	RoleUsed
	RoleInFlight   // requests under way
	RoleRate       // per second
	RoleReset      // when there is more: a moment, in any form
	RoleResetAfter // the same; a bare number is seconds from now whatever its size
	RoleWindow     // the length of time the limit is for
	RoleRetryAfter
	RoleCost
	RoleReason
	RoleScope
	RoleName     // what the bucket without a name is called
	RoleViolated // a policy that was violated
	RolePercent  // how much of the limit was used, in per cent: the limit is 100

	roles = iota
)

// concerns reports whether a header of that name, in any case, may say something about limits. It is asked of every header of
// every response, hence no copies, and no look at most of its bytes.
func concerns(name string) bool { return len(name) >= shortest && mayConcern(name) }

// mayConcern is concerns for a name that is long enough, as few are. Without it, concerns would not be inlined.
func mayConcern(name string) bool {
	if c := name[0] | 0x20; (c == 'r' || c == 'x') && isKnown(name) {
		return true
	}
	if strings.HasPrefix(name, "Content-") { // the most usual ones, of the body
		return false
	}
	// Where may a "limit" end? As Boyer, Moore and Horspool do, go on to where it may end at the soonest.
	for i := len("ratelimit") - 1; i < len(name); i += int(jump[name[i]&0x1f]) {
		if name[i]|0x20 == 't' && name[i-2]|0x20 == 'm' && limitAt(name, i-4) {
			return true
		}
	}
	return false
}

// shortest is how long a name is at least that concerns limits.
const shortest = len("ratelimit")

// jump is how far behind a letter a "limit" ends at least, by the letter's last five bits: 1 behind i, 4 behind l, 2 behind m.
const jump = "\x05\x05\x05\x05\x05\x05\x05\x05\x05\x01\x05\x05\x04\x02\x05\x05\x05\x05\x05\x05\x05\x05\x05\x05\x05\x05\x05\x05\x05\x05\x05\x05"

// limitAt reports whether "limit" begins at name[i], after "rate" and perhaps a hyphen, or after "token".
func limitAt(name string, i int) bool {
	if i < len("rate") || i+len("limit") > len(name) || !equalFold(name[i:i+len("limit")], "limit") {
		return false
	}
	if i >= len("token") && equalFold(name[i-len("token"):i], "token") {
		return true
	}
	if name[i-1] == '-' {
		i--
	}
	return i >= len("rate") && equalFold(name[i-len("rate"):i], "rate")
}

// equalFold reports whether s is lower, which is in lower case, in any case of ASCII letters.
func equalFold(s, lower string) bool {
	if len(s) != len(lower) {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c != lower[i] && (c < 'A' || c > 'Z' || c|0x20 != lower[i]) {
			return false
		}
	}
	return true
}

// isKnown reports whether name is a header that is read by its whole name, or as Retry-After by its beginning: the Retry-After
// family, what a request cost, and whether to send it again.
func isKnown(name string) bool {
	known := ""
	switch len(name) {
	case len("x-retry-in"):
		known = "x-retry-in"
	case len("retry-after"):
		known = "retry-after"
	case len("x-complexity"):
		known = "x-complexity"
	case len("x-retry-after"):
		known = "x-retry-after"
		if equalFold(name, "x-retry-reset") {
			return true
		}
	case len("x-should-retry"):
		known = "x-should-retry"
	case len("x-amz-retry-after"):
		known = "x-amz-retry-after"
		if equalFold(name, "x-retry-remaining") {
			return true
		}
	case len("x-ms-retry-after-ms"):
		known = "x-ms-retry-after-ms"
		if equalFold(name, "x-ms-request-charge") {
			return true
		}
	}
	return known != "" && equalFold(name, known) || len(name) > len(retryAfterOf) && equalFold(name[:len(retryAfterOf)], retryAfterOf)
}

// retryAfterOf begins the name of a Retry-After of one limit among several, such as retry-after-short.
const retryAfterOf = "retry-after-"

// A meaning is what a header's name says about its value.
type meaning struct {
	role   Role
	unit   TimeUnit
	bucket string // "" is the one without a name
	prefix string // the vendor's, in front of "ratelimit"
	bare   bool   // nothing follows "ratelimit": its limit, unless another header says so
}

// parseName reads a lower-case name by the one rule that most APIs keep to: around "ratelimit" or "rate-limit" stand a
// vendor's prefix, a role, and the name of a bucket, role and name in either order, with or without a hyphen between them.
func parseName(name string) (m meaning, ok bool) {
	if bucket, found := strings.CutPrefix(name, retryAfterOf); found && bucket != "ms" {
		return meaning{role: RoleRetryAfter, unit: Seconds, bucket: bucket}, true
	}
	switch name { // of nestjs-rate-limiter, beside X-RateLimit-Limit
	case "x-retry-remaining":
		return meaning{role: RoleRemaining}, true
	case "x-retry-reset":
		return meaning{role: RoleReset}, true
	}
	prefix, rest, unit, ok := cutStem(name)
	switch {
	case !ok, name == "ratelimit": // structured
		return m, false
	case strings.HasSuffix(name, "-tokens_usage_based"): // a second count, of OpenAI, that refuses nothing
		return m, false
	case strings.HasPrefix(rest, "unified-"): // shares of Anthropic's subscriptions, above which requests are still accepted; what refuses has a Retry-After
		return m, false
	case prefix == "x-amzn": // a rate per second
		return m, false
	case hasToken(prefix, "beta"): // not enforced
		return m, false
	}
	if prefix != "x" {
		m.prefix = strings.TrimPrefix(prefix, "x-")
	}
	if rest == "" {
		m.role, m.bare = RoleLimit, true
		return m, true
	}
	if rest, ok = cutRole(rest, &m); !ok {
		return m, false
	}
	if unit != "" {
		rest = unit + "-" + rest
	}
	m.bucket = strings.TrimSuffix(rest, "-")
	return m, true
}

// cutRole puts the role that a name has into m, and returns what is left of the name. If the role is in front, that is a part of it.
func cutRole(name string, m *meaning) (rest string, ok bool) {
	var room [8]string
	tokens := words(room[:0], name)
	at, width := findRole(tokens, m)
	if at > 0 || len(tokens) > 1+strings.Count(name, "-") {
		return strings.Join(slices.Concat(tokens[:at], tokens[at+width:]), "-"), width > 0
	}
	for range width {
		_, name, _ = strings.Cut(name, "-")
	}
	return name, width > 0
}

// cutStem returns what is before and after the stem of name: "ratelimit" or "rate-limit"; or "ratelimitbysize" or "tokenlimit", by which
// Mistral and Together count tokens.
func cutStem(name string) (prefix, rest, unit string, ok bool) {
	for i := range name {
		for _, stem := range [...]struct{ text, unit string }{{"ratelimit", ""}, {"rate-limit", ""}, {"ratelimitbysize", "tokens"}, {"tokenlimit", "tokens"}} {
			if tail, found := strings.CutPrefix(name[i:], stem.text); found && (tail == "" || tail[0] == '-') {
				return strings.TrimSuffix(name[:i], "-"), strings.TrimPrefix(tail, "-"), stem.unit, true
			}
		}
	}
	return "", "", "", false
}

// words appends the parts of a name between its hyphens. A part that begins or ends with a word that can only be a role, such
// as userremaining, is two.
func words(out []string, name string) []string {
	for part := range strings.SplitSeq(name, "-") {
		for _, role := range [...]string{"remaining", "limit", "reset"} {
			if before, found := strings.CutSuffix(part, role); found && before != "" {
				out, part = append(out, before), role
			} else if after, found := strings.CutPrefix(part, role); found && after != "" {
				out, part = append(out, role), after
			}
		}
		out = append(out, part)
	}
	return out
}

func hasToken(name, token string) bool {
	for t := range strings.SplitSeq(name, "-") {
		if t == token {
			return true
		}
	}
	return false
}

// findRole finds the tokens that are the role and puts it into m: what stands first, what stands last, what stands between;
// a word that may as well name a bucket counts only where there is no other.
func findRole(tokens []string, m *meaning) (at, width int) {
	for _, vague := range [...]bool{false, true} {
		for back := range tokens {
			i := (len(tokens) - back) % len(tokens) // the first, then from the last to the second
			if role, unit, n := roleOf(tokens[i:], vague); n > 0 {
				m.role, m.unit = role, unit
				return i, n
			}
		}
	}
	return 0, 0
}

// roleOf is plainRole or vagueRole. Unlike a variable for one of these, it lets the compiler see that tokens stay on the stack.
func roleOf(tokens []string, vague bool) (Role, TimeUnit, int) {
	if vague {
		return vagueRole(tokens)
	}
	return plainRole(tokens)
}

// plainRole returns the role that tokens begin with, and how many of them it takes.
func plainRole(tokens []string) (Role, TimeUnit, int) {
	switch next := second(tokens); tokens[0] {
	case "limit", "max":
		return RoleLimit, 0, 1
	case "remaining":
		return RoleRemaining, 0, 1
	case "used", "usage", "observed":
		return RoleUsed, 0, 1
	case "retryafter": // also an instant
		unit, n := unitToken(tokens[1:])
		if n == 0 {
			unit = ByMagnitude
		}
		return RoleRetryAfter, unit, 1 + n
	case "retry":
		if next == "after" {
			unit, n := unitToken(tokens[2:])
			return RoleRetryAfter, unit, 2 + n
		}
	case "reset":
		switch next {
		case "after", "in":
			unit, n := unitToken(tokens[2:])
			if n == 0 {
				unit = Seconds
			}
			return RoleResetAfter, unit, 2 + n
		case "at", "time", "date", "timestamp", "epoch":
			return RoleReset, 0, 2
		}
		unit, n := unitToken(tokens[1:])
		if unit == Milliseconds { // an epoch, if it is large enough for one
			return RoleReset, resetMillis, 1 + n
		}
		return RoleReset, 0, 1 + n
	}
	return RoleNone, 0, 0
}

// resetMillis is what a number means in a header called reset-ms: a delay or an epoch, in milliseconds.
const resetMillis TimeUnit = 255

func vagueRole(tokens []string) (Role, TimeUnit, int) {
	n := 1
	switch next := second(tokens); tokens[0] {
	case "total":
		return RoleLimit, 0, 1
	case "next":
		return RoleReset, 0, 1
	case "window", "interval", "period", "renewalperiod", "renewal":
		if (tokens[0] == "window" && next == "size") || (tokens[0] == "renewal" && next == "period") {
			n = 2
		}
		unit, width := unitToken(tokens[n:])
		return RoleWindow, unit, n + width
	case "cost":
		return RoleCost, 0, 1
	case "reason":
		return RoleReason, 0, 1
	case "scope":
		return RoleScope, 0, 1
	case "resource", "bucket", "name":
		return RoleName, 0, 1
	}
	return RoleNone, 0, 0
}

func second(tokens []string) string {
	if len(tokens) > 1 {
		return tokens[1]
	}
	return ""
}

// unitToken returns the unit that tokens begin with, and how many of them it takes; seconds without one.
func unitToken(tokens []string) (TimeUnit, int) {
	if len(tokens) > 0 {
		switch tokens[0] {
		case "ms", "millis", "milliseconds":
			return Milliseconds, 1
		case "s", "sec", "secs", "seconds":
			return Seconds, 1
		}
	}
	return Seconds, 0
}
