package throttletest

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestAStallHoldsBackRequestsAndResponses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithLimits(FixedWindow(3, time.Second)), WithRoundTrip(200*time.Millisecond, 0),
			WithServiceTime(Constant(100*time.Millisecond)))
		start := time.Now()
		type end struct {
			status int
			at     time.Duration
		}
		ends := make(chan end)
		send := func(at time.Duration) {
			go func() {
				time.Sleep(at)
				ends <- end{api.status(), time.Since(start)}
			}()
		}
		send(0)                      // accepted at 100 ms, ready at 200 ms
		send(50 * time.Millisecond)  // accepted at 150 ms, ready at 250 ms
		send(150 * time.Millisecond) // arrives at 250 ms
		send(750 * time.Millisecond) // arrives at 850 ms
		time.Sleep(200*time.Millisecond + 1)
		api.Stall(600 * time.Millisecond)
		assert.Equal(t, end{200, 300 * time.Millisecond}, <-ends, "left before the stall")
		assert.Equal(t, end{200, 900*time.Millisecond + 1}, <-ends)
		assert.EqualValues(t, 3, api.Counts().Accepted, "the third was accepted when the stall ended")
		assert.Equal(t, end{429, 950 * time.Millisecond}, <-ends)
		assert.Equal(t, end{200, time.Second + 1}, <-ends)
	})
}

func TestStallsThatOverlapEndTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t)
		took := make(chan time.Duration)
		start := time.Now()
		for range 2 {
			api.Stall(time.Second)
			api.Stall(-1)
			api.Stall(10 * time.Millisecond)
			go func() {
				api.do()
				took <- time.Since(start)
			}()
			time.Sleep(600 * time.Millisecond)
		}
		assert.Equal(t, 1600*time.Millisecond, <-took)
		assert.Equal(t, 1600*time.Millisecond, <-took)
		api.do()
		assert.Equal(t, 1600*time.Millisecond, time.Since(start))
	})
}

func TestLimitsRefillDuringAStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithLimits(TokenBucket(10, time.Second)), WithFaults(Outage(503).Between(time.Hour, 2*time.Hour)))
		assert.Equal(t, 10, api.take(11))
		api.Stall(time.Second)
		assert.Equal(t, 10, api.take(11))
	})
}

func TestAFaultStrikesAfterAStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithFaults(Outage(503).Between(time.Second, time.Minute)))
		api.Stall(time.Second)
		assert.Equal(t, 503, api.status())
	})
}

func TestCloseEndsAStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := Start(t, WithInMemory())
		api.Stall(time.Hour)
		go func() {
			time.Sleep(time.Second)
			api.Close()
		}()
		_, err := api.Client().Get(api.URL)
		assert.Error(t, err)
	})
}
