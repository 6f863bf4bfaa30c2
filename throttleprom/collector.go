package throttleprom

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/retry"
)

// A Collector is a [prometheus.Collector] of one Limiter. It is safe for concurrent use.
type Collector struct {
	limiter    *throttle.Limiter
	descs      descs
	transports []transport
	retries    []retries
	keys       []key
	names      quotaNames
	exemplars  *Exemplars
	faults     []error
}

type transport struct {
	name string
	*throttle.Transport
}

type retries struct {
	name   string
	policy *retry.Policy
}

// An Option configures a [Collector].
type Option interface{ applyTo(*Collector) }

type option func(*Collector)

func (o option) applyTo(c *Collector) { o(c) }

// WithTransport adds throttle_transport_requests_total of a Transport, which distinguishes Transports that share a Limiter. Each
// needs a name of its own.
func WithTransport(name string, t *throttle.Transport) Option {
	return option(func(c *Collector) {
		if t == nil {
			c.fault("WithTransport(%q, nil): a Transport is needed", name)
			return
		}
		name = clean(name)
		if slices.ContainsFunc(c.transports, func(t transport) bool { return t.name == name }) {
			c.fault("WithTransport: two Transports are named %q", name)
		}
		c.transports = append(c.transports, transport{name, t})
	})
}

// WithRetries adds the metrics of a Policy of package retry: attempts, retries, failures that were not retried, and the budget.
// Each needs a name of its own.
func WithRetries(name string, p *retry.Policy) Option {
	return option(func(c *Collector) {
		if p == nil {
			c.fault("WithRetries(%q, nil): a Policy is needed", name)
			return
		}
		name = clean(name)
		if slices.ContainsFunc(c.retries, func(r retries) bool { return r.name == name }) {
			c.fault("WithRetries: two Policies are named %q", name)
		}
		c.retries = append(c.retries, retries{name, p})
	})
}

// NewCollector returns a Collector of l, whose metrics have the label limiter with that name. Invalid options, and a name that is
// registered already, are errors of Register.
func NewCollector(l *throttle.Limiter, name string, opts ...Option) *Collector {
	c := &Collector{limiter: l, descs: newDescs(name)}
	if l == nil {
		c.fault("the Limiter is nil")
	}
	for _, o := range opts {
		if o == nil {
			c.fault("an Option is nil")
			continue
		}
		o.applyTo(c)
	}
	return c
}

func (c *Collector) fault(format string, args ...any) {
	c.faults = append(c.faults, fmt.Errorf("throttleprom: "+format, args...))
}

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	if err := errors.Join(c.faults...); err != nil {
		out <- prometheus.NewInvalidDesc(err)
		return
	}
	for _, d := range c.descs {
		out <- d
	}
}

// A metric is the index of a Desc.
type metric int

const (
	requests metric = iota
	rejections
	wait
	charged
	returned
	serverRefusals
	holds
	retunes
	evicted
	waiting
	callers
	inFlight
	available
	rate
	capacity
	heldUntil
	keys
	keysMax
	queueMax
	dryRun
	undone
	transportRequests
	retryAttempts
	retried
	retryGiveUps
	retryBudget
	retryBudgetMax
	storeUp
	storeCalls
	storeTokens
	storeAsks
	storeOutages
	storeSeconds
	keyAvailable
	keyRate
	keyWaiting
	keyHeldUntil
	quotaRemaining
	quotaLimit
	quotaReset
	metrics
)

type descs [metrics]*prometheus.Desc

