package headers

import (
	"math"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func epoch(t time.Time, unit time.Duration) string {
	return strconv.FormatInt(t.UnixNano()/int64(unit), 10)
}

func TestTheSizeOfANumberDistinguishesDelaysFromEpochs(t *testing.T) {
	soon := clock.Add(90 * time.Second)
	for _, c := range []struct {
		text string
		want moment
	}{
		{"0", moment{0, given}},
		{"90", moment{90 * time.Second, given}},
		{"90.25", moment{90*time.Second + 250*time.Millisecond, given}},
		{"31622400", moment{ceiling, given}},
		{"31622401", moment{is: beyond}},
		{"99999999", moment{is: beyond}},
		{"100000000", moment{is: beyond}}, // neither a delay nor an epoch
		{"999999999", moment{is: beyond}},
		{epoch(soon, time.Second), moment{90 * time.Second, given}},
		{epoch(soon, time.Second) + ".5", moment{90*time.Second + 500*time.Millisecond, given}},
		{epoch(soon, time.Millisecond), moment{90 * time.Second, given}},
		{epoch(soon, time.Millisecond) + ".5", moment{90*time.Second + 500*time.Microsecond, given}},
		{epoch(soon, time.Microsecond), moment{90 * time.Second, given}},
		{epoch(soon, time.Nanosecond), moment{90 * time.Second, given}},
		{epoch(clock, time.Second), moment{0, given}},
		{epoch(clock.Add(-time.Minute), time.Second), moment{0, given}},
		{epoch(clock.Add(-24*time.Hour), time.Second), moment{0, given}},
		{epoch(clock.Add(-24*time.Hour-time.Second), time.Second), moment{is: stale}},
		{epoch(clock.Add(ceiling), time.Second), moment{ceiling, given}},
		{epoch(clock.Add(ceiling+time.Second), time.Second), moment{is: beyond}},
		{"9223372036854775807", moment{is: beyond}},
		{"18446744073709551615", moment{is: beyond}},
		{"99999999999999999999999999", moment{is: beyond}},
	} {
		assert.Equal(t, c.want, readMoment(c.text, ByMagnitude, &serverClock{now: clock}), c.text)
	}
}

func TestADialectsUnitGoesBeforeSize(t *testing.T) {
	for _, c := range []struct {
		unit TimeUnit
		text string
		want moment
	}{
		{Seconds, "90", moment{90 * time.Second, given}},
		{Seconds, "1795176090", moment{is: beyond}},
		{Milliseconds, "1500", moment{1500 * time.Millisecond, given}},
		{Milliseconds, "1795176090000", moment{is: beyond}},
		{EpochSeconds, "1795176090", moment{90 * time.Second, given}},
		{EpochSeconds, "90", moment{is: stale}},
		{EpochSeconds, "18446744073709551615", moment{is: beyond}},
		{EpochMilliseconds, "1795176090000", moment{90 * time.Second, given}},
		{EpochMilliseconds, "1795176090", moment{is: stale}},
		{EpochSeconds, "2m", moment{2 * time.Minute, given}},
		{resetMillis, "1500", moment{is: given, d: 1500 * time.Millisecond}},
		{resetMillis, "1795176090000", moment{90 * time.Second, given}},
	} {
		assert.Equal(t, c.want, readReset(c.text, c.unit, &serverClock{now: clock}), "%+v", c)
	}
}

func TestNoClockMakesATimeNegative(t *testing.T) {
	for _, now := range []time.Time{{}, time.Unix(math.MinInt64, 0), time.Unix(math.MaxInt64, 0), time.Unix(1<<62, 0)} {
		for _, text := range []string{"0", "1795176090", "9223372036854775807", "Fri, 31 Dec 9999 23:59:59 GMT", "0001-01-01T00:00Z"} {
			m := readMoment(text, ByMagnitude, &serverClock{now: now})
			assert.GreaterOrEqual(t, m.d, time.Duration(0))
			assert.LessOrEqual(t, m.d, ceiling)
		}
	}
}

func TestDurations(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"20ms": 20 * time.Millisecond, "6m0s": 6 * time.Minute, "2m59.56s": 179*time.Second + 560*time.Millisecond, "1h": time.Hour,
		"1h2m3s": time.Hour + 2*time.Minute + 3*time.Second, "1s1h": time.Hour + time.Second, "666.666666ms": 666666666,
		"57.238747106s": 57238747106, "0s": 0, "5us": 5 * time.Microsecond, "7ns": 7, "0.1ns": 1, "2d": 48 * time.Hour, "8784h": ceiling,
		"PT30S": 30 * time.Second, "PT0.5S": time.Second / 2, "P1DT2H3M": 26*time.Hour + 3*time.Minute, "P2D": 48 * time.Hour,
	} {
		got, is := scanDuration(text)
		assert.Equal(t, given, is, text)
		assert.Equal(t, want, got, text)
	}
	for _, text := range []string{"8784h1ns", "366d1s", "99999999999999999999h", "1h99999999999999999999s1h", "106752d"} {
		_, is := scanDuration(text)
		assert.Equal(t, beyond, is, text)
	}
	for _, text := range []string{"", "-5s", "+5s", "5", "s", "5 s", "5x", "1h5", ".5s", "1.s", "1..5s", "5seconds", "1e3s", "0x1s", "5µs", "Infs", "P", "PT", "P1", "P1M", "P1Y", "P1W", "P1S", "PT1D", "P1DT", "pt30s", "PT-30S", "P1m", "PT5"} {
		_, is := scanDuration(text)
		assert.Equal(t, malformed, is, text)
	}
}

