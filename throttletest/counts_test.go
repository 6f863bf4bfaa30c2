package throttletest

import (
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCountsReportWhatBecameOfEachRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithLimits(FixedWindow(3, time.Minute), FixedWindow(3, time.Minute, Name("second"))),
			WithFaults(Outage(503).OnRequests(1), Respond(500, nil).OnRequests(2, 6)), WithRoundTrip(2*time.Second, 0))
		for range 4 {
			go api.do()
			synctest.Wait()
		}
		assert.Equal(t, Counts{InFlight: 4, MaxInFlight: 4, Received: 4, RefusedBy: map[string]int64{"window": 0, "second": 0}}, api.Counts(), "they travel")
		time.Sleep(3 * time.Second)
		assert.Zero(t, api.take(2))
		assert.Equal(t, Counts{
			MaxInFlight: 4, Received: 6, Accepted: 3, Refused: 2,
			RefusedBy: map[string]int64{"window": 2, "second": 2}, Failed: 1, Spoiled: 1,
		}, api.Counts())
	})
}

func TestMaxAcceptedIsHalfOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithKey(byHeader("Tenant")), WithLimits(TokenBucket(100, time.Second, Cost(costHeader("Points"))), InFlight(9)))
		api.do("Points", "3")
		time.Sleep(time.Second - 1)
		api.do("Points", "4")
		time.Sleep(time.Nanosecond)
		api.do("Points", "5")
		api.do("Points", "6", "Tenant", "another")
		api.do()
		most := func(limit string, length time.Duration) int64 {
			n, err := api.MaxAccepted(limit, length)
			require.NoError(t, err)
			return n
		}
		assert.EqualValues(t, 9, most("bucket", time.Second))
		assert.EqualValues(t, 12, most("bucket", time.Second+1))
		assert.EqualValues(t, 6, most("bucket", 1), "by key")
		assert.EqualValues(t, 4, most("", time.Second))
		assert.EqualValues(t, 5, most("", time.Second+1))

		_, err := api.MaxAccepted("buck", time.Second)
		assert.ErrorContains(t, err, `no limit named "buck"`)
		_, err = api.MaxAccepted("", 0)
		assert.ErrorContains(t, err, "must be positive")
	})
}

func TestMaxAcceptedAgreesWithBruteForce(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		var charges []charge
		at := int64(0)
		for range r.IntN(40) {
			at += r.Int64N(4)
			charges = append(charges, charge{at: at, cost: 1 + r.Int64N(5)})
		}
		length := 1 + r.Int64N(12)
		var want int64
		for _, first := range charges {
			var sum int64
			for _, c := range charges {
				if first.at <= c.at && c.at < first.at+length {
					sum += c.cost
				}
			}
			want = max(want, sum)
		}
		require.Equal(t, want, maxInWindow(charges, length), "seed %d: %v", seed, charges)
	}
}

func TestRecordingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithLimits(TokenBucket(100, time.Second)), WithRecording(5))
		api.take(5)
		n, err := api.MaxAccepted("bucket", time.Second)
		require.NoError(t, err)
		assert.EqualValues(t, 5, n)
		api.take(1)
		for _, limit := range []string{"", "bucket"} {
			_, err = api.MaxAccepted(limit, time.Second)
			assert.ErrorContains(t, err, "WithRecording(5)")
		}
		assert.Len(t, api.Accepted(), 5)
	})
}

func TestAcceptedAreInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithRoundTrip(time.Second, 500*time.Millisecond))
		start := time.Now()
		for range 100 {
			go api.do()
		}
		time.Sleep(10 * time.Second)
		accepted := api.Accepted()
		require.Len(t, accepted, 100)
		assert.True(t, slices.IsSortedFunc(accepted, time.Time.Compare))
		assert.True(t, accepted[0].After(start))
	})
}
