package headers

import (
	"cmp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// conclude draws the conclusions: what is left of which quota, whether the request was limited, and how long to stay away.
func (r *reading) conclude() {
	retryAfter := r.coarse.refined(r.fine)
	if !retryAfter.known {
		retryAfter = r.inBody
	}
	s := &r.signal
	s.RetryAfter = Maybe[time.Duration]{retryAfter.d, true}.only(retryAfter.known)
	s.Saturated = retryAfter.saturated
	s.Buckets = r.buckets()
	r.judge()
	if s.Limited {
		s.Unit = r.unit
	}
	if s.Limited && s.Scope == "" {
		s.Scope = r.dialect.Scope
	}
	if s.Limited && r.dialect.ZeroIsConcurrency {
		r.dropSentinels()
	}
	if len(s.Buckets) > maxBuckets {
		slices.SortStableFunc(s.Buckets, func(a, b Bucket) int {
			return cmp.Compare(uint64(a.Remaining.Or(-1)), uint64(b.Remaining.Or(-1))) // unknown last
		})
		s.Buckets = slices.Clip(s.Buckets[:maxBuckets])
	}
	slices.SortStableFunc(s.Buckets, func(a, b Bucket) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.PartitionKey, b.PartitionKey))
	})
}

// buckets joins the draft's fields with the others. Where both describe one bucket, the draft's count, and
// the others fill what they lack; vendors' buckets of the same name are other buckets.
func (r *reading) buckets() []Bucket {
	out := r.structured
	fallback := cmp.Or(r.names[1], r.names[0], r.names[2], "default")
	for _, g := range r.groups {
		g.eachBucket(fallback, func(b Bucket) {
			i := slices.IndexFunc(out, func(o Bucket) bool { return o.Name == b.Name })
			switch {
			case len(out) >= maxTold:
			case i < 0:
				if out == nil { // mostly it takes a bucket of each group
					out = make([]Bucket, 0, len(r.groups))
				}
				out = append(out, b)
			case g.prefix == "":
				out[i].fill(b)
			default:
				b.Name = g.prefix + "-" + b.Name
				out = append(out, b)
			}
		})
	}
	if r.status == 401 { // the quotas are those of clients without credentials
		for i := range out {
			out[i].Advisory = true
		}
	}
	return slices.DeleteFunc(out, func(b Bucket) bool { return !b.hasValue() && !b.Reset.Known })
}

// judge reports whether the request was limited, and how long to stay away.
func (r *reading) judge() {
	s := &r.signal
	empty := slices.ContainsFunc(s.Buckets, Bucket.Empty)
	s.Limited = limits(r.status) || r.envoy || mayLimit(r.status) && (empty || s.RetryAfter.Known)
	rule := r.rule
	if rule == nil {
		rule = r.dialect.rule(r)
	}
	if rule != nil {
		s.Limited, s.NotLimited = !rule.NotLimited, rule.NotLimited
		s.Concurrency = s.Limited && rule.Concurrency
		r.setText(RoleReason, rule.Reason)
		if rule.Scope != "" {
			s.Scope = rule.Scope
		}
	}
	if s.Final = s.Limited && (rule != nil && rule.Final || s.NoRetry && !s.RetryAfter.Known); s.Final {
		r.readWords()
	}
	reset := latest(s.Buckets)
	switch {
	case s.Limited && s.RetryAfter.Known:
		s.Wait = s.RetryAfter
	case !s.Limited && !empty:
		s.Wait = known(time.Duration(0))
	case !s.Limited:
		s.Wait = reset
	case rule != nil && rule.Wait > 0:
		s.Wait = known(min(max(rule.Wait, reset.Value), ceiling))
	case empty && reset.Known:
		s.Wait = reset
	default:
		s.Wait = firstKnown(r.refill(), Maybe[time.Duration]{min(r.dialect.MinWait, ceiling), r.dialect.MinWait > 0}, r.onlyReset())
	}
}

// longestMessage is the most of a message that is kept, in bytes.
const longestMessage = 256

// readWords reads what the body says to people, on one line, and a code as the reason unless that is known.
func (r *reading) readWords() {
	var message, detail string
	for name, value := range members(r.body) {
		switch name {
		case "message":
			message = cmp.Or(message, value)
		case "detail":
			detail = cmp.Or(detail, value)
		case "code":
			if text, ok := clean(value); ok && strings.Trim(text, "0123456789") != "" { // not the status once more
				r.setText(RoleReason, text)
			}
		}
	}
	hidden := func(c rune) bool { return !unicode.IsGraphic(c) || unicode.IsSpace(c) }
	text := strings.Join(strings.FieldsFunc(cmp.Or(message, detail), hidden), " ")
	if len(text) > longestMessage {
		n := longestMessage - len("…")
		for !utf8.RuneStart(text[n]) {
			n--
		}
		text = text[:n] + "…"
	}
	r.signal.Message = text
}

// latest returns the latest reset among the empty buckets.
func latest(buckets []Bucket) (reset Maybe[time.Duration]) {
	for _, b := range buckets {
		if b.Empty() && b.Reset.Known && b.Reset.Value >= reset.Value {
			reset = b.Reset
		}
	}
	return reset
}

// refill returns how long it takes until a bucket of known rate has what the request costs.
func (r *reading) refill() (wait Maybe[time.Duration]) {
	for _, b := range r.signal.Buckets {
		if rate := b.Rate.Value; rate > 0 && !b.Advisory {
			lacking := max(r.signal.Cost.Or(1)-float64(b.Remaining.Value), 1)
			d := min(lacking/rate, ceiling.Seconds())
			wait = known(max(wait.Value, time.Duration(d*float64(time.Second))))
		}
	}
	return wait
}

// onlyReset returns the reset of the only bucket: where none is empty it is the best guess.
func (r *reading) onlyReset() Maybe[time.Duration] {
	resets := make([]Maybe[time.Duration], 0, len(r.signal.Buckets))
	for _, b := range r.signal.Buckets {
		if !b.Advisory {
			resets = append(resets, b.Reset)
		}
	}
	for _, g := range r.groups { // those without a bucket
		if reset := g.reset(0, 1); reset.Known && !g.advisory && g.size() == 1 && !g.bucket(0, 1).hasValue() {
			resets = append(resets, reset)
		}
	}
	if len(resets) == 1 {
		return resets[0]
	}
	return Maybe[time.Duration]{}
}

// dropSentinels takes out buckets of a limit of 0, by which the dialect says that too many requests were under way.
func (r *reading) dropSentinels() {
	s := &r.signal
	n := len(s.Buckets)
	s.Buckets = slices.DeleteFunc(s.Buckets, func(b Bucket) bool {
		return b.Limit.Known && b.Limit.Value == 0 && b.Empty()
	})
	s.Concurrency = s.Concurrency || len(s.Buckets) < n
	if len(s.Buckets) == 0 {
		s.Buckets = nil
	}
}
