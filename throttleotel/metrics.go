package throttleotel

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/retry"
)

// ScopeName is the name of the instrumentation scope of metrics.
const ScopeName = "github.com/httpthrottle/throttle/throttleotel"

const (
	limiterKey = attribute.Key("throttle.limiter")
	limitKey   = attribute.Key("throttle.limit")
	outcomeKey = attribute.Key("throttle.outcome")
	reasonKey  = attribute.Key("throttle.reason")
	sourceKey  = attribute.Key("throttle.source")
	causeKey   = attribute.Key("throttle.cause")
	storeKey   = attribute.Key("throttle.store")
	kindKey    = attribute.Key("throttle.kind")
	clientKey  = attribute.Key("throttle.client")
)

// An Option configures [Register].
type Option interface{ applyTo(*config) }

type option func(*config)

func (o option) applyTo(c *config) { o(c) }

type config struct {
	provider metric.MeterProvider
	retries  []retries
	faults   []error
}

// retries is a client that retries, and its name.
type retries struct {
	name   string
	policy *retry.Policy
}

// WithMeterProvider sets the MeterProvider. The default is the global one.
func WithMeterProvider(p metric.MeterProvider) Option {
	return option(func(c *config) { c.provider = p })
}

// WithRetries adds the metrics of a Policy of package retry: attempts, retries, failures that were not retried, and the budget. The
// attribute throttle.client is name. Use it once for each Policy.
func WithRetries(name string, p *retry.Policy) Option {
	return option(func(c *config) {
		switch {
		case p == nil:
			c.faults = append(c.faults, fmt.Errorf("throttleotel: WithRetries(%q, nil): a Policy is needed", name))
			return
		case slices.ContainsFunc(c.retries, func(r retries) bool { return r.name == name }):
			c.faults = append(c.faults, fmt.Errorf("throttleotel: WithRetries: two Policies are named %q", name))
		}
		c.retries = append(c.retries, retries{name, p})
	})
}

// Register reports the counters and gauges of l from now on, until Unregister is called. The attribute throttle.limiter is name. The
// histogram of waits is that of [NewProducer].
func Register(l *throttle.Limiter, name string, opts ...Option) (metric.Registration, error) {
	if l == nil {
		return nil, errors.New("throttleotel: Register: the Limiter is nil")
	}
	c := config{provider: otel.GetMeterProvider()}
	for _, o := range opts {
		if o == nil {
			return nil, errors.New("throttleotel: Register: an Option is nil")
		}
		o.applyTo(&c)
	}
	if c.provider == nil {
		return nil, errors.New("throttleotel: WithMeterProvider(nil): a MeterProvider is needed")
	}
	if err := errors.Join(c.faults...); err != nil {
		return nil, err
	}
	meter := c.provider.Meter(ScopeName)
	in, all, err := newInstruments(meter)
	if err != nil {
		return nil, err
	}
	r := reporter{instruments: in, limiter: l, name: limiterKey.String(name), retries: c.retries}
	return meter.RegisterCallback(r.report, all...)
}

// instruments are all that a callback observes.
type instruments struct {
	requests, rejections, charged, returned, serverRefusals, holds, retunes, undone, evicted metric.Int64ObservableCounter
	storeCalls, storeTokens, storeAsks, storeOutages                                         metric.Int64ObservableCounter
	waiting, callers, inFlight, keys                                                         metric.Int64ObservableUpDownCounter
	retryAttempts, retried, retryGiveUps                                                     metric.Int64ObservableCounter
	available, capacity, rate, heldUntil, storeUp, retryBudget, retryBudgetMax               metric.Float64ObservableGauge
}

