package tests

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// TestRejectionTextsNameTheRightNumbers covers what is known on arrival, and what becomes known in the queue.
func TestRejectionTextsNameTheRightNumbers(t *testing.T) {
	for want, r := range map[string]throttle.Rejection{
		`limit "rpm": cost 2 can be paid in 1.235s, and the request may not wait`:                           {Reason: throttle.ReasonNoTokens, Cost: 2, Wait: 1234567890},
		`limit "rpm": a wait of 3s exceeds the maximum of 2s`:                                               {Reason: throttle.ReasonMaxWait, Wait: 3 * time.Second, MaxWait: 2 * time.Second},
		`limit "rpm": the wait exceeds the maximum of 24h0m0s`:                                              {Reason: throttle.ReasonMaxWait, MaxWait: 24 * time.Hour},
		`limit "rpm": the wait exceeds the maximum of 24h0m0s; the request could be sent in 2s`:             {Reason: throttle.ReasonMaxWait, Wait: 2 * time.Second, MaxWait: 24 * time.Hour},
		`limit "rpm": a wait of 1m0s exceeds the context's deadline (5s left)`:                              {Reason: throttle.ReasonDeadline, Wait: time.Minute, MaxWait: 5 * time.Second},
		`limit "rpm": the wait exceeds the context's deadline; the request could be sent in 1s`:             {Reason: throttle.ReasonDeadline, Wait: time.Second, MaxWait: 5 * time.Second},
		`limit "rpm": the queue is full`:                                                                    {Reason: throttle.ReasonQueueFull},
		`limit "rpm": the queue is full; the request could be sent in 9s`:                                   {Reason: throttle.ReasonQueueFull, Wait: 9 * time.Second},
		`limit "rpm": cost 1 cannot be paid now, it is not known when it can, and the request may not wait`: {Reason: throttle.ReasonNoTokens, Cost: 1, Wait: math.MaxInt64},
		`limit "rpm": the wait exceeds the maximum of 1m0s; when the request could be sent is not known`:    {Reason: throttle.ReasonMaxWait, Wait: math.MaxInt64, MaxWait: time.Minute},
		`limit "rpm": cost -1 is negative`:                                                                  {Reason: throttle.ReasonCost, Cost: -1, Wait: math.MaxInt64},
		`limit "rpm": cost 6 exceeds what the limit can ever pay`:                                           {Reason: throttle.ReasonCost, Cost: 6, Wait: math.MaxInt64},
		`limit "rpm": cost 6 exceeds 5, the most that the limit can pay at once`:                            {Reason: throttle.ReasonCost, Cost: 6, Most: 5, Wait: math.MaxInt64},
		`limit "rpm": held for 1h0m0s`:                                                                      {Reason: throttle.ReasonHeld, Wait: time.Hour},
		`limit "rpm": held for 1h0m0s, and the maximum wait is 1m0s`:                                        {Reason: throttle.ReasonHeld, Wait: time.Hour, MaxWait: time.Minute},
		`limit "rpm", key "a\"b": no room for another key; raise WithMaxKeys`:                               {Reason: throttle.ReasonKeys, Key: `a"b`},
		`limit "rpm": rejected: Reason(99)`:                                                                 {Reason: 99},
	} {
		r.Limit = "rpm"
		assert.Equal(t, "throttle: "+want, r.Error())
	}
}

// A request that was to wait for a slot, and did not get one, has the time that it waited in its response, not a wait of 0.
func TestAPatienceThatEndsInTheQueueIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := throttle.Must(throttle.New(&streaming{status: 200}, throttle.WithLimit(throttle.InFlight(1)), throttle.WithMaxWait(24*time.Hour), throttle.WithRejectionError()))
		_, err := tr.RoundTrip(get(t, t.Context(), api))
		require.NoError(t, err)
		_, err = tr.RoundTrip(get(t, t.Context(), api))
		assert.EqualError(t, err, `throttle: limit "in-flight": the wait exceeds the maximum of 24h0m0s`)
	})
}

func TestARejectionIsReadByMachines(t *testing.T) {
	r := &throttle.Rejection{Reason: throttle.ReasonNoTokens, Limit: "r\"\\\n\xff€", Key: "k", Cost: 2, Wait: 1500 * time.Millisecond, MaxWait: time.Second}
	text, err := json.Marshal(r)
	require.NoError(t, err)
	assert.JSONEq(t, `{"reason":"no_tokens","limit":"r\"\\\n\ufffd€","key":"k","cost":2,"wait":1.5,"max_wait":1}`, string(text))
	text, err = json.Marshal(throttle.Rejection{Reason: throttle.ReasonCost, Limit: "x", Cost: 3, Wait: math.MaxInt64})
	require.NoError(t, err)
	assert.JSONEq(t, `{"reason":"cost","limit":"x","key":"","cost":3,"wait":null,"max_wait":0}`, string(text))

	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "rejection", &throttle.Rejection{Reason: throttle.ReasonCost, Limit: "tpm", Cost: 9, Wait: math.MaxInt64})
	assert.Contains(t, log.String(), `rejection.reason=cost rejection.limit=tpm rejection.key="" rejection.cost=9 rejection.wait=never`)
}

