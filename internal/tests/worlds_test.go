package tests

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"
)

// A world is a Transport with limits, and what happens to it, all drawn from a seed. TestWorldsOfRequests plays it in a bubble, beside a
// plain model of the limits (books), and compares the two after each act: when each request is sent, why it is rejected, what each bucket
// has left, and each counter.
//
//   - worlds_test.go draws a world, prints it, and finds the smallest one that fails.
//   - worlds_play_test.go sends the requests, is the server, and notes what happened.
//   - worlds_books_test.go is the model: what may happen when, and what it costs.
type world struct {
	limits []worldLimit
	beside string // a kind of limit beside these that learns, so that only the end of a wait is not known; "": none
	acts   []act
}

// A worldLimit is one of which the model knows everything.
type worldLimit struct {
	kind   string
	name   string
	n      int64
	per    time.Duration
	burst  int64
	keyed  bool
	clamps bool
	until  bool   // UntilHeaders
	paid   string // how the true cost is reported: "", "header" or "body"
	more   bool   // true costs are above the estimate; else below. A bucket has both.
}

// An act is one thing that happens.
type act struct {
	after time.Duration // the act before
	what  string

	// A request, or the one that is canceled
	host, key string
	cost      int64
	free      int // the limit in which it costs nothing; -1: none
	priority  int
	maxWait   time.Duration
	deadline  time.Duration // 0: none
	takes     time.Duration // until its response
	reads     time.Duration // from there until its body was read
	fate      string
	used      int64 // of which what it costs in the end follows
	nth       int

	// A change
	limit int
	n     int64
	d     time.Duration
}

// Fates of requests. All but the first three are those of a host of their own, which may have to be spared for a while.
const (
	fateRead       = "is read"
	fateClosed     = "is closed unread"
	fateReceipt    = "is settled by receipt and read"
	fateUnsent     = "is never sent"
	fateBroken     = "breaks"
	fatePanics     = "panics"
	fateHook       = "panics in OnGrant"
	fateRefused    = "is refused with 429"
	fateRefused503 = "is refused with 503"
	fateFinal      = "is refused for good"
)

const (
	goodHost, otherHost, badHost = "good.example", "other.example", "bad.example"
	longestWait                  = 8 * time.Second // less than the 10 s after which a request that others overtake stops them
	refusedFor                   = 2 * time.Second
)

var keys = []string{"k", "l"}

func drawWorld(r *rand.Rand) (w world) {
	kinds := []string{throttle.KindTokenBucket, throttle.KindTokenBucket, throttle.KindPace, throttle.KindQuota, throttle.KindSlidingWindow,
		throttle.KindFixedWindow, throttle.KindCalendarWindow, throttle.KindInFlight}
	for i := range 1 + r.IntN(3)*r.IntN(2) {
		li := worldLimit{kind: kinds[r.IntN(len(kinds))], n: 1 + r.Int64N(10), per: time.Duration(1+r.Int64N(int64(3*time.Second))) + 50*time.Millisecond}
		li.name = fmt.Sprint(li.kind, "-", i)
		li.burst = 1 + r.Int64N(10)
		li.keyed, li.more, li.until = r.IntN(2) == 0, r.IntN(2) == 0, r.IntN(2) == 0
		li.clamps = li.kind != throttle.KindPace && r.IntN(3) == 0
		if li.kind == throttle.KindCalendarWindow {
			li.n, li.per = 30+r.Int64N(100), 24*time.Hour
		}
		if paid := []string{"", "header", "body"}[r.IntN(3)]; li.kind != throttle.KindInFlight && !slices.ContainsFunc(w.limits, func(li worldLimit) bool { return li.paid == paid }) {
			li.paid = paid // of two limits, charges would be corrected one after the other, at one instant
		}
		w.limits = append(w.limits, li)
	}
	if r.IntN(4) == 0 {
		w.beside = []string{throttle.KindAdaptive, throttle.KindAdaptiveInFlight, throttle.KindServerQuota, "shared"}[r.IntN(4)]
	}
	bad := r.IntN(2) == 0
	for range 60 {
		w.acts = append(w.acts, w.draw(r, bad))
	}
	return w
}

