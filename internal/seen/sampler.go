// Package seen decides which responses are looked at, and remembers what was in them.
package seen

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

// A Sampler bounds how many good responses are read that report no limits, because to look at each header of a response takes longer than
// all other work for a request. A response that reports limits has more headers than one that does not, so the first response with each
// number of headers is read, and where one has reported limits, so is each later one with as many. The zero Sampler is ready for use, also
// by several goroutines.
type Sampler [64]hosts

// hosts are those that a [Sampler] does not distinguish. Their responses fill a leaky bucket.
type hosts struct {
	empty  atomic.Int64 // when the bucket is empty
	seen   sizes        // of all responses
	spoken sizes        // of those that reported limits
}

// sizes are numbers of headers, as bits. The highest one is for all from 63 on.
type sizes struct{ bits atomic.Uint64 }

func (s *sizes) has(size uint64) bool { return s.bits.Load()&size != 0 }

func sizeOf(headers int) uint64 { return 1 << min(headers, 63) }

const (
	quietEvery = int64(time.Second) // between two responses that are read
	quietBurst = 100                // responses that are read without a pause
)

// Reads reports whether a good response of a host with that number of headers, to a request that was granted then, is to be read.
func (q *Sampler) Reads(host string, granted meter.Instant, headers int) bool {
	of, size := q.of(host), sizeOf(headers)
	switch {
	case !of.seen.has(size):
		of.seen.bits.Or(size)
		return true
	case of.spoken.has(size):
		return true
	}
	empty := of.empty.Load()
	if empty > granted+(quietBurst-1)*quietEvery {
		return false
	}
	of.empty.CompareAndSwap(empty, max(empty, granted)+quietEvery) // otherwise another response has counted, and both are read
	return true
}

// Spoke notes that a good response of a host, with that number of headers, reported limits.
func (q *Sampler) Spoke(host string, headers int) {
	if of, size := q.of(host), sizeOf(headers); !of.spoken.has(size) {
		of.spoken.bits.Or(size)
	}
}

// Gave reports whether there was a good response of a host, or of one that is not distinguished from it.
func (q *Sampler) Gave(host string) bool { return q.of(host).seen.bits.Load() != 0 }

// of returns the set of a host. It depends on the beginning and the end of the host's name, because a hash of the whole name would
// take longer than all the rest of a Sampler.
func (q *Sampler) of(host string) *hosts {
	var first, last uint64
	if n := len(host); n >= 8 {
		first, last = binary.LittleEndian.Uint64([]byte(host)), binary.LittleEndian.Uint64([]byte(host[n-8:]))
	} else {
		for i := range n {
			first = first<<8 | uint64(host[i])
		}
	}
	const odd = 0x9e3779b97f4a7c15 // 2^64 over the golden ratio
	return &q[(first*odd^last)*odd>>(64-6)]
}
