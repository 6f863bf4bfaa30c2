package pictures

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A run is what happens around one refusal.
type run struct {
	events     []event
	begin, end time.Duration // from the refusal until the next request is sent to the host
	pace       [2]float64    // when it ends, and 1 s later
}

// An event is a request.
type event struct {
	caller             int
	asked, sent, ended time.Duration
	refused, rejected  bool
}

func (r *run) count(is func(event) bool) (n int) {
	for _, e := range r.events {
		if is(e) {
			n++
		}
	}
	return n
}

const (
	callers    = 6           // of the host that refuses
	impatient  = callers     // one of the same host, who may wait for a second
	otherHost  = callers + 1 // one of another host
	takes      = 200 * time.Millisecond
	pause      = 400 * time.Millisecond
	refusedAt  = 2 * time.Second
	retryAfter = 3 * time.Second
	length     = 10 * time.Second
)

// play has callers who send one request after the other. The server refuses one of them.
func play(t *testing.T) (r run) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var mu sync.Mutex
		type key struct{}
		transport, err := throttle.New(roundTripper(func(req *http.Request) (*http.Response, error) {
			e := req.Context().Value(key{}).(*event)
			e.sent = time.Since(start)
			resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: req}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case e.caller == otherHost:
			case r.begin == 0 && e.sent >= refusedAt:
				r.begin, e.refused = e.sent, true
				resp.StatusCode = http.StatusTooManyRequests
				resp.Header.Set("Retry-After", fmt.Sprint(retryAfter.Seconds()))
				return resp, nil
			case r.begin > 0 && r.end == 0:
				r.end = e.sent
			}
			mu.Unlock()
			time.Sleep(takes)
			mu.Lock()
			return resp, nil
		}))
		require.NoError(t, err)
		send := func(caller int) {
			e := &event{caller: caller, asked: time.Since(start)}
			ctx, url := context.WithValue(t.Context(), key{}, e), "http://api.example.com/"
			switch caller {
			case impatient:
				ctx = throttle.ContextWithMaxWait(ctx, time.Second)
			case otherHost:
				url = "http://other.example.com/"
			}
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			if !assert.NoError(t, err) {
				return
			}
			resp, err := transport.RoundTrip(req)
			if !assert.NoError(t, err) {
				return
			}
			assert.NoError(t, resp.Body.Close())
			e.ended = time.Since(start)
			if _, e.rejected = throttle.RejectionOf(resp); e.rejected {
				e.sent = e.ended
			}
			mu.Lock()
			defer mu.Unlock()
			r.events = append(r.events, *e)
		}
		var all sync.WaitGroup
		for caller := range otherHost + 1 {
			all.Go(func() {
				time.Sleep(time.Duration(caller) * 100 * time.Millisecond)
				for time.Since(start) < length {
					send(caller)
					time.Sleep(pause)
				}
			})
		}
		for i := range r.pace {
			for range 200 {
				mu.Lock()
				over := r.end > 0 && time.Since(start) >= r.end+time.Duration(i)*time.Second
				mu.Unlock()
				if over {
					break
				}
				time.Sleep(50 * time.Millisecond)
			}
			for _, s := range transport.Limiter().Servers() {
				r.pace[i] = max(r.pace[i], s.Pace)
			}
		}
		all.Wait()
	})
	return r
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// draw draws a row for each caller, and below what the library does.
func (r *run) draw() string {
	const left, second, line, top = 112.0, 62.0, 22.0, 36.0
	c := &canvas{width: 752, height: 286,
		label: "One refusal with Retry-After on a time line. Requests to the host wait until its end and are then sent one by one. A request that may not wait so long is rejected immediately. Another host continues."}
	x := func(d time.Duration) float64 { return left + d.Seconds()*second }
	y := func(caller int) float64 { return top + float64(caller)*line }

	c.text(0, 16, "b", "start", fmt.Sprintf("One refusal: 429 with Retry-After: %.0f", retryAfter.Seconds()))
	for i, legend := range []struct{ class, text string }{{"ok", "accepted"}, {"no", "refused"}, {"wait", "waits"}, {"mark", "rejected here"}} {
		at := left + 250 + float64(i)*92
		c.rect(legend.class, at, 7, 10, 10)
		c.text(at+15, 16, "", "start", legend.text)
	}
	c.text(0, y(callers/2)+4, "", "start", "callers")
	c.text(0, y(impatient)+12, "", "start", "MaxWait 1 s")
	c.text(0, y(otherHost)+12, "", "start", "another host")
	for _, e := range r.events {
		if e.asked >= length {
			continue
		}
		row, end := y(e.caller), min(x(e.ended), x(length))
		if e.sent > e.asked {
			c.rect("wait", x(e.asked), row, x(e.sent)-x(e.asked), line-8)
		}
		switch {
		case e.refused:
			c.rect("no", x(e.sent), row, 5, line-8)
		case e.rejected:
			c.rect("mark", x(e.sent), row, 4, line-8)
		case x(e.sent) < x(length):
			c.rect("ok", x(e.sent), row, end-x(e.sent), line-8)
		}
	}
	bottom := y(otherHost+1) + 4
	for _, at := range []time.Duration{r.begin, r.end} {
		c.path("line", fmt.Sprintf("M%.1f %.1fV%.1f", x(at), top-6, bottom+34))
	}
	c.text(x(r.begin)+5, bottom+14, "b", "start", "nothing is sent")
	c.text(x(r.begin)+5, bottom+31, "", "start", "3 s, up to a tenth longer")
	c.text(x(r.end)+5, bottom+14, "b", "start", "then one by one")
	c.text(x(r.end)+5, bottom+31, "", "start", fmt.Sprintf("%.0f a second, as before; %.0f after 1 s", r.pace[0], r.pace[1]))
	c.path("line", fmt.Sprintf("M%.1f %.1fH%.1f", left, bottom+42, x(length)))
	for s := range int(length.Seconds()) + 1 {
		c.text(x(time.Duration(s)*time.Second), bottom+58, "", "middle", fmt.Sprintf("%d%s", s, strings.Repeat(" s", min(1, s/int(length.Seconds())))))
	}
	c.height = int(bottom + 66)
	return c.String()
}
