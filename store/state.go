package store

import (
	"encoding/json"
	"fmt"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
)

// stateVersion is the version of what State returns.
const stateVersion = 1

// A saved is a state as State returns it. Instants and durations are in µs.
type saved struct {
	Version   int             `json:"v"`
	Rule      [4]int64        `json:"rule"` // tick, n, per, full
	Confirmed int64           `json:"confirmed"`
	Seen      int64           `json:"seen,omitzero"`
	Busy      int64           `json:"busy,omitzero"`
	Before    int64           `json:"before,omitzero"`
	Hold      int64           `json:"hold,omitzero"`
	At        int64           `json:"at,omitzero"`
	Level     int64           `json:"level,omitzero"`
	Seq       int64           `json:"seq,omitzero"`
	Filled    int64           `json:"filled,omitzero"`
	Debt      int64           `json:"debt,omitzero"`
	Peaks     [][2]int64      `json:"peaks,omitzero"` // at most fewPeaks
	All       [][2]int64      `json:"all,omitzero"`   // the peaks, if there are more. The release before does not know it, and drops it
	Log       [][2]int64      `json:"log,omitzero"`
	Used      int64           `json:"used,omitzero"`
	Ends      int64           `json:"ends,omitzero"`
	Queue     [][3]int64      `json:"queue,omitzero"` // place, tokens, until. The release before drops it
	Earliest  int64           `json:"earliest,omitzero"`
	Closed    int64           `json:"closed,omitzero"`
	Holders   map[string]held `json:"holders,omitzero"`
}

type held [3]int64 // count, wants, until

// State returns the state of a budget as JSON, for SetState. Of the budget, only Kind, Limit and Key matter. State returns nil if the
// state is the same as a new one.
func (b *Book) State(of *Budget) []byte {
	s := b.accounts[of.account()]
	if s == nil || s.expires() == math.MinInt64 {
		return nil
	}
	var v saved
	s.save(&v)
	v.Version = stateVersion
	text, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("throttle: bug: a state cannot be encoded: %v", err))
	}
	return text
}

// Until returns the instant from which the state of a budget need not be kept, because it will be the same as a new one. It returns the
// zero time if it already is.
func (b *Book) Until(of *Budget) time.Time {
	s := b.accounts[of.account()]
	if s == nil || s.expires() == math.MinInt64 {
		return time.Time{}
	}
	return time.UnixMicro(s.expires())
}

// SetState sets the state of a budget to what State of this Book or another one returned. Of the budget, only Kind, Limit and Key
// matter. A nil state makes the budget new. If the state cannot be read, SetState changes nothing and returns an error with
// [ErrSetup] in its chain.
func (b *Book) SetState(of *Budget, state []byte) error {
	if len(state) == 0 {
		delete(b.accounts, of.account())
		return nil
	}
	var v saved
	if err := json.Unmarshal(state, &v); err != nil {
		return fmt.Errorf("%w: the state of limit %q and key %q is damaged: %w", ErrSetup, of.Limit, of.Key, err)
	}
	if v.Version != stateVersion {
		return fmt.Errorf("%w: the state of limit %q and key %q has version %d, but this program reads version %d", ErrSetup, of.Limit, of.Key, v.Version, stateVersion)
	}
	s, err := v.state(of.Kind)
	if err != nil {
		return fmt.Errorf("%w: the state of limit %q and key %q is damaged: %w", ErrSetup, of.Limit, of.Key, err)
	}
	b.accounts[of.account()] = s
	return nil
}

// All returns the Kind, Limit and Key of each budget that has a state at an instant, in no particular order.
func (b *Book) All(now time.Time) iter.Seq[Budget] {
	return func(yield func(Budget) bool) {
		for at, s := range b.accounts {
			if now.UnixMicro() < s.expires() && !yield(Budget{Kind: at.kind, Limit: at.limit, Key: at.key}) {
				return
			}
		}
	}
}

func (r *ruling) save(v *saved) {
	v.Rule, v.Confirmed = [4]int64{r.tick, r.n, r.per, r.full}, r.confirmed
}

func (h *header) save(v *saved) {
	h.ruling.save(v)
	v.Seen, v.Busy, v.Before, v.Hold = h.seen, h.busy, h.before, h.hold
}

func (s *bucketState) save(v *saved) {
	s.header.save(v)
	v.At, v.Level, v.Seq, v.Filled, v.Debt = s.at, s.level, s.seq, s.filled, s.debt
	s.queue.save(v)
	v.Peaks = numbers(joined(slices.Clone(s.peaks), fewPeaks))
	if len(s.peaks) > fewPeaks {
		v.All = numbers(s.peaks)
	}
}

// fewPeaks is how many peaks the release before reads.
const fewPeaks = 7

func numbers(peaks []peak) (all [][2]int64) {
	for _, p := range peaks {
		all = append(all, [2]int64{p.seq, p.room})
	}
	return all
}

func (s *slidingState) save(v *saved) {
	s.header.save(v)
	s.queue.save(v)
	now := *s
	now.log = slices.Clone(s.log)
	v.Debt = now.owed(s.seen)
	for _, e := range now.log {
		v.Log = append(v.Log, [2]int64{e.at, e.count})
	}
	if v.Debt > 0 { // for the release before, which counts it for one period
		v.Log = append(v.Log, [2]int64{s.seen, v.Debt})
	}
}

