package tests

import (
	"encoding/json"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/saved"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// restarted returns a new Limiter that continues, some time later, from the JSON that another has saved.
func restarted(t *testing.T, old *throttle.Limiter, later time.Duration, opts ...throttle.Option) *throttle.Limiter {
	t.Helper()
	text, err := json.Marshal(old.Snapshot())
	require.NoError(t, err)
	time.Sleep(later)
	l, err := throttle.NewLimiter(opts...)
	require.NoError(t, err)
	var s throttle.Snapshot
	require.NoError(t, json.Unmarshal(text, &s))
	require.NoError(t, l.Restore(s))
	return l
}

func TestARestartSpendsNoQuotaTwice(t *testing.T) {
	for name, limit := range map[string]throttle.Limit{
		"fixed window":   throttle.FixedWindow(10, 24*time.Hour, throttle.Name("day")),
		"sliding window": throttle.SlidingWindow(10, 24*time.Hour, throttle.Name("day")),
		"token bucket":   throttle.TokenBucket(10, 24*time.Hour, throttle.Name("day")),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, err := throttle.NewLimiter(throttle.WithLimit(limit))
				require.NoError(t, err)
				time.Sleep(time.Hour)
				_, ok := l.Try(throttle.Ask{Key: "tenant", Cost: 7})
				require.True(t, ok)
				next := restarted(t, l, time.Hour, throttle.WithLimit(limit))
				_, ok = next.Try(throttle.Ask{Key: "tenant", Cost: 4})
				require.False(t, ok, "7 of 10 were spent an hour ago")
				wait, ok := l.Try(throttle.Ask{Key: "tenant", Cost: 4})
				require.False(t, ok)
				again, ok := next.Try(throttle.Ask{Key: "tenant", Cost: 4})
				require.False(t, ok)
				assert.Equal(t, wait, again, "as without a restart")
				_, ok = next.Try(throttle.Ask{Key: "tenant", Cost: 3})
				assert.True(t, ok)
				_, ok = next.Try(throttle.Ask{Key: "another", Cost: 10})
				assert.True(t, ok)
			})
		})
	}
}

func TestARestoredWindowIsOverInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := throttle.WithLimit(throttle.FixedWindow(10, time.Hour), throttle.SlidingWindow(10, time.Hour), throttle.Pace(1, time.Hour))
		l, err := throttle.NewLimiter(limits)
		require.NoError(t, err)
		_, ok := l.Try(throttle.Ask{Cost: 10})
		require.True(t, ok)
		next := restarted(t, l, 10*time.Hour, limits)
		_, ok = next.Try(throttle.Ask{Cost: 10})
		assert.True(t, ok)
	})
}

func TestARestartKeepsHoldsAndDebts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := throttle.WithLimit(throttle.Pace(1, time.Second), throttle.TokenBucket(100, time.Second, throttle.Name("b")))
		l, err := throttle.NewLimiter(limits)
		require.NoError(t, err)
		_, ok := l.Try(throttle.Ask{Key: "k", Cost: 30})
		require.True(t, ok)
		l.Hold("other", time.Minute)
		next := restarted(t, l, 10*time.Second, limits)
		wait, ok := next.Try(throttle.Ask{Key: "k"})
		assert.False(t, ok)
		assert.Equal(t, 20*time.Second, wait)
		wait, ok = next.Try(throttle.Ask{Key: "other"})
		assert.False(t, ok)
		assert.Equal(t, 50*time.Second, wait)
	})
}

func TestARestartGoesOnWithWhatWasLearned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := throttle.NewLimiter(throttle.WithAdaptive())
		require.NoError(t, err)
		for i := range 400 {
			g, err := l.Acquire(t.Context(), throttle.Ask{Cost: 1})
			require.NoError(t, err)
			time.Sleep(10 * time.Millisecond)
			if i == 399 {
				g.Report(throttle.OutcomeThrottled)
			} else {
				g.Report(throttle.OutcomeOK)
			}
		}
		learned := rateOf(t, l)
		require.Greater(t, learned, 20.0)
		next := restarted(t, l, time.Hour, throttle.WithAdaptive())
		assert.InDelta(t, learned/2, rateOf(t, next), 1, "cautiously: from a half by doubling")
	})
}

