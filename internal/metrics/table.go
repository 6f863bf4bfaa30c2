package metrics

import (
	"math"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/pool"
	"github.com/httpthrottle/throttle/retry"
)

var limiters = newGroup(FromLimiter, nil, []row[*throttle.Stats]{
	{name: "throttle.requests", unit: "{request}", kind: Counter, by: "outcome", help: "Requests that asked, by what became of them.", value: outcomes},
	{name: "throttle.server_refusals", unit: "{response}", kind: Counter, help: "Responses by which a server refused because of a limit.", value: func(s *throttle.Stats, v values) { v.count(s.ServerRefused) }},
	{name: "throttle.holds", unit: "{hold}", kind: Counter, by: "source", help: "Holds set, by what set them.", value: holds},
	{name: "throttle.waiting_callers", unit: "{caller}", kind: UpDownCounter, help: "Callers with requests in the queue now, where a limit has FairBy.", value: func(s *throttle.Stats, v values) { v.number(s.Callers) }},
	{name: "throttle.keys_max", unit: "{key}", kind: UpDownCounter, help: "The most keys that are remembered in all limits.", value: func(s *throttle.Stats, v values) { v.number(s.MaxKeys) }},
	{name: "throttle.queue_max_requests", unit: "{request}", kind: UpDownCounter, help: "The most requests in one queue.", value: func(s *throttle.Stats, v values) { v.number(s.MaxQueue) }},
	{name: "throttle.dry_run", kind: Gauge, help: "1: nothing is delayed or rejected, and the figures are what would have been.", value: func(s *throttle.Stats, v values) { v.flag(s.DryRun) }},
})

var limits = newGroup(FromLimiter, []string{"limit"}, []row[*throttle.LimitStats]{
	{name: "throttle.rejections", unit: "{request}", kind: Counter, by: "reason", help: "Requests rejected here, by the limit that they would have waited for.", value: rejections},
	{name: "throttle.wait", unit: "s", kind: Histogram, help: "Time in the queue because of this limit, of all requests that it was charged for; le=0: they did not wait.", value: waits},
	{name: "throttle.grants_undone", unit: "{request}", kind: Counter, help: "Requests granted that were never sent.", value: func(s *throttle.LimitStats, v values) { v.count(s.Undone) }},
	{name: "throttle.waiting_requests", unit: "{request}", kind: UpDownCounter, help: "Requests in the queue now; a request counts in each of its limits.", value: func(s *throttle.LimitStats, v values) { v.number(s.Waiting) }},
	{name: "throttle.held_until", unit: "s", kind: Gauge, help: "Unix time at which the last hold ends; 0: none.", value: func(s *throttle.LimitStats, v values) { v.instant(s.HeldUntil) }},
	{name: "throttle.keys", unit: "{key}", kind: UpDownCounter, help: "Keys that are remembered.", value: func(s *throttle.LimitStats, v values) { v.number(s.Keys) }},
	{name: "throttle.keys_evicted", unit: "{key}", kind: Counter, help: "Keys forgotten before they were full again, to make room.", value: func(s *throttle.LimitStats, v values) { v.count(s.Evicted) }},
	{name: "throttle.retunes", unit: "{retune}", kind: Counter, by: "cause", help: "Changes of learned rates.", only: learns, value: retunes},
	{name: "throttle.in_flight_requests", unit: "{request}", kind: UpDownCounter, help: "Requests without a response yet, or slots in use.", only: knowsInFlight, value: func(s *throttle.LimitStats, v values) { v.number(s.InFlight) }},
	{name: "throttle.tokens.charged", unit: "{token}", kind: Counter, help: "Tokens charged, settlements upwards included.", only: hasTokens, value: func(s *throttle.LimitStats, v values) { v.count(s.Charged) }},
	{name: "throttle.tokens.returned", unit: "{token}", kind: Counter, help: "Tokens given back.", only: hasTokens, value: func(s *throttle.LimitStats, v values) { v.count(s.Returned) }},
	{name: "throttle.tokens.estimated", unit: "{token}", kind: Counter, help: "Tokens that requests were charged at first, of those whose cost was settled.", only: hasSettled, value: func(s *throttle.LimitStats, v values) { v.count(s.Estimated) }},
	{name: "throttle.tokens.settled", unit: "{token}", kind: Counter, help: "Tokens that requests did cost, of those whose cost was settled.", only: hasSettled, value: func(s *throttle.LimitStats, v values) { v.count(s.Settled) }},
	{name: "throttle.tokens.capacity", unit: "{token}", kind: Gauge, help: "Tokens when full, or slots.", only: hasCapacity, value: func(s *throttle.LimitStats, v values) { v.gauge(s.Capacity) }},
	{name: "throttle.tokens.available", unit: "{token}", kind: Gauge, help: "Tokens left now; negative: debt.", only: hasBalance, value: func(s *throttle.LimitStats, v values) { v.gauge(s.Tokens) }},
	{name: "throttle.rate", unit: "{token}/s", kind: Gauge, help: "Tokens per second, as set or learned.", only: hasRate, value: func(s *throttle.LimitStats, v values) { v.gauge(s.Rate) }},
})

