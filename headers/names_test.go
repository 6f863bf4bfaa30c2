package headers

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestEveryPlaceOfRateLimitIsFound(t *testing.T) {
	for _, stem := range []string{"ratelimit", "rate-limit", "RateLimit", "RATE-LIMIT", "rATeLiMiT"} {
		for before := range 40 {
			for after := range 12 {
				for _, filler := range []string{"x", "-", "l", "i", "m", "t", "limi", "rate", "\xff"} {
					name := strings.Repeat(filler, before) + stem + strings.Repeat(filler, after)
					assert.True(t, concerns(name), name)
				}
			}
		}
	}
}

func TestOtherNamesAreNot(t *testing.T) {
	for _, name := range []string{
		"", "t", "Date", "Content-Type", "Content-Length", "X-Request-Limit", "X-Limit", "Limit-Rate", "rate_limit", "rate--limit", "atelimit",
		"ratelimi", "ate-limit", "Retry-Afters", "X-Retry-Inn", "Beta-Retry-After", "ratelimıt", "limitlimitlimit", "X-Rate-Time-Limit",
	} {
		assert.False(t, concerns(name), name)
	}
}

func TestNamesOfAPIs(t *testing.T) {
	for name, want := range map[string]meaning{
		"x-ratelimit-limit":                       {role: RoleLimit},
		"ratelimit-remaining":                     {role: RoleRemaining},
		"ratelimit-observed":                      {role: RoleUsed},
		"ratelimit-resettime":                     {role: RoleReset},
		"ratelimit-name":                          {role: RoleName},
		"ratelimit-reason":                        {role: RoleReason},
		"x-rate-limit":                            {role: RoleLimit, bare: true},
		"x-rate-limit-limit":                      {role: RoleLimit},
		"x-rate-limit-reset":                      {role: RoleReset},
		"x-ratelimit-usage":                       {role: RoleUsed},
		"x-ratelimit-next":                        {role: RoleReset},
		"x-ratelimit-reset-after":                 {role: RoleResetAfter, unit: Seconds},
		"x-ratelimit-reset-in-ms":                 {role: RoleResetAfter, unit: Milliseconds},
		"x-ratelimit-reset-ms":                    {role: RoleReset, unit: resetMillis},
		"x-ratelimit-reset-at":                    {role: RoleReset},
		"x-ratelimit-retry-after":                 {role: RoleRetryAfter, unit: Seconds},
		"x-ratelimit-retry-after-ms":              {role: RoleRetryAfter, unit: Milliseconds},
		"x-ratelimit-interval-seconds":            {role: RoleWindow, unit: Seconds},
		"x-ratelimit-window-size":                 {role: RoleWindow, unit: Seconds},
		"x-ratelimit-scope":                       {role: RoleScope},
		"x-ratelimit-remaining-requests":          {role: RoleRemaining, bucket: "requests"},
		"x-ratelimit-requests-remaining":          {role: RoleRemaining, bucket: "requests"},
		"x-ratelimit-retryafter":                  {role: RoleRetryAfter},
		"ratelimit-retryafter-ms":                 {role: RoleRetryAfter, unit: Milliseconds},
		"x-retry-remaining":                       {role: RoleRemaining},
		"x-retry-reset":                           {role: RoleReset},
		"x-ratelimitbysize-limit-minute":          {role: RoleLimit, bucket: "tokens-minute"},
		"x-ratelimitbysize-remaining-month":       {role: RoleRemaining, bucket: "tokens-month"},
		"ratelimitbysize-remaining":               {role: RoleRemaining, bucket: "tokens"},
		"ratelimitbysize-query-cost":              {role: RoleCost, bucket: "tokens-query"},
		"x-tokenlimit-limit":                      {role: RoleLimit, bucket: "tokens"},
		"x-tokenlimit-reset":                      {role: RoleReset, bucket: "tokens"},
		"x-ratelimit-reset-requests-day":          {role: RoleReset, bucket: "requests-day"},
		"x-ratelimit-renewalperiod-tokens":        {role: RoleWindow, unit: Seconds, bucket: "tokens"},
		"x-ratelimit-endpoint-requests-reset":     {role: RoleReset, bucket: "endpoint-requests"},
		"x-ratelimit-endpoint-name":               {role: RoleName, bucket: "endpoint"},
		"x-ratelimit-remaining-minute":            {role: RoleRemaining, bucket: "minute"},
		"x-rate-limit-api-key-interval-ms":        {role: RoleWindow, unit: Milliseconds, bucket: "api-key"},
		"x-rate-limit-api-token-max":              {role: RoleLimit, bucket: "api-token"},
		"anthropic-ratelimit-input-tokens-reset":  {role: RoleReset, prefix: "anthropic", bucket: "input-tokens"},
		"x-ms-ratelimit-remaining-tenant-reads":   {role: RoleRemaining, prefix: "ms", bucket: "tenant-reads"},
		"x-readratelimit-limit":                   {role: RoleLimit, prefix: "read"},
		"x-contentful-ratelimit-second-remaining": {role: RoleRemaining, prefix: "contentful", bucket: "second"},
		"x-ratelimit-userremaining":               {role: RoleRemaining, bucket: "user"},
		"x-ratelimit-userlimit":                   {role: RoleLimit, bucket: "user"},
		"x-ratelimit-nearlimit":                   {role: RoleLimit, bucket: "near"}, // its value is no number
		"x-ratelimit-userreset":                   {role: RoleReset, bucket: "user"},
		"x-ratelimit-remaininguser":               {role: RoleRemaining, bucket: "user"},
		"x-ratelimit-resetafter":                  {role: RoleResetAfter, unit: Seconds},
		"x-ratelimit-resetafter-user":             {role: RoleResetAfter, unit: Seconds, bucket: "user"},
		"rate-limit-total":                        {role: RoleLimit},
		"x-ratelimit-total-remaining":             {role: RoleRemaining, bucket: "total"},
		"retry-after-short":                       {role: RoleRetryAfter, unit: Seconds, bucket: "short"},
		"x-ratelimit-bucket-remaining":            {role: RoleRemaining, bucket: "bucket"},
	} {
		got, ok := parseName(name)
		assert.True(t, ok, name)
		assert.Equal(t, want, got, name)
	}
	for _, name := range []string{
		"x-ratelimit-limit-tokens_usage_based", "anthropic-ratelimit-unified-5h-reset", "anthropic-ratelimit-unified-remaining", "x-tokenlimits",
		"ratelimit", "ratelimit-policy", "x-ratelimit-global", "x-ratelimit-type", "docker-ratelimit-source", "x-sentry-rate-limits",
		"x-envoy-ratelimited", "retry-after-ms", "x-ratelimit-remains", "beta-ratelimit", "x-beta-ratelimit-limit", "x-amzn-ratelimit-limit", "retry-after",
	} {
		_, ok := parseName(name)
		assert.False(t, ok, name)
	}
}

func FuzzNamesAreFoundWhereverTheyAre(f *testing.F) {
	for _, seed := range []string{"X-RateLimit-Limit", "anthropic-ratelimit-requests-limit", "x-rate-limit", "Content-Type", "rate-limiratelimit"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		lower := strings.Map(func(r rune) rune {
			if 'A' <= r && r <= 'Z' {
				return r + 'a' - 'A'
			}
			return r
		}, strings.ToValidUTF8(name, "?"))
		want := strings.Contains(lower, "ratelimit") || strings.Contains(lower, "rate-limit") || strings.Contains(lower, "tokenlimit") || isKnown(name) // by its whole name, or by its beginning
		if concerns(name) != want {
			t.Fatalf("%q: %v", name, !want)
		}
		if _, ok := parseName(lower); ok && !want {
			t.Fatalf("%q has a meaning, and is not found", name)
		}
	})
}

func TestNameOfQuotaIsNotCopied(t *testing.T) {
	allocs := testing.AllocsPerRun(100, func() { parseName("x-ratelimit-remaining-input-tokens") })
	assert.Zero(t, allocs)
}
