package throttle_test

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
)

// tellsAfter is a server that tells nothing to that many requests, and that its limit is used up from then on.
func tellsAfter(silent *int) serverFunc {
	return func(*http.Request) *http.Response {
		if *silent--; *silent >= 0 {
			return says(200, "Date", "Fri, 20 Nov 2026 12:00:00 GMT")
		}
		return says(200, "X-RateLimit-Limit", "100", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "60")
	}
}

func TestGoodResponsesOfSilentServersAreReadAtABoundedRate(t *testing.T) {
	for name, opts := range map[string][]throttle.Option{
		"one limit":                   {throttle.WithLimit(throttle.TokenBucket(1_000_000, time.Second))},
		"a limit that hears outcomes": {throttle.WithLimit(throttle.InFlight(1_000_000))},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				silent := 100 // without a pause, and one more each 100 µs
				tr, err := throttle.New(tellsAfter(&silent), append(opts, throttle.WithFailFast())...)
				require.NoError(t, err)
				for range 100 {
					ask(t, tr, api)
				}
				for range 3 {
					status, _ := ask(t, tr, api)
					require.Equal(t, 200, status, "not heard yet")
				}
				time.Sleep(100*time.Microsecond - 1)
				for range 2 {
					status, _ := ask(t, tr, api)
					require.Equal(t, 200, status, "not heard yet")
				}
				time.Sleep(time.Nanosecond)
				status, _ := ask(t, tr, api)
				require.Equal(t, 200, status)
				_, refused := ask(t, tr, api)
				require.NotNil(t, refused)
				assert.Equal(t, throttle.ReasonHeld, refused.Reason)
			})
		})
	}
}

func TestABusyServerDoesNotKeepOthersFromBeingHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := 1000
		tr, err := throttle.New(tellsAfter(&silent), throttle.WithFailFast())
		require.NoError(t, err)
		for range silent {
			ask(t, tr, api)
		}
		for i := range 10 { // that all are in one place with the busy one happens once in 64^10 runs
			ask(t, tr, fmt.Sprintf("http://api-%d.example.com/", i))
		}
		assert.NotEmpty(t, tr.Limiter().Servers())
	})
}

func TestEachRefusalOfASilentServerIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := 0
		tr, err := throttle.New(serverFunc(func(*http.Request) *http.Response {
			if sent++; sent > 1000 {
				return says(503, "Retry-After", "5")
			}
			return says(200, "Date", "Fri, 20 Nov 2026 12:00:00 GMT")
		}), throttle.WithFailFast())
		require.NoError(t, err)
		for range 1001 {
			ask(t, tr, api)
		}
		_, refused := ask(t, tr, api)
		require.NotNil(t, refused)
		assert.Equal(t, throttle.ReasonHeld, refused.Reason)
	})
}

func TestWithServerHintsEachResponseIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := 1000
		tr, err := throttle.New(tellsAfter(&silent), throttle.WithServerHints(headers.Generic), throttle.WithFailFast())
		require.NoError(t, err)
		for range silent + 1 {
			ask(t, tr, api)
		}
		_, refused := ask(t, tr, api)
		require.NotNil(t, refused)
		assert.Equal(t, throttle.ReasonHeld, refused.Reason)
	})
}
