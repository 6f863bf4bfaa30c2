package worlds

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/httpthrottle/throttle"
)

// shrink returns the smallest world found that fails in the same way, by dropping one thing after the other.
func shrink(t *testing.T, w *world, fault string) (least *world, faults string) {
	least, faults = w, fault
	sort, _, _ := strings.Cut(fault, ":")
	for smaller := true; smaller; {
		smaller = false
		for _, o := range least.smaller() {
			if all := play(t, o).check(); len(all) > 0 && strings.HasPrefix(all[0], sort+":") {
				least, faults, smaller = o, all[0], true
				break
			}
		}
	}
	return least, faults
}

// smaller returns worlds that are a step simpler, those that leave out most first.
func (w *world) smaller() (all []*world) {
	try := func(change func(o *world)) {
		o := *w
		o.limits, o.crews, o.twists = slices.Clone(w.limits), slices.Clone(w.crews), slices.Clone(w.twists)
		if change(&o); o.String() != w.String() {
			all = append(all, &o)
		}
	}
	for i := range w.twists {
		try(func(o *world) { o.twists = slices.Delete(o.twists, i, i+1) })
	}
	for i := range w.limits {
		if len(w.limits) > 1 && !slices.ContainsFunc(w.twists, isRollout) {
			try(func(o *world) { o.limits = slices.Delete(o.limits, i, i+1) })
		}
	}
	for i := range w.crews {
		if len(w.crews) > 1 && len(w.twists) == 0 { // twists name processes and crews
			try(func(o *world) { o.crews = slices.Delete(o.crews, i, i+1) })
		}
		for _, change := range []func(c *crew){
			func(c *crew) {
				if len(w.twists) == 0 {
					c.size = (c.size + 1) / 2
				}
			},
			func(c *crew) { c.callers = (c.callers + 1) / 2 },
			func(c *crew) { c.every, c.together = 0, false },
			func(c *crew) { c.costs = 1 },
			func(c *crew) { c.streams = false },
			func(c *crew) {
				if !w.has("slots") && w.mode != throttle.OutagePass { // where nothing stops callers
					c.takes = 0
				}
			},
			func(c *crew) { c.deadline = 0 },
			func(c *crew) { c.maxWait = -1 },
			func(c *crew) { c.away = time.Millisecond },
			func(c *crew) { c.percent = 100 },
			func(c *crew) { c.from = 0 },
			func(c *crew) { c.to = w.lasts },
		} {
			try(func(o *world) { change(&o.crews[i]) })
		}
	}
	try(func(o *world) { o.server = nil })
	try(func(o *world) { o.keys = 1 })
	try(func(o *world) { o.jitter = 0 })
	try(func(o *world) { o.lossy = 0 })
	try(func(o *world) { o.mode = 0 })
	for i := range w.limits {
		try(func(o *world) { o.limits[i].keyed = false })
		try(func(o *world) { o.limits[i].shared = false })
	}
	return all
}

func isRollout(t twist) bool {
	_, ok := t.(rollout)
	return ok
}