var stores = newGroup(FromLimiter, []string{"store"}, []row[*throttle.StoreStats]{
	{name: "throttle.store.up", kind: Gauge, help: "1: the last call to the store of shared limits succeeded, or there was none.", value: func(s *throttle.StoreStats, v values) { v.flag(s.Up) }},
	{name: "throttle.store.processes", unit: "{process}", kind: Gauge, help: "Processes that use a shared budget, as the store estimated in its latest response.", only: hasResponse, value: func(s *throttle.StoreStats, v values) { v.gauge(float64(s.Processes)) }},
	{name: "throttle.store.age", unit: "s", kind: Gauge, help: "Time since the latest response about a shared budget.", only: hasResponse, value: func(s *throttle.StoreStats, v values) { v.gauge(s.Age.Seconds()) }},
	{name: "throttle.store.calls", unit: "{call}", kind: Counter, by: "outcome", help: "Calls to the store of shared limits.", value: calls},
	{name: "throttle.store.call", unit: "s", kind: Histogram, help: "Time of the calls to the store of shared limits that returned in time.", value: func(s *throttle.StoreStats, v values) { v.histogram(bounds[1:], s.Latency.Counts[:], s.Latency.Sum) }},
	{name: "throttle.store.tokens", unit: "{token}", kind: Counter, by: "kind", help: "Tokens that the store granted, that it got back, and that were used without it.", value: leases},
	{name: "throttle.store.asks", unit: "{ask}", kind: Counter, by: "outcome", help: "Asks that failed while the store decided others (faulty), or that were decided by the stricter rule of another process (differs).", value: asks},
	{name: "throttle.store.outages", unit: "{outage}", kind: Counter, help: "How often the store of shared limits became unreachable.", value: func(s *throttle.StoreStats, v values) { v.count(s.Outages) }},
})

var transports = newGroup(FromTransport, []string{"transport"}, []row[*throttle.Stats]{
	{name: "throttle.transport.requests", unit: "{request}", kind: Counter, by: "outcome", help: "Requests of one Transport, by what became of them.", value: outcomesOfTransport},
})

var policies = newGroup(FromPolicy, []string{"client"}, []row[*retry.Stats]{
	{name: "throttle.retry.attempts", unit: "{attempt}", kind: Counter, help: "Attempts that have come back, first ones included.", value: func(s *retry.Stats, v values) { v.count(s.Attempts) }},
	{name: "throttle.retries", unit: "{retry}", kind: Counter, by: "cause", help: "Decisions to retry, by what the retry follows.", value: retries},
	{name: "throttle.retry.give_ups", unit: "{failure}", kind: Counter, by: "reason", help: "Failures that were not retried, by the reason.", value: giveUps},
	{name: "throttle.retry.budget", unit: "{retry}", kind: Gauge, help: "Retries that the budget allows now.", only: hasBudget, value: func(s *retry.Stats, v values) { v.gauge(float64(s.Budget)) }},
	{name: "throttle.retry.budget_max", unit: "{retry}", kind: Gauge, help: "Retries that a full budget allows.", only: hasBudget, value: func(s *retry.Stats, v values) { v.gauge(float64(s.BudgetMax)) }},
})

