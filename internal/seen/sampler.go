// Package seen decides which responses are looked at, and remembers what was in them.
package seen

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

// A Sampler bounds how many good responses are read until a server first sends rate-limit information, because to look at each header of
// a response takes longer than all other work for a request. A server that begins to report limits sends more headers than before, so the
// first response with each number of headers is read, too. The zero Sampler is ready for use, also by several goroutines.
type Sampler [64]hosts

// hosts are those that a [Sampler] does not distinguish. Their responses fill a leaky bucket.
type hosts struct {
	empty atomic.Int64  // when the bucket is empty
	sizes atomic.Uint64 // the numbers of headers that responses had, as bits; the highest one is for all from 63 on
}

const (
	quietEvery = int64(time.Second) // between two responses that are read
	quietBurst = 100                // responses that are read without a pause
)

// Reads reports whether a good response of a host with that number of headers, to a request that was granted then, is to be read.
func (q *Sampler) Reads(host string, granted meter.Instant, headers int) bool {
	of := q.of(host)
	if size := uint64(1) << min(headers, 63); of.sizes.Load()&size == 0 {
		of.sizes.Or(size)
		return true
	}
	empty := of.empty.Load()
	if empty > granted+(quietBurst-1)*quietEvery {
		return false
	}
	of.empty.CompareAndSwap(empty, max(empty, granted)+quietEvery) // otherwise another response has counted, and both are read
	return true
}

// Gave reports whether there was a good response of a host, or of one that is not distinguished from it.
func (q *Sampler) Gave(host string) bool { return q.of(host).sizes.Load() != 0 }

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
