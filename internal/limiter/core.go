package limiter

import (
	"iter"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/keep"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/order"
	"github.com/httpthrottle/throttle/internal/quota"
	"github.com/httpthrottle/throttle/internal/record"
	"github.com/httpthrottle/throttle/internal/supply"
	"github.com/httpthrottle/throttle/store"
)

// A Core is a Limiter without HTTP and without the options, errors and events that users see. Users' functions are called without
// its lock, and only by methods whose names do not end in Locked.
type Core struct {
	Limits      []*bucket.Limit // without Gate
	maxQueue    int
	maxKeys     int
	dry         bool
	rate        func(li *bucket.Limit, key string) (meter.Rate, error)
	storeEvent  func(supply.Event)
	Fair        *bucket.Limit    // where callers take turns; nil: nowhere
	supplies    []*bucket.Supply // of the limits that are Shared; nil: there are none
	Gate        *bucket.Limit    // whose buckets are gates; see servers.go
	HasHints    atomic.Bool      // some server has sent hints
	draining    atomic.Bool      // Shutdown was called
	Start       time.Time
	atOnce      int                  // requests that are checked under one lock
	visitAtOnce int                  // buckets that are visited under one lock, at most
	pause       func()               // between two pieces of work; mu is free
	callStore   func(*bucket.Supply) // begins to call a store, without blocking
	deadlineAge time.Duration        // see Options.DeadlineAge

	// mu guards all fields below, and every bucket, line and waiter. Nothing blocks and no user code runs while it is held:
	// events for users are collected under it and delivered afterwards. Whenever mu is free:
	//   - no request can go, and none is too late, unless it is still to be checked;
	//   - the timer is set for the instant at which the next one can go, as far as time decides that, or its MaxWait ends.
	//
	// A timer or a store's response may be late, and a panic there would end the process. So nothing depends on when they come:
	// now is read once for each time that mu is taken, or just before, and never runs backwards while it is held. A request is tried with what can be used at that now, as of the earlier
	// instant at which it was due (see [order.Payer]), and pays at the same now. What has ended meanwhile, such as the tokens of a
	// lease, is gone before the request is tried, and nothing ends between that and the payment.
	mu           lock
	wall         meter.Wall
	wallAt       meter.Instant // when to read the wall clock again; never: there are no fixed windows
	order        order.Order   // of all that wait
	ends         endsHeap      // of those with a MaxWait, and ghosts that hear responses
	entered      uint64        // how many have joined them, which numbers them
	timer        *time.Timer
	armed        meter.Instant // when timer fires; never: it does not
	now          meter.Instant // when the clock was last read
	leases       bucket.Leases
	divided      []*quota.Gate // at which requests wait that are to wait at the gates of their parts
	probes       map[*bucket.Supply]*probe
	leaseTimer   *time.Timer
	leaseTimerAt meter.Instant               // when leaseTimer fires; never: it does not
	refreshes    uint64                      // calls of Refresh
	sent         record.Record               // requests to all servers, which matter until one has sent hints
	models       models                      // which of the servers count by model
	servers      *quota.Registry             // what they reported; the owner of a gate is its bucket
	keys         keep.Keeper[*bucket.Bucket] // of all buckets except gates and the buckets of the key ""
	sweeper      *time.Timer
	sweepAt      meter.Instant // when sweeper fires; never: it does not
	shut         bool          // no request is granted on arrival any more
	shutAt       meter.Instant // since when
	drains       []*drain      // of calls of Shutdown
	flights      flights       // of all Users
	counts       bucket.Counts // not beside mu, because other goroutines spin on mu while it is written
}

// Options are the settings of a Core that belong to no rule.
type Options struct {
	MaxQueue int // requests that may wait for the same buckets
	MaxKeys  int // buckets that may be kept
	DryRun   bool
	// DeadlineAge has requests be granted in the order of their deadlines, as if each had one this long after its arrival at most. 0: they
	// are granted in the order of their arrival.
	DeadlineAge time.Duration

	// Rate returns the rate of a key in a limit that Asks; zero: the limit's own.
	Rate func(li *bucket.Limit, key string) (meter.Rate, error)
	// StoreEvent is called when a store became unreachable, or is reachable again, by the goroutine that called the store.
	StoreEvent func(supply.Event)
}

