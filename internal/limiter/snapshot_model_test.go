package limiter_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/saved"
)

// A granting is a charge in one limit.
type granting struct {
	at   time.Time
	cost int64
}

// A spending has all charges, by limit and key, and until when keys are held.
type spending struct {
	granted map[[2]string][]granting
	held    map[string]time.Time
}

// savedKeys is enough for many pieces.
const savedKeys = 150

var savedLimits = []throttle.Limit{
	throttle.TokenBucket(3, 10*time.Millisecond, throttle.Burst(5), throttle.Name("bucket")), throttle.Pace(2, 7*time.Millisecond, throttle.Name("pace")),
	throttle.SlidingWindow(6, 13*time.Millisecond, throttle.Name("sliding")), throttle.FixedWindow(5, 17*time.Millisecond, throttle.Name("fixed")),
	throttle.TokenBucket(500, 11*time.Millisecond, throttle.Name("all")),
}

// step makes some random asks, which do not wait, and now and then holds a key.
func (x *spending) step(t *testing.T, l *throttle.Limiter, r *rand.Rand) {
	for range r.IntN(60) {
		ask := throttle.Ask{Key: fmt.Sprint(r.IntN(savedKeys)), Costs: make(map[string]int64), Keys: map[string]string{"all": ""}, MaxWait: new(time.Duration)}
		for _, li := range coreOf(l).Limits {
			ask.Costs[li.Name] = max(0, r.Int64N(6)-2)
		}
		if _, err := l.Acquire(t.Context(), ask); err != nil {
			require.ErrorIs(t, err, throttle.ErrThrottled)
			continue
		}
		for limit, cost := range ask.Costs {
			key, ok := ask.Keys[limit]
			if !ok {
				key = ask.Key
			}
			if cost > 0 {
				x.granted[[2]string{limit, key}] = append(x.granted[[2]string{limit, key}], granting{time.Now(), cost})
			}
		}
	}
	if r.IntN(10) == 0 {
		key, d := fmt.Sprint(r.IntN(savedKeys)), time.Duration(r.IntN(30))*time.Millisecond
		l.Hold(key, d)
		if until := time.Now().Add(d); until.After(x.held[key]) {
			x.held[key] = until
		}
	}
	time.Sleep(time.Duration(r.IntN(int(time.Millisecond))))
}

// upTo returns what happened until then.
func (x *spending) upTo(taken time.Time) *spending {
	y := newSpending()
	for of, all := range x.granted {
		for _, g := range all {
			if !g.at.After(taken) {
				y.granted[of] = append(y.granted[of], g)
			}
		}
	}
	return y
}

func newSpending() *spending {
	return &spending{granted: make(map[[2]string][]granting), held: make(map[string]time.Time)}
}

// check fails the test if a limit has granted too much in any stretch of time.
func (x *spending) check(t *testing.T) {
	limits := coreOf(limiterOf(t, throttle.WithLimit(savedLimits...))).Limits
	for of, all := range x.granted {
		rule := limits[slices.IndexFunc(limits, func(li *bucket.Limit) bool { return li.Name == of[0] })]
		per, most := int64(rule.Rate.Per), rule.BurstOf(rule.Rate)
		backlog, window := int64(0), int64(0) // what has not drained yet, in 1/per of a token; what counts in the window
		for i, g := range all {
			if i > 0 {
				backlog = max(0, backlog-rule.Rate.N*int64(g.at.Sub(all[i-1].at)))
			}
			was := backlog
			backlog += g.cost * per
			for window = 0; i >= 0 && g.at.Sub(all[i].at) < rule.Rate.Per; i-- {
				if of[0] == "sliding" || all[i].at.UnixNano()/per == g.at.UnixNano()/per {
					window += all[i].cost
				}
			}
			switch of[0] {
			case "pace":
				holds(t, was == 0, "a pace was exceeded")
			case "bucket", "all":
				holds(t, backlog <= most*per, "a bucket granted more than it had")
			default:
				holds(t, window <= rule.Rate.N, "a window granted too much")
			}
		}
	}
}