func rateOf(t *testing.T, l *throttle.Limiter) float64 {
	t.Helper()
	for b := range l.Buckets() {
		return b.Rate
	}
	require.Fail(t, "no bucket")
	return 0
}

func TestARestartKeepsWhatServersSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := serverFunc(func(r *http.Request) *http.Response {
			if r.URL.Path == "/held" {
				return says(429, "Retry-After", "100")
			}
			return says(200, "X-RateLimit-Limit", "10", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "3600")
		})
		tr, err := throttle.New(server, throttle.WithFailFast())
		require.NoError(t, err)
		ask(t, tr, "http://a.com/items")
		ask(t, tr, "http://b.com/held")
		text, err := json.Marshal(tr.Limiter().Snapshot())
		require.NoError(t, err)
		time.Sleep(10 * time.Second)
		next, err := throttle.New(server, throttle.WithFailFast())
		require.NoError(t, err)
		var s throttle.Snapshot
		require.NoError(t, json.Unmarshal(text, &s))
		require.NoError(t, next.Limiter().Restore(s))
		_, r := ask(t, next, "http://a.com/anything")
		require.NotNil(t, r)
		assert.InDelta(t, 3590*time.Second, r.Wait, float64(2*time.Second))
		_, r = ask(t, next, "http://b.com/anything")
		require.NotNil(t, r)
		assert.GreaterOrEqual(t, r.Wait, 90*time.Second)
		assert.Less(t, r.Wait, 93*time.Second)
		_, r = ask(t, next, "http://c.com/items")
		assert.Nil(t, r)
	})
}

func TestWhatDoesNotFitASnapshotIsNamedAndTheRestRestored(t *testing.T) {
	l, err := throttle.NewLimiter(throttle.WithLimit(
		throttle.FixedWindow(10, time.Hour, throttle.Name("hour")), throttle.SlidingWindow(10, time.Hour, throttle.Name("sliding"))),
		throttle.WithAdaptive())
	require.NoError(t, err)
	err = l.Restore(snapshotOf(saved.State{Taken: time.Now(), Buckets: []saved.Bucket{
		{Limit: "gone", Key: "k"},
		{Limit: "hour", Key: "bad", Spent: []saved.Spent{{Cost: -1}}},
		{Limit: "sliding", Key: "future", Spent: []saved.Spent{{Ago: -time.Second, Cost: 1}}},
		{Limit: "adaptive", Key: "none"},
		{Limit: "hour", Key: "good", Spent: []saved.Spent{{Cost: 10}}},
	}, Servers: []saved.Server{{Host: "h", Quotas: []saved.Quota{{Name: "q", Limit: -7, Reset: time.Hour}}}}}))
	for _, part := range []string{`"gone"`, `key "bad"`, `key "future"`, `key "none"`, `server "h"`} {
		assert.ErrorContains(t, err, part)
	}
	_, ok := l.Try(throttle.Ask{Key: "good"})
	assert.False(t, ok)
}