var buckets = newGroup(FromKey, []string{"limit", "key"}, []row[*throttle.BucketStats]{
	{name: "throttle.key.tokens.available", unit: "{token}", kind: Gauge, help: "Tokens left now; negative: debt.", value: func(b *throttle.BucketStats, v values) { v.gauge(b.Tokens) }},
	{name: "throttle.key.rate", unit: "{token}/s", kind: Gauge, help: "Tokens per second, as set or learned.", value: func(b *throttle.BucketStats, v values) { v.gauge(b.Rate) }},
	{name: "throttle.key.waiting_requests", unit: "{request}", kind: UpDownCounter, help: "Requests in the queue now.", value: func(b *throttle.BucketStats, v values) { v.number(b.Waiting) }},
	{name: "throttle.key.held_until", unit: "s", kind: Gauge, help: "Unix time at which the hold ends; 0: none.", value: func(b *throttle.BucketStats, v values) { v.instant(b.HeldUntil) }},
})

var quotas = newGroup(FromKey, []string{"host", "quota"}, []row[*throttle.QuotaStats]{
	{name: "throttle.server_quota.remaining", kind: Gauge, help: "What is left of a quota, as the server said last.", value: func(q *throttle.QuotaStats, v values) { v.gauge(float64(q.Left)) }},
	{name: "throttle.server_quota.limit", kind: Gauge, help: "The size of a quota, as the server said.", only: hasLimit, value: func(q *throttle.QuotaStats, v values) { v.gauge(float64(q.Limit)) }},
	{name: "throttle.server_quota.reset", unit: "s", kind: Gauge, help: "Unix time at which a quota resets, as the server said.", only: hasReset, value: func(q *throttle.QuotaStats, v values) { v.instant(q.Reset) }},
})

var pools = newGroup(FromPool, nil, []row[*pool.Stats]{
	{name: "throttle.pool.requests", unit: "{request}", kind: Counter, by: "outcome", help: "Requests of a pool, each once, by what became of them.", value: outcomesOfPool},
	{name: "throttle.pool.rejections", unit: "{request}", kind: Counter, by: "reason", help: "Requests that no member of a pool could send in time, each once.", value: rejectionsOfPool},
	{name: "throttle.pool.moves", unit: "{request}", kind: Counter, help: "How often another member has sent a request that one could not, or that failed there.", value: func(s *pool.Stats, v values) { v.count(s.Moved) }},
	{name: "throttle.pool.delayed_requests", unit: "{request}", kind: Counter, help: "Requests that were sent after a wait.", value: func(s *pool.Stats, v values) { v.count(s.Delayed) }},
	{name: "throttle.pool.waiting_requests", unit: "{request}", kind: UpDownCounter, help: "Requests that wait now, each once, although it waits at several members.", value: func(s *pool.Stats, v values) { v.number(s.Waiting) }},
	{name: "throttle.pool.in_flight_requests", unit: "{request}", kind: UpDownCounter, help: "Requests without a response yet that do not wait.", value: func(s *pool.Stats, v values) { v.number(s.InFlight) }},
})

var members = newGroup(FromPool, []string{"member"}, []row[*pool.MemberStats]{
	{name: "throttle.pool.member.out", kind: Gauge, help: "1: the member is left out, because requests to it fail.", value: func(s *pool.MemberStats, v values) { v.flag(s.Out) }},
	{name: "throttle.pool.member.held", kind: Gauge, help: "1: the member is not out, and sends nothing now, because a limit is held or its server stops requests.", value: func(s *pool.MemberStats, v values) { v.flag(!s.Out && s.Why != "") }},
	{name: "throttle.pool.member.failures", unit: "{failure}", kind: UpDownCounter, help: "Requests in succession that have failed.", value: func(s *pool.MemberStats, v values) { v.number(s.Failures) }},
	{name: "throttle.pool.member.latency", unit: "s", kind: Gauge, help: "Time that a request is expected to take until its response.", only: hasLatency, value: func(s *pool.MemberStats, v values) { v.gauge(s.Latency.Seconds()) }},
	{name: "throttle.pool.member.requests", unit: "{request}", kind: Counter, help: "Requests that the member has sent.", value: func(s *pool.MemberStats, v values) { v.count(s.Sent) }},
	{name: "throttle.pool.member.in_flight_requests", unit: "{request}", kind: UpDownCounter, help: "Requests without a response yet that the member has sent.", value: func(s *pool.MemberStats, v values) { v.number(s.InFlight) }},
	{name: "throttle.pool.member.waiting_requests", unit: "{request}", kind: UpDownCounter, help: "Requests that wait at the member; a request waits at several members.", value: func(s *pool.MemberStats, v values) { v.number(s.Waiting) }},
})

