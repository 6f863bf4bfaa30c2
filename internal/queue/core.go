package queue

import (
	"iter"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/httpthrottle/throttle/internal/keep"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/order"
	"github.com/httpthrottle/throttle/internal/quota"
)

// A Core is a Limiter without HTTP, users' functions, hooks and logging.
type Core struct {
	Limits      []*Limit
	MaxQueue    int
	MaxKeys     int
	Dry         bool
	Fair        *Limit      // where callers take turns; nil: nowhere
	supplies    []*Supply   // of the limits that are Shared; nil: there are none
	Gate        *Limit      // of the buckets in gates
	quotaOff    quota.Rules // that tests switch off
	Heard       atomic.Bool // some server has sent rate-limit information
	Start       time.Time
	atOnce      int           // requests that are judged under one lock
	visitAtOnce int           // buckets that are visited under one lock, at most
	pause       func()        // between two pieces of work; Mu is free
	Fly         func(*Supply) // begins to call a store, without blocking

	// Mu guards all fields below, and every bucket, line and waiter. Nothing blocks and no user code runs while it is held:
	// events for users are collected under it and delivered afterwards. Whenever Mu is free:
	//   - no request can go, and none is too late, unless it is still to be checked;
	//   - the timer is set for the instant at which the next one can go, as far as time decides that.
	Mu        sync.Mutex
	Wall      meter.Wall
	wallAt    Instant // when to read the wall clock again; never: there are no fixed windows
	synced    Instant // when to call syncLocked: at wallAt, or for a booking
	books     books
	order     order.Order // of all that wait
	timer     *time.Timer
	armed     Instant   // when timer fires; never: it does not
	now       Instant   // when the clock was last read
	loans     []*Bucket // whose stores may have to be asked for something else, or at another instant
	refreshes uint64    // calls of Refresh
	Gates     map[gateID]*Bucket
	hosts     map[string]*host
	said      int                  // about how many bytes all that takes
	gatesPeak int                  // the most since the map was made
	hostsPeak int                  // the most hosts
	keys      keep.Keeper[*Bucket] // of all buckets except those of the key ""
	gateKeys  keep.Keeper[*Bucket] // and of those of gates
	sweeper   *time.Timer
	sweepAt   Instant // when sweeper fires; never: it does not
	Counts    Counts  // not beside Mu, because other goroutines spin on Mu while it is written
}

// Open makes a core without limits.
func (l *Core) Open(maxQueue, maxKeys int, dry bool) {
	l.Start, l.MaxQueue, l.MaxKeys, l.Dry = time.Now(), maxQueue, maxKeys, dry
	l.Gate = &Limit{Gates: true, Rule: Rule{Name: gateLimit, Share: 1, Reported: true, Tracked: true}}
	l.Gate.look(&GateBucket{})
	l.atOnce, l.visitAtOnce, l.pause = judgeAtOnce, VisitAtOnce, runtime.Gosched
	l.armed, l.keys.Matters, l.gateKeys.Matters = Never, (*Bucket).matters, (*Bucket).matters
	l.Gates, l.hosts = make(map[gateID]*Bucket), make(map[string]*host)
	l.Wall.Unix, l.wallAt, l.synced, l.sweepAt = l.Start.UnixNano(), Never, Never, Never
}

// Add adds a limit, before any request comes. keyed says that requests have keys there.
func (l *Core) Add(r Rule, keyed bool) *Limit {
	li := &Limit{Rule: r, Index: len(l.Limits), Buckets: make(map[string]*Bucket), Keyed: keyed}
	li.size, li.perSecond = li.BurstOf(li.Rate), li.Shared(li.Rate).PerSecond()
	if li.Wall {
		l.wallAt, l.synced = 0, 0
	}
	if li.Store != nil {
		li.supply = l.supplyOf(li.Store.SupplyTerms, li.Name)
	}
	if li.Fair {
		l.Fair = li
	}
	l.Limits = append(l.Limits, li)
	l.Gate.Index = len(l.Limits)
	l.makeLocked(li, "", Rate{}, 0)
	return li
}

// NowLocked reads the clock. It is called once for each time that Mu is taken.
func (l *Core) NowLocked() Instant {
	now := Instant(time.Since(l.Start))
	l.now = now
	if now >= l.synced {
		l.syncLocked(now)
	}
	return now
}

// syncLocked does what is due by the clock: it reads the wall time once a second, because the wall clock may be set or drift,
// and makes the charges that a dry run has put off.
func (l *Core) syncLocked(now Instant) {
	if now >= l.wallAt {
		l.readWallLocked(now)
	}
	l.bookLocked(now)
	l.synced = min(l.wallAt, l.books.first())
}

// readWallLocked reads the wall clock, and tells the windows if it was set back.
func (l *Core) readWallLocked(now Instant) {
	unix := time.Now().UnixNano() - now
	back := unix < l.Wall.Unix-int64(time.Second)
	l.Wall.Unix, l.wallAt = unix, now+int64(time.Second)
	if back && !l.Dry {
		l.Wall.SetBack(now)
	}
}

// allLocked yields the buckets of some limits, those of the key "" last: if there are keys, most requests are charged there, too.
func (l *Core) allLocked(limits []*Limit) iter.Seq[*Bucket] {
	return func(yield func(*Bucket) bool) {
		for _, li := range limits {
			for _, b := range li.Buckets {
				if !yield(b) {
					return
				}
			}
			if !li.Gates {
				continue
			}
			for _, b := range l.Gates {
				if !yield(b) {
					return
				}
			}
		}
		for _, li := range limits {
			if li.Single != nil && !yield(li.Single) {
				return
			}
		}
	}
}
