package throttleredis

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/store"
)

// A ledger records what the processes of a fleet lease of one budget, and when each token was due.
type ledger struct {
	mu     sync.Mutex
	first  time.Time                 // when the first call began
	leased map[int64][]time.Duration // by lease: when its tokens were due, as their process knew it, after first
}

// A recorded Store writes into a ledger.
type recorded struct {
	*Store
	*ledger
}

func (r recorded) Lease(ctx context.Context, asks []store.Ask) ([]store.Lease, error) {
	r.mu.Lock()
	if r.leased == nil {
		r.first, r.leased = time.Now(), make(map[int64][]time.Duration)
	}
	r.mu.Unlock()
	leases, err := r.Store.Lease(ctx, asks)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Since(r.first)
	for i, ask := range asks {
		for _, back := range ask.Parts[0].Back { // the tokens that are due last were not used
			due := r.leased[back.Lease]
			r.leased[back.Lease] = due[:max(0, len(due)-int(back.Tokens))]
		}
		p, b := leases[i].Parts[0], &ask.Parts[0].Budget
		for k := range p.Tokens {
			due := now
			if k >= p.AtOnce {
				due += p.Next + time.Duration(k-p.AtOnce)*b.Per/time.Duration(b.N)
			}
			r.leased[p.ID] = append(r.leased[p.ID], due)
		}
	}
	return leases, nil
}

// overBucket returns how many tokens were due beyond burst + rate·t.
func (l *ledger) overBucket(burst, perSecond float64) (over float64) {
	l.mu.Lock() // a Limiter may be giving tokens back
	defer l.mu.Unlock()
	var all []time.Duration
	for _, due := range l.leased {
		all = append(all, due...)
	}
	slices.Sort(all)
	for i, due := range all {
		over = max(over, float64(i+1)-burst-perSecond*due.Seconds())
	}
	return over
}

// ofWindow returns the instants of the leases of a window, in µs by Redis's clock, which are their names, and their tokens.
func (l *ledger) ofWindow() (at []int64, tokens map[int64]int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	tokens = make(map[int64]int)
	for id, due := range l.leased {
		at, tokens[id] = append(at, id), len(due)
	}
	slices.Sort(at)
	return at, tokens
}

// overSliding returns how many tokens were leased within a period beyond n.
func (l *ledger) overSliding(n int, per time.Duration) (over float64) {
	at, tokens := l.ofWindow()
	first, sum := 0, 0
	for _, now := range at {
		sum += tokens[now]
		for at[first] <= now-per.Microseconds() {
			sum -= tokens[at[first]]
			first++
		}
		over = max(over, float64(sum-n))
	}
	return over
}

// overFixed is the same for aligned windows.
func (l *ledger) overFixed(n int, per time.Duration) (over float64) {
	at, tokens := l.ofWindow()
	used := make(map[int64]int)
	for _, now := range at {
		window := now / per.Microseconds()
		used[window] += tokens[now]
		over = max(over, float64(used[window]-n))
	}
	return over
}

// TestLimitersShareABudgetOverRedis has eight Limiters for each kind of limit, each with a client of its own and callers that
// always want more.
func TestLimitersShareABudgetOverRedis(t *testing.T) {
	t.Parallel()
	s := start(t)
	const rate, burst = 500, 100
	for name, c := range map[string]struct {
		limit func(throttle.LimitOption) throttle.Limit
		over  func(*ledger) float64
	}{
		"bucket": {bucketOf(rate, burst), func(l *ledger) float64 { return l.overBucket(burst, rate) }},
		"pace": {func(s throttle.LimitOption) throttle.Limit { return throttle.Pace(rate, time.Second, s) },
			func(l *ledger) float64 { return l.overBucket(1, rate) }},
		"sliding window": {func(s throttle.LimitOption) throttle.Limit { return throttle.SlidingWindow(rate, time.Second, s) },
			func(l *ledger) float64 { return l.overSliding(rate, time.Second) }},
		"fixed window": {func(s throttle.LimitOption) throttle.Limit { return throttle.FixedWindow(rate, time.Second, s) },
			func(l *ledger) float64 { return l.overFixed(rate, time.Second) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seconds := 30.0
			if testing.Short() {
				seconds = 2
			}
			var l ledger
			used := make([]float64, 8)
			ctx, cancel := context.WithCancel(t.Context()) // without a deadline, before which requests would be rejected
			time.AfterFunc(time.Duration(seconds*float64(time.Second)), cancel)
			var wg sync.WaitGroup
			for i := range used {
				limiter := limiterOver(t, recorded{storeOn(t, s.addr()), &l}, c.limit)
				var mu sync.Mutex
				for range 8 {
					wg.Go(func() {
						for limiter.Wait(ctx, throttle.Ask{}) == nil {
							mu.Lock()
							used[i]++
							mu.Unlock()
						}
					})
				}
			}
			wg.Wait()
			all := 0.0
			for _, n := range used {
				all += n
			}
			least, most := slices.Min(used)*8/all, slices.Max(used)*8/all
			part := all / (rate * seconds)
			t.Logf("%.3f of the budget, shares of %.2f to %.2f, over %.2f", part, least, most, c.over(&l))
			if over := c.over(&l); over > 0.01 {
				t.Errorf("%.2f more than the limit allows", over)
			}
			if testing.Short() {
				return
			}
			const bar, apart = 0.6, 0.7 // 0.97 and 0.25, on a busy machine worse; internal/limiter has them in virtual time
			if part < bar {
				t.Errorf("%.3f of the budget was used, want %v", part, bar)
			}
			if least < 1-apart || most > 1+apart {
				t.Errorf("the shares are %v", used)
			}
		})
	}
}
