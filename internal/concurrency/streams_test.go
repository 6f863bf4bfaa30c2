package concurrency

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle/internal/scene/flight"
)

// A body whose length is random is no queue, whenever the headers come. The latency is that of the whole call.
func TestStreamsOfRandomLengthUseTheWorkers(t *testing.T) {
	bodies := []struct {
		name string
		took func(*rand.Rand, float64) float64
	}{{"fixed", flight.Constant(0.5)}, {"exponential", flight.Exponential(0.5)}, {"log-normal", flight.LogNormal(0.5, 1)}}
	servers := []struct {
		workers, callers int // 0 workers: as many as there are requests
		best             int64
		least            float64 // of the goodput: the start takes the longer the more workers there are
	}{{4, 16, 5, 92}, {30, 120, 31, 94}, {200, 800, 210, 80}, {0, 48, 48, 94}}
	seeds, heads := uint64(4), []float64{0.1, 1}
	if testing.Short() {
		seeds, servers, heads = 2, servers[1:2], heads[:1]
	}
	for _, server := range servers {
		for _, body := range bodies {
			for _, headers := range heads {
				t.Run(fmt.Sprintf("%d workers, %s, headers after %v", server.workers, body.name, headers), func(t *testing.T) {
					t.Parallel()
					s := flight.Scene{
						Workers: flight.Always(server.workers), Callers: flight.Always(server.callers), Service: body.took, Headers: headers,
					}
					goodput, p99 := 0.0, 0.0
					for seed := range seeds {
						fixed := s.Play(seed, func() flight.Limiter { return flight.Fixed(server.best) }).Calls
						calls := s.Play(seed, newLearned).Calls
						goodput += 100 * float64(len(calls)) / float64(len(fixed)) / float64(seeds)
						p99 += flight.P99(calls) / flight.P99(fixed) / float64(seeds)
					}
					t.Logf("%.1f %%, p99 %.2f", goodput, p99)
					assert.GreaterOrEqual(t, goodput, server.least)
					assert.LessOrEqual(t, p99, 2.5)
				})
			}
		}
	}
}

// A stay keeps the last bits of the number of a request, and of the instant at which it was sent.
func TestStayRemembersRequestAndTime(t *testing.T) {
	for _, seq := range []uint64{1, 1<<seqBits - 1, 1 << seqBits, 1 << 40} {
		for _, sent := range []instant{0, at(1), at(86_400 * 400)} {
			s := newStay(seq, sent)
			assert.Less(t, s, unknown)
			got, seconds := s.of(seq+1000, sent+at(3600))
			assert.Equal(t, seq, got)
			assert.InDelta(t, 3600, seconds, 1e-9)
		}
	}
}
