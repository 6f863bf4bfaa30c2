package throttle

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"time"
)

// This file shows statistics: as text, as JSON with durations in seconds and names in snake case, and in logs.

// String returns the counters in one line, for people.
func (s Stats) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "granted %d (%d waited, %v together), refused %v, canceled %d", s.Granted, s.Delayed, rounded(s.Waited, false), s.Refused, s.Canceled)
	if s.Exempt > 0 {
		fmt.Fprintf(&b, ", exempt %d", s.Exempt)
	}
	if s.ServerRefused > 0 {
		fmt.Fprintf(&b, ", refused by servers %d", s.ServerRefused)
	}
	fmt.Fprintf(&b, "; %d waiting now", s.Waiting)
	return b.String()
}

// MarshalJSON returns an object with a member for each field; waited is in seconds.
func (s Stats) MarshalJSON() ([]byte, error) {
	type fields Stats // without methods
	return json.Marshal(struct {
		fields
		Waited float64 `json:"waited"`
	}{fields(s), s.Waited.Seconds()})
}

// LogValue returns a group with the attributes granted, delayed, waited, refused, canceled, server_refused and waiting.
func (s Stats) LogValue() slog.Value {
	return slog.GroupValue(slog.Uint64("granted", s.Granted), slog.Uint64("delayed", s.Delayed), slog.Duration("waited", s.Waited),
		slog.Uint64("refused", s.Refused.Total()), slog.Uint64("canceled", s.Canceled), slog.Uint64("server_refused", s.ServerRefused),
		slog.Int("waiting", s.Waiting))
}

// String returns the total, with the reasons that there were.
func (r Refusals) String() string {
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
	text := b.Limit
	if b.Key != "" {
		text += " " + strconv.Quote(b.Key)
	}
	if math.IsInf(b.Tokens, 0) {
		text += ": no bound"
	} else {
		text += ": " + number(b.Tokens) + " tokens"
	}
	if b.Rate > 0 {
		text += ", " + number(b.Rate) + "/s"
	}
	if b.Waiting > 0 {
		text += fmt.Sprintf(", %d waiting", b.Waiting)
	}
	if b.InFlight > 0 {
		text += fmt.Sprintf(", %d in flight", b.InFlight)
	}
	return text + heldText(b.HeldUntil)
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
	text := s.Name + ": granted " + strconv.FormatUint(s.Granted, 10)
	if s.Delayed > 0 {
		text += fmt.Sprintf(" (%d waited, %v together)", s.Delayed, rounded(s.Waits.Sum, false))
	}
	text += fmt.Sprintf(", refused %v, canceled %d; %d waiting now", s.Refused, s.Canceled, s.Waiting)
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

// LogValue returns a group with the attributes limit, granted, delayed, waited, refused, canceled, waiting and in_flight, and
// held_until if a key is held.
func (s LimitStats) LogValue() slog.Value {
	return heldGroup(s.HeldUntil, slog.String("limit", s.Name), slog.Uint64("granted", s.Granted), slog.Uint64("delayed", s.Delayed),
		slog.Duration("waited", s.Waits.Sum), slog.Uint64("refused", s.Refused.Total()), slog.Uint64("canceled", s.Canceled),
		slog.Int("waiting", s.Waiting), slog.Int("in_flight", s.InFlight))
}

// String returns what the server said in one line, for people.
func (s ServerStats) String() string {
	said := []string{"refused " + strconv.FormatUint(s.Refused, 10)}
	for _, q := range s.Quotas {
		said = append(said, q.String())
	}
	if s.Pace > 0 {
		said = append(said, "paced at "+number(s.Pace)+"/s")
	}
	return strings.TrimSpace(s.Host+" "+s.Party) + ": " + strings.Join(said, ", ") + heldText(s.HeldUntil)
}

// String returns what is left of the quota, for people.
func (q QuotaStats) String() string {
	text := q.Name + ": unknown"
	if q.Left >= 0 {
		text = q.Name + ": " + strconv.FormatInt(q.Left, 10)
	}
	if q.Limit >= 0 {
		text += " of " + strconv.FormatInt(q.Limit, 10)
	}
	text += " " + q.Unit + " left"
	if !q.Reset.IsZero() {
		text += " until " + q.Reset.Format(time.RFC3339)
	}
	return text
}

// LogValue returns a group with the attributes host, party, refused, pace and quotas, and held_until if the server is held.
func (s ServerStats) LogValue() slog.Value {
	quotas := make([]string, len(s.Quotas))
	for i, q := range s.Quotas {
		quotas[i] = q.String()
	}
	return heldGroup(s.HeldUntil, slog.String("host", s.Host), slog.String("party", s.Party), slog.Uint64("refused", s.Refused),
		slog.Float64("pace", s.Pace), slog.String("quotas", strings.Join(quotas, ", ")))
}

// heldGroup returns a group, with held_until if that is not zero.
func heldGroup(until time.Time, attrs ...slog.Attr) slog.Value {
	if !until.IsZero() {
		attrs = append(attrs, slog.Time("held_until", until))
	}
	return slog.GroupValue(attrs...)
}

// number returns a figure with four digits, for people.
func number(f float64) string { return strconv.FormatFloat(f, 'g', 4, 64) }

// LogValue returns a group with the attributes limit, key, rate, tokens, waiting and in_flight, and held_until if it is held. A
// bucket without a bound has no attribute tokens.
func (b BucketStats) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String("limit", b.Limit), slog.String("key", b.Key), slog.Float64("rate", b.Rate)}
	if !math.IsInf(b.Tokens, 0) { // which a JSONHandler cannot write
		attrs = append(attrs, slog.Float64("tokens", b.Tokens))
	}
	return heldGroup(b.HeldUntil, append(attrs, slog.Int("waiting", b.Waiting), slog.Int("in_flight", b.InFlight))...)
}
