package main

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	requestsPerMinute = 60
	tokensPerMinute   = 60_000
	parts             = 4 // a bucket holds a quarter of a minute

	// minute is how long a minute lasts here. All else is as much faster: the first token comes after 20 ms instead of 600,
	// and then 3,000 a second instead of 100.
	minute     = 2 * time.Second
	firstToken = 20 * time.Millisecond
	perToken   = time.Second / 3000
)

// A model answers chat completions, and refuses as https://platform.openai.com/docs/guides/rate-limits has it, with small
// numbers and short minutes: a request needs room in both limits, or is charged to neither. Because a server that allows a
// million tokens per minute does not accept all of them in one second, it holds less than a minute's worth. It is safe for
// concurrent use.
//
// A request is charged on arrival what its answer will really cost, prompt and completion, which a simulation knows.
// Some real servers charge max_tokens at first, and some count tokens as they are written. This one rejects a client that
// estimates too little, and shows how much of the limit is unused by a client that estimates too much.
type model struct {
	mu               sync.Mutex
	requests, tokens bucket
	began, last      time.Time // the first request, and the last that was accepted
}

func newModel() *model {
	return &model{
		requests: bucket{n: requestsPerMinute, burst: requestsPerMinute / parts},
		tokens:   bucket{n: tokensPerMinute, burst: tokensPerMinute / parts},
	}
}

// A chatRequest is what a client sends.
type chatRequest struct {
	Model         string         `json:"model"`
	Messages      []message      `json:"messages"`
	MaxTokens     int64          `json:"max_completion_tokens"`
	Stream        bool           `json:"stream,omitempty"`
	StreamOptions *streamOptions `json:"stream_options,omitempty"`
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

type usage struct {
	Prompt     int64 `json:"prompt_tokens"`
	Completion int64 `json:"completion_tokens"`
	Total      int64 `json:"total_tokens"`
}

func (m *model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/v1/chat/completions" {
		refuse(w, http.StatusNotFound, "unknown_url", "Unknown request URL.")
		return
	}
	var ask chatRequest
	if err := json.NewDecoder(r.Body).Decode(&ask); err != nil {
		refuse(w, http.StatusBadRequest, "invalid_request_error", "We could not parse the JSON body of your request.")
		return
	}
	u := ask.usage()
	switch wait, limit := m.admit(w.Header(), u.Total, time.Now()); {
	case limit == "":
	case wait == never:
		refuse(w, http.StatusTooManyRequests, "rate_limit_exceeded", "Request too large for "+ask.Model+" on "+limit+" per min.")
		return
	default:
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
		w.Header().Set("Retry-After-Ms", strconv.FormatInt(ceil(int64(wait), int64(time.Millisecond)), 10))
		refuse(w, http.StatusTooManyRequests, "rate_limit_exceeded",
			fmt.Sprintf("Rate limit reached for %s on %s per min. Please try again in %v.", ask.Model, limit, wait))
		return
	}
	if ask.Stream {
		stream(w, r, ask, u)
	} else if pause(r, firstToken+time.Duration(u.Completion)*perToken) {
		w.Header().Set("Content-Type", "application/json")
		said := message{"assistant", words(u.Completion)}
		_ = json.NewEncoder(w).Encode(object{"object": "chat.completion", "choices": []object{{"message": said}}, "usage": u})
	}
}

func refuse(w http.ResponseWriter, status int, code, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(object{"error": object{"message": text, "code": code}})
}

type object map[string]any

func words(n int64) string { return strings.Repeat("word ", int(n)) }

// stream sends what the model says as it says it, and at last what that cost.
func stream(w http.ResponseWriter, r *http.Request, ask chatRequest, u usage) {
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(choices []object, u *usage) {
		chunk, _ := json.Marshal(object{"object": "chat.completion.chunk", "choices": choices, "usage": u})
		fmt.Fprintf(w, "data: %s\n\n", chunk)
		_ = http.NewResponseController(w).Flush() // it fails if the client has gone, which pause notices
	}
	const most = 50 // tokens in a chunk
	wait := firstToken
	for left := u.Completion; left > 0; left -= most {
		n := min(left, most)
		if !pause(r, wait+time.Duration(n)*perToken) {
			return
		}
		wait = 0
		send([]object{{"delta": message{"assistant", words(n)}}}, nil)
	}
	if ask.StreamOptions != nil && ask.StreamOptions.IncludeUsage {
		send([]object{}, &u)
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}

// pause reports whether the client is still there after d.
func pause(r *http.Request, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-r.Context().Done():
		return false
	}
}