func newDescs(name string) (d descs) {
	constant := prometheus.Labels{"limiter": clean(name)}
	for m, of := range map[metric]struct {
		name, help string
		labels     []string
	}{
		requests:          {"requests_total", "Requests that asked, by what became of them.", []string{"outcome"}},
		rejections:        {"rejections_total", "Requests rejected here, by the limit that they would have waited for.", []string{"limit", "reason"}},
		wait:              {"wait_seconds", "Time in the queue because of this limit, of all requests that it was charged for; le=0: they did not wait.", []string{"limit"}},
		charged:           {"tokens_charged_total", "Tokens charged, settlements upwards included.", []string{"limit"}},
		returned:          {"tokens_returned_total", "Tokens given back.", []string{"limit"}},
		serverRefusals:    {"server_refusals_total", "Responses by which a server refused because of a limit.", nil},
		holds:             {"holds_total", "Holds set, by what set them.", []string{"source"}},
		retunes:           {"retunes_total", "Changes of learned rates.", []string{"limit", "cause"}},
		evicted:           {"keys_evicted_total", "Keys forgotten before they were full again, to make room.", []string{"limit"}},
		waiting:           {"waiting_requests", "Requests in the queue now; a request counts in each of its limits.", []string{"limit"}},
		callers:           {"waiting_callers", "Callers with requests in the queue now, where a limit has FairBy.", nil},
		inFlight:          {"in_flight_requests", "Requests without a response yet, or slots in use.", []string{"limit"}},
		available:         {"tokens_available", "Tokens left now; negative: debt.", []string{"limit"}},
		rate:              {"rate_per_second", "Tokens per second, as set or learned.", []string{"limit"}},
		capacity:          {"tokens_capacity", "Tokens when full, or slots.", []string{"limit"}},
		heldUntil:         {"held_until_seconds", "Unix time at which the last hold ends; 0: none.", []string{"limit"}},
		keys:              {"keys", "Keys that are remembered.", []string{"limit"}},
		keysMax:           {"keys_max", "The most keys that are remembered in all limits.", nil},
		queueMax:          {"queue_max_requests", "The most requests in one queue.", nil},
		dryRun:            {"dry_run", "1: nothing is delayed or rejected, and the figures are what would have been.", nil},
		undone:            {"grants_undone_total", "Requests granted that were never sent.", []string{"limit"}},
		transportRequests: {"transport_requests_total", "Requests of one Transport, by what became of them.", []string{"transport", "outcome"}},
		retryAttempts:     {"retry_attempts_total", "Attempts that have come back, first ones included.", []string{"client"}},
		retried:           {"retries_total", "Decisions to retry, by what the retry follows.", []string{"client", "cause"}},
		retryGiveUps:      {"retry_give_ups_total", "Failures that were not retried, by the reason.", []string{"client", "reason"}},
		retryBudget:       {"retry_budget", "Retries that the budget allows now.", []string{"client"}},
		retryBudgetMax:    {"retry_budget_max", "Retries that a full budget allows.", []string{"client"}},
		storeUp:           {"store_up", "1: the last call to the store of shared limits succeeded, or there was none.", []string{"store"}},
		storeCalls:        {"store_calls_total", "Calls to the store of shared limits.", []string{"store", "outcome"}},
		storeTokens:       {"store_tokens_total", "Tokens that the store granted, that it got back, and that were used without it.", []string{"store", "kind"}},
		storeAsks:         {"store_asks_total", "Asks that failed while the store decided others (faulty), or that were decided by the stricter rule of another process (differs).", []string{"store", "outcome"}},
		storeOutages:      {"store_outages_total", "How often the store of shared limits became unreachable.", []string{"store"}},
		storeSeconds:      {"store_call_seconds", "Time of the calls to the store of shared limits that returned in time.", []string{"store"}},
		keyAvailable:      {"key_tokens_available", "Tokens left now; negative: debt.", []string{"limit", "key"}},
		keyRate:           {"key_rate_per_second", "Tokens per second, as set or learned.", []string{"limit", "key"}},
		keyWaiting:        {"key_waiting_requests", "Requests in the queue now.", []string{"limit", "key"}},
		keyHeldUntil:      {"key_held_until_seconds", "Unix time at which the hold ends; 0: none.", []string{"limit", "key"}},
		quotaRemaining:    {"server_quota_remaining", "What is left of a quota, as the server said last.", []string{"host", "quota"}},
		quotaLimit:        {"server_quota_limit", "The size of a quota, as the server said.", []string{"host", "quota"}},
		quotaReset:        {"server_quota_reset_seconds", "Unix time at which a quota resets, as the server said.", []string{"host", "quota"}},
	} {
		d[m] = prometheus.NewDesc("throttle_"+of.name, of.help, of.labels, constant)
	}
	return d
}

// Collect implements [prometheus.Collector].
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	w := writer{c.descs, out}
	s := c.limiter.Stats()
	w.outcomes(requests, s)
	w.counter(serverRefusals, s.ServerRefused)
	w.counter(holds, s.Holds.Caller, string(throttle.SourceCaller))
	w.counter(holds, s.Holds.Server, string(throttle.SourceServer))
	w.counter(holds, s.Holds.Adaptive, string(throttle.SourceAdaptive))
	w.gauge(callers, float64(s.Callers))
	w.gauge(keysMax, float64(s.MaxKeys))
	w.gauge(queueMax, float64(s.MaxQueue))
	w.flag(dryRun, s.DryRun)
	for _, limit := range c.limiter.Limits() {
		w.limit(&limit, c.exemplars)
	}
	for _, s := range c.limiter.Stores() {
		w.store(&s)
	}
	for _, t := range c.transports {
		s := t.Stats()
		w.outcomes(transportRequests, s, t.name)
		w.counter(transportRequests, s.Exempt, t.name, "exempt")
	}
	for _, r := range c.retries {
		w.retries(r.name, r.policy.Stats())
	}
	c.collectKeys(w)
}

// A writer makes metrics.
type writer struct {
	descs descs
	out   chan<- prometheus.Metric
}

func (w writer) counter(m metric, n uint64, labels ...string) {
	w.value(m, prometheus.CounterValue, float64(n), labels)
}

func (w writer) gauge(m metric, f float64, labels ...string) {
	w.value(m, prometheus.GaugeValue, f, labels)
}

func (w writer) flag(m metric, on bool, labels ...string) {
	f := 0.0
	if on {
		f = 1
	}
	w.gauge(m, f, labels...)
}