// What a snapshot says that cannot be right is named, and never lets more pass than a new Limiter would.
func TestRestoreNamesWhatCannotBeRight(t *testing.T) {
	spent := func(of ...saved.Spent) saved.Bucket { return saved.Bucket{Spent: of} }
	tokens := func(n float64) saved.Bucket { return saved.Bucket{Tokens: n} }
	bucket, pace := throttle.TokenBucket(5, time.Second), throttle.Pace(5, time.Second)
	sliding, fixed := throttle.SlidingWindow(5, time.Second), throttle.FixedWindow(5, time.Second)
	adaptive := throttle.Adaptive(throttle.AIMD{Initial: 5, Max: 5})
	for name, c := range map[string]struct {
		limit throttle.Limit
		saved saved.Bucket
		says  string
	}{
		"huge cost, sliding":         {sliding, spent(saved.Spent{Cost: math.MaxInt64}), "cost of 9223372036854775807"},
		"huge cost, fixed":           {fixed, spent(saved.Spent{Cost: math.MaxInt64}), "cost of 9223372036854775807"},
		"negative cost":              {sliding, spent(saved.Spent{Cost: -3}, saved.Spent{Cost: 5}), "cost of -3"},
		"no cost":                    {fixed, spent(saved.Spent{}), "cost of 0"},
		"in the future":              {sliding, spent(saved.Spent{Cost: 5, Ago: -time.Hour}), "-1h0m0s ago"},
		"debt above the burst":       {bucket, tokens(-1e17), "debt of 1e+17"},
		"debt of ages":               {pace, tokens(-1e17), "-1e+17"},
		"a window in a bucket":       {bucket, spent(saved.Spent{Cost: 1}), "kind"},
		"a bucket in a window":       {sliding, tokens(3), "kind"},
		"a bucket in a fixed window": {fixed, tokens(3), "kind"},
		"learned, in a bucket":       {bucket, saved.Bucket{Learned: &saved.Learned{Rate: 9}}, "kind"},
		"nothing learned":            {adaptive, tokens(3), "kind"},
		"learned nonsense":           {adaptive, saved.Bucket{Learned: &saved.Learned{Rate: -1}}, "kind"},
		"another kind":               {bucket, saved.Bucket{Kind: "fixed-window"}, "fixed-window"},
		"read too early":             {bucket, saved.Bucket{After: -1, Tokens: 5}, "read -1ns after"},
		"a negative pause":           {adaptive, saved.Bucket{Learned: &saved.Learned{Rate: 9, Paused: -1}}, "pause of -1ns"},
		"a negative hold":            {bucket, saved.Bucket{Held: -1, Tokens: 5}, "hold of -1ns"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, err := throttle.NewLimiter(throttle.WithLimit(c.limit))
				require.NoError(t, err)
				for b := range l.Buckets() {
					c.saved.Limit = b.Limit
				}
				good := saved.Bucket{Limit: c.saved.Limit, Key: "good", Held: time.Hour}
				if c.saved.Limit == "adaptive" {
					good.Learned = &saved.Learned{Rate: 1}
				}
				err = l.Restore(snapshotOf(saved.State{Taken: time.Now(), Buckets: []saved.Bucket{c.saved, good}}))
				require.ErrorContains(t, err, c.says)
				_, ok := l.Try(throttle.Ask{Key: "good"})
				assert.False(t, ok, "the rest is restored")
				granted := 0
				for range 1000 {
					for {
						if _, ok := l.Try(throttle.Ask{}); !ok {
							break
						}
						granted++
					}
					time.Sleep(10 * time.Millisecond)
				}
				assert.LessOrEqual(t, granted, 5+50+1)
				assert.GreaterOrEqual(t, granted, 40, "nothing is locked for good")
			})
		})
	}
}

func TestASnapshotOfAnotherKindIsNotRestored(t *testing.T) {
	name := throttle.Name("x")
	kinds := []throttle.Limit{
		throttle.TokenBucket(9, time.Hour, name), throttle.Pace(9, time.Hour, name), throttle.SlidingWindow(9, time.Hour, name),
		throttle.FixedWindow(9, time.Hour, name), throttle.Adaptive(throttle.AIMD{}, name),
	}
	for i, from := range kinds {
		for j, into := range kinds {
			l, err := throttle.NewLimiter(throttle.WithLimit(from))
			require.NoError(t, err)
			l.Try(throttle.Ask{Key: "k"})
			next, err := throttle.NewLimiter(throttle.WithLimit(into))
			require.NoError(t, err)
			err = next.Restore(l.Snapshot())
			if i == j {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, "kind", "%d into %d", i, j)
			}
		}
	}
}

func TestFixedWindowsWithAStartAgreeAfterANewRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // begins at midnight UTC
		start := throttle.Start(time.Now().Add(-1000*24*time.Hour + 20*time.Minute))
		l, err := throttle.NewLimiter(throttle.WithLimit(throttle.FixedWindow(5, 7*time.Minute, start)))
		require.NoError(t, err)
		_, ok := l.Try(throttle.Ask{Key: "before"})
		require.True(t, ok)
		require.NoError(t, l.SetRate("fixed-window", 5, 24*time.Hour))
		for _, key := range []string{"before", "after", ""} {
			for ok := true; ok; _, ok = l.Try(throttle.Ask{Key: key}) {
			}
			wait, _ := l.Try(throttle.Ask{Key: key})
			require.Equal(t, 20*time.Minute, wait, key)
		}
	})
}

