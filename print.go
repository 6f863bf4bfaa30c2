package throttle

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/httpthrottle/throttle/internal/quota"
	"github.com/httpthrottle/throttle/internal/words"
)

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

// String returns the total, and the counts that are not 0.
func (c Counts[K]) String() string {
	var some []string
	for k, n := range c.All() {
		if n > 0 {
			some = append(some, fmt.Sprint(k)+" "+strconv.FormatUint(n, 10))
		}
	}
	if len(some) == 0 {
		return "0"
	}
	return fmt.Sprintf("%d (%s)", c.Total(), strings.Join(some, ", "))
}

// MarshalJSON returns an object with a member for each label, such as no_tokens.
func (c Counts[K]) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for k, n := range c.All() {
		if k > 1 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(append(strconv.AppendQuote(b, labelOf(k)), ':'), n, 10)
	}
	return append(b, '}'), nil
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

// String returns the state of the limit in one line, for people.
func (s LimitStats) String() string {
	text := quota.Plain(s.Name) + ": granted " + strconv.FormatUint(s.Granted, 10)
	text += waitedText(s.Delayed, s.Waits.Sum, s.Waits.mostText())
	text += fmt.Sprintf(", rejected %v, canceled %d; %d waiting now", s.Rejected, s.Canceled, s.Waiting)
	if !s.Keyed && !math.IsInf(s.Tokens, 0) {
		text += ", " + words.Number(s.Tokens) + " tokens"
	}
	if s.InFlight > 0 {
		text += fmt.Sprintf(", %d in flight", s.InFlight)
	}
	if s.Keyed {
		text += fmt.Sprintf(", %d keys", s.Keys)
	}
	if s.Unread > 0 {
		text += fmt.Sprintf(", %d compressed responses unread", s.Unread)
	}
	if s.Warning != "" {
		text += ", " + s.Warning
	}
	return text + words.Held(s.HeldUntil)
}

// waitedText returns how many requests waited, and how long on average; "" if none did.
func waitedText(n uint64, sum time.Duration, more string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d waited, %v on average%s)", n, words.Rounded(time.Duration(uint64(sum)/n), false), more)
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
		text += ": " + words.Number(b.Tokens) + " of " + words.Number(b.Capacity)
	default:
		text += ": " + words.Number(b.Tokens) + " tokens"
	}
	switch {
	case b.Per != "":
		text += " per " + b.Per
	case b.Rate > 0:
		text += ", " + words.Rate(b.Rate)
	}
	if !b.Reset.IsZero() {
		text += ", resets at " + words.Reset(b.Reset, b.Per)
	}
	if b.Waiting > 0 {
		text += fmt.Sprintf(", %d waiting", b.Waiting)
	}
	if b.InFlight > 0 {
		text += fmt.Sprintf(", %d in flight", b.InFlight)
	}
	return text + words.Held(b.HeldUntil)
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
	s := d.Seconds()
	return &s
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

// heldGroup returns a group, with held_until if that is not zero.
func heldGroup(until time.Time, attrs ...slog.Attr) slog.Value {
	if !until.IsZero() {
		attrs = append(attrs, slog.Time("held_until", until))
	}
	return slog.GroupValue(attrs...)
}

// String returns what the server reported in one line, for people.
func (s ServerStats) String() string {
	said := []string{"refused " + strconv.FormatUint(s.Refused, 10)}
	if s.Last != nil {
		said[0] += " (last: " + s.Last.String() + ")"
	}
	if s.Final != nil {
		said = append(said, "refuses, and no waiting helps ("+s.Final.String()+")")
	}
	for _, q := range s.Quotas {
		said = append(said, q.String())
	}
	if s.Pace > 0 {
		said = append(said, words.Paced(s.Pace, s.PaceWhy))
	}
	of := strings.TrimSpace(quota.Plain(s.Host) + " " + words.Keys(s.Account))
	if s.For != "" {
		of += " (" + words.Keys(s.For) + ")"
	}
	return of + ": " + strings.Join(said, ", ") + s.heldText()
}

// heldText returns until when the server is held, and whether that is a guess; "" if it is not.
func (s *ServerStats) heldText() string {
	text := words.Held(s.HeldUntil)
	if s.Guessed {
		text += " (guessed)"
	}
	return text
}

// String returns the refusal for people.
func (r *LastRefusal) String() string {
	text := strconv.Itoa(r.Status) + " at " + r.At.Format(time.RFC3339)
	if r.Verdict > 0 {
		text += ", " + r.Verdict.String()
	}
	if !r.Until.IsZero() {
		text += ", to wait until " + r.Until.Format(time.RFC3339)
	}
	return text
}

// String returns what the server said, for people.
func (f *FinalStats) String() string { return (&FinalError{f.Code, f.Message}).Error() }

// String returns what is left of the quota, for people.
func (q QuotaStats) String() string {
	text := words.Quota(q.Name, q.Left, q.Limit)
	text += " " + quota.Plain(q.Unit) + " left"
	if !q.Reset.IsZero() {
		text += " until " + q.Reset.Format(time.RFC3339)
	}
	return text + words.Held(q.HeldUntil)
}

// LogValue returns a group with the attributes host, account, refused, pace and quotas, last and verdict if there was a refusal, final if
// there is a final one, and held_until and guessed if the server is held.
func (s ServerStats) LogValue() slog.Value {
	quotas := make([]string, len(s.Quotas))
	for i, q := range s.Quotas {
		quotas[i] = q.String()
	}
	attrs := []slog.Attr{
		slog.String("host", s.Host), slog.String("account", s.Account), slog.String("for", s.For), slog.Uint64("refused", s.Refused),
		slog.Float64("pace", s.Pace), slog.String("quotas", strings.Join(quotas, ", ")),
	}
	if s.PaceWhy != "" {
		attrs = append(attrs, slog.String("pace_why", s.PaceWhy))
	}
	if s.Last != nil {
		attrs = append(attrs, slog.String("last", s.Last.String()), slog.String("verdict", s.Last.Verdict.Label()))
	}
	if s.Final != nil {
		attrs = append(attrs, slog.String("final", s.Final.String()))
	}
	if !s.HeldUntil.IsZero() {
		attrs = append(attrs, slog.Bool("guessed", s.Guessed))
	}
	return heldGroup(s.HeldUntil, attrs...)
}
