package throttle

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/meter/metertest"
	"github.com/httpthrottle/throttle/internal/quota"
	"github.com/httpthrottle/throttle/store"

	"github.com/stretchr/testify/require"
)

func TestExtremeValuesSaturate(t *testing.T) {
	r := metertest.Seeded(t, 3)
	extreme := func(from int64) int64 {
		all := []int64{0, 1, 2, meter.MaxCount - 1, meter.MaxCount, meter.MaxCount + 1, meter.MaxPer, math.MaxInt64 - 1, math.MaxInt64}
		return max(from, all[r.IntN(len(all))])
	}
	rounds := 2_000
	if testing.Short() {
		rounds = 100
	}
	for range rounds {
		l := newLimit([]*kind{kindBucket, kindPace, kindSliding, kindFixed}[r.IntN(4)], 1, 1, nil)
		if r.IntN(3) == 0 {
			l.rule.Share = 1 - r.Float64()
		}
		rt := meter.Rate{N: extreme(1), Per: time.Duration(extreme(1))}
		if l.check(rt) != nil {
			continue
		}
		wall := &meter.Wall{Unix: r.Int64N(1 << 61)}
		b := bucket.Bucket{Limit: new(bucket.Limit), Meter: l.kind.meter(&l, terms{0, l.rule.Shared(rt), l.rule.BurstOf(rt), wall})}
		now := meter.Instant(0)
		for range 50 {
			now = min(now+r.Int64N(1<<r.IntN(61)), meter.MaxPer/2)
			if r.IntN(5) == 0 {
				b.Lift(now)
				b.Hold(now, now+extreme(1)&(meter.MaxPer-1))
			}
			cost, ahead := extreme(1), min(extreme(0), 2*meter.MaxCount)
			first, later := b.Ready(now, 0, cost), b.Ready(now, ahead, cost)
			require.GreaterOrEqual(t, first, now, "%s %v, cost %d", l.kind.name, rt, cost)
			require.GreaterOrEqual(t, later, first, "%s %v, cost %d after %d", l.kind.name, rt, cost, ahead)
			if b.HeldByCaller() <= now && b.Meter.Payable(now, cost) {
				require.Equal(t, now, first, "%s %v, cost %d", l.kind.name, rt, cost)
				b.Meter.Take(now, now, cost, false)
			}
			_, full := b.Meter.Matters(0)
			require.GreaterOrEqual(t, full, meter.Instant(0))
			require.False(t, math.IsNaN(b.Meter.Tokens(now)))
			if r.IntN(5) == 0 {
				if next := (meter.Rate{N: extreme(1), Per: time.Duration(extreme(1))}); l.check(next) == nil {
					rt = next
					b.Meter.Retune(now, l.rule.Shared(rt))
				}
			}
		}
	}
}

// A bucket that is forgotten between the first look at it and the second is made again at the rate of its own.
func TestRateForIsAskedForABucketThatWasJustForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := NewLimiter(WithMaxKeys(1), WithLimit(TokenBucket(1, time.Hour, RateFor(func(key string) (int64, time.Duration) {
			n, err := strconv.ParseInt(key, 10, 64)
			if err != nil {
				return -1, 0
			}
			return n, time.Hour
		}))))
		require.NoError(t, err)
		drain := func() (n int) {
			for ok := true; ok; n++ {
				_, ok = l.Try(Ask{Key: "7"})
			}
			return n - 1
		}
		require.Equal(t, 7, drain())
		_, p, err := l.acquire(t.Context(), noOverrides, &Ask{Key: "7"})
		require.NoError(t, err)
		require.NotNil(t, p, "there is nothing left")
		_, ok := l.Try(Ask{Key: "9"})
		require.True(t, ok)
		waits, err := l.core.Enqueue(t.Context(), p)
		require.NoError(t, err)
		if waits {
			require.NoError(t, l.core.Await(t.Context(), nil, p))
		}
		require.Equal(t, 6, drain())
	})
}

