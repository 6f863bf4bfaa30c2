package throttle

import (
	"fmt"

	"github.com/httpthrottle/throttle/internal/order"
)

// FairBy makes the callers of a bucket take turns by cost, whatever each of them has in the queue. A caller that had no request
// in the queue waits for at most one request of each other caller and, where those are smaller, for as many more as cost less
// than its own request or no more than its last one. A caller that was idle gains no advantage. f returns the caller of a
// request, such as a tenant; [Ask.Caller] and [ContextWithCaller] take precedence. Requests without a caller are one caller.
// [Limiter.Try] has no caller.
//
// The requests of one caller are sent in the order of arrival. A priority ([ContextWithPriority]) applies between the first
// requests of callers whose turns are the same; each step is then worth ten seconds of arrival. To let urgent work of one tenant
// overtake its other work, make the urgent work a caller of its own.
//
// Turns are by cost, including corrections by [Settle], [SettleJSON], [Grant.Settle] and [Receipt.Settle], and by the weights of
// [FairWeights]. Over any stretch of time in which two callers have requests in the queue, what they get, divided by their
// weights, differs by at most the largest cost of each, and by what was corrected.
//
// If a request is cancelled, the next request of its caller takes its turn. The expected wait of a request, which decides about
// early rejection, includes the turns of at most 1,024 callers. With more callers in the queue it is a lower bound, and the
// request is rejected when its maximum wait ends. It does not include callers that arrive later, whose requests may be sent
// first. A debt has some of the callers checked again, and the next debt others.
//
// When the queue of the bucket is empty, all callers are forgotten. A caller without a request in the queue is forgotten after
// about one turn.
//
// Only one limit of a Limiter can have FairBy. It sets the order in the queue, so choose the limit that requests wait for. Other
// limits and server quotas keep the order of arrival between requests that do not fall under the same buckets. A request that
// another limit stops keeps its turn, and its caller's later requests come after it. Over a limit that is [Shared], callers take
// turns within each process. The algorithm is start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996), with later starts
// for new callers while others keep coming.
func FairBy(f KeyFunc) LimitOption {
	return limitOption{text: "FairBy", shared: true, apply: func(l *Limit) {
		l.fairBy = f
		if f == nil {
			l.fault("FairBy(nil): a function is needed")
		}
	}}
}

// FairWeights sets how much of the limit each caller of [FairBy] gets while several wait, relative to the others: from 1 to
// 1,000; the default is 1. Weights outside of this range count as its bounds. f is called without a lock, possibly several times
// at once, for each request that waits.
func FairWeights(f func(caller string) int) LimitOption {
	return limitOption{text: "FairWeights", shared: true, apply: func(l *Limit) {
		l.fairWeights = f
		if f == nil {
			l.fault("FairWeights(nil): a function is needed")
		}
	}}
}

// weightOf returns the weight of a caller.
func (l *Limit) weightOf(caller string) int64 {
	if l.fairWeights == nil {
		return 1
	}
	return int64(max(1, min(l.fairWeights(caller), order.MaxWeight)))
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
