package pool

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

type okay struct{}

func (okay) RoundTrip(req *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: req}, nil
}

// A request that moves to other members counts once among those that wait at the members before, also if the members are replaced again while
// it goes on to the next tier.
func TestARequestThatMovesCountsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p *Pool
		made := func(cost func()) *throttle.Transport {
			tr, err := throttle.New(okay{}, throttle.WithLimit(throttle.TokenBucket(1, time.Minute, throttle.Cost(func(*http.Request) int64 { cost(); return 1 }))))
			require.NoError(t, err)
			tr.Limiter().HoldAll(time.Hour)
			return tr
		}
		replaced := false
		a := Member{Name: "a", Transport: made(func() {})}
		b := Member{Name: "b", After: time.Second}
		b.Transport = made(func() {
			if !replaced {
				replaced = true
				require.NoError(t, p.Set(a))
			}
		})
		var err error
		p, err = New([]Member{a})
		require.NoError(t, err)
		go func() {
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://api.example.com/", nil)
			if resp, err := p.RoundTrip(req); err == nil {
				resp.Body.Close()
			}
		}()
		synctest.Wait()
		before := &p.set.Load().waits
		require.EqualValues(t, 1, before.n.Load())
		time.Sleep(time.Minute)
		require.NoError(t, p.Set(a, b))
		synctest.Wait()
		require.True(t, replaced)
		require.EqualValues(t, over, before.n.Load())
		require.EqualValues(t, 1, p.set.Load().waits.n.Load())
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Zero(t, p.set.Load().waits.n.Load())
	})
}