// draw returns the next act. Most are requests; with bad, some go to the host where they fail.
func (w *world) draw(r *rand.Rand, bad bool) act {
	a := act{after: time.Duration(1 + r.Int64N(1<<(10+r.IntN(20)))), limit: r.IntN(len(w.limits)), key: keys[r.IntN(2)], what: "request"}
	most := w.limits[a.limit].n
	switch x := r.IntN(40); {
	case x < 3:
		a.what, a.nth = "cancel", r.IntN(len(w.acts)+1)
	case x == 3:
		a.what, a.d = "hold", time.Duration(r.Int64N(1<<(20+r.IntN(13))))
	case x == 4:
		a.what = "release"
	case w.beside == "shared" && (x == 5 || x == 6): // a request may have waited for no more than its store
		a.what = "release"
	case x == 5 && w.limits[a.limit].kind != throttle.KindCalendarWindow:
		a.what, a.n, a.d = "rate", 1+r.Int64N(10), time.Duration(1+r.Int64N(int64(3*time.Second)))+50*time.Millisecond
	case x == 6:
		a.what, a.n = "size", 1+r.Int64N(10)
	case x == 7:
		a.what = "restart"
	case x == 8 && bad:
		a.what = "forget"
	default:
		a.host, a.fate = []string{goodHost, otherHost}[r.IntN(2)], []string{fateRead, fateRead, fateClosed, fateReceipt}[r.IntN(4)]
		if bad && r.IntN(3) == 0 {
			a.host, a.fate = badHost, []string{fateRead, fateUnsent, fateBroken, fatePanics, fateHook, fateRefused, fateRefused503, fateFinal}[r.IntN(8)]
		}
		a.cost = 1 + r.Int64N(most)*r.Int64N(2)
		if r.IntN(20) == 0 {
			a.cost = most + 1 + r.Int64N(10)
		}
		a.used = r.Int64N(3*a.cost + 1)
		if a.free = -1; len(w.limits) > 1 && r.IntN(4) == 0 {
			a.free = r.IntN(len(w.limits))
		}
		a.priority = (r.IntN(3) - 1) * r.IntN(2)
		if r.IntN(5) > 0 {
			a.maxWait = time.Duration(1 + r.Int64N(int64(longestWait)))
		}
		if r.IntN(4) == 0 {
			a.deadline = time.Duration(1 + r.Int64N(int64(longestWait)))
		}
		a.takes = time.Millisecond + time.Duration(r.Int64N(1<<(20+r.IntN(11))))
		a.reads = time.Duration(1 + r.Int64N(1<<(20+r.IntN(9))))
	}
	return a
}

// costsInTheEnd returns the true cost of a request in a limit. In a window, either all are below the estimate or all are above.
func (a act) costsInTheEnd(li worldLimit) int64 {
	switch bucket := li.kind == throttle.KindTokenBucket || li.kind == throttle.KindPace; {
	case bucket:
		return a.used
	case li.more:
		return a.cost + a.used
	case li.clamps:
		return min(a.used, 1)
	}
	return min(a.used, a.cost)
}

func (li worldLimit) String() string {
	return fmt.Sprintf("%s: %d per %v, burst %d, keyed %t, clamps %t, until headers %t, true cost by %q, above the estimate %t",
		li.name, li.n, li.per, li.burst, li.keyed, li.clamps, li.until, li.paid, li.more)
}

func (a act) String() string {
	switch a.what {
	case "request":
		return fmt.Sprintf("request to %s with key %s: costs %d (limit %d: 0), priority %d, may wait %v, deadline %v; response after %v, body after %v more: it %s, and uses %d",
			a.host, a.key, a.cost, a.free, a.priority, a.maxWait, a.deadline, a.takes, a.reads, a.fate, a.used)
	case "cancel":
		return fmt.Sprint("cancel the request of act ", a.nth)
	case "hold", "release":
		return fmt.Sprint(a.what, " ", a.key, " ", a.d)
	}
	return fmt.Sprintf("%s: limit %d, %d per %v", a.what, a.limit, a.n, a.d)
}

func (w world) String() string {
	var s strings.Builder
	for _, li := range w.limits {
		fmt.Fprintln(&s, li)
	}
	fmt.Fprintf(&s, "beside: %q\n", w.beside)
	at := time.Duration(0)
	for i, a := range w.acts {
		if at += a.after; a.what != "" {
			fmt.Fprintf(&s, "%3d at %v: %v\n", i, at, a)
		}
	}
	return s.String()
}

var worldSeed = flag.Uint64("world", 0, "play the world of this seed alone")

// Each promise about the sending, rejecting, charging and settling of requests holds in random worlds, to the nanosecond.
// go test ./internal/tests -run TestWorldsOfRequests -world 17 plays one.
func TestWorldsOfRequests(t *testing.T) { // slow: hundreds of worlds
	from, until := uint64(1), uint64(2000)
	if testing.Short() {
		until = 200
	}
	if *worldSeed > 0 {
		from, until = *worldSeed, *worldSeed+1
	}
	for seed := from; seed < until; seed++ {
		w := drawWorld(rand.New(rand.NewPCG(seed, 0)))
		if err := w.play(t); err != nil {
			w, err = w.smallest(t, err)
			t.Fatalf("world %d: %v\n%v", seed, err, w)
		}
	}
}

// play plays a world in a bubble, and returns the first difference from the model.
func (w world) play(t *testing.T) (err error) {
	synctest.Test(t, func(t *testing.T) { err = newPlayer(t, w).play() })
	return err
}

// smallest leaves out each act without which the world still fails.
func (w world) smallest(t *testing.T, err error) (world, error) {
	try := func(smaller world) bool {
		other := smaller.play(t)
		if other != nil {
			w, err = smaller, other
		}
		return other != nil
	}
	for i := len(w.acts) - 1; i >= 0; i-- {
		smaller := w
		smaller.acts = slices.Clone(w.acts)
		smaller.acts[i] = act{after: w.acts[i].after} // the time passes, and acts keep their numbers
		try(smaller)
	}
	return w, err
}