// A Snapshot is read in pieces. What was granted before Taken and what a restored Limiter grants are together within all limits.
func TestWhatWasGrantedBeforeASnapshotCountsInAllLimits(t *testing.T) {
	seeds := uint64(40)
	if testing.Short() {
		seeds = 10
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, old, x := rand.New(rand.NewPCG(seed, 15)), limiterOf(t, throttle.WithLimit(savedLimits...)), newSpending()
				for range 40 {
					x.step(t, old, r)
				}
				held, paused := map[string]time.Time{}, 0
				*coreOf(old).VisitAtOnce() = 64
				*coreOf(old).Pause() = func() {
					if paused++; paused == 1 { // nothing more happens at the instant of Taken
						maps.Copy(held, x.held)
						time.Sleep(time.Nanosecond)
					}
					x.step(t, old, r)
				}
				s := old.Snapshot()
				require.Greater(t, paused, 5, "it was read in pieces")
				text, err := json.Marshal(s)
				require.NoError(t, err)
				x.check(t)
				x = x.upTo(s.Taken())
				time.Sleep(time.Duration(r.IntN(int(10 * time.Millisecond))))
				next := limiterOf(t, throttle.WithLimit(savedLimits...))
				require.NoError(t, json.Unmarshal(text, &s))
				require.NoError(t, next.Restore(s))
				began := time.Now()
				for range 40 {
					x.step(t, next, r)
				}
				x.check(t)
				for of, all := range x.granted {
					for _, g := range all {
						require.False(t, of[0] != "all" && !g.at.Before(began) && g.at.Before(held[of[1]]), "key %q was granted while it was held", of[1])
					}
				}
			})
		})
	}
}

// The same while other goroutines run.
func TestASnapshotBesideOtherGoroutinesLosesNothingOfBefore(t *testing.T) {
	const keys, each = 500, 40
	l := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(each, 1000*time.Hour), throttle.SlidingWindow(each, 1000*time.Hour)))
	var mu sync.Mutex
	granted := make(map[string][]time.Time)
	ctx, workers := t.Context(), sync.WaitGroup{}
	stop := make(chan struct{})
	for g := range uint64(4) {
		workers.Go(func() {
			for r := rand.New(rand.NewPCG(g, 15)); ctx.Err() == nil; {
				select {
				case <-stop:
					return
				default:
				}
				key := fmt.Sprint(r.IntN(keys))
				if _, ok := l.Try(throttle.Ask{Key: key}); ok {
					now := time.Now()
					mu.Lock()
					granted[key] = append(granted[key], now)
					mu.Unlock()
				}
			}
		})
	}
	var snapshots []throttle.Snapshot
	for range 5 {
		time.Sleep(time.Millisecond)
		snapshots = append(snapshots, l.Snapshot())
	}
	close(stop)
	workers.Wait()
	for _, s := range snapshots {
		next := limiterOf(t, throttle.WithLimit(throttle.TokenBucket(each, 1000*time.Hour), throttle.SlidingWindow(each, 1000*time.Hour)))
		require.NoError(t, next.Restore(s))
		for key, all := range granted {
			before := 0
			for _, at := range all {
				if !at.After(s.Taken()) {
					before++
				}
			}
			more := drained(next, key)
			require.LessOrEqual(t, before+more, each)
			require.GreaterOrEqual(t, len(all)+more, each)
		}
	}
}

// What a server said and what is spent is restored as of the instant at which it was read, although time has passed since Taken.
func TestRestoreCountsFromWhenABucketWasRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := rt(func(r *http.Request) (*http.Response, error) {
			h := http.Header{"Retry-After": {"100"}}
			return &http.Response{StatusCode: 429, Status: "429 Too Many Requests", Header: h, Body: http.NoBody, Request: r}, nil
		})
		limit := throttle.TokenBucket(1, time.Minute, throttle.Key(throttle.ByHost))
		old, err := throttle.New(server, throttle.WithLimit(limit))
		require.NoError(t, err)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://h/", nil)
		require.NoError(t, err)
		resp, err := old.RoundTrip(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		for i := range limiter.PieceSize {
			old.Limiter().Try(throttle.Ask{Key: fmt.Sprint(i)})
		}
		began := time.Now()
		*coreOf(old.Limiter()).VisitAtOnce() = limiter.PieceSize
		*coreOf(old.Limiter()).Pause() = func() { time.Sleep(5 * time.Second) }
		s := old.Limiter().Snapshot()
		require.Equal(t, began, s.Taken())
		require.Positive(t, stateOf(t, s).Servers[0].After)
		require.Positive(t, slices.MaxFunc(stateOf(t, s).Buckets, func(a, b saved.Bucket) int { return int(a.After - b.After) }).After)
		next, err := throttle.New(server, throttle.WithLimit(limit))
		require.NoError(t, err)
		require.NoError(t, next.Limiter().Restore(s))
		for i := range limiter.PieceSize {
			wait, ok := next.Limiter().Try(throttle.Ask{Key: fmt.Sprint(i)})
			require.False(t, ok)
			require.Equal(t, time.Minute, wait+time.Since(began), "from the grant on")
		}
		held := next.Limiter().Server("h")[0].HeldUntil
		require.WithinDuration(t, old.Limiter().Server("h")[0].HeldUntil, held, time.Second, "clients come back one after the other")
	})
}
