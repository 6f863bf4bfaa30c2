package worlds

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/store"
)

// A twist is something that happens in a world. It is printed as a value.
type twist interface {
	// play makes it happen, as an actor.
	play(f *fleet, me actor)
	// unrest returns from when until when it disturbs the world. Shares and use are checked again once the world has settled.
	unrest() (from, until time.Duration)
}

// twists draw one that begins at an instant; nil: it does not fit the world.
var twists = []func(r *rand.Rand, w *world, at time.Duration) twist{
	drawHold, drawRollout, drawOutage, drawOutage, drawLoss, drawMove, drawStop, drawLate, drawKill, drawRefusals,
}

// An excuse is a twist with which more may be sent than the rule of a limit says: some tokens more, and those of some more time.
type excuse interface {
	excuses(f *fleet, l limit) (tokens int64, more time.Duration)
}

const (
	slack   = 20 * time.Millisecond // a timer that is late grants what was due for so long
	horizon = 50 * time.Millisecond // tokens are promised so far ahead, and three ways to the store and back
	noBound = int64(1) << 40
)

// A hold is one of a key, by a process.
type hold struct {
	at, lasts time.Duration
	process   int
	key       string
}

func drawHold(r *rand.Rand, w *world, at time.Duration) twist {
	return hold{at, aboutTime(r, 100*time.Millisecond, 4*time.Second), w.process(r), fmt.Sprint(r.IntN(w.keys))}
}

func (h hold) play(f *fleet, me actor) {
	me.sleep(f, h.at)
	if p := f.processes[h.process]; p.limiter != nil && !p.still.isDead() {
		for _, key := range []string{"", h.key} {
			p.limiter.Hold(key, h.lasts)
		}
	}
}

func (h hold) unrest() (from, until time.Duration) {
	// A hold may cost the tokens that other processes were promised for the time after it.
	return h.at, h.at + h.lasts
}

// settles is how long a fleet may take until it is steady again.
const settles = 3 * time.Second

// A rollout changes a number of one crew, process by process.
type rollout struct {
	at, takes time.Duration
	crew      int
	limit     int
	percent   int64
}

func drawRollout(r *rand.Rand, w *world, at time.Duration) twist {
	return rollout{at, time.Duration(r.Int64N(int64(2 * time.Second))), r.IntN(len(w.crews)), r.IntN(len(w.limits)), oneOf[int64](r, leastPercent, 90, 99, 101, 150, 300)}
}

func (o rollout) play(f *fleet, me actor) {
	me.sleep(f, o.at)
	for _, p := range f.processes {
		if p.of != o.crew || p.limiter == nil || p.still.isDead() {
			continue
		}
		l := f.limits[o.limit].of(o.percent)
		var err error
		if l.kind == "slots" {
			err = p.limiter.SetInFlight(f.name(o.limit), l.n)
		} else {
			err = p.limiter.SetRate(f.name(o.limit), l.n, l.per)
		}
		if err != nil {
			f.fault("process %d: %v", p.nth, err)
		}
		me.sleep(f, o.takes/time.Duration(p.size))
	}
}

// reaches returns about when it changes a process.
func (o rollout) reaches(f *fleet, p *process) time.Duration {
	nth := 0
	for _, other := range f.processes[:p.nth] {
		if other.of == p.of {
			nth++
		}
	}
	return o.at + o.takes/time.Duration(p.size)*time.Duration(nth)
}

func (o rollout) unrest() (from, until time.Duration) {
	// For 10 s, the stricter rule of before applies.
	return o.at, o.at + o.takes + 10*time.Second
}

// An outage is one of the store.
type outage struct {
	at, lasts time.Duration
	hangs     bool // calls get no response
	pass      bool // all requests may be sent meanwhile; a local share keeps to the limits
}

func drawOutage(r *rand.Rand, w *world, at time.Duration) twist {
	o := outage{at, aboutTime(r, 50*time.Millisecond, 8*time.Second), chance(r, .5), w.mode == throttle.OutagePass}
	return o
}

func (o outage) play(f *fleet, me actor) {
	me.sleep(f, o.at)
	f.link.set(func() {
		f.link.down = errDown
		if o.hangs {
			f.link.down = errHangs
		}
	})
	me.sleep(f, o.lasts)
	f.link.set(func() { f.link.down = nil })
}

func (o outage) unrest() (from, until time.Duration) {
	// A process that got nothing counts only partly among the processes of the next 10 s, so shares of windows are not even.
	return o.at, o.at + o.lasts + 10*time.Second
}

func (o outage) excuses(_ *fleet, l limit) (tokens int64, more time.Duration) {
	if o.pass && l.shared && o.lasts > 2*time.Second {
		return noBound, 0
	}
	return 0, 0
}

// A loss is that of all states in the store.
type loss struct{ at time.Duration }

func drawLoss(_ *rand.Rand, w *world, at time.Duration) twist {
	if w.has("slots") {
		return nil
	}
	return loss{at}
}

func (o loss) play(f *fleet, me actor) {
	me.sleep(f, o.at)
	f.link.set(func() { f.link.book = store.NewBook() })
}