// usage is what the answer to a request costs. A word is a token, and each six letters more are one. The model says
// what it has to say, in 40 to 639 tokens, or less if that is all that it may.
func (ask *chatRequest) usage() (u usage) {
	hash := fnv.New32a()
	for _, m := range ask.Messages {
		for word := range strings.FieldsSeq(m.Content) {
			u.Prompt += 1 + int64(len(word)-1)/6
		}
		hash.Write([]byte(m.Content))
	}
	u.Completion = min(ask.MaxTokens, 40+int64(hash.Sum32()%600))
	u.Total = u.Prompt + u.Completion
	return u
}

// admit charges a request, or returns which limit has no room for it, and for how long, and sets the headers.
func (m *model) admit(h http.Header, tokens int64, now time.Time) (wait time.Duration, limit string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests.refill(now)
	m.tokens.refill(now)
	if m.began.IsZero() {
		m.began = now
	}
	if wait = m.requests.lacks(1); wait > 0 {
		limit = "requests"
	}
	if d := m.tokens.lacks(tokens); d > wait {
		wait, limit = d, "tokens"
	}
	if limit == "" {
		m.requests.charge(1)
		m.tokens.charge(tokens)
		m.last = now
	}
	m.requests.setHeaders(h, "requests")
	m.tokens.setHeaders(h, "tokens")
	return wait, limit
}

// A bucket gets n a minute, evenly, and holds burst at most. It is full at first.
type bucket struct {
	n, burst int64
	charged  int64
	used     int64 // of what it holds, in units of which n are added in a nanosecond
	at       time.Time
}

const (
	unit  = int64(minute) // of these are 1
	never = time.Duration(math.MaxInt64)
)

func (b *bucket) refill(now time.Time) {
	if d := now.Sub(b.at); d > 0 { // requests may get here in another order than they read the clock
		b.used = max(0, b.used-b.n*int64(min(minute, d))) // after a minute it is full, whatever was used
		b.at = now
	}
}

// lacks returns how long it is until there is room.
func (b *bucket) lacks(cost int64) time.Duration {
	if cost > b.burst {
		return never
	}
	return time.Duration(ceil(b.used+(cost-b.burst)*unit, b.n))
}

func (b *bucket) charge(cost int64) {
	b.used += cost * unit
	b.charged += cost
}

// setHeaders sets the headers of a limit. The reset is when it is full again.
func (b *bucket) setHeaders(h http.Header, name string) {
	h.Set("X-Ratelimit-Limit-"+name, strconv.FormatInt(b.n, 10))
	h.Set("X-Ratelimit-Remaining-"+name, strconv.FormatInt(b.burst-ceil(b.used, unit), 10))
	reset := time.Duration(ceil(b.used, b.n)).Round(time.Millisecond)
	h.Set("X-Ratelimit-Reset-"+name, reset.String())
}

// ceil returns a/b, rounded up; 0 if a is negative.
func ceil(a, b int64) int64 { return (max(0, a) + b - 1) / b }

// A use is what was charged of what could have been: of what a bucket held at first, and what came in until the last
// request was accepted.
type use struct{ charged, allowed int64 }

func (u use) percent() float64 { return 100 * float64(u.charged) / float64(u.allowed) }

func (m *model) used() (requests, tokens use) {
	m.mu.Lock()
	defer m.mu.Unlock()
	took := int64(max(0, m.last.Sub(m.began)))
	of := func(b *bucket) use { return use{b.charged, b.burst + b.n*took/unit} }
	return of(&m.requests), of(&m.tokens)
}