// What a limit, a policy, a quota or a member cannot have is left out.

func hasTokens(s *throttle.LimitStats) bool {
	return s.Kind != throttle.KindServer && s.Kind != throttle.KindNone
}
func hasSettled(s *throttle.LimitStats) bool  { return hasTokens(s) && s.Estimated > 0 }
func hasCapacity(s *throttle.LimitStats) bool { return hasTokens(s) && s.Capacity > 0 }
func hasBalance(s *throttle.LimitStats) bool {
	return hasTokens(s) && !s.Keyed && !math.IsInf(s.Tokens, 0)
}
func hasRate(s *throttle.LimitStats) bool { return hasTokens(s) && !s.Keyed && s.Rate > 0 }
func learns(s *throttle.LimitStats) bool {
	return s.Kind == throttle.KindAdaptive || s.Kind == throttle.KindAdaptiveInFlight
}
func knowsInFlight(s *throttle.LimitStats) bool {
	return learns(s) || s.Kind == throttle.KindInFlight || s.Kind == throttle.KindServer
}
func hasResponse(s *throttle.StoreStats) bool { return s.Processes > 0 }
func hasBudget(s *retry.Stats) bool           { return s.Budget >= 0 }
func hasLimit(q *throttle.QuotaStats) bool    { return q.Limit >= 0 }
func hasReset(q *throttle.QuotaStats) bool    { return !q.Reset.IsZero() }
func hasLatency(s *pool.MemberStats) bool     { return s.Latency > 0 }

// The values of metrics with a label of their own.

func outcomes(s *throttle.Stats, v values) {
	v.count(s.Granted, "granted")
	v.count(s.Rejected.Total(), "rejected")
	v.count(s.Canceled, "canceled")
}

func outcomesOfPool(s *pool.Stats, v values) {
	v.count(s.Sent-s.Moved, "sent")
	v.count(s.Rejected.Total(), "rejected")
	v.count(s.Canceled, "canceled")
}

func rejectionsOfPool(s *pool.Stats, v values) {
	for reason, n := range s.Rejected.All() {
		v.count(n, reason.Label())
	}
}

func outcomesOfTransport(s *throttle.Stats, v values) {
	outcomes(s, v)
	v.count(s.Exempt, "exempt")
}

func holds(s *throttle.Stats, v values) {
	v.count(s.Holds.Caller, string(throttle.SourceCaller))
	v.count(s.Holds.Server, string(throttle.SourceServer))
	v.count(s.Holds.Adaptive, string(throttle.SourceAdaptive))
}

func rejections(s *throttle.LimitStats, v values) {
	for reason, n := range s.Rejected.All() {
		v.count(n, reason.Label())
	}
}

func retunes(s *throttle.LimitStats, v values) {
	for cause, n := range s.Retunes.All() {
		v.count(n, cause.Label())
	}
}

func calls(s *throttle.StoreStats, v values) {
	v.count(s.OK, "ok")
	v.count(s.Failed, "failed")
	v.count(s.Setup, "setup")
}

func leases(s *throttle.StoreStats, v values) {
	v.count(s.Leased, "leased")
	v.count(s.Returned, "returned")
	v.count(s.Alone, "alone")
}

func asks(s *throttle.StoreStats, v values) {
	v.count(s.Faulty, "faulty")
	v.count(s.Differs, "differs")
}

func retries(s *retry.Stats, v values) {
	for cause, n := range s.Retries {
		v.count(n, string(cause))
	}
}

func giveUps(s *retry.Stats, v values) {
	v.count(s.NoRetry.Budget, "budget")
	v.count(s.NoRetry.MaxWait, "max_wait")
	v.count(s.NoRetry.Deadline, "deadline")
	v.count(s.NoRetry.Exhausted, "exhausted")
}

// waits counts the requests that did not wait up to 0.
func waits(s *throttle.LimitStats, v values) {
	v.histogram(bounds, append([]uint64{s.Granted - s.Delayed}, s.Waits.Counts[:]...), s.Waits.Sum)
}

// bounds are 0 and those of throttle.Waits, in seconds.
var bounds = func() []float64 {
	all := []float64{0}
	for _, b := range throttle.WaitBounds() {
		all = append(all, b.Seconds())
	}
	return all
}()