// newInstruments makes the instruments, and returns them as a list, too.
func newInstruments(meter metric.Meter) (in *instruments, all []metric.Observable, err error) {
	in = new(instruments)
	var faults []error
	for _, i := range []struct {
		to               *metric.Int64ObservableCounter
		name, unit, help string
	}{
		{&in.requests, "throttle.requests", "{request}", "Requests that asked, by what became of them."},
		{&in.rejections, "throttle.rejections", "{request}", "Requests rejected here, by the limit that they would have waited for."},
		{&in.charged, "throttle.tokens.charged", "{token}", "Tokens charged, settlements upwards included."},
		{&in.returned, "throttle.tokens.returned", "{token}", "Tokens given back."},
		{&in.serverRefusals, "throttle.server_refusals", "{response}", "Responses by which a server refused because of a limit."},
		{&in.holds, "throttle.holds", "{hold}", "Holds set, by what set them."},
		{&in.retunes, "throttle.retunes", "{retune}", "Changes of learned rates."},
		{&in.undone, "throttle.grants_undone", "{request}", "Requests granted that were never sent."},
		{&in.storeCalls, "throttle.store.calls", "{call}", "Calls to the store of shared limits."},
		{&in.storeTokens, "throttle.store.tokens", "{token}", "Tokens that the store granted, that it got back, and that were used without it."},
		{&in.storeAsks, "throttle.store.asks", "{ask}", "Asks that failed while the store decided others (faulty), or that were decided by the stricter rule of another process (differs)."},
		{&in.storeOutages, "throttle.store.outages", "{outage}", "How often the store of shared limits became unreachable."},
		{&in.retryAttempts, "throttle.retry.attempts", "{attempt}", "Attempts that have come back, first ones included."},
		{&in.retried, "throttle.retries", "{retry}", "Decisions to retry, by what the retry follows."},
		{&in.retryGiveUps, "throttle.retry.give_ups", "{failure}", "Failures that were not retried, by the reason."},
		{&in.evicted, "throttle.keys_evicted", "{key}", "Keys forgotten before they were full again, to make room."},
	} {
		made, err := meter.Int64ObservableCounter(i.name, metric.WithUnit(i.unit), metric.WithDescription(i.help))
		*i.to, faults, all = made, append(faults, err), append(all, made)
	}
	for _, i := range []struct {
		to               *metric.Int64ObservableUpDownCounter
		name, unit, help string
	}{
		{&in.waiting, "throttle.waiting_requests", "{request}", "Requests in the queue now; a request counts in each of its limits."},
		{&in.callers, "throttle.waiting_callers", "{caller}", "Callers with requests in the queue now, where a limit has FairBy."},
		{&in.inFlight, "throttle.in_flight_requests", "{request}", "Requests without a response yet, or slots in use."},
		{&in.keys, "throttle.keys", "{key}", "Keys that are remembered."},
	} {
		made, err := meter.Int64ObservableUpDownCounter(i.name, metric.WithUnit(i.unit), metric.WithDescription(i.help))
		*i.to, faults, all = made, append(faults, err), append(all, made)
	}
	for _, i := range []struct {
		to               *metric.Float64ObservableGauge
		name, unit, help string
	}{
		{&in.available, "throttle.tokens.available", "{token}", "Tokens left now; negative: debt."},
		{&in.capacity, "throttle.tokens.capacity", "{token}", "Tokens when full, or slots."},
		{&in.rate, "throttle.rate", "{token}/s", "Tokens per second, as set or learned."},
		{&in.heldUntil, "throttle.held_until", "s", "Unix time at which the last hold ends; 0: none."},
		{&in.retryBudget, "throttle.retry.budget", "{retry}", "Retries that the budget allows now."},
		{&in.retryBudgetMax, "throttle.retry.budget_max", "{retry}", "Retries that a full budget allows."},
		{&in.storeUp, "throttle.store.up", "", "1: the last call to the store of shared limits succeeded, or there was none."},
	} {
		made, err := meter.Float64ObservableGauge(i.name, metric.WithUnit(i.unit), metric.WithDescription(i.help))
		*i.to, faults, all = made, append(faults, err), append(all, made)
	}
	return in, all, errors.Join(faults...)
}

// A reporter observes one Limiter.
type reporter struct {
	*instruments
	limiter *throttle.Limiter
	name    attribute.KeyValue
	retries []retries
}

