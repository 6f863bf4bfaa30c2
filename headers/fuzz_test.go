package headers_test

import (
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/headers"
)

// FuzzParse feeds whole responses: lines of a header, then an empty line and a body.
func FuzzParse(f *testing.F) {
	for i, c := range responses(f) {
		var b strings.Builder
		for name, lines := range c.Headers {
			for _, line := range lines {
				b.WriteString(name + ": " + line + "\n")
			}
		}
		f.Add(c.Status, b.String()+"\n"+c.Body, c.Now.Unix(), uint64(i))
	}
	f.Add(429, "Retry-After: 5\nretry-after-ms: 4200\nRETRY-AFTER: 99999999999999999999", noon.Unix(), uint64(2))
	f.Fuzz(func(t *testing.T, status int, text string, unix int64, seed uint64) {
		now := time.Unix(unix, 0)
		head, body, _ := strings.Cut(text, "\n\n")
		lines := map[string][]string{} // by lower-case name, as on the wire
		for line := range strings.SplitSeq(head, "\n") {
			name, value, _ := strings.Cut(line, ": ")
			lines[lowerASCII(name)] = append(lines[lowerASCII(name)], value)
		}
		checkResponse(t, status, lines, body, now, seed)
	})
}

// TestRandomResponsesAreReadSanely puts together names and values that fuzzing would take long to find.
func TestRandomResponsesAreReadSanely(t *testing.T) { // slow: 5,000 responses
	var names, values []string
	for _, c := range responses(t) {
		for name, lines := range c.Headers {
			names = append(names, lowerASCII(name))
			values = append(values, lines...)
		}
	}
	values = append(values, "0", "-1", "1", "100000000", "1795176060", "1795176060000", "9223372036854775807", "0.5", "1,2,0", "0;w=5", "a;r=0;t=9", "a;q=1, a;r=0")
	seed := rand.Uint64()
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	random := rand.New(rand.NewPCG(seed, 0))
	statuses := []int{200, 301, 400, 401, 403, 418, 420, 429, 500, 503, 529}
	for range 5000 {
		lines := map[string][]string{}
		for range random.IntN(8) {
			name := names[random.IntN(len(names))]
			lines[name] = append(lines[name], values[random.IntN(len(values))])
		}
		checkResponse(t, statuses[random.IntN(len(statuses))], lines, "", noon, random.Uint64())
	}
}

// checkResponse asserts what holds of every response, read by itself and by one of the presets.
func checkResponse(t *testing.T, status int, lines map[string][]string, body string, now time.Time, seed uint64) {
	t.Helper()
	got := headers.Parse(status, spelled(lines, seed), now)
	checkSane(t, got)
	checkPlainReading(t, status, lines, now, got)
	for i := range uint64(3) {
		require.Equal(t, got, headers.Parse(status, spelled(lines, seed+i+1), now), "another order and case: %q", lines)
	}
	preset := headers.Presets()[seed%uint64(len(headers.Presets()))]
	d := preset.Dialect()
	d.WantsBody(status, spelled(lines, seed))
	with := d.Parse(status, spelled(lines, seed), []byte(body), now)
	checkSane(t, with)
	require.Equal(t, with, d.Parse(status, spelled(lines, seed+1), []byte(body), now), "%s: %q", preset, lines)
	if got.RetryAfter.Known {
		require.Equal(t, got.RetryAfter, with.RetryAfter, preset)
	}
}

func lowerASCII(s string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}

// spelled returns a header of those lines, each name in a random case.
func spelled(lines map[string][]string, seed uint64) http.Header {
	random := rand.New(rand.NewPCG(seed, 0))
	h := http.Header{}
	for name, values := range lines {
		spelling := []byte(name)
		for i, c := range spelling {
			if 'a' <= c && c <= 'z' && random.IntN(2) == 0 {
				spelling[i] = c - 'a' + 'A'
			}
		}
		h[string(spelling)] = values
	}
	return h
}

// checkSane asserts what holds of every signal.
func checkSane(t *testing.T, s headers.Signal) {
	t.Helper()
	sane(t, s.RetryAfter)
	sane(t, s.Wait)
	require.LessOrEqual(t, len(s.Buckets), maxBuckets)
	require.LessOrEqual(t, len(s.Violated), maxBuckets)
	if s.Saturated {
		require.Equal(t, known(ceiling), s.RetryAfter)
	}
	if s.Limited && s.RetryAfter.Known {
		require.Equal(t, s.RetryAfter, s.Wait)
	}
	if s.Concurrency {
		require.True(t, s.Limited)
	}
	require.GreaterOrEqual(t, s.Cost.Value, 0.0)
	for _, b := range s.Buckets {
		sane(t, b.Reset)
		sane(t, b.Window)
		for _, n := range []headers.Maybe[int64]{b.Limit, b.Remaining, b.Used, b.InFlight} {
			require.GreaterOrEqual(t, n.Value, int64(0))
			require.True(t, n.Known || n.Value == 0)
		}
		require.GreaterOrEqual(t, b.Rate.Value, 0.0)
		if b.Limit.Known {
			require.LessOrEqual(t, b.Remaining.Value, b.Limit.Value)
		}
		if b.Empty() && b.Reset.Known && s.Wait.Known && !(s.Limited && s.RetryAfter.Known) {
			require.GreaterOrEqual(t, s.Wait.Value, b.Reset.Value, "%+v", s)
		}
	}
}

func sane(t *testing.T, d headers.Maybe[time.Duration]) {
	t.Helper()
	require.GreaterOrEqual(t, d.Value, time.Duration(0))
	require.LessOrEqual(t, d.Value, ceiling)
	require.True(t, d.Known || d.Value == 0)
}

// checkPlainReading asserts that a valid Retry-After, read as RFC 9110 says, is never cut short: by no more than the second
// to which it was rounded up, and that only where a finer header says so.
func checkPlainReading(t *testing.T, status int, lines map[string][]string, now time.Time, got headers.Signal) {
	t.Helper()
	rounding := time.Duration(0)
	for name := range lines {
		if name != "retry-after" && (strings.Contains(name, "retry-after") || name == "x-retry-in") {
			rounding = time.Second
		}
	}
	server := now
	for _, line := range lines["date"] {
		if date, err := http.ParseTime(line); err == nil {
			if date.Sub(now).Abs() <= 24*time.Hour {
				server = date
			}
			break
		}
	}
	for _, line := range lines["retry-after"] {
		plain, ok := plainReading(line, server)
		if !ok {
			continue
		}
		require.True(t, got.RetryAfter.Known, "%q", line)
		require.GreaterOrEqual(t, got.RetryAfter.Value, plain-rounding, "%q", line)
		if status == 429 || status == 503 {
			require.True(t, got.Limited)
			require.GreaterOrEqual(t, got.Wait.Value, plain-rounding, "%q", line)
		}
	}
}

// plainReading reads delta-seconds of up to eight digits, since longer ones may be epochs, and the preferred date.
func plainReading(line string, server time.Time) (time.Duration, bool) {
	seconds := 0
	for _, c := range line {
		if c < '0' || c > '9' || len(line) > 8 {
			seconds = -1
			break
		}
		seconds = seconds*10 + int(c-'0')
	}
	if line != "" && seconds >= 0 {
		return min(time.Duration(seconds)*time.Second, ceiling), true
	}
	if date, err := time.Parse(http.TimeFormat, line); err == nil {
		if d := date.Sub(server); d >= 0 {
			return min(d, ceiling), true
		}
	}
	return 0, false
}
