package worlds

import (
	"flag"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/store"
)

var (
	seed    = flag.Uint64("seed", 0, "play the world of this seed alone")
	seeds   = flag.Uint64("seeds", 0, "play so many worlds")
	after   = flag.Uint64("after", 0, "play the worlds after this seed")
	shrinks = flag.Bool("shrink", true, "print the smallest world that fails in the same way")
)

// A world is a fleet of processes, the limits that they have, and what happens to them.
type world struct {
	seed   uint64
	lasts  time.Duration
	keys   int // how many the callers use, one each
	limits []limit
	crews  []crew
	jitter time.Duration // a way to the store takes up to so much longer
	lossy  float64       // the share of responses of the store that are lost
	mode   throttle.Outage
	server *server // nil: none refuses
	twists []twist
}

// A limit is one that each process has.
type limit struct {
	kind   string
	n      int64
	per    time.Duration // not of slots
	burst  int64         // of a bucket
	shared bool
	keyed  bool // counts the requests of each key separately
}

// A crew is processes that do the same.
type crew struct {
	size     int           // how many processes
	callers  int           // of each process
	every    time.Duration // when a caller has its next request; 0: as soon as the one before has ended
	together bool          // all callers of a process have them at the same time
	costs    int64         // requests cost 1 to that
	takes    time.Duration // a request, from its grant to its end
	streams  bool          // one request in 20 takes 200 times as long: see streamed
	deadline time.Duration // of a request; 0: none
	maxWait  time.Duration // of a request; negative: none
	away     time.Duration // a way to the store
	percent  int64         // of the limits' numbers that this crew sets
	from, to time.Duration // when the processes begin and end
}

const (
	streamed    = .05
	streamsTake = 200
)

// mean returns how long a request takes on average.
func (c *crew) mean() time.Duration {
	if c.streams {
		return time.Duration(float64(c.takes) * (1 - streamed + streamed*streamsTake))
	}
	return c.takes
}

// A server is a token bucket that refuses.
type server struct {
	n, burst int64
	per      time.Duration
}

// A dimension is one thing in which worlds differ. Each draws from numbers of its own, so a new one leaves the others as they were
// for each seed.
type dimension struct {
	name string
	draw func(r *rand.Rand, w *world)
}

// dimensions are drawn in this order, and each sees what those before it have drawn.
var dimensions = []dimension{
	{"limits", drawLimits},
	{"crews", drawCrews},
	{"loads", drawLoads},
	{"patience", drawPatience},
	{"distances", drawDistances},
	{"modes", drawModes},
	{"rules", drawRules},
	{"server", drawServer},
	{"twists", drawTwists},
}

// draw returns the world of a seed.
func draw(seed uint64) *world {
	w := &world{seed: seed, lasts: 30 * time.Second}
	for _, d := range dimensions {
		d.draw(random(seed, d.name), w)
	}
	return w
}

