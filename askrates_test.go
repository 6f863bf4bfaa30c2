package throttle

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

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
		_, r, err := l.await(t.Context(), p, &l.direct)
		require.NoError(t, err)
		require.Nil(t, r)
		require.Equal(t, 6, drain())
	})
}
