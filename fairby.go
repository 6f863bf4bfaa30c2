package throttle

import (
	"fmt"
	"net/http"

	"github.com/httpthrottle/throttle/internal/queue"
)

// FairBy makes the callers of a bucket take turns by cost, whatever each of them has in the queue: a caller with one request
// waits for at most one request of each other caller. A caller that was idle has nothing saved up. f returns the caller of a
// request, such as a tenant; [Ask.Caller] and [ContextWithCaller] take precedence. Requests without a caller are one caller.
// [Limiter.Try] has no caller.
//
// The requests of one caller go in the order of arrival. A priority ([ContextWithPriority]) counts between the first requests
// of callers, whose turns are the same: there, each step is worth ten seconds of arrival. To let urgent work of one tenant
// overtake its other work, make it a caller of its own, or use [Reserve]: urgent requests take turns of their own.
//
// Turns go by cost as it is corrected by [Settle] and its like, and by the weights of [FairWeights]. Over any stretch of time in
// which two callers have requests in the queue, what they get, divided by their weights, differs by at most the largest cost of
// each.
//
// A cancelled request leaves its turn to the next one of its caller. If that caller has more than 16 requests in the queue, only
// the next four move immediately, and the others when they come to the front, so that a cancellation takes little time. Requests
// are granted as if all had moved. But until then the wait that is planned for a new request, for which it may be rejected
// because of [WithMaxWait] or a deadline, is off by up to the cost of what was cancelled. So is it after a cost was corrected.
//
// Nothing is kept of callers once the queue of the bucket is empty, and of a caller
// without a request in the queue only for about one turn.
//
// One limit of a Limiter can have FairBy: it sets the order in the queue, so choose the limit that requests wait for. Other
// limits and server quotas keep the order of arrival between requests that do not fall under the same buckets. A request that
// another limit stops keeps its turn, and its caller's later requests come after it. Over a limit that is [Shared], callers take
// turns within each process. The algorithm is start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996).
func FairBy(f KeyFunc) LimitOption {
	return limitOption(func(l *Limit) {
		l.fairBy = f
		if f == nil {
			l.fault("FairBy(nil): a function is needed")
		}
	})
}

// FairWeights sets how much of the limit each caller of [FairBy] gets while several wait, relative to the others: from 1 to
// 1,000; the default is 1. Smaller and larger weights count as these bounds. f is called without a lock, possibly several times
// at once, for each request that waits.
func FairWeights(f func(caller string) int) LimitOption {
	return limitOption(func(l *Limit) {
		l.fairWeights = f
		if f == nil {
			l.fault("FairWeights(nil): a function is needed")
		}
	})
}

// weightOf returns the weight of a caller.
func (l *Limit) weightOf(caller string) int64 {
	if l.fairWeights == nil {
		return 1
	}
	return int64(max(1, min(l.fairWeights(caller), queue.MaxWeight)))
}

// callerOf returns the caller of a request.
func (l *Limiter) callerOf(o *overrides, req *http.Request) string {
	if o.called {
		return o.caller
	}
	return l.policyOf(l.core.Fair).fairBy(req)
}

// setCaller sets the caller of a request, before the lock is taken.
func (l *Limiter) setCaller(a *queue.Ask, caller string) {
	if l.core.Fair != nil {
		a.Caller, a.Weight = caller, l.policyOf(l.core.Fair).weightOf(caller)
	}
}

// checkFairness returns what is wrong with the turns of several limits.
func checkFairness(limits []Limit) (faults []error) {
	var first *Limit
	for i := range limits {
		switch l := &limits[i]; {
		case l.fairBy == nil && l.fairWeights != nil:
			faults = append(faults, fmt.Errorf("limit %q: FairWeights has no effect without FairBy", l.rule.Name))
		case l.fairBy == nil:
		case first == nil:
			first = l
		default:
			faults = append(faults, fmt.Errorf("WithLimit: FairBy in limits %q and %q: a request has one place in the queue; set it on the limit "+
				"whose cost counts", first.rule.Name, l.rule.Name))
		}
	}
	return faults
}