// random returns the random numbers of a seed for a purpose.
func random(seed uint64, purpose string, more ...int64) *rand.Rand {
	text := append(append(make([]byte, 0, 64), purpose...), '[') // a store asks for some with each call: this is faster than package fmt
	for i, n := range more {
		if i > 0 {
			text = append(text, ' ')
		}
		text = strconv.AppendInt(text, n, 10)
	}
	h := fnv.New64a()
	h.Write(append(text, ']'))
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// chance reports true with a probability.
func chance(r *rand.Rand, p float64) bool { return r.Float64() < p }

// about returns a number from low to high, of any order of magnitude.
func about(r *rand.Rand, low, high float64) float64 {
	return low * math.Pow(high/low, r.Float64())
}

func aboutTime(r *rand.Rand, low, high time.Duration) time.Duration {
	return time.Duration(about(r, float64(low), float64(high)))
}

func oneOf[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func drawLimits(r *rand.Rand, w *world) {
	w.keys = 1
	if chance(r, .3) {
		w.keys = 2 + r.IntN(4)
	}
	for range oneOf(r, 1, 1, 1, 2, 2, 3) {
		l := limit{
			kind: oneOf(r, "bucket", "bucket", "bucket", "pace", "pace", "sliding", "fixed", "slots"), per: time.Second,
			n: int64(about(r, 2, 500)), shared: len(w.limits) == 0 || chance(r, .6), keyed: w.keys > 1 && chance(r, .5),
		}
		switch l.kind {
		case "bucket":
			l.burst = int64(about(r, 1, float64(l.n)))
		case "sliding", "fixed":
			l.per = time.Duration(oneOf(r, 1, 2, 5, 10)) * time.Second
			l.n = max(1, l.n*int64(l.per/time.Second)/2)
		case "slots":
			l.n, l.per = int64(about(r, 1, 60)), 0
			if w.has("slots") {
				continue
			}
		}
		w.limits = append(w.limits, l)
	}
}

// has reports whether there is a limit of a kind.
func (w *world) has(kind string) bool {
	for _, l := range w.limits {
		if l.kind == kind {
			return true
		}
	}
	return false
}

func drawCrews(r *rand.Rand, w *world) {
	left := int(about(r, 1, 101))
	for range oneOf(r, 1, 1, 2, 3) {
		c := crew{size: 1 + r.IntN(left), to: w.lasts, maxWait: -1, costs: 1, percent: 100}
		if chance(r, .2) {
			c.from = time.Duration(r.Int64N(int64(10 * time.Second)))
		}
		if chance(r, .2) {
			c.to = c.from + time.Duration(r.Int64N(int64(15*time.Second)))
		}
		w.crews = append(w.crews, c)
		if left -= c.size; left == 0 {
			break
		}
	}
}

func drawLoads(r *rand.Rand, w *world) {
	most := int64(5)
	for _, l := range w.limits {
		switch l.kind {
		case "bucket":
			most = min(most, l.burst)
		case "sliding", "fixed":
			most = min(most, l.of(leastPercent).n)
		}
	}
	for i := range w.crews {
		c := &w.crews[i]
		c.callers = int(about(r, 1, float64(1+min(64, 400/c.size))))
		if chance(r, .4) {
			c.every = aboutTime(r, 20*time.Millisecond, 5*time.Second)
			c.together = chance(r, .5)
		}
		if chance(r, .3) {
			c.costs = 1 + r.Int64N(most)
		}
		if w.has("slots") {
			c.takes = aboutTime(r, 5*time.Millisecond, 300*time.Millisecond)
			c.streams = chance(r, .2)
		}
	}
}

func drawPatience(r *rand.Rand, w *world) {
	for i := range w.crews {
		c := &w.crews[i]
		if chance(r, .2) {
			c.deadline = aboutTime(r, 10*time.Millisecond, 10*time.Second)
		}
		if chance(r, .2) {
			c.maxWait = oneOf(r, 0, aboutTime(r, 10*time.Millisecond, 5*time.Second))
		}
	}
}

func drawDistances(r *rand.Rand, w *world) {
	w.jitter = oneOf(r, 0, time.Millisecond, time.Millisecond, 20*time.Millisecond)
	away := oneOf(r, time.Millisecond/2, time.Millisecond, time.Millisecond, 20*time.Millisecond, 80*time.Millisecond)
	for i := range w.crews {
		w.crews[i].away = away
		if chance(r, .1) {
			w.crews[i].away = aboutTime(r, 100*time.Microsecond, 100*time.Millisecond)
		}
	}
	if chance(r, .1) {
		w.lossy = .02
	}
}

func drawModes(r *rand.Rand, w *world) {
	if chance(r, .3) {
		w.mode = oneOf(r, throttle.OutageLocalShare, throttle.OutagePass)
	}
	for i := range w.crews {
		if w.mode == throttle.OutagePass { // nothing else stops callers then
			w.crews[i].takes = max(w.crews[i].takes, 20*time.Millisecond)
		}
	}
}

const leastPercent = 50

func drawRules(r *rand.Rand, w *world) {
	for i := range w.crews {
		if i > 0 && chance(r, .3) {
			w.crews[i].percent = oneOf[int64](r, leastPercent, 90, 99, 101, 110, 200)
		}
	}
}

func drawServer(r *rand.Rand, w *world) {
	if !chance(r, .2) {
		return
	}
	w.server = &server{n: int64(about(r, 2, 1000)), per: time.Second}
	w.server.burst = max(1, int64(about(r, 1, float64(w.server.n))))
}

func drawTwists(r *rand.Rand, w *world) {
	for range oneOf(r, 0, 0, 1, 1, 2, 3) {
		at := 3*time.Second + time.Duration(r.Int64N(int64(9*time.Second)))
		if t := twists[r.IntN(len(twists))](r, w, at); t != nil {
			w.twists = append(w.twists, t)
		}
	}
	if chance(r, .1) {
		w.twists = append(w.twists, drawRelease(r, w))
	}
}

// process returns a process at random.
func (w *world) process(r *rand.Rand) int { return r.IntN(w.size()) }

func (w *world) size() (n int) {
	for _, c := range w.crews {
		n += c.size
	}
	return n
}

// String returns the world as a short text that looks like Go.
func (w *world) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "world{seed: %d, lasts: %v", w.seed, w.lasts)
	field(&b, "keys", w.keys, 1)
	field(&b, "jitter", w.jitter, 0)
	field(&b, "lossy", w.lossy, 0)
	field(&b, "mode", w.mode, throttle.OutageReject)
	b.WriteString("}\n")
	for _, l := range w.limits {
		fmt.Fprintf(&b, "\tlimit{%s %d", l.kind, l.n)
		field(&b, "per", l.per, 0)
		field(&b, "burst", l.burst, 0)
		field(&b, "shared", l.shared, false)
		field(&b, "keyed", l.keyed, false)
		b.WriteString("}\n")
	}
	for _, c := range w.crews {
		fmt.Fprintf(&b, "\t%d × crew{callers: %d", c.size, c.callers)
		field(&b, "every", c.every, 0)
		field(&b, "together", c.together, false)
		field(&b, "costs", c.costs, 1)
		field(&b, "takes", c.takes, 0)
		field(&b, "streams", c.streams, false)
		field(&b, "deadline", c.deadline, 0)
		field(&b, "maxWait", c.maxWait, -1)
		field(&b, "away", c.away, 0)
		field(&b, "percent", c.percent, 100)
		field(&b, "from", c.from, 0)
		field(&b, "to", c.to, w.lasts)
		b.WriteString("}\n")
	}
	if s := w.server; s != nil {
		fmt.Fprintf(&b, "\tserver{%d per %v, burst: %d}\n", s.n, s.per, s.burst)
	}
	for _, t := range w.twists {
		fmt.Fprintf(&b, "\t%s%+v\n", reflect.TypeOf(t).Name(), t)
	}
	return b.String()
}

