package throttle

import (
	"context"
	"fmt"
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/queue"
)

// A Grant represents tokens taken from a Limiter.
type Grant struct {
	limiter *Limiter
	by      *asker // the Transport, or the Limiter itself
	waited  time.Duration
	ctx     context.Context // of the request; nil: it is not known
	receipt *Receipt        // where to record it
	tracked bool            // the Limiter needs the outcome
	grant   queue.Grant
}

// or returns g, or other if g is nil.
func (g *Grant) or(other *Grant) *Grant {
	if g != nil {
		return g
	}
	return other
}

// Cancel gives back the tokens of work that was never done. They are available to waiters immediately. Tokens are not given
// back to a bucket that has been full since, or to a window that is over: no tokens are minted. A second call, and a call after
// [Grant.Report], [Grant.Done] or [Grant.Settle], has no effect.
func (g *Grant) Cancel() {
	g.limiter.core.Cancel(&g.grant, &g.by.counts)
}

// Report tells an [Adaptive] limit the outcome of the work; the time since the grant is its latency. Callers that acquire from
// such a limit must call Report or [Grant.Cancel], because the limit bounds how many grants have no outcome yet. Other limits
// ignore it. Only the first call of either method counts.
func (g *Grant) Report(o Outcome) {
	g.limiter.report(g, &queue.Answer{Outcome: aimd.Outcome(o)})
}

// Done gives back the slots of [InFlight] limits when the work is over. Callers that acquire from such a limit must call Done
// or [Grant.Cancel]. A second call has no effect.
func (g *Grant) Done() {
	g.limiter.core.Free(&g.grant)
}

// Settle corrects the charge in the limit of that name to the true cost, which may be 0. Overcharged tokens go back to the bucket
// immediately and may release waiters. An undercharge becomes debt: at most the burst of a [TokenBucket], the n of a window, and
// a minute's worth of a [Pace] (n at least) or an [Adaptive] limit. A charge is corrected where it was made: nothing is given
// back if its window is over or its bucket has been full since, and there is no debt in a window that is over.
//
// It is an error without effect if there is no such limit, if it is [InFlight], if nothing was charged there or the charge was
// given back, if it was settled before, or if cost is negative.
func (g *Grant) Settle(limit string, cost int64) error {
	if err := g.settle(limit, cost); err != nil {
		return fmt.Errorf("throttle: Settle(%q, %d): %w", limit, cost, err)
	}
	return nil
}

// chargeOf returns the index of the charge in the limit of that name; -1: there is none.
func (g *Grant) chargeOf(limit string) int {
	charges := g.grant.Charges()
	for i := range charges { // without a copy, because another goroutine may be settling the charge
		if li := charges[i].Limit; li.Name == limit && !li.Gates && !li.Open {
			return i
		}
	}
	return -1
}

func (g *Grant) settle(limit string, cost int64) error {
	if _, err := g.limiter.named(limit); err != nil {
		return err
	}
	i := g.chargeOf(limit)
	if i < 0 {
		return errUncharged
	}
	return g.limiter.settle(g, i, cost)
}