func TestDatesOfAllForms(t *testing.T) {
	at := time.Date(2026, 11, 20, 12, 1, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"Fri, 20 Nov 2026 12:01:00 GMT":                             at,
		"Friday, 20-Nov-26 12:01:00 GMT":                            at,
		"Fri, 20 Nov 2026 12:01:00 UTC":                             at,
		"Friday, 20-Nov-26 12:01:00 UTC":                            at,
		"Fri Nov 20 12:01:00 2026":                                  at,
		"Mon, 20 Nov 2026 12:01:00 GMT":                             at, // not a Monday
		"Fri, 20 Nov 2026 13:01:00 +0100":                           at,
		"2026-11-20T12:01:00Z":                                      at,
		"2026-11-20t12:01:00z":                                      at,
		"2026-11-20T12:01Z":                                         at,
		"2026-11-20T12:01:00.000Z":                                  at,
		"2026-11-20T12:01:00.5Z":                                    at.Add(500 * time.Millisecond),
		"2026-11-20T12:01:00+00:00":                                 at,
		"2026-11-20T14:01:00+02:00":                                 at,
		"2026-11-20T07:01:00-0500":                                  at,
		"2026-11-20 12:01:00 UTC":                                   at,
		"2026-11-20 12:01:00 +0000":                                 at,
		"Fri Nov 20 2026 13:01:00 GMT+0100":                         at,
		"Fri Nov 20 2026 07:01:00 GMT-0500 (Eastern Standard Time)": at,
		"2028-02-29T00:00:00Z":                                      time.Date(2028, 2, 29, 0, 0, 0, 0, time.UTC),
	} {
		got, ok := scanDate(text)
		assert.True(t, ok, text)
		assert.True(t, want.Equal(got), "%s: %v", text, got)
	}
}

func TestDatesThatDontExistOrHaveNoZoneAreRefused(t *testing.T) {
	for _, text := range []string{
		"", "soon", "2026", "2026-11-20", "2026-11-20T12:01:00", "2026-11-20 12:01:00", "2026-11-20T12:01", "2026-11-20T12:01:60Z",
		"2026-11-20T24:00:00Z", "2026-11-20T12:60:00Z", "2026-02-29T00:00:00Z", "2026-13-01T00:00:00Z", "2026-00-01T00:00:00Z",
		"2026-11-00T00:00:00Z", "2026-11-20T12:01:00.Z", "2026-11-20T12:01:00+0:00", "2026-11-20T12:01:00+24:00", "2026-11-20T12:01:00+00:60",
		"2026-11-20T12:01:00 PST", "2026-11-2xT12:01:00Z", "-026-11-20T12:01:00Z", "2026-11-20T12:01:00ZZ",
		"Fri, 20 Nov 2026 04:10:00 PST", "Friday, 20-Nov-26 04:10:00 PST", "Thu, 31 Dec 2026 23:59:60 GMT", "Tue, 31 Feb 2026 00:00:00 GMT",
	} {
		_, ok := scanDate(text)
		assert.False(t, ok, text)
	}
}

func FuzzTimesStayWithinBounds(f *testing.F) {
	for _, seed := range []string{"120", "1795176090", "2m59.56s", "2026-11-20T12:01Z", "Fri, 20 Nov 2026 12:01:00 GMT", "8784h", "1.9999999999", "0.0000000001h"} {
		f.Add(seed, uint8(0), clock.Unix())
	}
	f.Fuzz(func(t *testing.T, text string, unit uint8, now int64) {
		m := readMoment(text, TimeUnit(unit), &serverClock{now: time.Unix(now, 0)})
		if m.d < 0 || m.d > ceiling || (m.is != given && m.d != 0) {
			t.Fatalf("%q: %+v", text, m)
		}
		// What Go reads as a duration, and we do too, is the same except for rounding up each fraction to a billionth: of an hour, 3.6 µs.
		if want, err := time.ParseDuration(text); err == nil && want >= 0 && want <= ceiling {
			up := time.Duration(len(text)) * 4 * time.Microsecond
			if got, is := scanDuration(text); is == given && (got < want || got > want+up) {
				t.Fatalf("%q is %v, not %v", text, want, got)
			}
		}
		if want, err := time.Parse(time.RFC3339, text); err == nil && want.Second() < 60 {
			if got, ok := scanISO(text); ok && got.Sub(want).Abs() > 1 {
				t.Fatalf("%q is %v, not %v", text, want, got)
			}
		}
	})
}

func TestAnHTTPDateIsReadAsNetHTTPReadsIt(t *testing.T) {
	for _, date := range []string{"Sun, 22 Nov 2026 00:00:59 GMT", "Thu, 29 Feb 2024 23:59:00 GMT"} {
		for i := range date {
			for _, c := range "0123456789 :,-+.AaeNnSsuZ" {
				line := date[:i] + string(c) + date[i+1:]
				want, err := http.ParseTime(line)
				got, ok := httpDate(line)
				assert.Equal(t, err == nil, ok, line)
				if ok {
					assert.Equal(t, want, got, line)
				}
			}
		}
	}
}