func (s *fixedState) save(v *saved) {
	s.header.save(v)
	v.Used, v.At, v.Ends, v.Debt = s.used, s.at, s.ends, s.debt
	s.queue.save(v)
}

func (s *slotsState) save(v *saved) {
	s.ruling.save(v)
	v.Hold, v.Earliest, v.Closed = s.hold, s.earliest, s.closed
	v.Holders = make(map[string]held, len(s.holders))
	for name, h := range s.holders {
		v.Holders[name] = held{h.count, h.wants, h.until}
	}
}

// state returns the state of a kind that was saved. It checks what the arithmetic depends on, and that no number stands for tokens that
// never were: with a negative count, a store would grant too much.
func (v *saved) state(kind Kind) (state, error) {
	r := rule{v.Rule[0], v.Rule[1], v.Rule[2], v.Rule[3]}
	if min(r.tick, r.n, r.per) <= 0 || r.full < 0 || max(r.tick, r.n, r.full) > mostUnits {
		return nil, fmt.Errorf("it has the rule %v", v.Rule)
	}
	ruled := ruling{r, v.Confirmed}
	h := header{seen: v.Seen, busy: v.Busy, before: v.Before, hold: v.Hold, ruling: ruled}
	line, err := v.line()
	if err != nil {
		return nil, err
	}
	switch kind {
	case Bucket, Pace:
		if len(v.Peaks) > fewPeaks || len(v.All) > maxPeaks || r.full == 0 {
			return nil, fmt.Errorf("it is not the state of a %s", kind)
		}
		if v.Level > r.full || v.Level < -mostLevel || v.Debt < 0 || v.Debt > mostUnits || r.per > mostUnits {
			return nil, fmt.Errorf("it has a level of %d of %d", v.Level, r.full)
		}
		s := &bucketState{header: h, at: v.At, level: v.Level, seq: v.Seq, filled: v.Filled, debt: v.Debt, queue: line}
		peaks := v.Peaks
		if len(v.All) > 0 {
			peaks = v.All
		}
		for _, p := range peaks {
			s.peaks = append(s.peaks, peak{p[0], p[1]})
		}
		return s, nil
	case Sliding:
		s := &slidingState{header: h, queue: line}
		for i, e := range v.Log {
			if i > 0 && e[0] < v.Log[i-1][0] || !isCount(e[1]) || !isCount(s.used+e[1]) {
				return nil, fmt.Errorf("its log has %d tokens at %d", e[1], e[0])
			}
			s.log = append(s.log, event{e[0], e[1]})
			s.used += e[1]
		}
		if last := len(s.log) - 1; v.Debt != 0 {
			if last < 0 || v.Debt != s.log[last].count || v.Debt < 0 || v.Debt > mulSat(meter.MostUsed, r.n) {
				return nil, fmt.Errorf("it has a debt of %d", v.Debt)
			}
			s.log, s.used = s.log[:last], s.used-v.Debt
			s.charge(s.seen, v.Debt)
		}
		return s, nil
	case Fixed, Calendar:
		if !isCount(v.Used) || v.Debt < 0 || v.Debt > v.Used {
			return nil, fmt.Errorf("it has %d tokens used and owes %d", v.Used, v.Debt)
		}
		return &fixedState{header: h, queue: line, used: v.Used, at: v.At, ends: v.Ends, debt: v.Debt}, nil
	case Slots:
		s := &slotsState{ruling: ruled, holders: make(map[string]holding, len(v.Holders)), hold: v.Hold, earliest: v.Earliest, closed: v.Closed}
		for name, of := range v.Holders {
			if !isCount(of[0]) || !isCount(of[1]) {
				return nil, fmt.Errorf("holder %q has %d slots and waits for %d", name, of[0], of[1])
			}
			s.holders[name] = holding{of[0], of[1], of[2]}
			s.used, s.wanted = s.used+of[0], s.wanted+of[1]
		}
		return s, nil
	}
	return nil, fmt.Errorf("the kind %q is unknown", kind)
}

func (q queue) save(v *saved) {
	for _, w := range q {
		v.Queue = append(v.Queue, [3]int64{w.place, w.tokens, w.until})
	}
}

func (v *saved) line() (q queue, err error) {
	for i, w := range v.Queue {
		if w[1] < 0 || w[1] > 2*mostUnits || i > 0 && w[0] <= v.Queue[i-1][0] || i >= mostWaiting {
			return nil, fmt.Errorf("%d tokens are waited for at the place %d", w[1], w[0])
		}
		q = append(q, waiting{w[0], w[1], w[2]})
	}
	return q, nil
}

// mostLevel bounds the debt of a bucket: what it may owe and what it may promise, each no more than mostUnits, and one Need beyond.
const mostLevel = 4 * mostUnits

// isCount reports whether a store may have counted n tokens: it charges no more than twice n.
func isCount(n int64) bool { return n >= 0 && n <= 2*mostUnits }
