package adversary

import (
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// heap returns how many bytes are in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A million keys take their place, are as fast as ten, and are forgotten when they are full again.
func TestAMillionKeys(t *testing.T) { // slow: a million keys
	n := 1 << 20 // the number that is kept by default
	if testing.Short() {
		n = 1 << 13
	}
	synctest.Test(t, func(t *testing.T) {
		before := heap()
		l, err := throttle.NewLimiter(throttle.WithMaxKeys(n), throttle.WithLimit(throttle.TokenBucket(1, time.Minute, throttle.Burst(2))))
		require.NoError(t, err)
		for i := range n {
			_, ok := l.Try(throttle.Ask{Key: strconv.Itoa(i)})
			require.True(t, ok)
		}
		require.Equal(t, n, l.Stats().Buckets)
		perKey := (heap() - before) / int64(n)
		t.Logf("%d bytes a key", perKey)
		require.Less(t, perKey, int64(400))
		_, ok := l.Try(throttle.Ask{Key: "one more"})
		require.Equal(t, n, l.Stats().Buckets, "%v", ok)
		sleep(time.Minute)
		for range 300 { // each request forgets a few that are full
			l.Try(throttle.Ask{Key: "a"})
			sleep(time.Second)
		}
		require.Less(t, l.Stats().Buckets, 3)
		require.Less(t, heap()-before, int64(8<<20))
		runtime.KeepAlive(l)
	})
}

func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// As many keys as may be kept are, whatever servers make of them: those of adaptive limits too.
func TestRefusedKeysOfAnAdaptiveLimitAreBounded(t *testing.T) { // slow: each new key looks for one to forget
	n, keys := 2_000, 100
	if !testing.Short() {
		n, keys = 50_000, 10_000
	}
	synctest.Test(t, func(t *testing.T) {
		before := heap()
		base := roundTripper(func(req *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {"31000000"}}, Body: http.NoBody, Request: req}, nil
		})
		tr, err := throttle.New(base, throttle.WithMaxKeys(keys), throttle.WithFailFast(), throttle.WithKey(throttle.ByHost), throttle.WithAdaptive(throttle.AIMD{Min: 1, Max: 50}))
		require.NoError(t, err)
		for i := range n {
			resp, err := tr.RoundTrip(get(t, fmt.Sprintf("http://host-%d.test/", i)))
			if err == nil {
				resp.Body.Close()
			}
			require.LessOrEqual(t, tr.Stats().Buckets, keys)
		}
		grown := heap() - before
		t.Logf("%d bytes for %d keys", grown, keys)
		require.Less(t, grown, int64(keys)*6_000+2<<20)
		runtime.KeepAlive(tr)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func get(t testing.TB, url string) *http.Request {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	return req
}