// A new option is an error in a limit that is Shared, unless it says that it works there.
func TestAnOptionThatNoStoreKnowsIsAnError(t *testing.T) {
	tolerance := limitOption{text: "Tolerance(5)", fits: func(k *kind) bool { return k == kindPace }, apply: func(*Limit) {}}
	for want, l := range map[string]Limit{
		"": Pace(1, time.Second, tolerance),
		`throttle: limit "pace": Tolerance(5) does not fit a limit that is Shared`:                     Pace(1, time.Second, Shared(store.NewMemory()), tolerance),
		`throttle: limit "bucket": Tolerance(5) does not fit a limit of kind bucket`:                   TokenBucket(1, time.Second, tolerance),
		`throttle: limit "in-flight": Pause(1s) does not fit a limit that is Shared`:                   InFlight(1, Pause(time.Second), Shared(store.NewMemory())),
		`throttle: limit "adaptive": Fraction(0.5) does not fit a limit of kind adaptive`:              Adaptive(AIMD{}, Fraction(0.5)),
		`throttle: limit "adaptive-in-flight": Shared does not fit a limit of kind adaptive-in-flight`: AdaptiveInFlight(Concurrency{}, Shared(store.NewMemory())),
	} {
		_, err := NewLimiter(WithLimit(l))
		if want == "" {
			require.NoError(t, err)
		} else {
			require.EqualError(t, err, want)
		}
	}
}

// A Hooks has a function for each kind of event, the functions of several Hooks are called in order, and the page for users names each.
func TestHooksJoinEveryFunction(t *testing.T) {
	var calls []string
	hooks := func(whose string) (h Hooks) {
		v := reflect.ValueOf(&h).Elem()
		for i := range v.NumField() {
			v.Field(i).Set(reflect.MakeFunc(v.Field(i).Type(), func([]reflect.Value) []reflect.Value {
				calls = append(calls, whose+v.Type().Field(i).Name)
				return nil
			}))
		}
		return h
	}
	page, err := os.ReadFile("docs/observability.md")
	require.NoError(t, err)
	joined := reflect.ValueOf(hooks("first ").and(hooks("second ")))
	for i := range joined.NumField() {
		name := joined.Type().Field(i).Name
		require.True(t, strings.Contains(string(page), "`"+name+"`"), "docs/observability.md does not name %s", name)
		require.False(t, joined.Field(i).IsNil(), "and leaves out %s", name)
		calls = nil
		joined.Field(i).Call([]reflect.Value{reflect.Zero(joined.Field(i).Type().In(0))})
		require.Equal(t, []string{"first " + name, "second " + name}, calls)
	}
}

// Wherever a page or a comment says what a default is, it says what the code does.
func TestDefaultsAreAsDocumented(t *testing.T) {
	learned := func(o Option, name string) BucketStats {
		l, err := NewLimiter(o)
		require.NoError(t, err)
		_, err = l.Acquire(t.Context(), Ask{})
		require.NoError(t, err)
		b, ok := l.Bucket(name, "")
		require.True(t, ok)
		return b
	}
	l, err := NewLimiter()
	require.NoError(t, err)
	short := func(d time.Duration) string { // as people write it
		return regexp.MustCompile(`^(\d+)(m?s)$`).ReplaceAllString(d.String(), "$1 $2")
	}
	for _, c := range []struct {
		is     any
		places [][2]string // files, and what they say
	}{
		{l.Stats().MaxQueue, [][2]string{{"options.go", "WithMaxQueue sets how many requests may wait for the same buckets. It must be positive. The default is %v."},
			{"docs/guarantees.md", "(`WithMaxQueue`, %v requests by default)"}}},
		{l.Stats().MaxKeys, [][2]string{{"options.go", "It must be positive. The default is %v. A bucket that is full again"}, {"docs/guarantees.md", "(`WithMaxKeys`, %v by default)"}}},
		{short(defaultLeaseAhead), [][2]string{{"shared.go", "before requests need it. The default is %v,"}, {"docs/shared-limits.md", "| `LeaseAhead(d)` | %v |"},
			{"docs/lab/shared-limits.md", "The default is %v."}, {"docs/recipes.md", "those of %v (`LeaseAhead`)"}, {"store/file/file.go", "what it used in the last %v (see throttle.LeaseAhead)"}}},
		{short(defaultStoreTimeout), [][2]string{{"shared.go", "and at most 4d. The default is %v;"}, {"docs/shared-limits.md", "| `StoreTimeout(d)` | %v |"},
			{"docs/shared-limits-operate.md", "a `StoreTimeout` of %v serves"}, {"docs/lab/shared-limits.md", "`StoreTimeout` (%v)"}}},
		{short(defaultStoreGrace), [][2]string{{"shared.go", "are rejected immediately. The default is %v."}, {"docs/shared-limits.md", "| `StoreGrace(d)` | %v |"},
			{"docs/shared-limits-operate.md", "up to `StoreGrace` (%v)"}, {"README.md", "requests wait for up to %v and are then rejected"}}},
		{learned(WithAdaptive(), KindAdaptive).Rate, [][2]string{{"adaptive.go", "0 stands for %v, or for the lowest rate"}, {"docs/adaptive.md", "`AIMD.Initial` (%v per second,"}, {"docs/lab/adaptive.md", "The default is %v requests per second."}}},
		{learned(WithAdaptiveInFlight(), KindAdaptiveInFlight).Learned.InFlightMost, [][2]string{{"adaptive.go", "Initial is the n of a new key. 0 stands for %v,"}, {"docs/adaptive.md", "a learned number starts at %v,"}, {"docs/lab/adaptive.md", "n starts at %v,"}}},
	} {
		for _, place := range c.places {
			text, err := os.ReadFile(place[0])
			require.NoError(t, err)
			flat := regexp.MustCompile(`[\s/]*\n[\s/]*`).ReplaceAllString(string(text), " ")
			flat = regexp.MustCompile(`,(\d{3})`).ReplaceAllString(flat, "$1")
			want := fmt.Sprintf(place[1], c.is)
			require.True(t, strings.Contains(flat, want), "%s does not say: %s", place[0], want)
		}
	}
}

