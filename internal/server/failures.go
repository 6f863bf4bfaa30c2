package server

import (
	"math"

	"github.com/httpthrottle/throttle/internal/meter"
)

// Failures test the belief that load causes the failures of requests, where load is a rate or a number in flight. If it does, fewer fail
// at a lower one. The share that led to a trial proves nothing: it was large by chance, or there would be no trial. So a trial compares
// two shares that it has measured itself: which fails at a lower load, with which fails at the higher one again, or at a still lower one
// where that is too much. What it finds is believed until a larger share fails.
type Failures struct {
	Excess
	n, weight float32       // responses since the load changed, and failures among them; those before the last 64 count less, except in a trial
	usual     float32       // share of failures that load does not cause
	most      float32       // usual is no more than that, as the last trial has shown; 0: there was none, or load causes all
	other     float32       // in a trial, the share that failed at the load before
	until     meter.Instant // it is known until then which failures load causes: those beyond the usual share
	step      Step          // what a trial tries; NoStep: there is none
	bare      bool          // the last failure was one with which some servers refuse
	news      bool          // that a trial has found chance was not asked for yet
}

// A Step is what a response shows of the failures before it, and to which load it leads.
type Step uint8

const (
	NoStep    Step = iota
	Suspected      // more fail than usual
	TryLower       // try a lower load, which begins a trial
	TryStill       // and a still lower one
	TryHigher      // try the load again at which the trial began, or half of it after TryStill followed it
	ByLoad         // load causes what fails beyond the usual share
	NotByLoad      // it does not: go back to the load at which the trial began
)

const (
	UsualAtMost = 0.03  // without a trial
	mostByLoad  = 0.04  // of the responses are failures, where load causes them
	leastByLoad = 0.001 // of them are refusals
	mostUsual   = 0.5   // of the responses are failures that load does not cause
	KnownFor    = 300 * second
	leastSeen   = 24  // responses since the load changed before their share of failures counts
	trialSeen   = 64  // and before it is known what fails at a load;
	someFail    = 0.1 // half of them where more than that fails
	fewFail     = 0.3 // of the responses at a lower load: then the higher one is tried again, and otherwise a still lower one
	sure        = 2   // standard errors: two shares that differ by more do so not by chance
	recent      = 64  // responses that count fully
)

// Known reports whether it is known which failures load causes.
func (f *Failures) Known(now meter.Instant) bool { return now < f.until || f.usual > UsualAtMost }

// Trying reports whether there is a trial.
func (f *Failures) Trying() bool { return f.step != NoStep }

// Higher reports whether there is a trial, and it is back at the higher load.
func (f *Failures) Higher() bool { return f.step == TryHigher }

// Usual returns the share of failures that load does not cause, and whether a trial has found more than none.
func (f *Failures) Usual() (share float64, found bool) {
	return float64(f.usual), f.most > 0 && f.usual > leastByLoad
}

// Judged reports whether the last trial has found that load does not cause all failures.
func (f *Failures) Judged() bool { return f.most > 0 }

// Threshold returns the share of failures above which there is too much load; 0: that is not known. A 503 is a refusal where none of them is
// usual.
func (f *Failures) Threshold(now meter.Instant) float64 {
	usual := float64(f.usual)
	switch most := mostByLoad + 1.25*usual; {
	case !f.Known(now):
		return 0
	case f.bare:
		return max(leastByLoad, min(2*usual, most))
	default:
		return most
	}
}

// Bare reports whether each failure is a refusal.
func (f *Failures) Bare(now meter.Instant) bool { return f.bare && f.Threshold(now) < mostByLoad }

// Refuses counts a response where each failure is a refusal, and reports whether the load is to be cut for it.
func (f *Failures) Refuses(now meter.Instant, failed bool) bool {
	f.cutAbove = 0
	refused := f.Add(now, f.Threshold(now), failed)
	if refused {
		f.excess = 0
	}
	return refused
}

// Seen returns how many responses have come since the load changed.
func (f *Failures) Seen() float64 { return float64(f.n) }

// Share returns the share of failures since the load changed.
func (f *Failures) Share() float64 { return float64(f.weight / max(1, f.n)) }

