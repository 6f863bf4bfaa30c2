package headers_test

import (
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle/headers"
)

// plain is what many servers send that say nothing of limits.
func plain() http.Header {
	return http.Header{
		"Date": {"Fri, 20 Nov 2026 12:00:00 GMT"}, "Content-Type": {"application/json"}, "Content-Length": {"2048"},
		"Server": {"nginx"}, "Cache-Control": {"no-store"}, "Etag": {`"abc"`}, "Vary": {"Accept-Encoding"},
		"X-Request-Id": {"c033cdaa"}, "Strict-Transport-Security": {"max-age=31536000"}, "X-Content-Type-Options": {"nosniff"},
	}
}

func github() http.Header {
	h := plain()
	h.Set("X-RateLimit-Limit", "5000")
	h.Set("X-RateLimit-Remaining", "4999")
	h.Set("X-RateLimit-Used", "1")
	h.Set("X-RateLimit-Reset", "1795176600")
	h.Set("X-RateLimit-Resource", "core")
	return h
}

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func TestResponsesWithoutLimitsCostNoAllocation(t *testing.T) {
	h := plain()
	named, err := headers.NewReader(headers.GitHub)
	assert.NoError(t, err)
	auto, err := headers.NewReader(headers.Auto)
	assert.NoError(t, err)
	hubSpot := headers.HubSpot.Dialect()
	for name, parse := range map[string]func(){
		"Parse":          func() { headers.Parse(200, h, noon) },
		"Parse of a 429": func() { headers.Parse(429, h, noon) },
		"Dialect":        func() { hubSpot.Parse(200, h, nil, noon) },
		"Reader":         func() { named.Parse("api.github.com", 200, h, nil, noon) },
		"Auto":           func() { auto.Parse("shop.myshopify.com:443", 200, h, nil, noon) },
		"WantsBody":      func() { auto.WantsBody("shop.myshopify.com:443", 200, h) },
	} {
		assert.Zero(t, testing.AllocsPerRun(100, parse), name)
	}
}

// bomb adds so many distinct names to h. As many as net/http accepts, 10 MB, are 262,144.
func bomb(names int, h http.Header) http.Header {
	for i := range names {
		h["X-Ratelimit-Remaining-"+strconv.Itoa(i)] = []string{strconv.Itoa(1 + i%7)}
	}
	return h
}

func TestOfTooManyHeadersTheMostImportantAreRead(t *testing.T) {
	h := github()
	h.Set("X-RateLimit-Remaining", "0")
	want := headers.Parse(429, h, noon).Buckets[0]
	signal := headers.Parse(429, bomb(10_000, h), noon)
	assert.True(t, slices.Contains(signal.Buckets, want), "X-RateLimit-Reset is read before longer names")
	h = bomb(10_000, h.Clone())
	h["rEtry-aFter"], h["Retry-After"] = []string{"7"}, []string{"5"}
	again := headers.Parse(429, h, noon)
	assert.True(t, slices.Equal(signal.Buckets, again.Buckets), "whatever the order of the map")
	assert.Equal(t, known(7*time.Second), again.Wait)
}

func BenchmarkParseBomb(b *testing.B) {
	h := bomb(10<<20/40, github())
	b.ReportAllocs()
	for b.Loop() {
		headers.Parse(429, h, noon)
	}
}

func BenchmarkParse(b *testing.B) {
	few := http.Header{}
	for i, name := range []string{"Date", "Content-Type", "Content-Length", "Server", "Cache-Control", "X-Request-Id"} {
		few.Set(name, strconv.Itoa(i))
	}
	for name, h := range map[string]http.Header{"6 plain headers": few, "10 plain headers": plain(), "GitHub": github()} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				headers.Parse(200, h, noon)
			}
		})
	}
}

// The floor: to look at each key of the map.
func BenchmarkRangeOverHeaders(b *testing.B) {
	h := plain()
	n := 0
	for b.Loop() {
		for name := range h {
			n += len(name)
		}
	}
	_ = n
}

func BenchmarkReader(b *testing.B) {
	auto, err := headers.NewReader(headers.Auto)
	assert.NoError(b, err)
	h := plain()
	for _, host := range []string{"api.github.com", "shop.myshopify.com", "api.example.com"} {
		b.Run(host, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if !auto.WantsBody(host, 200, h) {
					auto.Parse(host, 200, h, nil, noon)
				}
			}
		})
	}
}
