// Package down remembers the servers to which the last attempt to connect failed, and paces the attempts that follow.
package down

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

const (
	stale = int64(time.Minute) // after this time without an attempt, a server is forgotten
	most  = 1024               // servers are remembered; requests to others are charged, and sent as the limits allow
)

// Servers are those that are down. The zero value has none. It may be used by several goroutines at a time.
type Servers struct {
	n atomic.Int32

	mu    sync.Mutex
	named map[string]*server
	purge meter.Instant // when to forget servers without an attempt for long
}

// A server is one to which the last attempt to connect failed. Such an attempt costs no tokens, so limits alone would not bound how often
// it is dialed. Attempts are made one by one, until one succeeds. A request does not wait for an attempt of its own: the first one that
// fails while the request waits gives the request its error, so that a server that is down never looks like a long wait.
type server struct {
	err     error // of the last attempt
	failed  meter.Instant
	tried   meter.Instant // when the last attempt was made
	changed chan struct{} // closed with each attempt that fails, and when one succeeds
}

// Any reports whether any server is down. It takes no lock.
func (s *Servers) Any() bool { return s.n.Load() > 0 }

// A Turn says what a request to a server may do. Without Changed and Err, it is sent. Without Changed, it fails with Err, which came after it
// arrived. Otherwise it waits until Due or Changed.
type Turn struct {
	Down    bool // so is the server
	Changed <-chan struct{}
	Due     meter.Instant
	Err     error // of the last attempt
}

// Try decides about a request that has arrived then, where attempts are to be that far apart.
func (s *Servers) Try(name string, now, arrived meter.Instant, gap int64) Turn {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.purgeLocked(now)
	down := s.named[name]
	switch {
	case down == nil:
		return Turn{}
	case now >= down.tried+gap:
		down.tried = now
		return Turn{Down: true}
	case down.failed > arrived:
		return Turn{Down: true, Err: down.err}
	}
	return Turn{true, down.changed, down.tried + gap, down.err}
}

// Failed notes that a server could not be connected to, for a request that was sent then.
func (s *Servers) Failed(name string, sent, now meter.Instant, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.purgeLocked(now)
	down := s.named[name]
	if down == nil {
		if len(s.named) == most {
			return
		}
		if s.named == nil {
			s.named = make(map[string]*server)
		}
		down = &server{tried: sent}
		s.named[name] = down
		s.countLocked()
	} else {
		close(down.changed)
	}
	down.failed, down.err, down.changed = now, err, make(chan struct{})
}

// Reached notes that a server could be connected to.
func (s *Servers) Reached(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if down := s.named[name]; down != nil {
		close(down.changed)
		delete(s.named, name)
		s.countLocked()
	}
}

// purgeLocked forgets servers that no request has tried to reach for long.
func (s *Servers) purgeLocked(now meter.Instant) {
	if now < s.purge {
		return
	}
	s.purge = now + stale
	maps.DeleteFunc(s.named, func(_ string, down *server) bool {
		old := down.failed < now-stale && down.tried < now-stale
		if old {
			close(down.changed)
		}
		return old
	})
	s.countLocked()
}

func (s *Servers) countLocked() { s.n.Store(int32(len(s.named))) }
