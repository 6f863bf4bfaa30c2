package queue

import (
	"errors"
	"fmt"
)

// Check walks a line from the root of its tree. It returns its waiters in order, how deep the tree is, and what contradicts
// its invariants. It is for tests.
func (ln *Line) Check() (inOrder []*Waiter, depth int, err error) {
	var faults []error
	holds := func(ok bool, fault string) {
		if !ok {
			faults = append(faults, errors.New(fault))
		}
	}
	var walk func(w, parent *Waiter, level int)
	walk = func(w, parent *Waiter, level int) {
		if w == nil {
			return
		}
		depth = max(depth, level)
		holds(parent == w.parent && ln == w.line, "not a tree")
		holds(parent == nil || parent.weight >= w.weight, "not a heap by weight")
		walk(w.left, w, level+1)
		inOrder = append(inOrder, w)
		walk(w.right, w, level+1)
		tightest := w.tight()
		for i, sum := range w.costs {
			most := sum
			for _, below := range []*Waiter{w.left, w.right} {
				if below != nil {
					sum += below.Sums()[i]
					most, tightest = max(most, below.Mosts()[i]), min(tightest, below.Tightest)
				}
			}
			holds(sum == w.Sums()[i], "a sum of costs is wrong")
			holds(most == w.Mosts()[i], "a largest cost is wrong")
		}
		holds(tightest == w.Tightest, "the tightest is wrong")
	}
	walk(ln.Root, nil, 1)
	if len(inOrder) != ln.Size {
		faults = append(faults, fmt.Errorf("%d waiters in a line of %d", len(inOrder), ln.Size))
	}
	var before *Waiter
	for _, w := range inOrder {
		if before == nil {
			holds(ln.First == w, "another is the first")
		} else {
			holds(before.Before(&w.Place), "out of order")
			holds(before.Next() == w, "another is the next")
		}
		before = w
	}
	if before == nil {
		holds(ln.First == nil, "an empty line has a first")
	} else {
		holds(before.Next() == nil, "the last has a next")
	}
	return inOrder, depth, errors.Join(faults...)
}
