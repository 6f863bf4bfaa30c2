package seen

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const second = int64(time.Second)

// Of a host, 100 responses are read, and then one a second. After 100 seconds without any, the next 100 are read.
func TestLaterResponsesAreReadOnceASecond(t *testing.T) {
	var q Sampler
	require.False(t, q.Gave("api.example.com"))
	require.True(t, q.Reads("api.example.com", second, 6))
	require.True(t, q.Gave("api.example.com"))
	require.False(t, q.Gave("b.example.org"))
	for range 100 {
		require.True(t, q.Reads("api.example.com", second, 6))
	}
	require.False(t, q.Reads("api.example.com", second, 6))
	for at := 2 * second; at < 20*second; at += second {
		require.False(t, q.Reads("api.example.com", at-1, 6))
		require.True(t, q.Reads("api.example.com", at, 6))
	}
	require.True(t, q.Reads("b.example.org", second, 6), "another host")
	for range 100 {
		require.True(t, q.Reads("api.example.com", 200*second, 6))
	}
	require.False(t, q.Reads("api.example.com", 200*second, 6))
}

// A response with more or fewer headers than those before may report limits, so it is read.
func TestTheFirstResponseWithEachNumberOfHeadersIsRead(t *testing.T) {
	var q Sampler
	for range 1000 {
		q.Reads("api.example.com", second, 6)
	}
	for _, first := range []bool{true, false} {
		for n := range 100 {
			require.Equal(t, first && n != 6 && n <= 63, q.Reads("api.example.com", second, n), n)
		}
	}
}

// Where a response has reported limits, all with as many headers are read, and of the others still one a second.
func TestResponsesWithAsManyHeadersAsAReportAreRead(t *testing.T) {
	var q Sampler
	for range 1000 {
		q.Reads("api.example.com", second, 6)
		q.Reads("api.example.com", second, 9)
	}
	require.False(t, q.Reads("api.example.com", second, 9))
	q.Spoke("api.example.com", 9)
	for range 1000 {
		require.True(t, q.Reads("api.example.com", second, 9))
	}
	require.False(t, q.Reads("api.example.com", second, 6))
	require.True(t, q.Reads("api.example.com", second, 12), "the first one with that number")
	require.False(t, q.Reads("api.example.com", second, 12))
}
