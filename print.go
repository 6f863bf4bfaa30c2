package throttle

import (
	"encoding/json"
	"fmt"
	"log/slog"
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

// LogValue returns a group with the attributes granted, delayed, waited, refused, canceled and waiting.
func (s Stats) LogValue() slog.Value {
	return slog.GroupValue(slog.Uint64("granted", s.Granted), slog.Uint64("delayed", s.Delayed), slog.Duration("waited", s.Waited),
		slog.Uint64("refused", s.Refused.Total()), slog.Uint64("canceled", s.Canceled), slog.Int("waiting", s.Waiting))
}

// of returns the count for a Reason.
func (r Refusals) of(reason Reason) uint64 {
	return [reasons]uint64{
		ReasonNoTokens: r.NoTokens, ReasonMaxWait: r.MaxWait, ReasonDeadline: r.Deadline, ReasonQueueFull: r.QueueFull,
		ReasonCost: r.Cost, ReasonHeld: r.Held, ReasonKeys: r.Keys,
	}[reason]
}

// String returns the total, with the reasons that there were.
func (r Refusals) String() string {
	var some []string
	for reason := range reasons {
		if n := r.of(reason); n > 0 {
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
	text += ": " + number(b.Tokens) + " tokens"
	if b.Rate > 0 {
		text += ", " + number(b.Rate) + "/s"
	}
	if b.Waiting > 0 {
		text += fmt.Sprintf(", %d waiting", b.Waiting)
	}
	if b.InFlight > 0 {
		text += fmt.Sprintf(", %d in flight", b.InFlight)
	}
	if !b.HeldUntil.IsZero() {
		text += ", held until " + b.HeldUntil.Format(time.RFC3339)
	}
	return text
}

// number returns a figure with four digits, for people.
func number(f float64) string { return strconv.FormatFloat(f, 'g', 4, 64) }

// LogValue returns a group with the attributes limit, key, rate, tokens, waiting and in_flight, and held_until if it is held.
func (b BucketStats) LogValue() slog.Value {
	attrs := []slog.Attr{
		slog.String("limit", b.Limit), slog.String("key", b.Key), slog.Float64("rate", b.Rate), slog.Float64("tokens", b.Tokens),
		slog.Int("waiting", b.Waiting), slog.Int("in_flight", b.InFlight),
	}
	if !b.HeldUntil.IsZero() {
		attrs = append(attrs, slog.Time("held_until", b.HeldUntil))
	}
	return slog.GroupValue(attrs...)
}
