package limiter_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
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

var savedLimits = []rule{
	tokenBucket(3, 10*time.Millisecond, withBurst(5), named("bucket")), pace(2, 7*time.Millisecond, named("pace")),
	slidingWindow(6, 13*time.Millisecond, named("sliding")), fixedWindow(5, 17*time.Millisecond, named("fixed")),
	tokenBucket(500, 11*time.Millisecond, named("all")),
}

// step makes some random asks, which do not wait, and now and then holds a key.
func (x *spending) step(t *testing.T, l *driven, r *rand.Rand) {
	for range r.IntN(60) {
		asked := ask{Key: fmt.Sprint(r.IntN(savedKeys)), Costs: make(map[string]int64), Keys: map[string]string{"all": ""}, MaxWait: new(time.Duration)}
		for _, li := range l.Limits {
			asked.Costs[li.Name] = max(0, r.Int64N(6)-2)
		}
		if _, err := l.acquire(t.Context(), asked); err != nil {
			require.ErrorIs(t, err, errRejected)
			continue
		}
		for limit, cost := range asked.Costs {
			key, ok := asked.Keys[limit]
			if !ok {
				key = asked.Key
			}
			if cost > 0 {
				x.granted[[2]string{limit, key}] = append(x.granted[[2]string{limit, key}], granting{time.Now(), cost})
			}
		}
	}
	if r.IntN(10) == 0 {
		key, d := fmt.Sprint(r.IntN(savedKeys)), time.Duration(r.IntN(30))*time.Millisecond
		l.hold(key, d)
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
	l := drive(t, limits(savedLimits...))
	for of, all := range x.granted {
		rule := l.limit(of[0])
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
				l.holds(was == 0, "a pace was exceeded")
			case "bucket", "all":
				l.holds(backlog <= most*per, "a bucket granted more than it had")
			default:
				l.holds(window <= rule.Rate.N, "a window granted too much")
			}
		}
	}
}

// A readBucket is what a bucket was when it was read.
type readBucket struct {
	limit, key string
	state      meter.State
	held       int64
	at         time.Time
}

// read reads all buckets, in pieces.
func read(l *driven) (all []readBucket) {
	l.LookAtBuckets(func(b *bucket.Bucket, now meter.Instant) {
		all = append(all, readBucket{b.Limit.Name, b.Key, b.Meter.(meter.Saver).Save(now), max(0, b.HeldByCaller()-now), time.Now()})
	}, func() bool { return true })
	return all
}

// restore has another Core go on with the bucket.
func (r *readBucket) restore(l *driven) error {
	since := int64(time.Since(r.at))
	return l.Restore(l.limit(r.limit), r.key, r.held-since, func(b *bucket.Bucket, now meter.Instant) error {
		return b.Meter.(meter.Saver).Restore(now, since, r.state)
	})
}

// Buckets are read in pieces. What was granted before that and what a Core grants that goes on with them are together within all limits.
func TestWhatWasGrantedBeforeBucketsWereReadCounts(t *testing.T) {
	seeds := uint64(40)
	if testing.Short() {
		seeds = 10
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, old, x := rand.New(rand.NewPCG(seed, 15)), drive(t, limits(savedLimits...)), newSpending()
				for range 40 {
					x.step(t, old, r)
				}
				held, paused := map[string]time.Time{}, 0
				old.SetVisits(64, func() {
					if paused++; paused == 1 { // nothing more happens at the instant of Taken
						maps.Copy(held, x.held)
						time.Sleep(time.Nanosecond)
					}
					x.step(t, old, r)
				})
				taken := time.Now()
				all := read(old)
				require.Greater(t, paused, 5, "it was read in pieces")
				x.check(t)
				x = x.upTo(taken)
				time.Sleep(time.Duration(r.IntN(int(10 * time.Millisecond))))
				next := drive(t, limits(savedLimits...))
				for i := range all {
					require.NoError(t, all[i].restore(next))
				}
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
