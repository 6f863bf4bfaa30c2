package headers

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

// BodyBytes is how much of a body a dialect reads at most, in bytes.
const BodyBytes = 4 << 10

// A Dialect describes how one API reports its limits, beyond what means the same on every server. The zero Dialect reads what
// [Parse] reads; each field adds to that. Presets are Dialects: take one from [Preset.Dialect] and change it. A Dialect is a
// value; its methods do not change it and are safe for concurrent use.
type Dialect struct {
	// Name is for people.
	Name string

	// Hosts are the hosts that use it, such as "api.example.com", "*.example.com" for all of its subdomains, or "api.*.example.com",
	// where * is one label, such as a region. They matter only if several dialects are in use.
	Hosts []string

	// MinWait is how long to wait after a refusal whose end neither Retry-After nor an empty bucket reports. 0 means that the
	// wait is unknown.
	MinWait time.Duration

	// Reset is the unit of a reset that is a bare number. The zero TimeUnit infers it from the size of the number.
	Reset TimeUnit

	// Scope is what limits are counted by, such as a user or an address, unless the response reports it.
	Scope string

	// ZeroIsConcurrency means that an empty bucket with a limit of 0 stands for too many concurrent requests.
	ZeroIsConcurrency bool

	// Parts are the parts of a request by which the API counts requests separately, such as the model. What it says about one of
	// them then concerns no other. Without Parts, what is counted separately is learned from the responses.
	Parts []Part

	// Fields are headers that are read as described here, instead of by their names.
	Fields []Field

	// Members are the relevant members of a JSON or XML body, at any depth, and of headers whose form is JSON. Fields of a form
	// other than Plain and Sentence have no meaning there. A Retry-After in the body counts if no header has one.
	Members []Field

	// Rules decide which responses were limited, beyond those that always are. The first that applies decides.
	Rules []Rule
}

// A Part is a part of a request: either a segment of the path, or a member of the body.
type Part struct {
	// After is a segment of the path. The part is the next one, up to a colon that is not escaped: after "models", gemini-pro of
	// /v1/models/gemini-pro:generateContent.
	After string

	// Member is a member of a JSON body that is an object, with a string as its value. It is read only if Request.GetBody is set, so
	// that the body itself is not consumed.
	Member string
}

// A Field is a header, or a member of a body, with a meaning of its own.
type Field struct {
	// Name is the header's name in any case, with a * at its end for all headers with that beginning; or the name of the member.
	Name string

	// Form is how the value is written.
	Form Form

	// Role is its meaning. Pairs and Family need none.
	Role Role

	// Bucket is the bucket that it describes, "" for the default one.
	Bucket string

	// Unit is what a bare number means, where the role is a time.
	Unit TimeUnit

	// Window is the length of the period that the bucket's limit applies to, 0 if unknown.
	Window time.Duration

	// Advisory marks the bucket as one that is no reason to wait.
	Advisory bool
}

// A Form is how the value of a header is written.
type Form uint8

const (
	Plain     Form = iota // one value, or a list of them
	UsedOf                // 32/40, or name=32/40; name=1/750: used and limit
	PerWindow             // 100:120,20:1: 100 requests in 120 seconds and 20 in one; buckets are called Bucket:seconds
	Pairs                 // b=hour;q=10;r=9;t=774, … or total=10; remaining=9; resets=41; buckets Bucket:b, or what * stands for
	Family                // the rest of the name, for which * stands, is a role and a bucket's name, as after "ratelimit"
	NameCount             // name;159, name;1039: a number for each bucket, called Bucket:name
	Sentence              // try again in 5.23s: the time after a word such as "in", in a member of a body
	JSON                  // {"type":"api","limit":9,"reset":25}: the dialect's Members; buckets are called Bucket:type, and a per cent Bucket:type:member
)

// A Rule decides whether a response was limited. All conditions that are set must hold.
type Rule struct {
	Statuses []int   // any of these, nil for all
	Header   Match   // a header, the zero Match for none
	Body     []Match // any of these members of a JSON or XML body; a body that is neither is one member without a name

	// Event makes it a rule for events of that name in an event stream, such as "error", and for no other response. Body is then about the
	// event's data. An event without a name is called "message".
	Event string

	NotLimited  bool          // they were not limited, although it looks so
	Final       bool          // they were refused for a reason that no waiting ends, such as used-up credit
	Concurrency bool          // they were limited because of the number of requests in flight
	Wait        time.Duration // the shortest wait, if there is no Retry-After
	Reason      string        // unless the response gives one
	Scope       string        // "host": the limit concerns all requests to the host, whatever their credentials
}

// A Match is a header, whose name may be in any case, or a member of a body. Its value is any of Values, in any case: text,
// *text, text* or *text*; nil for any at all.
type Match struct {
	Name   string
	Values []string
}

// Parse returns what a response says about rate limits; see [Parse]. body holds the first bytes of the body, of which at most
// BodyBytes are read; it is nil if [Dialect.WantsBody] returned false. If body holds the lines of an event of a stream, Parse returns what
// that event says, and not what the headers say; see [Dialect.WantsEvents].
func (d Dialect) Parse(status int, h http.Header, body []byte, now time.Time) Signal {
	if d.silent(status, h, body) {
		return silent(status)
	}
	read := d // d itself stays on the stack
	return read.parse(status, h, body, now, nil)
}

