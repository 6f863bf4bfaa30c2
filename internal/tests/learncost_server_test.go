//go:build !race

package tests

import (
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// A producer has a bucket of 200,000 tokens a minute, which it charges what requests use: when they come, or when they end. It refuses
// requests while too little is left: what a request uses, or anything at all.
type producer struct {
	atEnd, reports bool

	mu            sync.Mutex
	left          float64
	at            time.Time
	rng           *rand.Rand
	sent, refused int
	used          float64
}

const produced = 200_000 // tokens a minute

func newProducer(seed uint64, atEnd bool) *producer {
	return &producer{atEnd: atEnd, left: produced, at: time.Now(), rng: rand.New(rand.NewPCG(seed, 1))}
}

func (p *producer) RoundTrip(req *http.Request) (*http.Response, error) {
	answer, ok := p.begin()
	resp := &http.Response{StatusCode: 429, Header: http.Header{}, Request: req, Body: http.NoBody}
	if p.reports {
		p.report(resp.Header)
	}
	if !ok {
		return resp, nil
	}
	time.Sleep(300*time.Millisecond + time.Duration(answer)*10*time.Millisecond)
	p.end(answer)
	resp.StatusCode = 200
	resp.Header.Set("X-Cost", strconv.Itoa(answer))
	return resp, nil
}

func (p *producer) begin() (answer int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.left, p.at = min(produced, p.left+produced/60.0*now.Sub(p.at).Seconds()), now
	p.sent++
	answer = 100 + p.rng.IntN(600)
	need := float64(answer)
	if p.atEnd {
		need = 1
	}
	if p.left < need {
		p.refused++
		return 0, false
	}
	p.used += float64(answer)
	if !p.atEnd {
		p.left -= float64(answer)
	}
	return answer, true
}

func (p *producer) end(answer int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.atEnd {
		p.left -= float64(answer)
	}
}

// report writes what is left, as OpenAI does.
func (p *producer) report(h http.Header) {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := max(0, p.left)
	h.Set("X-RateLimit-Limit-Tokens", strconv.Itoa(produced))
	h.Set("X-RateLimit-Remaining-Tokens", strconv.Itoa(int(left)))
	h.Set("X-RateLimit-Reset-Tokens", time.Duration((produced-left)*60/produced*1e9).String())
}

// produce has 64 callers ask for as long as that, and returns what was used of the limit, and what was refused.
func produce(t *testing.T, p *producer, rt http.RoundTripper, lasts time.Duration) (used, refused float64) {
	end := time.Now().Add(lasts)
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for time.Now().Before(end) {
				resp, err := rt.RoundTrip(get(t, t.Context(), api))
				if !assert.NoError(t, err) {
					return
				}
				resp.Body.Close()
				if resp.StatusCode != 200 {
					time.Sleep(100 * time.Millisecond)
				}
			}
		})
	}
	all.Wait()
	return p.used / (produced * (1 + lasts.Minutes())), float64(p.refused) / float64(p.sent)
}

// bounded is the limit of a producer, with an estimate that is a bound.
func bounded(opts ...throttle.LimitOption) throttle.Option {
	opts = append(opts, throttle.Name("tpm"), throttle.Cost(costing(8192)), throttle.Settle(byHeader))
	return throttle.WithLimit(throttle.TokenBucket(produced, time.Minute, opts...))
}

func TestEstimatesThatAreBoundsAreLowered(t *testing.T) {
	for _, atEnd := range []bool{false, true} {
		inBubble(t, "charged at the end: "+strconv.FormatBool(atEnd), func(t *testing.T) {
			for seed := range uint64(3) {
				p := newProducer(seed, atEnd)
				tr, err := throttle.New(p, bounded(throttle.LearnCost()))
				require.NoError(t, err)
				used, refused := produce(t, p, tr, 10*time.Minute)
				assert.GreaterOrEqual(t, used, 0.95)
				assert.LessOrEqual(t, refused, 0.002)
				t.Logf("seed %d: %.1f %% used, %.2f %% refused", seed, 100*used, 100*refused)
			}
		})
	}
	for _, c := range []struct {
		name           string
		reports, atEnd bool
		refused        float64
		opts           []throttle.LimitOption
	}{
		{"ServerQuota, charged at the start", true, false, 0.002, nil},
		{"ServerQuota, charged at the end", true, true, 0.002, nil},
		{"ServerQuota, nothing reported", false, false, 0.0075, []throttle.LimitOption{throttle.LearnCost()}},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			p := newProducer(1, c.atEnd)
			p.reports = c.reports
			opts := append(c.opts, throttle.Cost(costing(8192)), throttle.Settle(byHeader))
			tr, err := throttle.New(p, throttle.WithLimit(throttle.ServerQuota("tokens", opts...)))
			require.NoError(t, err)
			used, refused := produce(t, p, tr, 10*time.Minute)
			assert.GreaterOrEqual(t, used, 0.95)
			assert.LessOrEqual(t, refused, c.refused)
			t.Logf("%.1f %% used, %.2f %% refused", 100*used, 100*refused)
		})
	}
	inBubble(t, "without the option", func(t *testing.T) {
		p := newProducer(1, false)
		tr, err := throttle.New(p, bounded())
		require.NoError(t, err)
		used, _ := produce(t, p, tr, 10*time.Minute)
		assert.Less(t, used, 0.9)
		t.Logf("%.1f %% used", 100*used)
	})
}
