package queue_test

import (
	"cmp"
	"slices"

	. "github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/meter/metertest"
	"github.com/httpthrottle/throttle/internal/queue"
)

// This file is the part of the model that takes turns, by brute force: all tags of a caller are computed again whenever
// something becomes of one of its requests, and the line is sorted.

type modelTurns struct {
	now, later int64
	granted    int64
	since      meter.Instant
	ends       map[string]int64 // finish tags, by caller
}

// weightOf returns the weight of a caller: a 1, b 2, and so on.
func weightOf(caller string) int {
	if caller == "" {
		return 1
	}
	return 1 + int(caller[0]-'a')
}

// takeTurns makes the callers of the model take turns.
func (x *modelRun) takeTurns() []LimitOption {
	x.m.fair = new(modelTurns)
	return []LimitOption{FairBy(ByHost), FairWeights(weightOf)}
}

// seated returns the requests in line, or of its caller alone, in order of arrival.
func (m *model) seated(w *modelWaiter, caller bool) (all []*modelWaiter) {
	for _, other := range m.line {
		if !caller || other.caller == w.caller {
			all = append(all, other)
		}
	}
	slices.SortFunc(all, func(a, b *modelWaiter) int { return cmp.Compare(a.id, b.id) })
	return all
}

// weights returns those of all callers in line, and of w's.
func (m *model) weights(w *modelWaiter) (sum int64) {
	seen := map[string]bool{w.caller: true}
	sum = int64(weightOf(w.caller))
	for _, other := range m.seated(w, false) {
		if !seen[other.caller] {
			seen[other.caller] = true
			sum += int64(weightOf(other.caller))
		}
	}
	return sum
}

func (w *modelWaiter) finish(tag int64) int64 {
	return min(tag+w.cost*queue.TagScale/int64(weightOf(w.caller)), queue.MaxTag)
}

// tag returns the start tag of a request that has just come.
func (m *model) tag(w *modelWaiter) int64 {
	if m.fair == nil {
		return 0
	}
	c := m.fair
	tag := c.later
	if w.bounds.Rank < c.since {
		tag = c.now
	}
	switch end := c.ends[w.caller]; {
	case len(m.seated(w, true)) > 0:
		return end
	case end > c.later:
		return max(tag, end)
	}
	return tag
}

func (m *model) sit(w *modelWaiter) {
	if m.fair == nil {
		return
	}
	c := m.fair
	if len(m.seated(w, false)) == 1 {
		*c = modelTurns{ends: make(map[string]int64)}
	}
	w.turned, c.ends[w.caller] = true, w.finish(w.bounds.Tag)
}

// grant notes a grant at a tag, and returns the finish tag.
func (m *model) grant(w *modelWaiter, tag int64, now meter.Instant) int64 {
	c := m.fair
	if tag = max(tag, c.now); tag > c.now {
		c.now, c.granted, c.later = tag, 0, max(c.later, tag)
	}
	c.granted += w.cost * queue.TagScale
	if turned := c.now + c.granted/m.weights(w); turned >= c.later+2*(w.finish(tag)-tag) {
		if c.later == c.now {
			c.since = now
		}
		c.later = turned
	}
	return w.finish(tag)
}

// precedes reports whether w, which has just come, goes before a request in line.
func (m *model) precedes(w, other *modelWaiter) bool {
	return w.bounds.Tag < other.bounds.Tag || w.bounds.Tag == other.bounds.Tag && w.bounds.Rank < other.bounds.Rank
}

// passed notes that w went before all in line.
func (m *model) passed(w *modelWaiter, now meter.Instant) {
	if m.fair == nil || len(m.seated(w, false)) == 0 {
		return
	}
	w.turned = true
	if len(m.seated(w, true)) > 0 {
		panic("a caller overtook itself")
	}
	m.fair.ends[w.caller] = m.grant(w, w.bounds.Tag, now)
}

// standUp notes that w has left the line.
func (m *model) standUp(w *modelWaiter, granted bool, now meter.Instant) {
	if m.fair == nil {
		return
	}
	c, end := m.fair, w.bounds.Tag
	if granted {
		end = m.grant(w, w.bounds.Tag, now)
	}
	mine := m.seated(w, true)
	if !granted {
		mine = slices.DeleteFunc(mine, func(other *modelWaiter) bool { return other.id < w.id })
	}
	m.chain(c, w.caller, mine, end)
	if len(m.seated(w, false)) == 0 {
		*c = modelTurns{}
	}
}

// chain has these requests of a caller follow one another from a tag on.
func (m *model) chain(c *modelTurns, caller string, mine []*modelWaiter, tag int64) {
	for _, w := range mine {
		w.bounds.Tag = tag
		tag = w.finish(tag)
	}
	c.ends[caller] = tag
	slices.SortStableFunc(m.line, func(a, b *modelWaiter) int {
		return cmp.Or(cmp.Compare(a.bounds.Tag, b.bounds.Tag), cmp.Compare(a.bounds.Rank, b.bounds.Rank), cmp.Compare(a.id, b.id))
	})
}

// most returns the largest debt that counts.
func (m *model) most() int64 {
	switch b := m.ideal.(type) {
	case *metertest.SlidingWindow:
		return b.N
	case *metertest.FixedWindow:
		return b.N
	case *metertest.Bucket:
		if !b.Paced {
			return b.Burst.Num().Int64()
		}
	}
	return meter.MaxCount
}

// turn corrects what a request that was granted has cost its caller.
func (m *model) turn(w *modelWaiter, more int64, now meter.Instant) {
	if m.fair == nil || !w.turned || len(m.seated(w, false)) == 0 || more == 0 {
		return
	}
	c, mine, first := m.fair, m.seated(w, true), m.line[0]
	weight := int64(weightOf(w.caller))
	by := -(min(-more, queue.MaxTag/queue.TagScale) * queue.TagScale / weight)
	if more > 0 {
		by = min(more, m.most(), queue.MaxTag/queue.TagScale) * queue.TagScale / weight
	}
	switch end := c.ends[w.caller]; {
	case len(mine) > 0:
		m.chain(c, w.caller, mine, min(max(c.now, mine[0].bounds.Tag+by), queue.MaxTag))
	case end > c.later:
		c.ends[w.caller] = min(max(c.now, end+by), queue.MaxTag)
	case more > 0:
		c.ends[w.caller] = min(c.now+by, queue.MaxTag)
	}
	if m.line[0] != first {
		m.since = max(m.since, now)
	}
}
