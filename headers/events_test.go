package headers_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle/headers"
)

// A rule for an event is for no response, and a rule for responses for no event.
func TestARuleForAnEventIsForNothingElse(t *testing.T) {
	now := time.Now()
	stream := http.Header{"Content-Type": {"text/event-stream"}, "X-Ratelimit-Remaining": {"0"}, "X-Ratelimit-Reset": {"9"}}
	plain := http.Header{"Content-Type": {"application/json"}}
	const (
		data = `{"type":"error","error":{"type":"overloaded_error"}}`
		said = "event: error\ndata: " + data + "\n\n"
	)
	overloaded := []headers.Match{{Name: "type", Values: []string{"overloaded_error"}}}
	d := headers.Dialect{Rules: []headers.Rule{{Event: "error", Statuses: []int{200}, Body: overloaded, Wait: time.Second, Reason: "overloaded"}}}

	assert.True(t, d.WantsEvents(200, stream))
	assert.False(t, d.WantsEvents(201, stream))
	assert.False(t, d.WantsEvents(200, plain))
	assert.False(t, d.WantsEvents(200, http.Header{"Content-Type": {"text/event-stream"}, "Content-Encoding": {"gzip"}}))
	assert.False(t, d.WantsBody(200, plain))

	s := d.Parse(200, stream, []byte(said), now)
	assert.True(t, s.Limited)
	assert.Equal(t, headers.Maybe[time.Duration]{Value: time.Second, Known: true}, s.Wait)
	assert.Equal(t, "overloaded", s.Reason)
	assert.Empty(t, s.Buckets, "the headers do not count again")
	assert.False(t, d.Parse(201, stream, []byte(said), now).Limited)
	assert.False(t, d.Parse(200, plain, []byte(data), now).Limited)
	assert.False(t, d.Parse(200, stream, nil, now).Limited)

	other := headers.Dialect{Rules: []headers.Rule{{Statuses: []int{200}, Body: overloaded}}}
	assert.False(t, other.WantsEvents(200, stream))
	assert.True(t, other.Parse(200, plain, []byte(data), now).Limited)
	assert.False(t, other.Parse(200, stream, []byte(said), now).Limited)

	r, err := headers.NewReader(headers.Auto)
	assert.NoError(t, err)
	for host, wants := range map[string]bool{"api.anthropic.com": true, "api.openai.com": false, "api.test": false} {
		assert.Equal(t, wants, r.WantsEvents(host, 200, stream), host)
		assert.Equal(t, wants, r.Parse(host, 200, stream, []byte(said), now).Limited, host)
	}
	assert.False(t, r.Silent("api.anthropic.com", 200, http.Header{"Content-Type": {"text/event-stream"}}))
	assert.True(t, r.Silent("api.openai.com", 200, http.Header{"Content-Type": {"text/event-stream"}}))
}

// Events are cut as the standard says (WHATWG HTML, 9.2.6): lines of data are joined, the last name counts, and one space after a colon does
// not.
func TestEventsAreCutAsTheStandardSays(t *testing.T) {
	stream := http.Header{"Content-Type": {"Text/Event-Stream; charset=utf-8"}}
	for text, limited := range map[string]bool{
		"data: {\"a\":\ndata: \"b\"}\n\n":                         false,
		"event: e\ndata: {\"a\":\ndata: \"b\"}\n\n":               true,
		"data:{\"a\":\"b\"}\nevent:e":                             true,
		"event: e\r\ndata: {\"a\":\"b\"}\r\n\r\n":                 true,
		"event: e\rdata: {\"a\":\"b\"}\r\r":                       true,
		"event: x\nevent: e\nid: 7\ndata: {\"a\":\"b\"}\n\n":      true,
		"event: e\nevent: x\ndata: {\"a\":\"b\"}\n\n":             false,
		"event:  e\ndata: {\"a\":\"b\"}\n\n":                      false,
		": event: e\ndata: {\"a\":\"b\"}\n\n":                     false,
		"event: e\ndata: {\"a\":\"c\"}\n\n":                       false,
		"event: e\n\n":                                            false,
		"event: e\ndata: {\"a\":\"b\",\"cut\": \"at the 4096t":    true,
		"event\ndata\n\x00\xff: \n:\ndata: {\"a\":\"b\"}\r\n\r\n": false,
	} {
		d := headers.Dialect{Rules: []headers.Rule{{Event: "e", Body: []headers.Match{{Name: "a", Values: []string{"b"}}}}}}
		assert.Equal(t, limited, d.Parse(200, stream, []byte(text), time.Now()).Limited, "%q", text)
	}
	unnamed := headers.Dialect{Rules: []headers.Rule{{Event: "message", Body: []headers.Match{{Name: "a", Values: []string{"b"}}}}}}
	assert.True(t, unnamed.Parse(200, stream, []byte("data: {\"a\":\"b\"}\n\n"), time.Now()).Limited)
}
