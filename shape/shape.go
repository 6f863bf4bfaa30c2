// Package shape has responses to rejected requests in the forms that SDKs recognize. Each is a function for
// [throttle.WithRejectionResponse]:
//
//	t, err := throttle.New(nil, limits, throttle.WithFailFast(), throttle.WithRejectionResponse(shape.S3))
//
// With such a response an SDK returns its own error for an exceeded limit, with the text of the rejection, and retries as after a
// refusal by its server. Each response keeps the Retry-After of the default response, and [throttle.RejectionOf] recognizes it.
//
// The default response suits SDKs that look only at the status, such as those for OpenAI, Anthropic and GitHub.
//
// The text of the rejection names the limit and the key. A proxy whose clients should not see them uses the default response, which
// names neither.
package shape

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/httpthrottle/throttle"
)

// Problem responds with status 429 and a problem document (RFC 9457). Its detail is the text of the rejection, and its member
// rejection is what [throttle.Rejection.MarshalJSON] returns: reason, limit, key, cost and waits. It is for callers that may know
// these names, such as other services of the same company.
func Problem(r *throttle.Rejection, req *http.Request) *http.Response {
	return withJSON(r, req, http.StatusTooManyRequests, "application/problem+json", struct {
		Type      string              `json:"type"`
		Title     string              `json:"title"`
		Status    int                 `json:"status"`
		Detail    string              `json:"detail"`
		Rejection *throttle.Rejection `json:"rejection"`
	}{"https://iana.org/assignments/http-problem-types#quota-exceeded", "Too Many Requests", http.StatusTooManyRequests, r.Error(), r})
}

// Google responds as the APIs of Google do: status 429 and a JSON error with code, status RESOURCE_EXHAUSTED, reason
// rateLimitExceeded and a RetryInfo. Clients return *googleapi.Error or genai.APIError.
func Google(r *throttle.Rejection, req *http.Request) *http.Response {
	type reason struct {
		Message string `json:"message"`
		Domain  string `json:"domain"`
		Reason  string `json:"reason"`
	}
	type retryInfo struct {
		Type  string `json:"@type"`
		Delay string `json:"retryDelay"`
	}
	var body struct {
		Error struct {
			Code    int         `json:"code"`
			Message string      `json:"message"`
			Errors  []reason    `json:"errors"`
			Status  string      `json:"status"`
			Details []retryInfo `json:"details"`
		} `json:"error"`
	}
	body.Error.Code, body.Error.Status, body.Error.Message = http.StatusTooManyRequests, "RESOURCE_EXHAUSTED", r.Error()
	body.Error.Errors = []reason{{r.Error(), "usageLimits", "rateLimitExceeded"}}
	if r.Reason != throttle.ReasonFinal {
		body.Error.Details = []retryInfo{{"type.googleapis.com/google.rpc.RetryInfo", strconv.FormatFloat(seconds(r), 'f', 3, 64) + "s"}}
	}
	return withJSON(r, req, http.StatusTooManyRequests, "application/json; charset=UTF-8", body)
}

// AWSJSON responds as AWS services with a JSON protocol do, such as DynamoDB: status 400, a header X-Amzn-Errortype of
// ThrottlingException, and the same in the body. The SDK retries by its own backoff, whatever Retry-After says.
func AWSJSON(r *throttle.Rejection, req *http.Request) *http.Response {
	const exception = "ThrottlingException"
	resp := withJSON(r, req, http.StatusBadRequest, "application/x-amz-json-1.0", map[string]string{"__type": exception, "message": r.Error()})
	resp.Header.Set("X-Amzn-Errortype", exception)
	return resp
}

// S3 responds as S3 does: status 503 and an XML error with code SlowDown. The SDK retries by its own backoff. The response to a
// HEAD request has no body, so the SDK looks only at the status.
func S3(r *throttle.Rejection, req *http.Request) *http.Response {
	body := bytes.NewBufferString(xml.Header + "<Error><Code>SlowDown</Code><Message>")
	_ = xml.EscapeText(body, []byte(r.Error())) // a Buffer returns no error
	body.WriteString("</Message></Error>")
	return with(r, req, http.StatusServiceUnavailable, "application/xml", body.Bytes())
}

// GitLab responds as GitLab does: status 429, a JSON message, and RateLimit-Reset, the Unix time at which the request could be
// sent, rounded up. The client waits until then before it retries.
func GitLab(r *throttle.Rejection, req *http.Request) *http.Response {
	resp := withJSON(r, req, http.StatusTooManyRequests, "application/json", map[string]string{"message": r.Error()})
	if r.Reason != throttle.ReasonFinal {
		reset := time.Now().Add(r.Wait + time.Second - 1).Unix()
		resp.Header.Set("RateLimit-Reset", strconv.FormatInt(reset, 10))
	}
	return resp
}

// Stripe responds as Stripe does: status 429 and a JSON error with code rate_limit. The client returns *stripe.Error and does
// not retry.
func Stripe(r *throttle.Rejection, req *http.Request) *http.Response {
	type detail struct {
		Type    string `json:"type"`
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	return withJSON(r, req, http.StatusTooManyRequests, "application/json", map[string]detail{
		"error": {"invalid_request_error", "rate_limit", r.Error()},
	})
}

// Discord responds as Discord does: status 429 and a JSON object with message, retry_after in seconds, and global. The client
// sleeps that long before it retries.
func Discord(r *throttle.Rejection, req *http.Request) *http.Response {
	return withJSON(r, req, http.StatusTooManyRequests, "application/json", struct {
		Message    string  `json:"message"`
		RetryAfter float64 `json:"retry_after"`
		Global     bool    `json:"global"`
	}{r.Error(), seconds(r), false})
}

// seconds returns how long to wait before a retry, rounded up to a millisecond, and never 0.
func seconds(r *throttle.Rejection) float64 {
	millis := int64(r.Wait / time.Millisecond)
	if r.Wait%time.Millisecond != 0 || millis == 0 {
		millis++
	}
	return float64(millis) / 1000
}

func withJSON(r *throttle.Rejection, req *http.Request, status int, contentType string, body any) *http.Response {
	text, err := json.Marshal(body)
	if err != nil {
		panic("shape: bug: " + err.Error())
	}
	return with(r, req, status, contentType, text)
}

// with returns the default response with another status and body.
func with(r *throttle.Rejection, req *http.Request, status int, contentType string, body []byte) *http.Response {
	resp := r.Response(req)
	resp.StatusCode, resp.Status = status, strconv.Itoa(status)+" "+http.StatusText(status)
	resp.ContentLength = int64(len(body))
	resp.Header.Set("Content-Type", contentType)
	resp.Header.Set("Content-Length", strconv.Itoa(len(body)))
	if req.Method != http.MethodHead {
		resp.Body = io.NopCloser(bytes.NewReader(body))
	}
	return resp
}
