// Package seen decides which responses are looked at, and remembers what was in them.
package seen

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

// A Sampler bounds how many good responses are read until a server first sends rate-limit information, because looking at each header of
// a response takes about as long as all other work for a request. It has a leaky bucket for each of 64 sets of hosts: the instant at which
// the bucket is empty. The zero Sampler is ready for use, also by several goroutines.
type Sampler [64]atomic.Int64

const (
	quietEvery = int64(time.Second) / 10_000 // between two responses that are read
	quietBurst = 100                         // responses that are read without a pause
)

// Reads reports whether a good response of a host, to a request that was granted then, is to be read.
func (q *Sampler) Reads(host string, granted meter.Instant) bool {
	place := q.place(host)
	empty := place.Load()
	if empty > granted+(quietBurst-1)*quietEvery {
		return false
	}
	place.CompareAndSwap(empty, max(empty, granted)+quietEvery) // otherwise another response has counted, and both are read
	return true
}

// Gave reports whether there was a good response of a host, or of one with the same place.
func (q *Sampler) Gave(host string) bool { return q.place(host).Load() > 0 }

// place returns the place of a host. It depends on the beginning and the end of the host's name, because a hash of the whole name would
// take longer than all the rest of a Sampler.
func (q *Sampler) place(host string) *atomic.Int64 {
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
