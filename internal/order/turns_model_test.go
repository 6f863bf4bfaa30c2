package order

import (
	"cmp"
	"slices"
)

// modelTurns are the turns of callers, by brute force.
type modelTurns struct {
	now, later int64
	turned     int64
	part       int64 // of turned, by the weights that waited
	since      Instant
	tags       map[string]modelTag
}

// A modelTag is the start tag of a caller's next request, as whole + part/weight.
type modelTag struct{ whole, part int64 }

func newModelTurns() *modelTurns { return &modelTurns{tags: make(map[string]modelTag)} }

func weightBy(caller string) int64 { return int64(caller[0]-'a') + 1 }

// after returns the tag after costs.
func (t modelTag) after(caller string, cost int64) modelTag {
	weight := weightBy(caller)
	sum := cost*tagScale + t.part
	return modelTag{t.whole + sum/weight, sum % weight}
}

// of returns the requests of a caller in order of arrival.
func of(line []*modelWaiter, caller string) (mine []*modelWaiter) {
	for _, w := range line {
		if w.caller == caller {
			mine = append(mine, w)
		}
	}
	slices.SortFunc(mine, func(a, b *modelWaiter) int { return a.id - b.id })
	return mine
}

// start returns the tag of a request that comes.
func (m *modelTurns) start(line []*modelWaiter, w *modelWaiter) modelTag {
	at := m.tags[w.caller]
	if len(of(line, w.caller)) > 0 {
		return at
	}
	tag := m.now
	if m.later > m.now && w.w.Rank >= m.since {
		tag = min(m.later, modelTag{whole: m.now}.after(w.caller, w.w.Costs[0]).whole-1)
	}
	if at.whole > m.now && at.whole >= tag {
		return at
	}
	return modelTag{whole: tag}
}

func (m *modelTurns) join(line []*modelWaiter, w *modelWaiter) {
	if len(line) == 0 {
		*m = *newModelTurns()
	}
	m.tags[w.caller] = m.start(line, w)
}

// first returns the first of the first requests of all callers.
func (m *modelTurns) first(line []*modelWaiter) (first *modelWaiter) {
	for _, w := range line {
		if of(line, w.caller)[0] != w {
			continue
		}
		if first == nil || cmp.Or(cmp.Compare(m.tags[w.caller].whole, m.tags[first.caller].whole), cmp.Compare(w.w.Rank, first.w.Rank), w.id-first.id) < 0 {
			first = w
		}
	}
	return first
}

// weights returns those of the callers that wait.
func (m *modelTurns) weights(line []*modelWaiter) (sum int64) {
	seen := make(map[string]bool)
	for _, w := range line {
		if !seen[w.caller] {
			seen[w.caller] = true
			sum += weightBy(w.caller)
		}
	}
	return sum
}

func (m *modelTurns) grant(line []*modelWaiter, w *modelWaiter, due Instant) {
	at, cost := m.tags[w.caller], w.w.Costs[0]
	if at.whole < m.now {
		at = modelTag{whole: m.now}
	}
	if at.whole > m.now {
		m.now, m.turned, m.part, m.later = at.whole, at.whole, 0, max(m.later, at.whole)
	}
	m.part += cost * tagScale
	m.turned += m.part / m.weights(line)
	m.part %= m.weights(line)
	end := at.after(w.caller, cost)
	if m.turned >= m.later+2*(end.whole-at.whole) {
		if m.later == m.now {
			m.since = due
		}
		m.later = m.turned
	}
	m.tags[w.caller] = end
}

// before returns what goes before a request that comes.
func (m *modelTurns) before(line []*modelWaiter, w *modelWaiter) func(*modelWaiter) bool {
	start := m.start(line, w)
	for _, mine := range of(line, w.caller) {
		if start.whole < m.now {
			start = modelTag{whole: m.now}
		}
		start = start.after(w.caller, mine.w.Costs[0])
	}
	starts := make(map[*modelWaiter]int64)
	for _, other := range line {
		at := m.tags[other.caller]
		for _, one := range of(line, other.caller) {
			starts[one] = at.whole
			if at.whole < m.now {
				at = modelTag{whole: m.now}
			}
			at = at.after(other.caller, one.w.Costs[0])
		}
	}
	return func(other *modelWaiter) bool {
		if other.caller == w.caller {
			return true
		}
		return cmp.Or(cmp.Compare(starts[other], start.whole), cmp.Compare(other.w.Rank, w.w.Rank), other.id-w.id) < 0
	}
}

func (m *modelTurns) correct(line []*modelWaiter, caller string, more int64) {
	if len(line) == 0 || more == 0 {
		return
	}
	at := m.tags[caller]
	waits := len(of(line, caller)) > 0
	if !waits && at.whole <= m.now {
		if more < 0 {
			return
		}
		at = modelTag{whole: m.now}
	}
	by := max(more, -more) * tagScale / weightBy(caller)
	if more < 0 {
		by = -by
	}
	m.tags[caller] = modelTag{whole: max(m.now, at.whole+by)}
}
