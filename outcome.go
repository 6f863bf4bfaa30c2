package throttle

import (
	"context"
	"slices"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/queue"
)

// report tells the outcome of a request to the buckets that it was charged in, and then the hooks what that has changed.
func (l *Limiter) report(g *Grant, a *queue.Answer) {
	n := l.core.ReportAndServe(&g.grant, a, &g.by.counts)
	for _, r := range n.Retunes {
		g.by.observer.retuned(RetuneEvent{g.ctx, r.Bucket.Limit.Name, r.Bucket.Key, r.Cause.String(), r.From, r.To})
	}
	for i := range n.Holds {
		g.by.observer.held(holdEventOf(g.ctx, &n.Holds[i]))
	}
}

// holdEventOf returns a hold as users see it.
func holdEventOf(ctx context.Context, e *queue.HeldEvent) HoldEvent {
	source := SourceAdaptive
	if e.Bucket.Limit.Gates {
		source = SourceServer
	}
	return HoldEvent{Context: ctx, Key: e.Bucket.Key, For: e.By, Source: source}
}

// forget records the charges of a request whose outcome will not be reported. It is not inlined, to keep the stack small on
// which its callers waited.
//
//go:noinline
func (l *Limiter) forget(p *queue.Paid, r *Receipt) {
	if r == nil && !l.tracks {
		return
	}
	g := l.grantOf(p, &l.direct)
	if g.receipt = r; r != nil {
		g.filed()
	}
	if l.tracks {
		l.report(&g, &queue.Answer{Outcome: aimd.Ignore})
	}
}

// forgetNow is forget for a request that did not wait.
func (l *Limiter) forgetNow(p *queue.Paid, r *Receipt) {
	if r != nil || l.tracks {
		l.forget(&queue.Paid{Mark: p.Mark, Charges: slices.Clone(p.Charges)}, r)
	}
}

// A RetuneEvent says that an [Adaptive] limit has changed the rate of a key.
//
// Reason stays the same in later versions: growth, throttled, errors, errors_stayed, latency, queue_drained, latency_stayed,
// silence, probe_answered or restored.
type RetuneEvent struct {
	Context    context.Context // of the request whose response caused it; nil: unknown
	Limit, Key string
	Reason     string  // see above
	Old, New   float64 // tokens per second; growth is told when it comes to a tenth
}

// settled reports whether responses tell the limit the true cost of requests.
func (li *Limit) settled() bool { return li.settles != nil || li.costAt != nil }