func TestBucketsLeavesOutUnusedOnes(t *testing.T) {
	listed := func(tr *throttle.Transport) (all []string) {
		for b := range tr.Limiter().Buckets() {
			all = append(all, b.Limit+"/"+b.Key)
		}
		return all
	}
	none := transportOf(t)
	require.Empty(t, listed(none))
	none.Limiter().Hold("", time.Hour)
	require.Equal(t, []string{"none/"}, listed(none))
	for b := range none.Limiter().Buckets() {
		require.Zero(t, b.Rate)
	}
	bucket := throttle.TokenBucket(10, time.Hour)
	require.Equal(t, []string{"bucket/"}, listed(transportOf(t, throttle.WithLimit(bucket))))
	keyed := transportOf(t, throttle.WithLimit(bucket), throttle.WithKey(throttle.ByHost))
	require.Empty(t, listed(keyed))
	_, err := keyed.RoundTrip(get(t, t.Context(), "http://h/"))
	require.NoError(t, err)
	require.Equal(t, []string{"bucket/h"}, listed(keyed))
	keyed.Limiter().Try(throttle.Ask{})
	require.ElementsMatch(t, []string{"bucket/", "bucket/h"}, listed(keyed))
}

func daily(t *testing.T) *throttle.Limiter {
	l, err := throttle.NewLimiter(throttle.WithLimit(throttle.FixedWindow(100, 24*time.Hour, throttle.Name("daily"))))
	require.NoError(t, err)
	return l
}

func TestSavedFileIsContinuedFrom(t *testing.T) {
	name := filepath.Join(t.TempDir(), "limits.json")
	l := daily(t)
	require.NoError(t, l.LoadFile(name), "there is none at the first start")
	require.NoError(t, l.Wait(t.Context(), throttle.Ask{Cost: 30}))
	require.NoError(t, l.SaveFile(name))
	info, err := os.Stat(name)
	require.NoError(t, err)
	assert.EqualValues(t, 0o600, info.Mode().Perm())
	next := daily(t)
	require.NoError(t, next.LoadFile(name))
	assert.EqualValues(t, 70, tokensLeft(t, next, "daily"))
}

// A program that saves at intervals and at its end, and a reader meanwhile.
func TestSavesDoNotDisturbEachOther(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "limits.json")
	l := daily(t)
	require.NoError(t, l.Wait(t.Context(), throttle.Ask{Cost: 30}))
	require.NoError(t, l.SaveFile(name))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 10 {
				assert.NoError(t, l.SaveFile(name))
				assert.NoError(t, daily(t).LoadFile(name))
			}
		})
	}
	all.Wait()
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, left, 1, "nothing else is left")
}

// A Snapshot that cannot be read restores nothing, and its file stays.
func TestSnapshotThatCannotBeReadIsAnErrorThatSaysWhy(t *testing.T) {
	old := daily(t)
	require.NoError(t, old.Wait(t.Context(), throttle.Ask{Cost: 30}))
	whole, err := json.Marshal(old.Snapshot())
	require.NoError(t, err)
	require.Contains(t, string(whole), `"version":1`)
	for text, says := range map[string]string{
		"":                               "unexpected end of JSON input",
		string(whole[:len(whole)-2]):     "unexpected end of JSON input",
		"\x00\x00":                       "invalid character",
		"[]":                             "cannot unmarshal array",
		"{}":                             "it has no version",
		`{"version":2,"all":"new"}`:      "a Snapshot of version 2 cannot be read, only version 1",
		`{"version":1,"buckets":"none"}`: "cannot unmarshal string",
	} {
		name := filepath.Join(t.TempDir(), "limits.json")
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		l := daily(t)
		err := l.LoadFile(name)
		assert.ErrorContains(t, err, says, text)
		assert.ErrorContains(t, err, name+" cannot be read, and nothing was restored")
		assert.EqualValues(t, 100, tokensLeft(t, l, "daily"))
		still, err := os.ReadFile(name)
		require.NoError(t, err)
		assert.Equal(t, text, string(still))

		s := old.Snapshot()
		assert.Error(t, json.Unmarshal([]byte(text), &s))
		require.NoError(t, l.Restore(s), "it is unchanged")
		assert.EqualValues(t, 70, tokensLeft(t, l, "daily"))
	}
	assert.NoError(t, daily(t).Restore(throttle.Snapshot{}), "an empty Snapshot restores nothing")
}