// A cost that can never be paid is logged as such.
func TestALogNamesNoWaitOfCenturies(t *testing.T) {
	var log bytes.Buffer
	tr := throttle.Must(throttle.New(nil, throttle.WithLimit(throttle.TokenBucket(1, time.Second)), throttle.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))))
	_, err := tr.RoundTrip(get(t, throttle.ContextWithCost(t.Context(), 2), api))
	require.ErrorIs(t, err, throttle.ErrThrottled)
	assert.Contains(t, log.String(), "wait=never")
}

func TestTheProblemSaysWhenToRetry(t *testing.T) {
	for wait, want := range map[time.Duration]string{
		1: "0.001", time.Millisecond: "0.001", 1500 * time.Millisecond: "1.5", time.Second + 1: "1.001", time.Hour: "3600", 64570 * time.Millisecond: "64.57",
	} {
		synctest.Test(t, func(t *testing.T) {
			resp, _ := refused(t, wait)
			body, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			var problem struct {
				RetryAfter json.Number `json:"retry_after"`
				Message    string
			}
			require.NoError(t, json.Unmarshal(body, &problem), string(body))
			assert.Equal(t, want, problem.RetryAfter.String())
			assert.Equal(t, "Too many requests: retry in "+want+" s", problem.Message)
			assert.NotContains(t, string(body), `"it"`, "the limit is not named")
		})
	}
}

// The body may be passed on to a tenant of a proxy, say.
func TestTheProblemNamesNothingInternal(t *testing.T) {
	r := &throttle.Rejection{Reason: throttle.ReasonCost, Limit: "secret", Key: "tenant", Wait: math.MaxInt64}
	body, err := io.ReadAll(r.Response(get(t, t.Context(), api)).Body)
	require.NoError(t, err)
	assert.JSONEq(t, `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too Many Requests","status":429,
		"detail":"Too many requests","message":"Too many requests",
		"error":{"type":"rate_limit_error","code":"rate_limit_exceeded","message":"Too many requests"}}`, string(body))
}

// A shape may start from the response that there would be without it.
func TestAShapeMayChangeTheUsualResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		resp, req := refused(t, time.Minute, throttle.WithRejectionResponse(func(r *throttle.Rejection, req *http.Request) *http.Response {
			resp := r.Response(req)
			resp.StatusCode = http.StatusServiceUnavailable
			resp.Header.Set("X-Mine", "1")
			return resp
		}))
		assert.Equal(t, "503 Service Unavailable", resp.Status)
		assert.Equal(t, "1", resp.Header.Get("X-Mine"))
		assert.Equal(t, "60", resp.Header.Get("Retry-After"))
		assert.Equal(t, req.URL, resp.Request.URL)
		r, ok := throttle.RejectionOf(resp)
		require.True(t, ok)
		assert.Equal(t, throttle.ReasonNoTokens, r.Reason)
	})
}

// One response that a shape hands out again and again belongs to each request once.
func TestAShapeMayReturnOneResponseForAll(t *testing.T) {
	one := &http.Response{StatusCode: 503}
	shape := throttle.WithRejectionResponse(func(*throttle.Rejection, *http.Request) *http.Response { return one })
	a, _ := refused(t, time.Minute, shape)
	b, _ := refused(t, time.Hour, shape)
	assert.NotSame(t, a, b)
	for resp, wait := range map[*http.Response]time.Duration{a: time.Minute, b: time.Hour} {
		r, ok := throttle.RejectionOf(resp)
		require.True(t, ok)
		assert.Greater(t, r.Wait, wait-time.Second)
	}
}

// A handler in front of a Transport passes its rejections on.
func TestAHandlerAnswersWithARejection(t *testing.T) {
	for _, r := range []*throttle.Rejection{
		{Reason: throttle.ReasonMaxWait, Limit: "tenant", Wait: 1500 * time.Millisecond},
		{Reason: throttle.ReasonCost, Limit: "tenant", Cost: 9, Wait: math.MaxInt64},
	} {
		w := httptest.NewRecorder()
		r.WriteResponse(w)
		resp := w.Result()
		assert.Equal(t, 429, resp.StatusCode)
		assert.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"))
		var problem map[string]any
		require.NoError(t, json.NewDecoder(resp.Body).Decode(&problem))
		assert.Contains(t, problem["detail"], "Too many requests")
		if r.Reason == throttle.ReasonCost {
			assert.Empty(t, resp.Header.Get("Retry-After"), "no retry can pass")
			assert.NotContains(t, problem, "retry_after")
		} else {
			assert.Equal(t, "2", resp.Header.Get("Retry-After"))
			assert.EqualValues(t, 1.5, problem["retry_after"])
		}
	}
}
