package throttleotel

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/metrics"
	"github.com/httpthrottle/throttle/pool"
	"github.com/httpthrottle/throttle/retry"
)

// ScopeName is the name of the instrumentation scope of metrics.
const ScopeName = "github.com/httpthrottle/throttle/throttleotel"

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
	c, err := configOf("Register", opts)
	if err != nil {
		return nil, err
	}
	return c.register("limiter", name, metrics.FromLimiter, func(to func(metrics.Sample)) { metrics.ReadLimiter(l, to) })
}

// RegisterPool reports the counters and gauges of p from now on, until Unregister is called: the Pool as a whole, in which each request counts once,
// and what it knows of its members. The attribute throttle.pool is name. The limits of the members are those of their Limiters; see [Register].
func RegisterPool(p *pool.Pool, name string, opts ...Option) (metric.Registration, error) {
	if p == nil {
		return nil, errors.New("throttleotel: RegisterPool: the Pool is nil")
	}
	c, err := configOf("RegisterPool", opts)
	if err != nil {
		return nil, err
	}
	return c.register("pool", name, metrics.FromPool, func(to func(metrics.Sample)) { metrics.ReadPool(p, to) })
}

// configOf returns what the Options of a function set.
func configOf(function string, opts []Option) (c config, err error) {
	c = config{provider: otel.GetMeterProvider()}
	for _, o := range opts {
		if o == nil {
			return c, fmt.Errorf("throttleotel: %s: an Option is nil", function)
		}
		o.applyTo(&c)
	}
	if c.provider == nil {
		return c, errors.New("throttleotel: WithMeterProvider(nil): a MeterProvider is needed")
	}
	return c, errors.Join(c.faults...)
}

// register reports the metrics of a source with a name, which read passes to its parameter, and those of the Policies.
func (c *config) register(of, name string, from metrics.Source, read func(to func(metrics.Sample))) (metric.Registration, error) {
	meter := c.provider.Meter(ScopeName)
	r := reporter{make(map[*metrics.Metric]instrument), read, attribute.String("throttle."+of, name), c.retries}
	all, err := r.makeInstruments(meter, from)
	if err != nil {
		return nil, err
	}
	return meter.RegisterCallback(r.report, all...)
}

// A reporter observes one Limiter or Pool.
type reporter struct {
	instruments map[*metrics.Metric]instrument
	read        func(to func(metrics.Sample))
	name        attribute.KeyValue
	retries     []retries
}

// An instrument observes integers or floats; the other field is nil.
type instrument struct {
	ints       metric.Int64Observable
	floats     metric.Float64Observable
	attributes []attribute.Key
}

// makeInstruments makes the instruments, and returns them as a list. Single Transports and keys are not reported, and histograms are
// those of the Producer.
func (r *reporter) makeInstruments(meter metric.Meter, from metrics.Source) (all []metric.Observable, err error) {
	var faults []error
	for _, m := range slices.Concat(metrics.All(), metrics.OfPools()) {
		if m.Source != from && m.Source != metrics.FromPolicy {
			continue
		}
		unit, help := metric.WithUnit(m.Unit), metric.WithDescription(m.Help)
		in := instrument{attributes: keysOf(m)}
		var err error
		switch m.Kind {
		case metrics.Counter:
			in.ints, err = meter.Int64ObservableCounter(m.Name, unit, help)
		case metrics.UpDownCounter:
			in.ints, err = meter.Int64ObservableUpDownCounter(m.Name, unit, help)
		case metrics.Gauge:
			in.floats, err = meter.Float64ObservableGauge(m.Name, unit, help)
		default:
			continue
		}
		r.instruments[m], faults = in, append(faults, err)
		if in.ints != nil {
			all = append(all, in.ints)
		} else {
			all = append(all, in.floats)
		}
	}
	return all, errors.Join(faults...)
}

func (r *reporter) report(_ context.Context, o metric.Observer) error {
	to := func(s metrics.Sample) {
		switch in := r.instruments[s.Metric]; {
		case in.ints != nil:
			o.ObserveInt64(in.ints, s.Int, metric.WithAttributeSet(attributes(r.name, in.attributes, s)))
		case in.floats != nil:
			o.ObserveFloat64(in.floats, s.Float, metric.WithAttributeSet(attributes(r.name, in.attributes, s)))
		}
	}
	r.read(to)
	for _, by := range r.retries {
		metrics.ReadPolicy(by.name, by.policy, to)
	}
	return nil
}

// keysOf returns the keys of the attributes of a metric, besides the one of the Limiter.
func keysOf(m *metrics.Metric) (keys []attribute.Key) {
	for _, label := range m.Labels {
		keys = append(keys, attribute.Key("throttle."+label))
	}
	return keys
}

// attributes returns the name of a Limiter or a Pool, and the labels of a sample.
func attributes(name attribute.KeyValue, keys []attribute.Key, s metrics.Sample) attribute.Set {
	all := append(make([]attribute.KeyValue, 0, 3), name)
	for i, key := range keys {
		all = append(all, key.String(s.Labels[i]))
	}
	return attribute.NewSet(all...)
}