// field writes a field that is not as usual.
func field[T comparable](b *strings.Builder, name string, value, usual T) {
	if value != usual {
		fmt.Fprintf(b, ", %s: %v", name, value)
	}
}

// name names a limit by its place.
func (w *world) name(i int) string { return fmt.Sprint(w.limits[i].kind, i) }

// make returns the limits of a process that sets so much of their numbers.
func (w *world) make(st store.Store, percent int64) (all []throttle.Limit) {
	for i, l := range w.limits {
		l = l.of(percent)
		opts := []throttle.LimitOption{throttle.Name(w.name(i))}
		if l.keyed {
			opts = append(opts, throttle.Key(func(r *http.Request) string { return r.Header.Get(keyHeader) }))
		}
		if l.shared {
			opts = append(opts, throttle.Shared(st, throttle.WithoutStore(w.mode), throttle.ExpectProcesses(w.size())))
		}
		switch l.kind {
		case "bucket":
			all = append(all, throttle.TokenBucket(l.n, l.per, append(opts, throttle.Burst(l.burst))...))
		case "pace":
			all = append(all, throttle.Pace(l.n, l.per, opts...))
		case "sliding":
			all = append(all, throttle.SlidingWindow(l.n, l.per, append(opts, throttle.FromGrant())...))
		case "fixed":
			all = append(all, throttle.FixedWindow(l.n, l.per, opts...))
		case "slots":
			all = append(all, throttle.InFlight(l.n, opts...))
		default:
			panic("no kind " + l.kind)
		}
	}
	return all
}

// of returns the limit with so much of its number. The burst stays.
func (l limit) of(percent int64) limit {
	l.n = max(1, l.n*percent/100)
	return l
}

// size returns how many tokens there are at one time, at most.
func (l limit) size() int64 {
	switch l.kind {
	case "bucket":
		return l.burst
	case "pace":
		return 1
	}
	return l.n
}

// windows reports whether the limit counts in periods of time.
func (l limit) windows() bool { return l.kind == "sliding" || l.kind == "fixed" }
