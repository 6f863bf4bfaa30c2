package throttle_test

import (
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// A producer has a bucket of 200,000 tokens a minute, which it charges what requests use: when they come, or when they end. It refuses requests
// while too little is left: what a request uses, or anything at all.
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
		{"ServerQuota, nothing reported", false, false, 0.005, []throttle.LimitOption{throttle.LearnCost()}},
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

// An estimator charges requests of a limit without HTTP.
type estimator struct {
	t *testing.T
	l *throttle.Limiter
}

func newEstimator(t *testing.T, opts ...throttle.LimitOption) estimator {
	opts = append(opts, throttle.Name("tpm"), throttle.LearnCost())
	l, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(1e9, time.Minute, opts...)))
	require.NoError(t, err)
	return estimator{t, l}
}

// charge returns what a request with that estimate is charged, and settles it if cost is not negative.
func (e estimator) charge(key string, estimate, cost int64) (charged int64) {
	e.t.Helper()
	ctx, receipt := throttle.ContextWithReceipt(e.t.Context())
	_, err := e.l.Acquire(ctx, throttle.Ask{Key: key, Cost: estimate})
	require.NoError(e.t, err)
	charged, ok := receipt.Cost("tpm")
	require.True(e.t, ok)
	if cost >= 0 {
		require.NoError(e.t, receipt.Settle("tpm", cost))
	}
	return charged
}

func TestARequestIsChargedWhatWasEnoughFor95OfTheLast100(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		charge := newEstimator(t).charge
		for range 19 {
			require.Equal(t, int64(1000), charge("a", 1000, 100))
		}
		require.Equal(t, int64(1000), charge("a", 1000, 0), "what costs nothing shows nothing")
		require.Equal(t, int64(1000), charge("a", 1000, 100))
		require.Equal(t, int64(100), charge("a", 1000, -1))
		require.Equal(t, int64(1000), charge("b", 1000, -1), "another key")
		require.Equal(t, int64(1), charge("a", 3, -1), "a token at least")
		for range 75 {
			charge("a", 500, 50)
		}
		for range 5 {
			require.Equal(t, int64(200), charge("a", 2000, 1000), "one of 20 may cost more")
		}
		require.Equal(t, int64(200), charge("a", 2000, -1))
		charge("a", 2000, 1000)
		require.Equal(t, int64(1000), charge("a", 2000, -1))
		for range 6 {
			charge("a", 2000, 9000)
		}
		require.Equal(t, int64(2000), charge("a", 2000, -1), "the estimate is the bound")
	})
}

func TestWhatWasLearnedOfCostsIsKeptForAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEstimator(t)
		for range 20 {
			e.charge("a", 1000, 100)
		}
		time.Sleep(time.Hour - 1)
		require.Equal(t, int64(100), e.charge("a", 1000, -1))
		for range 1000 { // which makes the Limiter look for what can be forgotten
			e.charge(strconv.Itoa(rand.Int()), 1, -1)
		}
		require.Equal(t, int64(100), e.charge("a", 1000, -1))
	})
}

func TestASnapshotHasWhatWasLearnedOfCosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := newEstimator(t)
		for range 30 {
			before.charge("a", 1000, 250)
		}
		text, err := json.Marshal(before.l.Snapshot())
		require.NoError(t, err)
		var s throttle.Snapshot
		require.NoError(t, json.Unmarshal(text, &s))
		after := newEstimator(t)
		require.NoError(t, after.l.Restore(s))
		require.Equal(t, int64(250), after.charge("a", 1000, 900))
		require.Equal(t, int64(250), after.charge("a", 1000, 900), "one of 20")
		require.Equal(t, int64(900), after.charge("a", 1000, -1))

		require.NoError(t, json.Unmarshal([]byte(strings.Replace(string(text), `"share":0.25`, `"share":1.25`, 1)), &s))
		require.ErrorContains(t, newEstimator(t).l.Restore(s), "a share of 1.25")
	})
}

func TestAWaitingRequestIsChargedWhatWasLearned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(100, time.Second, throttle.Name("tpm"), throttle.LearnCost())))
		require.NoError(t, err)
		e := estimator{t, l}
		for range 20 {
			e.charge("", 100, 50)
		}
		e.charge("", 100, -1)
		began := time.Now()
		e.charge("", 100, -1) // waits for 50 tokens
		require.Equal(t, 500*time.Millisecond, time.Since(began))
		for range 94 { // settled by what was estimated, not by what was charged: the share stays
			e.charge("", 100, 50)
		}
		began = time.Now()
		require.Equal(t, int64(50), e.charge("", 100, -1))
	})
}

func TestLearnCostFitsLimitsThatSpend(t *testing.T) {
	_, err := throttle.New(nil, throttle.WithLimit(throttle.InFlight(1, throttle.LearnCost())))
	require.ErrorContains(t, err, "LearnCost() does not fit a limit of kind in-flight")
}