func (w writer) value(m metric, kind prometheus.ValueType, f float64, labels []string) {
	made, err := prometheus.NewConstMetric(w.descs[m], kind, f, labels...)
	if err != nil {
		made = prometheus.NewInvalidMetric(w.descs[m], err)
	}
	w.out <- made
}

// outcomes writes what became of requests.
func (w writer) outcomes(m metric, s throttle.Stats, labels ...string) {
	labels = labels[:len(labels):len(labels)]
	w.counter(m, s.Granted, append(labels, "granted")...)
	w.counter(m, s.Rejected.Total(), append(labels, "rejected")...)
	w.counter(m, s.Canceled, append(labels, "canceled")...)
}

// limit writes the metrics of one limit. What a limit cannot have is left out.
func (w writer) limit(s *throttle.LimitStats, exemplars *Exemplars) {
	name := clean(s.Name)
	for reason, n := range s.Rejected.All() {
		w.counter(rejections, n, name, reason.Label())
	}
	w.waits(s, name, exemplars)
	w.counter(undone, s.Undone, name)
	w.gauge(waiting, float64(s.Waiting), name)
	w.gauge(heldUntil, unix(s.HeldUntil), name)
	w.gauge(keys, float64(s.Keys), name)
	w.counter(evicted, s.Evicted, name)
	if s.Kind == "adaptive" || s.Kind == "adaptive-in-flight" {
		for cause, n := range s.Retunes.All() {
			w.counter(retunes, n, name, cause)
		}
	}
	if s.Kind == "adaptive" || s.Kind == "adaptive-in-flight" || s.Kind == "in-flight" || s.Kind == "server" {
		w.gauge(inFlight, float64(s.InFlight), name)
	}
	if s.Kind == "server" || s.Kind == "none" {
		return
	}
	w.counter(charged, s.Charged, name)
	w.counter(returned, s.Returned, name)
	if s.Capacity > 0 {
		w.gauge(capacity, s.Capacity, name)
	}
	if !s.Keyed && !math.IsInf(s.Tokens, 0) {
		w.gauge(available, s.Tokens, name)
	}
	if !s.Keyed && s.Rate > 0 {
		w.gauge(rate, s.Rate, name)
	}
}

// retries writes the metrics of a Policy.
func (w writer) retries(name string, s retry.Stats) {
	w.counter(retryAttempts, s.Attempts, name)
	for cause, n := range s.Retries {
		w.counter(retried, n, name, string(cause))
	}
	w.counter(retryGiveUps, s.NoRetry.Budget, name, "budget")
	w.counter(retryGiveUps, s.NoRetry.MaxWait, name, "max_wait")
	w.counter(retryGiveUps, s.NoRetry.Deadline, name, "deadline")
	w.counter(retryGiveUps, s.NoRetry.Exhausted, name, "exhausted")
	if s.Budget >= 0 {
		w.gauge(retryBudget, float64(s.Budget), name)
		w.gauge(retryBudgetMax, float64(s.BudgetMax), name)
	}
}

// store writes the metrics of the store of some limits, which is called by their names.
func (w writer) store(s *throttle.StoreStats) {
	name := clean(strings.Join(s.Limits, ","))
	w.flag(storeUp, s.Up, name)
	w.counter(storeCalls, s.OK, name, "ok")
	w.counter(storeCalls, s.Failed, name, "failed")
	w.counter(storeCalls, s.Setup, name, "setup")
	w.counter(storeTokens, s.Leased, name, "leased")
	w.counter(storeTokens, s.Returned, name, "returned")
	w.counter(storeTokens, s.Alone, name, "alone")
	w.counter(storeAsks, s.Faulty, name, "faulty")
	w.counter(storeAsks, s.Differs, name, "differs")
	w.counter(storeOutages, s.Outages, name)
	count, buckets := uint64(0), make(map[float64]uint64, len(bounds))
	for i, n := range s.Latency.Counts {
		count += n
		if i < len(bounds) {
			buckets[bounds[i].Seconds()] = count
		}
	}
	w.out <- prometheus.MustNewConstHistogram(w.descs[storeSeconds], count, s.Latency.Sum.Seconds(), buckets, name)
}

var bounds = throttle.WaitBounds()

// waits writes the histogram of a limit.
func (w writer) waits(s *throttle.LimitStats, name string, exemplars *Exemplars) {
	count := s.Granted - s.Delayed
	buckets := make(map[float64]uint64, len(bounds)+1)
	buckets[0] = count
	for i, n := range s.Waits.Counts {
		count += n
		if i < len(bounds) {
			buckets[bounds[i].Seconds()] = count
		}
	}
	made, err := prometheus.NewConstHistogram(w.descs[wait], count, s.Waits.Sum.Seconds(), buckets, name)
	if err != nil {
		made = prometheus.NewInvalidMetric(w.descs[wait], err)
	} else if exemplars != nil {
		made = exemplars.add(made, s.Name)
	}
	w.out <- made
}

// unix returns a Unix time in seconds, 0 for the zero Time.
func unix(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMicro()) / 1e6
}
