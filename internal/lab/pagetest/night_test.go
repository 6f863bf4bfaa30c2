package pagetest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
	"github.com/httpthrottle/throttle/throttlepage"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The headline fits a laptop and a telephone without scrolling. It says which limit stops how many requests, at which server, for how long,
// and what ends it.
func TestTheHeadlineIsWhatToKnowAtNight(t *testing.T) { // slow: a browser, in real time
	limiters := make(map[string]*throttle.Limiter)
	for i := range 8 {
		limiters[fmt.Sprintf("a-calm-service-%d", i)] = limiter(t)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	send := func(name string, tr *throttle.Transport, n int, may time.Duration) {
		for range n {
			all.Go(func() {
				req, _ := http.NewRequestWithContext(throttle.ContextWithMaxWait(ctx, may), http.MethodGet, "http://"+name+".example.com/", nil)
				if resp, err := tr.RoundTrip(req); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			})
		}
	}
	answers := func(status int, body string, pairs ...string) roundTripper {
		return func(req *http.Request) (*http.Response, error) {
			h := http.Header{"Content-Type": {"application/json"}}
			for i := 0; i < len(pairs); i += 2 {
				h.Set(pairs[i], pairs[i+1])
			}
			return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(body)), Request: req}, nil
		}
	}
	made := func(name string, base http.RoundTripper, opts ...throttle.Option) *throttle.Transport {
		tr, err := throttle.New(base, opts...)
		require.NoError(t, err)
		limiters[name] = tr.Limiter()
		return tr
	}

	quota := made("quota", answers(200, "{}", "X-RateLimit-Limit", "20", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "600"))
	hold := made("hold", answers(200, "{}"), throttle.WithLimit(throttle.TokenBucket(100, time.Second, throttle.Name("uploads"))))
	unpaid := made("unpaid", answers(429, `{"error":{"code":"insufficient_quota","message":"Pay your bill."}}`), throttle.WithServerHints(headers.OpenAI))
	page := throttlepage.New(limiters, throttlepage.Every(time.Second))
	defer page.Close()
	server := serve(t, "", page)
	defer stop(server)
	time.Sleep(100 * time.Millisecond) // for its first reading
	hold.Limiter().HoldAll(10 * time.Minute)
	send("quota", quota, 1, 0)
	send("unpaid", unpaid, 1, time.Hour)
	all.Wait()
	send("quota", quota, 50, time.Second)
	send("hold", hold, 40, time.Second)
	send("unpaid", unpaid, 30, time.Second)
	all.Wait()

	for _, screen := range [][2]int64{{1280, 900}, {390, 844}} {
		b := openTab(t, screen[0], screen[1])
		if b == nil {
			return
		}
		b.navigate(pageOf(server))
		b.within(5*time.Second, live)
		b.within(5*time.Second, `document.querySelector("h2").innerText === "quota"`) // its next reading
		names := eval[[]string](b, `[...document.querySelectorAll("h2")].slice(0, 3).map(e => e.innerText)`)
		says := eval[[]string](b, `[...document.querySelectorAll(".says")].slice(0, 3).map(e => e.innerText.replaceAll("\u00a0", " "))`)
		assert.Equal(t, []string{"quota", "hold", "unpaid"}, names, "those that reject the most are first")
		require.Len(t, says, 3)
		assert.Regexp(t, `^50 requests rejected by a quota of quota\.example\.com: 0 of 20 left, resets in (10|9) min \(held\)\.`, says[0])
		assert.Regexp(t, `^40 requests rejected by limit “uploads” \(held\)\. Limit “uploads” is held for (10|9) min; ReleaseAll ends a hold of this program\.`, says[1])
		assert.Regexp(t, `^unpaid\.example\.com refuses, and no waiting helps: insufficient_quota: Pay your bill\. Once that is mended, ForgetServer ends it\.`, says[2])
		assert.Less(t, eval[float64](b, `document.querySelector(".says").getBoundingClientRect().bottom`), float64(screen[1])/2, "without scrolling")
		assert.LessOrEqual(t, eval[int64](b, `document.documentElement.scrollWidth`), screen[0])
		for _, scheme := range []string{"light", "dark"} {
			b.prefer(scheme)
			assert.Empty(t, eval[[]string](b, faint), scheme)
			b.picture(fmt.Sprintf("page-night-%d-%s.png", screen[0], scheme))
		}
		assert.Empty(t, b.console())
	}
}