// New returns a Core with a limit for each rule.
func New(rules []bucket.Rule, o Options) *Core {
	l := &Core{Start: time.Now(), maxQueue: o.MaxQueue, maxKeys: o.MaxKeys, dry: o.DryRun, deadlineAge: o.DeadlineAge, rate: o.Rate, storeEvent: o.StoreEvent}
	l.open()
	for i := range rules {
		l.add(&rules[i])
	}
	return l
}

// open makes all that does not depend on rules.
func (l *Core) open() {
	l.callStore = func(s *bucket.Supply) { go l.call(s) }
	l.Gate = &bucket.Limit{Gates: true, Rule: bucket.Rule{Name: gateLimit, Share: 1, Reported: true, Tracked: true}}
	l.Gate.NoteMeter(&quota.Gate{})
	l.probes = make(map[*bucket.Supply]*probe)
	l.atOnce, l.visitAtOnce, l.pause = checkAtOnce, visitMost, runtime.Gosched
	l.keys.Yields = (*bucket.Bucket).Yields
	l.armed, l.keys.Matters, l.servers = meter.Never, (*bucket.Bucket).Matters, quota.NewRegistry(l.maxKeys, rand.Uint64())
	l.servers.Wall, l.servers.Owner = &l.wall, l.makeOwnerLocked
	l.wall.Unix, l.wallAt, l.sweepAt, l.leaseTimerAt = l.Start.UnixNano(), meter.Never, meter.Never, meter.Never
}

// add adds a limit, before any request comes.
func (l *Core) add(r *bucket.Rule) {
	li := bucket.NewLimit(*r)
	li.Index = len(l.Limits)
	if li.Wall {
		l.wallAt = 0
	}
	if li.Store != nil {
		li.Supply, li.Leases = l.supplyOf(li.Store.SupplyTerms, li.Name), &l.leases
		if li.Stored == store.Calendar {
			li.Calendar = li.Windows(&l.wall)
		}
	}
	if li.Fair {
		l.Fair = li
	}
	l.Limits = append(l.Limits, li)
	l.Gate.Index = len(l.Limits)
	l.makeLocked(li, "", meter.Rate{}, 0)
}

// clock reads the clock.
func (l *Core) clock() meter.Instant { return meter.Instant(time.Since(l.Start)) }

// nowLocked reads the clock. It, or atLocked, is called once for each time that mu is taken.
func (l *Core) nowLocked() meter.Instant { return l.atLocked(l.clock()) }

// atLocked returns the instant of an operation that read the clock before it had the lock. Another operation may have read it since: time
// never runs backwards while mu is held.
func (l *Core) atLocked(read meter.Instant) meter.Instant {
	now := max(l.now, read)
	l.now = now
	if now >= l.wallAt {
		l.readWallLocked(now)
	}
	return now
}

// readWallLocked reads the wall clock once a second, because it may be set or drift, and has windows begin again if it was set
// back.
func (l *Core) readWallLocked(now meter.Instant) {
	unix := time.Now().UnixNano() - now
	back := unix < l.wall.Unix-int64(time.Second)
	l.wall.Unix, l.wallAt = unix, now+int64(time.Second)
	if back {
		l.wall.SetBack(now)
	}
}

// allLocked yields the buckets of some limits. Those of the key "" come last, because most requests may wait there.
func (l *Core) allLocked(limits []*bucket.Limit) iter.Seq[*bucket.Bucket] {
	return func(yield func(*bucket.Bucket) bool) {
		for _, li := range limits {
			for b := range li.All() {
				if !yield(b) {
					return
				}
			}
			if !li.Gates {
				continue
			}
			for g := range l.servers.All() {
				if !yield(ownerOf(g)) {
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

// ownerOf returns the bucket of a gate that has one.
func ownerOf(g *quota.Gate) *bucket.Bucket { return g.Owner.(*bucket.Bucket) }
