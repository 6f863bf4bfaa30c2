package throttle_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// Servers that say nothing until they refuse are first heard by a request that stood in line. What they say holds requests
// that need not wait as well.
func TestTheFirstWordToARequestFromTheLineHoldsEveryRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		tr := throttle.Must(throttle.New(serverFunc(func(*http.Request) *http.Response {
			if n++; n == 3 {
				return says(429, "Retry-After", "5")
			}
			return says(200)
		}), throttle.WithLimit(throttle.SlidingWindow(2, time.Second))))
		for range 3 {
			_, refused := ask(t, tr, "http://h/")
			require.Nil(t, refused)
		}
		begin := time.Now()
		_, refused := ask(t, tr, "http://h/") // the window has room for it
		require.Nil(t, refused)
		require.GreaterOrEqual(t, time.Since(begin), 5*time.Second)
	})
}