// A Receipt may be asked what its request waits for while the next attempt, which does not wait, is recorded; see the race detector.
func TestAReceiptIsAskedWhileTheNextAttemptIsRecorded(t *testing.T) {
	l, err := NewLimiter()
	require.NoError(t, err)
	r := &Receipt{waits: []queued{{limiter: l}, {limiter: new(Limiter)}}} // the second one moves in the slice
	var all sync.WaitGroup
	all.Go(func() { r.Waiting() })
	all.Go(func() {
		time.Sleep(10 * time.Millisecond)
		r.file(l, &limiter.Request{})
	})
	all.Wait()
	require.Len(t, r.waits, 1)
}

// A Snapshot has what was reported of the parts by which an API is known to count.
func TestASnapshotKeepsPartsApart(t *testing.T) {
	l, err := NewLimiter()
	require.NoError(t, err)
	for _, apart := range []string{"small", "large"} {
		key := quota.Key{Host: "h", Parts: apart}
		require.NoError(t, l.core.RestoreAccount(&key, func(a *quota.Account, now meter.Instant) error {
			if apart == "small" {
				a.Hold(now, int64(time.Hour))
			}
			return nil
		}))
	}
	again, err := NewLimiter()
	require.NoError(t, err)
	require.NoError(t, again.Restore(l.Snapshot()))
	held := again.Servers()
	require.Len(t, held, 1)
	require.Equal(t, "small", held[0].For)
	require.Greater(t, time.Until(held[0].HeldUntil), 59*time.Minute)
}

// A context that ends while a body does may find a cost after the body has said all that it knew. Then Close says it.
func TestWhatALateEndOfAContextFindsIsSaidByClose(t *testing.T) {
	for _, late := range []bool{false, true} {
		settled := 0
		tr := Must(New(onlyBody{}, WithoutServerHints(), WithLimit(TokenBucket(10, time.Second, SettleJSON("cost"))), WithLimit(InFlight(1)),
			WithHooks(Hooks{OnSettle: func(SettleEvent) { settled++ }})))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.example.com/", nil)
		require.NoError(t, err)
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		b := resp.Body.(*body)
		if late {
			b.release = func() bool { return false } // it was too late to stop what the end of the context does
		}
		_, err = io.ReadAll(b)
		require.NoError(t, err)
		require.Equal(t, 1, settled)
		require.Equal(t, !late, b.done.Load())
		b.costs[0].unsaid = true
		require.NoError(t, b.Close())
		require.Equal(t, late, settled == 2)
	}
}

// onlyBody answers with a cost.
type onlyBody struct{}

func (onlyBody) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Request: r,
		Body: io.NopCloser(strings.NewReader(`{"cost":3}`)), ContentLength: -1}, nil
}