func (o loss) unrest() (from, until time.Duration) { return o.at, o.at + 10*time.Second }

// excuses: the budgets begin again, and what was promised before is used as well.
func (o loss) excuses(f *fleet, l limit) (tokens int64, more time.Duration) {
	if !l.shared {
		return 0, 0
	}
	if l.kind == "bucket" || l.kind == "pace" { // a slow one promises each process the tokens of a request
		tokens = int64(f.size()) * f.most()
	}
	return tokens + l.size(), horizon + 3*f.link.longest
}

// A move takes the store nearer to a crew or farther away.
type move struct {
	at, back time.Duration
	crew     int
	away     time.Duration
}

func drawMove(r *rand.Rand, w *world, at time.Duration) twist {
	return move{at, at + time.Duration(r.Int64N(int64(5*time.Second))), r.IntN(len(w.crews)), aboutTime(r, 100*time.Microsecond, 240*time.Millisecond)}
}

func (m move) play(f *fleet, me actor) {
	me.sleep(f, m.at)
	f.link.set(func() { f.link.away[m.crew] = m.away })
	me.sleep(f, m.back-m.at)
	f.link.set(func() { delete(f.link.away, m.crew) })
}

func (m move) unrest() (from, until time.Duration) { return m.at, m.back }

// A release has a crew be of the release before for a time, as in a roll-out of this one that is rolled back.
type release struct {
	at, lasts time.Duration
	crew      int
}

func drawRelease(r *rand.Rand, w *world) twist {
	return release{time.Duration(r.Int64N(int64(12 * time.Second))), aboutTime(r, time.Second, 10*time.Second), r.IntN(len(w.crews))}
}

func (o release) play(f *fleet, me actor) {
	me.sleep(f, o.at)
	f.link.set(func() { f.link.before[o.crew] = true })
	me.sleep(f, o.lasts)
	f.link.set(func() { delete(f.link.before, o.crew) })
}

func (o release) unrest() (from, until time.Duration) { return o.at, o.at + o.lasts }

// A stop lets a process stand still.
type stop struct {
	at, lasts time.Duration
	process   int
}

func drawStop(r *rand.Rand, w *world, at time.Duration) twist {
	return stop{at, aboutTime(r, time.Millisecond, 8*time.Second), w.process(r)}
}

func (s stop) play(f *fleet, me actor) {
	me.sleep(f, s.at)
	f.processes[s.process].stop(s.lasts)
}

func (s stop) unrest() (from, until time.Duration) { return s.at, s.at + s.lasts }

// excuses: the process may use what it had leased.
func (s stop) excuses(f *fleet, l limit) (tokens int64, more time.Duration) {
	if f.mode == throttle.OutagePass && l.shared && s.lasts > 2*time.Second { // the process takes it for an outage
		return noBound, 0
	}
	if !l.shared || l.per > 0 && l.kind != "bucket" && l.kind != "pace" {
		return 0, slack
	}
	return l.size(), slack + horizon + 3*f.link.longest
}

// A late is a time in which the timers of all processes and what these are to hear come late again and again, as on a busy machine.
type late struct {
	at, until   time.Duration
	every, most time.Duration
}

func drawLate(r *rand.Rand, _ *world, at time.Duration) twist {
	return late{at, at + time.Duration(r.Int64N(int64(10*time.Second))), aboutTime(r, 20*time.Millisecond, time.Second), aboutTime(r, time.Microsecond, 100*time.Millisecond)}
}

func (l late) play(f *fleet, me actor) {
	r := random(f.seed, "late", int64(l.at))
	me.sleep(f, l.at)
	for f.now() < l.until {
		for _, p := range f.processes {
			if d := time.Duration(r.Int64N(int64(l.most))); !p.still.isDead() {
				p.stop(d)
			}
		}
		me.sleep(f, l.every)
	}
}

func (l late) unrest() (from, until time.Duration) { return l.at, l.until }

func (l late) excuses(_ *fleet, li limit) (tokens int64, more time.Duration) {
	return 0, slack + l.most
}

// A kill ends a process without a word.
type kill struct {
	at      time.Duration
	process int
}

func drawKill(r *rand.Rand, w *world, at time.Duration) twist { return kill{at, w.process(r)} }

func (k kill) play(f *fleet, me actor) {
	me.sleep(f, k.at)
	f.processes[k.process].kill()
}

func (k kill) unrest() (from, until time.Duration) {
	// Its slots are free after ten seconds.
	return k.at, k.at + store.SlotLease
}

// Refusals are requests that the server refuses by mistake.
type refusals struct {
	at time.Duration
	n  int
}

func drawRefusals(r *rand.Rand, w *world, at time.Duration) twist {
	if w.server == nil {
		return nil
	}
	return refusals{at, 1 + r.IntN(3)}
}

func (s refusals) play(f *fleet, me actor) {
	me.sleep(f, s.at)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mistakes += s.n
}

func (s refusals) unrest() (from, until time.Duration) {
	// Requests are sent one by one after it, and the rate doubles every 2 s.
	return s.at, s.at + 12*time.Second
}