// A key may be a raw hash, whose bytes are no text.
func TestKeysOfAnyBytesSurviveARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := throttle.FixedWindow(10, 24*time.Hour, throttle.Name("day"))
		l, err := throttle.NewLimiter(throttle.WithLimit(limit))
		require.NoError(t, err)
		spent := map[string]int64{"\xff": 3, "\xfe": 5, "\ufffd": 7}
		for key, n := range spent {
			require.NoError(t, l.Wait(t.Context(), throttle.Ask{Key: key, Cost: n}))
		}
		next := restarted(t, l, time.Hour, throttle.WithLimit(limit))
		for key, n := range spent {
			_, ok := next.Try(throttle.Ask{Key: key, Cost: 11 - n})
			assert.False(t, ok, "%q", key)
			_, ok = next.Try(throttle.Ask{Key: key, Cost: 10 - n})
			assert.True(t, ok, "%q", key)
		}
	})
}

func TestOnlySomeLimitsOfASnapshotAreRestored(t *testing.T) {
	both := []throttle.Limit{throttle.FixedWindow(10, time.Hour, throttle.Name("a")), throttle.FixedWindow(10, time.Hour, throttle.Name("b"))}
	old, err := throttle.NewLimiter(throttle.WithLimit(both...))
	require.NoError(t, err)
	require.NoError(t, old.Wait(t.Context(), throttle.Ask{Cost: 3}))
	state := stateOf(ptr(old.Snapshot()))
	state.Servers = []saved.Server{{Host: "h", Held: time.Hour}, {Host: "i", Keys: map[string]saved.Key{"b": "k"}, Held: time.Hour}}
	s := snapshotOf(*state)
	next, err := throttle.NewLimiter(throttle.WithLimit(both[0]))
	require.NoError(t, err)
	assert.ErrorContains(t, next.Restore(s), `limit "b"`)
	require.NoError(t, next.Restore(s.Only("a")))
	assert.EqualValues(t, 7, tokensLeft(t, next, "a"))
	assert.Len(t, stateOf(ptr(s.Only("a"))).Servers, 1)
	assert.Len(t, stateOf(&s).Buckets, 2, "the Snapshot itself is as it was")
	assert.WithinDuration(t, time.Now(), s.Only().Taken(), time.Minute)
}

func TestFileThatCannotBeReadOrWrittenIsNamed(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "limits.json")
	require.NoError(t, os.WriteFile(name, []byte(`{"taken":`), 0o600))
	assert.ErrorContains(t, daily(t).LoadFile(name), name)
	assert.ErrorContains(t, daily(t).SaveFile(filepath.Join(dir, "no", "such")), "no such file or directory")
	assert.ErrorContains(t, daily(t).SaveFile(dir), "SaveFile")
	left, err := os.ReadDir(filepath.Dir(dir))
	require.NoError(t, err)
	assert.Len(t, left, 1, "no temporary file is left")
}

// stateOf returns what is in a Snapshot.
func stateOf(s *throttle.Snapshot) *saved.State {
	state := new(saved.State)
	if err := json.Unmarshal(encoded(s), state); err != nil {
		panic(err)
	}
	return state
}

// snapshotOf returns a Snapshot with a state.
func snapshotOf(state saved.State) (s throttle.Snapshot) {
	state.Version = saved.Version
	if err := json.Unmarshal(encoded(state), &s); err != nil {
		panic(err)
	}
	return s
}

func encoded(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return text
}
