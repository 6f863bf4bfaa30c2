package throttle

import (
	"net/http"

	"github.com/httpthrottle/throttle/internal/quota"
)

// A meaning is what the status of a response shows by itself. Its headers and its body may show more.
type meaning struct {
	outcome Outcome    // for limits that learn
	bare    quota.Bare // what a response of that status is that says nothing about limits
	host    bool       // a refusal concerns all requests to the host, whatever their keys
}

// meaningOf is the one place that distinguishes statuses; package headers decides which responses report a limit.
func meaningOf(status int) meaning {
	switch status {
	case http.StatusForbidden:
		return meaning{outcome: OutcomeClientError, bare: quota.Forbidden}
	case http.StatusTooManyRequests:
		return meaning{outcome: OutcomeThrottled}
	case http.StatusServiceUnavailable:
		return meaning{outcome: OutcomeUnavailable, bare: quota.Unavailable, host: true}
	case http.StatusGatewayTimeout:
		return meaning{outcome: OutcomeUnavailable}
	case statusOverloaded:
		return meaning{outcome: OutcomeError, host: true}
	}
	return meaning{outcome: outcomeOfClass(status)}
}

const statusOverloaded = 529 // in no RFC; Anthropic and others send it

// outcomeOfClass returns the outcome of a response that has nothing to do with limits.
func outcomeOfClass(status int) Outcome {
	switch {
	case status >= 500:
		return OutcomeError
	case status >= 400:
		return OutcomeClientError
	}
	return OutcomeOK
}

// isDone reports whether the status of a response says that the server did what was asked.
func isDone(resp *http.Response) bool {
	return resp != nil && outcomeOfClass(resp.StatusCode) == OutcomeOK
}
