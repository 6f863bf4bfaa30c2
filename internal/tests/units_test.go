package tests

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// A vendor charges tokens, of which it reports how many are left, and a client does not know what its requests cost.
type vendor struct {
	mu     sync.Mutex
	window bool // the tokens of a minute come back at its end, and the headers say when; otherwise they come back steadily
	limit  float64
	left   float64
	at     time.Time
	r      *rand.Rand

	spent          float64 // after the first minute
	sent, refusals int
	start          time.Time
}

func (v *vendor) RoundTrip(req *http.Request) (*http.Response, error) {
	v.mu.Lock()
	now, cost := time.Now(), float64(500+v.r.IntN(3000))
	switch {
	case !v.window:
		v.left = min(v.limit, v.left+now.Sub(v.at).Minutes()*v.limit)
	case !now.Truncate(time.Minute).Equal(v.at.Truncate(time.Minute)):
		v.left = v.limit
	}
	v.at = now
	counts := now.Sub(v.start) >= time.Minute
	full := time.Duration((v.limit - v.left) / v.limit * float64(time.Minute))
	if v.window {
		full = now.Truncate(time.Minute).Add(time.Minute).Sub(now)
	}
	resp := says(200, "X-RateLimit-Limit-Tokens", fmt.Sprint(int64(v.limit)), "X-RateLimit-Reset-Tokens", fmt.Sprint(full.Round(time.Millisecond)))
	switch {
	case cost > v.left:
		resp.StatusCode = 429
		wait := time.Duration((cost - v.left) / v.limit * float64(time.Minute))
		if v.window {
			wait = full
		}
		resp.Header.Set("Retry-After", fmt.Sprint(math.Ceil(wait.Seconds())))
	default:
		v.left -= cost
	}
	resp.Header.Set("X-RateLimit-Remaining-Tokens", fmt.Sprint(int64(v.left)))
	if counts {
		v.sent++
		if resp.StatusCode == 429 {
			v.refusals++
		} else {
			v.spent += cost
		}
	}
	took := time.Duration(200+v.r.IntN(2000)) * time.Millisecond
	v.mu.Unlock()
	time.Sleep(took)
	return resp, nil
}

// A client that knows neither a limit nor what its requests cost uses what a server has in tokens, and is hardly ever refused.
func TestWhatRequestsCostInTokensIsLearned(t *testing.T) {
	for _, window := range []bool{false, true} {
		for client, opts := range map[string][]throttle.Option{"default": nil, "adaptive": {throttle.WithAdaptive()}} {
			t.Run(fmt.Sprintf("window=%v/%s", window, client), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					v := &vendor{limit: 300_000, left: 300_000, window: window, at: time.Now(), start: time.Now(), r: rand.New(rand.NewPCG(1, 2))}
					tr, err := throttle.New(v, opts...)
					require.NoError(t, err)
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
					defer cancel()
					pressAll(ctx, tr, 20, to(t, http.MethodPost, api))
					v.mu.Lock()
					defer v.mu.Unlock()
					t.Logf("%.3f used, %d of %d refused", v.spent/(9*v.limit), v.refusals, v.sent)
					require.Greater(t, v.spent, .97*9*v.limit)
					require.Less(t, v.refusals, v.sent/100)
				})
			})
		}
	}
}
