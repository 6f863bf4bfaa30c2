package limits

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

type api struct{}

func (api) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: req}, nil
}

func of(t *testing.T, c Config) *Transport {
	t.Helper()
	tr, err := New(api{}, c)
	require.NoError(t, err)
	return tr
}

// ask sends a request of a tenant, and returns its status.
func ask(t *testing.T, tr *Transport, ctx context.Context) int {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api/", nil)
	require.NoError(t, err)
	req.Header.Set("X-Tenant", "a")
	resp, err := tr.RoundTrip(req)
	require.NoError(t, err)
	return resp.StatusCode
}

// served returns how many requests go without a wait.
func served(t *testing.T, tr *Transport) (n int) {
	t.Helper()
	for ask(t, tr, throttle.ContextWithMaxWait(t.Context(), 0)) == http.StatusOK {
		n++
	}
	return n
}

func TestAWrongFileChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := of(t, Config{Rate: 3, InFlight: 7})
		for text, says := range map[string]string{
			`{"rate": 0}`: `limit "tenant": n of 0`, `{"rate": 9, "in_flight": -1}`: "InFlight(-1)", `{"rate": 9, "daily": -1}`: `limit "daily": n of -1`,
			`{"rate": 9, "in_flight": 7, "tenants": {"b": 0}}`: `tenant "b": a rate of 0`, `{"rte": 9}`: `unknown field "rte"`, `{"rate": 9`: "unexpected EOF",
		} {
			require.ErrorContains(t, tr.parse([]byte(text)), says)
		}
		require.Equal(t, 3, served(t, tr))
		require.Equal(t, 7.0, tr.current.Load().Limiter().Limits()[1].Capacity)
		_, err := New(api{}, Config{})
		require.Error(t, err)
	})
}

// A rate that only RateFor returns is not known to be wrong before it is called.
func TestAChangeThatFailsHalfwayIsUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := of(t, Config{Rate: 3, Tenants: map[string]int64{"a": 5}})
		require.Equal(t, 5, served(t, tr))
		require.ErrorContains(t, tr.apply(tr.current.Load(), Config{Rate: 9, Tenants: map[string]int64{"a": -1}}), `RateFor("a") = -1`)
		require.Equal(t, 3.0, tr.current.Load().Limiter().Limits()[0].Rate)
		time.Sleep(time.Second)
		require.Equal(t, 5, served(t, tr))
		time.Sleep(time.Hour)
		require.Equal(t, 5, served(t, tr), "its bucket was forgotten")
	})
}

func TestWhatWasSpentOfALimitThatStaysIsSpent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := Config{Rate: 100, Daily: 5}
		tr := of(t, c)
		require.Equal(t, 5, served(t, tr))
		c.InFlight, c.Daily = 3, 7
		require.NoError(t, tr.Set(c))
		require.Equal(t, 2, served(t, tr))
		c.Daily = 0
		require.NoError(t, tr.Set(c))
		require.Equal(t, 100-7, served(t, tr), "a hundred a second are left")
	})
}

func TestAChangeReachesRequestsThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := of(t, Config{Rate: 1, Daily: 2})
		require.Equal(t, http.StatusOK, ask(t, tr, t.Context()))
		start := time.Now()
		done := make(chan time.Duration)
		go func() {
			assert.Equal(t, http.StatusOK, ask(t, tr, t.Context()))
			done <- time.Since(start)
		}()
		time.Sleep(time.Second / 2)
		require.NoError(t, tr.Set(Config{Rate: 2, Daily: 2}))
		require.Equal(t, time.Second/2, <-done)
	})
}