func (r *reporter) report(_ context.Context, o metric.Observer) error {
	s := r.limiter.Stats()
	count := func(c metric.Int64Observable, n uint64, with ...attribute.KeyValue) {
		o.ObserveInt64(c, int64(min(n, math.MaxInt64)), metric.WithAttributes(append(with, r.name)...))
	}
	count(r.requests, s.Granted, outcomeKey.String("granted"))
	count(r.requests, s.Rejected.Total(), outcomeKey.String("rejected"))
	count(r.requests, s.Canceled, outcomeKey.String("canceled"))
	count(r.serverRefusals, s.ServerRefused)
	o.ObserveInt64(r.callers, int64(s.Callers), metric.WithAttributes(r.name))
	count(r.holds, s.Holds.Caller, sourceKey.String(string(throttle.SourceCaller)))
	count(r.holds, s.Holds.Server, sourceKey.String(string(throttle.SourceServer)))
	count(r.holds, s.Holds.Adaptive, sourceKey.String(string(throttle.SourceAdaptive)))
	for _, limit := range r.limiter.Limits() {
		r.reportLimit(o, &limit)
	}
	for _, s := range r.limiter.Stores() {
		store := storeKey.String(strings.Join(s.Limits, ","))
		up := 0.0
		if s.Up {
			up = 1
		}
		o.ObserveFloat64(r.storeUp, up, metric.WithAttributes(r.name, store))
		count(r.storeCalls, s.OK, store, outcomeKey.String("ok"))
		count(r.storeCalls, s.Failed, store, outcomeKey.String("failed"))
		count(r.storeCalls, s.Setup, store, outcomeKey.String("setup"))
		count(r.storeTokens, s.Leased, store, kindKey.String("leased"))
		count(r.storeTokens, s.Returned, store, kindKey.String("returned"))
		count(r.storeTokens, s.Alone, store, kindKey.String("alone"))
		count(r.storeAsks, s.Faulty, store, outcomeKey.String("faulty"))
		count(r.storeAsks, s.Differs, store, outcomeKey.String("differs"))
		count(r.storeOutages, s.Outages, store)
	}
	for _, by := range r.retries {
		client, s := clientKey.String(by.name), by.policy.Stats()
		count(r.retryAttempts, s.Attempts, client)
		for cause, n := range s.Retries {
			count(r.retried, n, client, causeKey.String(string(cause)))
		}
		count(r.retryGiveUps, s.NoRetry.Budget, client, reasonKey.String("budget"))
		count(r.retryGiveUps, s.NoRetry.MaxWait, client, reasonKey.String("max_wait"))
		count(r.retryGiveUps, s.NoRetry.Deadline, client, reasonKey.String("deadline"))
		count(r.retryGiveUps, s.NoRetry.Exhausted, client, reasonKey.String("exhausted"))
		if s.Budget >= 0 {
			o.ObserveFloat64(r.retryBudget, float64(s.Budget), metric.WithAttributes(r.name, client))
			o.ObserveFloat64(r.retryBudgetMax, float64(s.BudgetMax), metric.WithAttributes(r.name, client))
		}
	}
	return nil
}

// reportLimit observes one limit. What a limit cannot have is left out.
func (r *reporter) reportLimit(o metric.Observer, s *throttle.LimitStats) {
	name := limitKey.String(s.Name)
	of := metric.WithAttributeSet(attribute.NewSet(r.name, name))
	for reason, n := range s.Rejected.All() {
		o.ObserveInt64(r.rejections, int64(n), metric.WithAttributes(r.name, name, reasonKey.String(reason.Label())))
	}
	o.ObserveInt64(r.undone, int64(s.Undone), of)
	o.ObserveInt64(r.evicted, int64(s.Evicted), of)
	o.ObserveInt64(r.waiting, int64(s.Waiting), of)
	o.ObserveInt64(r.keys, int64(s.Keys), of)
	o.ObserveFloat64(r.heldUntil, unix(s.HeldUntil), of)
	if s.Kind == "adaptive" || s.Kind == "adaptive-in-flight" {
		for cause, n := range s.Retunes.All() {
			o.ObserveInt64(r.retunes, int64(n), metric.WithAttributes(r.name, name, causeKey.String(cause)))
		}
	}
	if s.Kind == "adaptive" || s.Kind == "adaptive-in-flight" || s.Kind == "in-flight" || s.Kind == "server" {
		o.ObserveInt64(r.inFlight, int64(s.InFlight), of)
	}
	if s.Kind == "server" || s.Kind == "none" {
		return
	}
	o.ObserveInt64(r.charged, int64(s.Charged), of)
	o.ObserveInt64(r.returned, int64(s.Returned), of)
	if s.Capacity > 0 {
		o.ObserveFloat64(r.capacity, s.Capacity, of)
	}
	if !s.Keyed && !math.IsInf(s.Tokens, 0) {
		o.ObserveFloat64(r.available, s.Tokens, of)
	}
	if !s.Keyed && s.Rate > 0 {
		o.ObserveFloat64(r.rate, s.Rate, of)
	}
}

// unix returns a Unix time in seconds, 0 for the zero Time.
func unix(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMicro()) / 1e6
}
