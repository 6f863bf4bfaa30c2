package tests

import (
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// drain takes all tokens that a key has in a limit of its own, and returns how many there were.
func drain(l *throttle.Limiter, key string) (n int) {
	for {
		if _, ok := l.Try(throttle.Ask{Key: key}); !ok {
			return n
		}
		n++
	}
}

func TestAHoldThatFindsNoRoomIsLogged(t *testing.T) {
	var log strings.Builder
	l := limiterWith(t, throttle.WithLimit(throttle.Pace(1, time.Hour)), throttle.WithMaxKeys(1), throttle.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	_, ok := l.Try(throttle.Ask{Key: "debt", Cost: 10})
	require.True(t, ok)
	for i := range 1024 { // holds of keys without a bucket
		l.Hold(strconv.Itoa(i), time.Hour)
	}
	require.NotContains(t, log.String(), "no room")
	l.Hold("one more", time.Hour)
	require.Contains(t, log.String(), "no room")
}

func TestNoKeyIsAKeyOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterWith(t, throttle.WithLimit(throttle.TokenBucket(3, time.Hour)))
		require.NoError(t, l.Wait(throttle.ContextWithKey(t.Context(), ""), throttle.Ask{Key: "ignored", Cost: 3}))
		require.Equal(t, 3, drain(l, ""), "the key that cannot be computed is not the one of limits without keys")
		require.Equal(t, 0, drain(l, throttle.NoKey))
		require.Equal(t, 3, drain(l, "ignored"))
	})
}

func TestByHostIsInLowerCase(t *testing.T) {
	for _, c := range "aAzZ@[`{09-é" {
		for n := range 20 {
			for i := range n {
				host := strings.Repeat("b", i) + string(c) + strings.Repeat("b", n-i)
				require.Equal(t, strings.ToLower(host), throttle.ByHost(&http.Request{Host: host}), "%q", host)
			}
		}
	}
}