// parse is Parse for a response that is not silent.
func (d *Dialect) parse(status int, h http.Header, body []byte, now time.Time, kept *memory) Signal {
	if len(body) > 0 && isStream(h) {
		return d.readEvent(status, h, body, now)
	}
	return d.read(status, h, body, now, kept)
}

// silent reports whether the response has nothing for the dialect.
func (d *Dialect) silent(status int, h http.Header, body []byte) bool {
	if len(body) > 0 || (limits(status) && (d.MinWait > 0 || d.Scope != "")) {
		return false
	}
	for i := range d.Rules {
		if r := &d.Rules[i]; r.Body == nil && r.isFor(status) {
			return false
		}
	}
	for name := range h {
		if d.concerns(name) {
			return false
		}
	}
	return true
}

func (d *Dialect) concerns(name string) bool {
	if concerns(name) {
		return true
	}
	for i := range d.Fields {
		if _, ok := d.Fields[i].is(name); ok {
			return true
		}
	}
	return false
}

// field returns the dialect's own field for a header, nil if it has none.
func (d *Dialect) field(name string) *Field {
	for i := range d.Fields {
		if _, ok := d.Fields[i].is(name); ok {
			return &d.Fields[i]
		}
	}
	return nil
}

// is reports whether f is for a header of that name, and what the * stands for.
func (f *Field) is(name string) (rest string, ok bool) {
	if prefix, open := strings.CutSuffix(f.Name, "*"); open {
		if len(name) < len(prefix) || !strings.EqualFold(name[:len(prefix)], prefix) {
			return "", false
		}
		return name[len(prefix):], true
	}
	return "", len(name) == len(f.Name) && strings.EqualFold(name, f.Name)
}

// WantsBody reports whether the dialect needs the body of such a response. The caller then reads up to BodyBytes, passes them
// to Parse, and puts them back. It returns false for bodies that are encoded or an event stream.
func (d Dialect) WantsBody(status int, h http.Header) bool { return d.wantsBody(status, h) }

func (d *Dialect) wantsBody(status int, h http.Header) bool {
	return d.looksInto(status, h) && isDecoded(h)
}

// looksInto is wantsBody for a body that the caller decodes.
func (d *Dialect) looksInto(status int, h http.Header) bool {
	wants := len(d.Members) > 0 && (limits(status) || status == http.StatusForbidden || status == http.StatusServiceUnavailable) ||
		limits(status) && noRetry(h)
	for i := 0; i < len(d.Rules) && !wants; i++ {
		if rule := &d.Rules[i]; rule.isFor(status) && rule.Header.header(h) {
			if len(rule.Body) == 0 && !rule.Final { // decides without one
				return false
			}
			wants = true // also for the words of a Final refusal
		}
	}
	return wants && isText(status, h)
}

// noRetry reports whether the server asks not to send the request again.
func noRetry(h http.Header) bool {
	return strings.EqualFold(first(values(h, "X-Should-Retry")), "false")
}

// isDecoded reports whether a body is not encoded.
func isDecoded(h http.Header) bool {
	encoding := get(h, "Content-Encoding")
	return encoding == "" || strings.EqualFold(encoding, "identity")
}

// isText reports whether a body, once it is decoded, is a text of which the beginning will be there soon.
func isText(status int, h http.Header) bool {
	kind := strings.ToLower(get(h, "Content-Type"))
	if status < 400 {
		return strings.Contains(kind, "json")
	}
	return !strings.HasPrefix(kind, eventStream)
}

// get returns the first line of a header, whatever the case of its key.
func get(h http.Header, canonical string) string {
	if lines := h[canonical]; len(lines) > 0 {
		return lines[0]
	}
	for _, line := range values(h, canonical) {
		return line
	}
	return ""
}

// rule returns the first rule that applies to the response, nil if none does.
func (d *Dialect) rule(r *reading) *Rule {
	for i := range d.Rules {
		rule := &d.Rules[i]
		if rule.isFor(r.status) && rule.Header.header(r.header) && rule.inBody(r.body) {
			return rule
		}
	}
	return nil
}

// isFor reports whether the rule is for responses of that status.
func (rule *Rule) isFor(status int) bool { return rule.Event == "" && rule.hasStatus(status) }

func (rule *Rule) hasStatus(status int) bool {
	return rule.Statuses == nil || slices.Contains(rule.Statuses, status)
}

func (rule *Rule) inBody(body []byte) bool {
	if len(rule.Body) == 0 {
		return true
	}
	for name, value := range members(body) {
		for _, m := range rule.Body {
			if m.Name == name && m.matches(value) {
				return true
			}
		}
	}
	return false
}

// header reports whether h has a header that matches; the zero Match asks for none.
func (m Match) header(h http.Header) bool {
	if m.Name == "" {
		return true
	}
	for _, line := range values(h, m.Name) {
		if text, ok := clean(line); ok && m.matches(text) {
			return true
		}
	}
	return false
}

func (m Match) matches(text string) bool {
	text = strings.ToLower(text)
	return m.Values == nil || slices.ContainsFunc(m.Values, func(pattern string) bool {
		return matches(strings.ToLower(pattern), text)
	})
}

func matches(pattern, text string) bool {
	pattern, open := strings.CutPrefix(pattern, "*")
	pattern, openEnd := strings.CutSuffix(pattern, "*")
	switch {
	case open && openEnd:
		return strings.Contains(text, pattern)
	case open:
		return strings.HasSuffix(text, pattern)
	case openEnd:
		return strings.HasPrefix(text, pattern)
	}
	return text == pattern
}
