package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/httpthrottle/throttle/throttletest"
)

const callers = 64

// A result is what a client got from a vendor.
type result struct {
	used    float64 // of what the limit allowed the model that was asked for all the time
	sent    int
	refused int           // after the first ten seconds, of it
	other   time.Duration // the longest that a request for the other model took until its headers, after the first
	failed  error         // the first error
}

func (r result) String() string {
	return fmt.Sprintf("%.1f %% used, %d sent, %.2f %% refused, the other model within %v", 100*r.used, r.sent, 100*r.refusedShare(), r.other.Round(time.Millisecond))
}

func (r result) refusedShare() float64 { return float64(r.refused) / float64(max(1, r.sent)) }

// A meeting is a client at a vendor.
type meeting struct {
	vendor *vendor
	client http.RoundTripper
	begun  time.Time

	mu sync.Mutex // guards what follows
	result
	total int64
	rng   *rand.Rand
}

// meet has callers ask a vendor for as long as that, over the connections of its server.
func meet(v *vendor, start func(opts ...throttletest.Option) (*throttletest.Server, http.RoundTripper), lasts time.Duration) result {
	m := &meeting{vendor: v, rng: rand.New(rand.NewPCG(1, 2))}
	server, base := start(v.options(m.charge)...)
	defer server.Close()
	m.client, m.failed = newTransport(base, v.key...)
	if m.failed != nil {
		return m.result
	}
	m.begun = time.Now()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	time.AfterFunc(lasts, cancel)
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for ctx.Err() == nil {
				m.ask(ctx, "large")
			}
		})
	}
	all.Go(func() {
		for ctx.Err() == nil {
			m.ask(ctx, "small")
			select {
			case <-time.After(3 * time.Second):
			case <-ctx.Done():
			}
		}
	})
	all.Wait()
	possible := float64(v.limit) * (1 + lasts.Minutes())
	if v.window {
		possible = float64(v.limit) * float64(1+time.Now().UnixNano()/int64(time.Minute)-m.begun.UnixNano()/int64(time.Minute))
	}
	m.used = float64(m.total) / possible
	return m.result
}

// charge notes what a request was charged.
func (m *meeting) charge(model string, tokens int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if model == "large" {
		m.total += tokens
	}
}

// ask sends a request for a model, and reads the answer.
func (m *meeting) ask(ctx context.Context, model string) {
	began := time.Now()
	status, headers, err := m.send(ctx, model)
	m.mu.Lock()
	defer m.mu.Unlock()
	late := began.Sub(m.begun) > 10*time.Second
	switch {
	case err != nil && ctx.Err() == nil:
		m.failed = err
	case err != nil || !late:
	case model == "small":
		m.other = max(m.other, headers.Sub(began))
	default:
		m.sent++
		if status != http.StatusOK {
			m.refused++
		}
	}
}

func (m *meeting) send(ctx context.Context, model string) (status int, headers time.Time, err error) {
	url, prompt, out := m.vendor.url, 0, 0
	if strings.Contains(url, "%s") {
		url = fmt.Sprintf(url, model)
	}
	m.mu.Lock()
	prompt, out = 1000+m.rng.IntN(3000), 100+m.rng.IntN(600)
	m.mu.Unlock()
	body := fmt.Sprintf(`{"model":%q,"max_tokens":%d,"stream":true,"prompt":%q}`, model, maxTokens, strings.Repeat("x", prompt))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return 0, headers, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Model", model)
	req.Header.Set("X-Answer", strconv.Itoa(out))
	resp, err := m.client.RoundTrip(req)
	if err != nil {
		return 0, headers, err
	}
	defer resp.Body.Close()
	headers = time.Now()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, headers, err
}
