package headers_test

import (
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/headers"
)

// header builds a header from "Name: value" lines.
func header(lines ...string) http.Header {
	h := http.Header{}
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		h.Add(name, value)
	}
	return h
}

func parse(status int, lines ...string) headers.Signal {
	return headers.Parse(status, header(lines...), noon)
}

type (
	unknownOr = headers.Maybe[time.Duration]
	number    = headers.Maybe[int64]
)

// What the documentation of a Signal promises.
const (
	ceiling    = 366 * 24 * time.Hour
	maxBuckets = 32
)

var unknown unknownOr

func known[T any](v T) headers.Maybe[T] { return headers.Maybe[T]{Value: v, Known: true} }

func seconds(s float64) unknownOr { return known(time.Duration(math.Round(s * 1e9))) }
func n(i int64) number            { return known(i) }

func TestStatusesThatSayLimited(t *testing.T) {
	for _, c := range []struct {
		status  int
		lines   []string
		limited bool
		wait    unknownOr
	}{
		{429, nil, true, unknown},
		{420, nil, true, unknown},
		{529, nil, true, unknown},
		{418, nil, false, seconds(0)},
		{503, nil, false, seconds(0)},
		{503, []string{"Retry-After: 5"}, true, seconds(5)},
		{503, []string{"Retry-After: 0"}, true, seconds(0)},
		{503, []string{"Retry-After: soon"}, false, seconds(0)},
		{503, []string{"RateLimit: a;r=0;t=5"}, true, seconds(5)},
		{500, []string{"Retry-After: 5"}, false, seconds(0)},
		{418, []string{"Retry-After: 5"}, true, seconds(5)},
		{430, []string{"Retry-After: 5"}, true, seconds(5)},
		{509, []string{"Retry-After: 5"}, true, seconds(5)},
		{430, nil, false, seconds(0)},
		{509, []string{"Retry-After: soon"}, false, seconds(0)},
		{509, []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 5"}, true, seconds(5)},
		{403, nil, false, seconds(0)},
		{403, []string{"Retry-After: 5"}, true, seconds(5)},
		{403, []string{"X-RateLimit-Remaining: 1", "X-RateLimit-Reset: 5"}, false, seconds(0)},
		{403, []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 5"}, true, seconds(5)},
		{401, []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 3600"}, false, seconds(0)},
		{404, []string{"X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 5"}, false, seconds(5)},
		{301, []string{"Retry-After: 5"}, false, seconds(0)},
		{200, []string{"Retry-After: 5"}, false, seconds(0)},
		{503, []string{"X-Envoy-RateLimited: true"}, true, unknown},
		{429, []string{"X-Envoy-RateLimited: false"}, true, unknown},
		{200, []string{"X-Envoy-RateLimited: false"}, false, seconds(0)},
		{0, nil, false, seconds(0)},
		{-1, []string{"Retry-After: 5"}, false, seconds(0)},
	} {
		got := parse(c.status, c.lines...)
		assert.Equal(t, c.limited, got.Limited, "%+v", c)
		assert.Equal(t, c.wait, got.Wait, "%+v", c)
	}
}

func TestQuotasOfA401AreAdvisory(t *testing.T) {
	got := parse(401, "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 3600")
	require.Len(t, got.Buckets, 1)
	assert.True(t, got.Buckets[0].Advisory)
	assert.False(t, got.Buckets[0].Empty())
}

func TestRetryAfter(t *testing.T) {
	for _, c := range []struct {
		want  unknownOr
		lines []string
	}{
		{seconds(120), []string{"Retry-After: 120"}},
		{seconds(7), []string{"Retry-After: 007"}},
		{seconds(7.66), []string{"Retry-After: 7.66"}},
		{seconds(0), []string{"Retry-After: 0"}},
		{seconds(0), []string{"Retry-After: 0.0"}},
		{seconds(3600), []string{"Retry-After: 1h"}},
		{seconds(60), []string{"Retry-After: Fri, 20 Nov 2026 12:01:00 GMT"}},
		{seconds(60), []string{"Retry-After: Friday, 20-Nov-26 12:01:00 GMT"}},
		{seconds(60), []string{"Retry-After: FrI, 20 nov 2026 12:01:00 GMT"}},
		{seconds(60), []string{"Retry-After: Fri Nov 20 12:01:00 2026"}},
		{seconds(60), []string{"Retry-After: 2026-11-20T12:01Z"}},
		{seconds(60), []string{"Retry-After: 1795176060"}},
		{seconds(60), []string{"Retry-After: 1795176060000"}},
		{seconds(0), []string{"Retry-After: Fri, 20 Nov 2026 11:59:00 GMT"}},
		{unknown, []string{"Retry-After: Wed, 18 Nov 2026 12:00:00 GMT"}},
		{unknown, []string{"Retry-After: -5"}},
		{unknown, []string{"Retry-After: 3\x000"}},
		{unknown, []string{"Retry-After: " + strings.Repeat("0", 256) + "1"}},
		{unknown, []string{"Beta-Retry-After: 5"}},

		// The longest valid line.
		{seconds(60), []string{"Retry-After: 5", "Retry-After: 60", "Retry-After: soon", "Retry-After: 0"}},
		{seconds(120), []string{"Retry-After: 30, 120"}},
		{seconds(30), []string{`Retry-After: "30"`}},
		{seconds(40), []string{`Retry-After: "30", "40"`}},
		{seconds(60), []string{`Retry-After: "Fri, 20 Nov 2026 12:01:00 GMT"`}},
		{seconds(30), []string{"Retry-After: 30 seconds"}},
		{seconds(30.5), []string{`Retry-After: "30.5 Sec"`}},
		{seconds(1), []string{"Retry-After: 1 second"}},
		{seconds(0.25), []string{"Retry-After: 250 milliseconds"}},
		{seconds(120), []string{"Retry-After: 2 minutes"}},
		{seconds(3600), []string{"Retry-After: 1 hour, 30 seconds"}},
		{unknown, []string{"Retry-After: seconds"}},
		{unknown, []string{"Retry-After: -5 seconds"}},
		{unknown, []string{"Retry-After: 30 bananas"}},
		{unknown, []string{"Retry-After: 30 seconds later"}},
		{unknown, []string{`Retry-After: ""`}},
		{seconds(5), []string{"Retry-After: 2,5"}},
		{seconds(90), []string{"Retry-After: 30,, soon, 90 ,", "Retry-After: 60"}},
		{seconds(60), []string{"Retry-After: 30, Fri, 20 Nov 2026 12:01:00 GMT"}},
		{seconds(90), []string{"Retry-After: Friday, 20-Nov-26 12:01:00 GMT, 90"}},
		{seconds(120), []string{"Retry-After: Fri, 20 Nov 2026 12:01:00 GMT, Fri, 20 Nov 2026 12:02:00 GMT"}},
		{seconds(1.5), []string{"Retry-After: 1, 2", "Retry-After-Ms: 900, 1500"}},

		// What refines it.
		{seconds(1.234), []string{"Retry-After: 2", "Retry-After-Ms: 1234"}},
		{seconds(1.2345), []string{"Retry-After: 2", "Retry-After-Ms: 1234.5"}},
		{seconds(0.05), []string{"X-Ms-Retry-After-Ms: 50"}},
		{seconds(1.5), []string{"X-Amz-Retry-After: 1500"}},
		{seconds(0.666666666), []string{"Retry-After: 1", "X-Retry-In: 666.666666ms"}},
		{seconds(44), []string{"X-RateLimit-Retry-After: 44"}},
		{seconds(1), []string{"Retry-After: 1", "Retry-After-Ms: 0"}},
		{unknown, []string{"Retry-After-Ms: 0"}},
		{seconds(60), []string{"Retry-After: 60", "Retry-After-Ms: 500"}},
		{seconds(5), []string{"Retry-After: 1", "Retry-After-Ms: 5000"}},
		{seconds(2), []string{"Retry-After: 2", "Retry-After-Ms: NaN"}},
		{seconds(1.9), []string{"Retry-After: 2", "Retry-After-Ms: 1300", "X-Ms-Retry-After-Ms: 1900"}},
	} {
		got := parse(429, c.lines...)
		assert.Equal(t, c.want, got.RetryAfter, "%q", c.lines)
		assert.Equal(t, c.want, got.Wait, "%q", c.lines)
		assert.False(t, got.Saturated, "%q", c.lines)
	}
}

func TestARetryAfterTooLongToBeTrueNeverBecomesShort(t *testing.T) {
	for _, value := range []string{
		"31622401", "100000000", "999999999", "1470173023", "4102444800", "18446744073", "9223372036854775807", "18446744073709551616",
		strings.Repeat("9", 256), "Fri, 31 Dec 9999 23:59:59 GMT", "9999-12-31T23:59:59Z", "99999h", "99999999999999999999s", "99999999999.5",
	} {
		got := parse(429, "Retry-After: "+value)
		assert.Equal(t, known(ceiling), got.Wait, value)
		assert.True(t, got.Saturated, value)
	}
	assert.True(t, parse(429, "Retry-After-Ms: 99999999999999").Saturated)
}

func TestTheServersClockCountsUnlessItIsADayOff(t *testing.T) {
	const at = "Retry-After: Fri, 20 Nov 2026 12:10:00 GMT"
	for date, want := range map[string]unknownOr{
		"Fri, 20 Nov 2026 12:09:00 GMT": seconds(60),
		"Fri, 20 Nov 2026 11:00:00 GMT": seconds(4200),
		"Thu, 19 Nov 2026 12:00:00 GMT": seconds(24*3600 + 600),
		"Thu, 19 Nov 2026 11:59:59 GMT": seconds(600),
		"Sat, 21 Nov 2026 12:00:00 GMT": seconds(0),
		"Sat, 21 Nov 2026 12:00:01 GMT": seconds(600),
		"yesterday":                     seconds(600),
	} {
		assert.Equal(t, want, parse(429, "Date: "+date, at).Wait, date)
	}
	assert.Equal(t, seconds(60), parse(429, "Date: ?", "Date: Fri, 20 Nov 2026 12:09:00 GMT", at).Wait)
}

func TestQuotasOfCachedResponsesAreOld(t *testing.T) {
	for age, empty := range map[string]bool{"0": true, "-1": true, "old": true, "1": false, "99999999999999999999": false} {
		got := parse(200, "Age: "+age, "RateLimit: a;r=0;t=5", "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 5")
		assert.Equal(t, empty, len(got.Buckets) > 0, age)
	}
	assert.Equal(t, seconds(5), parse(429, "Age: 9", "Retry-After: 5").Wait)
}

func TestWaitIsTheLatestResetOfWhatIsEmpty(t *testing.T) {
	for _, c := range []struct {
		status int
		want   unknownOr
		field  string
	}{
		{200, seconds(0), "a;r=1;t=50"},
		{200, seconds(0), "a;t=50"},
		{200, seconds(30), "a;r=0;t=5, b;r=0;t=30, c;r=1;t=60"},
		{200, seconds(5), "a;r=0;t=5, b;r=0"},
		{200, unknown, "a;r=0"},
		{200, seconds(0), "a;r=0;t=0"},
		{429, seconds(5), "a;r=0;t=5, b;r=9;t=60"},
		{429, seconds(60), "a;r=9;t=60"}, // the only one: the best guess
		{429, unknown, "a;r=9;t=60, b;r=9;t=30"},
		{429, unknown, "a;r=0, b;r=9;t=30"},
	} {
		assert.Equal(t, c.want, parse(c.status, "RateLimit: "+c.field).Wait, "%+v", c)
	}
	assert.Equal(t, seconds(25), parse(429, "X-RateLimit-Reset: 25").Wait)
	assert.Empty(t, parse(429, "X-RateLimit-Reset: 25").Buckets)
}

func TestRepairs(t *testing.T) {
	type quota struct{ limit, remaining, used number }
	for _, c := range []struct {
		want quota
		said string // limit, remaining, used; ? for no header
	}{
		{quota{n(100), n(7), number{}}, "100 7 ?"},
		{quota{n(100), n(0), number{}}, "100 0 ?"},
		{quota{n(100), number{}, number{}}, "100 ? ?"},
		{quota{n(100), number{}, number{}}, "100 many ?"},
		{quota{n(100), n(0), number{}}, "100 -5 ?"},
		{quota{n(100), n(100), number{}}, "100 101 ?"},
		{quota{number{}, n(5), number{}}, "-1 5 ?"},
		{quota{number{}, n(5), number{}}, "99999999999999999999 5 ?"},
		{quota{number{}, n(0), number{}}, "? -5 ?"},
		{quota{n(100), n(98), n(2)}, "? 98.0 2"},
		{quota{n(100), n(98), n(2)}, "100 ? 2"},
		{quota{n(100), n(0), n(102)}, "100 ? 102"},
		{quota{n(0), n(0), number{}}, "0 0 ?"},
		{quota{number{}, n(9223372036854775806), n(9)}, "? 9223372036854775806 9"}, // the sum overflows
	} {
		var lines []string
		for i, value := range strings.Fields(c.said) {
			if value != "?" {
				lines = append(lines, []string{"X-RateLimit-Limit: ", "X-RateLimit-Remaining: ", "X-RateLimit-Used: "}[i]+value)
			}
		}
		got := parse(200, lines...)
		require.Len(t, got.Buckets, 1, c.said)
		b := got.Buckets[0]
		assert.Equal(t, c.want, quota{b.Limit, b.Remaining, b.Used}, c.said)
	}
	assert.Empty(t, parse(200, "X-RateLimit-Limit: -1", "X-RateLimit-Remaining: -1", "X-RateLimit-Reset: 0").Buckets)
}

func TestListsOfEqualLengthAreSeveralBuckets(t *testing.T) {
	got := parse(200, "X-RateLimit-Limit: 100, 1000", "X-RateLimit-Remaining: 9", "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 60,3600")
	require.Len(t, got.Buckets, 2)
	assert.Equal(t, headers.Bucket{Name: "default.0", Limit: n(100), Remaining: n(9), Reset: seconds(60)}, got.Buckets[0])
	assert.Equal(t, headers.Bucket{Name: "default.1", Limit: n(1000), Remaining: n(0), Reset: seconds(3600)}, got.Buckets[1])

	// Where lengths differ, what is left decides. A line that can't be read keeps its place.
	got = parse(200, "X-RateLimit-Limit: 100, 1000", "X-RateLimit-Remaining: 9", "X-RateLimit-Reset: 60")
	assert.Equal(t, []headers.Bucket{{Name: "default", Remaining: n(9), Reset: seconds(60)}}, got.Buckets)
	got = parse(200, "X-RateLimit-Limit: 100", "X-RateLimit-Limit: é", "X-RateLimit-Remaining: 9, 0")
	assert.Equal(t, []headers.Bucket{{Name: "default.0", Limit: n(100), Remaining: n(9)}, {Name: "default.1", Remaining: n(0)}}, got.Buckets)
}

func TestOfListsOfUnequalLengthTheLeastThatRemainsCounts(t *testing.T) {
	for _, c := range []struct {
		lines []string
		want  headers.Bucket
	}{
		{[]string{"Limit: 100", "Limit: 1000", "Remaining: 10", "Remaining: 3", "Reset: 60"}, headers.Bucket{Limit: n(1000), Remaining: n(3), Reset: seconds(60)}},
		{[]string{"Limit: 100", "Limit: 1000", "Remaining: 3", "Remaining: 10", "Remaining: 7", "Reset: 60", "Reset: 3600"}, headers.Bucket{Limit: n(100), Remaining: n(3), Reset: seconds(60)}},
		{[]string{"Limit: 100, 1000", "Remaining: 30, 10, 7", "Reset: 60"}, headers.Bucket{Remaining: n(7), Reset: seconds(60)}},
		{[]string{"Limit: 100", "Remaining: 30, 10, 7", "Reset: 60, 30"}, headers.Bucket{Limit: n(100), Remaining: n(7)}},
		{[]string{"Limit: 100", "Remaining: 30", "Remaining: é", "Remaining: 7"}, headers.Bucket{Limit: n(100), Remaining: n(7)}},
		{[]string{"Limit: 100, 50", "Used: 30, 40, 20"}, headers.Bucket{Limit: n(50), Used: n(40), Remaining: n(10)}},
	} {
		for i := range c.lines {
			c.lines[i] = "X-RateLimit-" + c.lines[i]
		}
		c.want.Name = "default"
		assert.Equal(t, []headers.Bucket{c.want}, parse(200, c.lines...).Buckets, "%q", c.lines)
	}
}

func TestThousandsAreNoLists(t *testing.T) {
	for _, c := range [][2]string{{"5,000", "4,999"}, {"5,000", "5,000"}, {"5,123", "4,999"}, {"1,000", "0,050"}} {
		assert.Empty(t, parse(200, "X-RateLimit-Limit: "+c[0], "X-RateLimit-Remaining: "+c[1]).Buckets, "%q", c)
	}
	got := parse(200, "X-RateLimit-Limit: 5,000", "X-RateLimit-Remaining: 999")
	assert.Equal(t, []headers.Bucket{{Name: "default", Remaining: n(999)}}, got.Buckets)
}

func TestADatesCommaMakesNoList(t *testing.T) {
	got := parse(200, "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: Fri, 20 Nov 2026 12:01:00 GMT")
	assert.Equal(t, seconds(60), got.Wait)
}

func TestADelayIsBetterThanAMoment(t *testing.T) {
	got := parse(200, "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1795179600", "X-RateLimit-Reset-After: 1.5")
	assert.Equal(t, seconds(1.5), got.Wait)
	got = parse(200, "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1795176060", "X-RateLimit-Reset-After: 1795176060")
	assert.Equal(t, seconds(60), got.Wait, "a delay of 56 years is none")
}

func TestKeysMayHaveAnyCaseAndSeveralSpellings(t *testing.T) {
	one := http.Header{"rETRY-aFTER": {"5"}, "RATELIMIT-remaining": {"7"}, "ratelimit-LIMIT": {"9"}}
	got := headers.Parse(429, one, noon)
	assert.Equal(t, seconds(5), got.Wait)
	assert.Equal(t, []headers.Bucket{{Name: "default", Limit: n(9), Remaining: n(7)}}, got.Buckets)

	const lower = "x-ratelimit-remaining"
	several := http.Header{"Retry-After": {"5"}, "retry-after": {"60"}, "RETRY-AFTER": {"7"}, "X-Ratelimit-Remaining": {"2"}}
	several[strings.Clone(lower)] = []string{"3"}
	first := headers.Parse(429, several, noon)
	assert.Equal(t, seconds(60), first.Wait)
	for range 20 {
		assert.Equal(t, first, headers.Parse(429, several, noon))
	}
	assert.Equal(t, []string{"3"}, several[strings.Clone(lower)], "the header is not changed")
}

func TestOfTooManyBucketsTheEmptiestAreKept(t *testing.T) {
	h := http.Header{}
	for i := range 5000 {
		h.Set(fmt.Sprintf("X-RateLimit-Remaining-B%d", i), "9")
		h.Add("RateLimit", fmt.Sprintf("a%d;r=7, b%d;r=8", i, i))
		h.Add("RateLimit-Policy", fmt.Sprintf("p%d;q=7", i))
		h.Add("X-RateLimit-Limit", "1, 2, 3")
	}
	h["RateLimit"] = append([]string{"empty;r=0;t=9"}, h["Ratelimit"]...)
	delete(h, "Ratelimit")
	got := headers.Parse(200, h, noon)
	require.Len(t, got.Buckets, maxBuckets)
	assert.Equal(t, seconds(9), got.Wait)
	assert.Equal(t, "empty", got.Buckets[len(got.Buckets)-1].Name)
}

func TestWordsWithinNamesAreRead(t *testing.T) {
	s := parse(429, "X-RateLimit-UserLimit: 500", "X-RateLimit-UserRemaining: 0", "X-RateLimit-UserReset: 7", "X-RateLimit-NearLimit: false")
	assert.Equal(t, []headers.Bucket{{Name: "user", Limit: n(500), Remaining: n(0), Reset: seconds(7)}}, s.Buckets)
	assert.Equal(t, seconds(7), s.Wait)
	s = parse(200, "Rate-Limit-Total: 10", "Rate-Limit-Remaining: 3", "Rate-Limit-Reset: 2")
	assert.Equal(t, []headers.Bucket{{Name: "default", Limit: n(10), Remaining: n(3), Reset: seconds(2)}}, s.Buckets)
}

func TestTheLongestRetryAfterOfSeveralLimitsCounts(t *testing.T) {
	assert.Equal(t, seconds(60), parse(429, "Retry-After-short: 1", "Retry-After-long: 60").Wait)
	assert.Equal(t, seconds(3), parse(503, "Retry-After-short: 3").Wait)
}
