package throttle

import (
	"iter"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
)

const (
	// slack is how late a timer may be without costing throughput.
	slack = int64(20 * time.Millisecond)
	// ageStep is what one step of priority is worth.
	ageStep = int64(10 * time.Second)
	// wallCheck is how often a waiter of a fixed window checks whether the wall clock was set.
	wallCheck = int64(time.Minute)
	// passOver is how long a request may be passed over before it bars all its buckets.
	passOver = int64(10 * time.Second)
)

// A core is a Limiter without HTTP, users' functions, hooks and logging.
type core struct {
	limits   []*limit
	maxQueue int
	maxKeys  int
	dry      bool
	fair     *limit      // whose callers take turns; nil: none
	urgent   int         // the lowest priority for which limits keep a reserve; the lowest int: none does
	supplies []*supply   // of the limits that are Shared; nil: there are none
	gate     *limit      // of the buckets in gates
	quotaOff quota.Rules // that tests switch off
	heard    atomic.Bool // some server has sent rate-limit information
	start    time.Time
	atOnce   int           // requests that are judged under one lock
	fly      func(*supply) // begins to call a store, without blocking

	// mu guards all fields below, and every bucket, line and waiter. Nothing blocks and no user code runs while it is held:
	// events for users are collected under it and delivered afterwards. Whenever mu is free:
	//   - every line has a waiter, and is stopped at one of its buckets at least;
	//   - the first of the lines that are stopped at a bucket cannot pay there now or, if it is starved, elsewhere;
	//   - a bucket at which a line is stopped because tokens are missing has its timer set for the instant at which they
	//     arrive, or earlier: a request of another line may have moved that instant at a gate.
	mu        sync.Mutex
	wall      meter.Wall
	wallAt    instant // when to read the wall clock again; never: there are no fixed windows
	synced    instant // when to call syncLocked: at wallAt, or for a booking
	bookings  bookings
	seq       uint64
	callers   int // with waiting requests, where callers take turns
	lines     map[string]*line
	queues    map[string]*queue
	dirty     []*bucket // to be served before mu is freed
	unjudged  []*queue  // to be judged before the call returns that has put them here
	serial    uint64    // of the last bucket made
	refreshes uint64    // calls of Refresh
	gates     map[gateKey]*bucket
	hosts     map[string]*host
	gatesPeak int    // the most since the map was made
	hostsPeak int    // the same
	keys      keeper // of all buckets except those of the key ""
	gateKeys  keeper // and of those of gates
	sweeper   *time.Timer
	sweepAt   instant // when sweeper fires; never: it does not
	counts    counts  // not beside mu, because other goroutines spin on mu while it is written
}

// open makes a core without limits.
func (l *core) open(maxQueue, maxKeys int, dry bool) {
	l.start, l.maxQueue, l.maxKeys, l.dry, l.urgent = time.Now(), maxQueue, maxKeys, dry, math.MinInt
	l.gate = &limit{gates: true, rule: rule{name: gateLimit, share: 1, reported: true, tracked: true}}
	l.atOnce = judgeAtOnce
	l.lines, l.queues = make(map[string]*line), make(map[string]*queue)
	l.gates, l.hosts = make(map[gateKey]*bucket), make(map[string]*host)
	l.wall.Unix, l.wallAt, l.synced, l.sweepAt = l.start.UnixNano(), never, never, never
}

// add adds a limit, before any request comes. keyed says that requests have keys there.
func (l *core) add(r rule, keyed bool) *limit {
	li := &limit{rule: r, index: len(l.limits), buckets: make(map[string]*bucket), keyed: keyed}
	li.size = li.burstOf(li.rate)
	if li.wall {
		l.wallAt, l.synced = 0, 0
	}
	if li.store != nil {
		li.supply = l.supplyOf(li.store.supplyTerms, li.name)
	}
	if li.fair {
		l.fair = li
	}
	if li.reserve > 0 {
		l.urgent, l.gate.reserve = li.urgent, max(l.gate.reserve, li.reserve)
	}
	l.limits = append(l.limits, li)
	l.gate.index = len(l.limits)
	l.makeLocked(li, "", rate{}, 0)
	return li
}

// nowLocked reads the clock. It is called once for each time that mu is taken.
func (l *core) nowLocked() instant {
	now := instant(time.Since(l.start))
	if now >= l.synced {
		l.syncLocked(now)
	}
	return now
}

// syncLocked does what is due by the clock: it reads the wall time once a second, because the wall clock may be set or drift,
// and makes the charges that a dry run has put off.
func (l *core) syncLocked(now instant) {
	if now >= l.wallAt {
		l.lookAtWallLocked(now)
	}
	l.bookLocked(now)
	l.synced = min(l.wallAt, l.bookings.first())
}

func (l *core) lookAtWallLocked(now instant) {
	unix := time.Now().UnixNano() - now
	back := unix < l.wall.Unix-int64(time.Second)
	l.wall.Unix, l.wallAt = unix, now+int64(time.Second)
	if back && !l.dry {
		l.wall.SetBack(now)
	}
}

// all yields the buckets of a limit.
func (li *limit) all() iter.Seq2[string, *bucket] {
	return func(yield func(string, *bucket) bool) {
		if !yield("", li.single) {
			return
		}
		for key, b := range li.buckets {
			if !yield(key, b) {
				return
			}
		}
	}
}
