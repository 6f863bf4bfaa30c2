package shape_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/shape"
)

// No shape says when to retry if no waiting helps, except that of Discord, whose clients need a number.
func TestAShapeOfAFinalRefusalNamesNoTime(t *testing.T) {
	r := &throttle.Rejection{Reason: throttle.ReasonFinal, Limit: "server", Key: "h", Cost: 1, Wait: 1e9, Err: &throttle.FinalError{Code: "no_credit", Message: "pay"}}
	for name, f := range shapes {
		resp := f(r, request(t, "GET"))
		assert.Equal(t, "false", resp.Header.Get("X-Should-Retry"), name)
		for _, header := range []string{"Retry-After", "Retry-After-Ms", "RateLimit-Reset"} {
			assert.NotContains(t, resp.Header, header, name)
		}
		text := body(t, resp)
		assert.Contains(t, text, "no_credit: pay", name)
		assert.NotContains(t, text, "retryDelay", name)
	}
	assert.Contains(t, body(t, shape.Discord(r, request(t, "GET"))), `"retry_after":1,`)
}