// Count counts a response by how much of a failure it is.
func (f *Failures) Count(weight float64) {
	if f.n >= recent && f.step == NoStep {
		f.n, f.weight = f.n/2, f.weight/2
	}
	f.n++
	f.weight += float32(weight)
}

// Take takes the response to a request that was sent since the load changed. weight is how much of a failure it is as long as nothing is
// known of its cause. bare says that some servers refuse with it, and near that load may be its cause.
func (f *Failures) Take(now meter.Instant, weight float64, bare, near bool) Step {
	known, failed := f.Known(now), weight > 0
	if failed && (known || f.step != NoStep) {
		weight, f.bare = 1, bare
	}
	f.Count(weight)
	if !near && f.step == NoStep && f.n >= leastSeen {
		f.learn(float32(weight), known)
	}
	share := f.weight / f.n
	switch {
	case f.step != NoStep:
		if f.n >= trialSeen || f.n >= trialSeen/2 && share > someFail {
			return f.judge(now, share)
		}
	case known, !failed:
	case bare && f.weight >= 3 && share > 0.3+1.5*f.usual, f.n >= leastSeen && f.weight >= 5 && share > 0.08+1.5*f.usual:
		return Suspected
	}
	return NoStep
}

// learn learns the share of failures where load is not the cause. Without it, a few percent of such failures halve the goodput.
func (f *Failures) learn(weight float32, known bool) {
	most := f.most
	if !known {
		most = max(most, UsualAtMost)
	}
	f.usual = min(f.usual+(weight-f.usual)/200, most)
}

// Moved takes that the load has changed by a step; NoStep: by something else, which ends a trial.
func (f *Failures) Moved(by Step) { f.n, f.weight, f.step = 0, 0, by }

// Try begins a trial at a lower load, to which the load has just been changed because that share has failed.
func (f *Failures) Try(share float64) {
	f.Moved(TryLower)
	f.other = float32(share)
}

// judge takes the share that fails at the load that is tried.
func (f *Failures) judge(now meter.Instant, share float32) (v Step) {
	usual := f.usual + float32(sure*math.Sqrt(float64(f.usual/f.n)))
	switch higher := f.step == TryHigher; {
	case !higher && share > mostUsual: // load causes all of them
		v = ByLoad
	case !higher && share <= usual: // load causes what is beyond that
		f.expect(float32(math.Sqrt(float64(share * f.usual))))
		v = ByLoad
	case !higher && share <= fewFail:
		f.expect(share)
		v = TryHigher
	case higher && f.more(f.other, share), f.step == TryLower, f.step == TryStill && f.more(share, f.other):
		v = TryStill
	default:
		f.expect((share + f.other) / 2)
		v = NotByLoad
	}
	f.other = share
	if v == ByLoad || v == NotByLoad {
		f.step = NoStep
		f.Learn(now)
		f.Excess = Excess{at: f.at}
		f.news = v == NotByLoad
	}
	return v
}

// News reports, once, whether a trial has found that failures are by chance.
func (f *Failures) News() bool {
	news := f.news
	f.news = false
	return news
}

// Agree takes what the trial of another load of the same server has found.
func (f *Failures) Agree(with *Failures) {
	*f = Failures{Excess: Excess{at: f.at}, usual: with.usual, most: with.most, until: with.until, bare: with.bare}
}

// Learn takes that load causes the failures beyond the usual share.
func (f *Failures) Learn(now meter.Instant) { f.until = now + KnownFor }

// Blame takes that load causes all of them.
func (f *Failures) Blame(now meter.Instant) {
	f.expect(0)
	f.Learn(now)
	f.news = false
}

// Forget forgets everything.
func (f *Failures) Forget(now meter.Instant) { *f = Failures{until: now} }

// Recall takes the usual share that was learned before.
func (f *Failures) Recall(usual float64) { f.usual = float32(min(usual, UsualAtMost)) }

// expect takes that a share of the responses of a trial are failures that load does not cause.
func (f *Failures) expect(share float32) {
	f.usual, f.most = share, share+float32(math.Sqrt(float64(share/(2*trialSeen))))
}

// more reports whether a share of the responses of a trial is larger than another, other than by chance.
func (f *Failures) more(low, high float32) bool {
	return high-low > float32(sure*math.Sqrt(float64((low*(1-low)+high*(1-high))/f.n)))
}
