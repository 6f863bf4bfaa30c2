package throttleprom

import (
	"errors"
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/metrics"
	"github.com/httpthrottle/throttle/retry"
)

// A Collector is a [prometheus.Collector] of one Limiter. It is safe for concurrent use.
type Collector struct {
	limiter    *throttle.Limiter
	descs      map[*metrics.Metric]*prometheus.Desc
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

func newDescs(name string) map[*metrics.Metric]*prometheus.Desc {
	descs := make(map[*metrics.Metric]*prometheus.Desc)
	for _, m := range metrics.All() {
		descs[m] = newDesc(m, "limiter", name)
	}
	return descs
}

// newDesc returns the description of a metric of something with a name.
func newDesc(m *metrics.Metric, of, name string) *prometheus.Desc {
	return prometheus.NewDesc(m.PrometheusName(), m.Help, m.Labels, prometheus.Labels{of: clean(name)})
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

// Collect implements [prometheus.Collector].
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	to := func(s metrics.Sample) {
		made, err := c.metric(s)
		switch {
		case err != nil:
			out <- prometheus.NewInvalidMetric(c.descs[s.Metric], err)
		case made != nil:
			out <- made
		}
	}
	metrics.ReadLimiter(c.limiter, to)
	for _, t := range c.transports {
		metrics.ReadTransport(t.name, t.Transport, to)
	}
	for _, r := range c.retries {
		metrics.ReadPolicy(r.name, r.policy, to)
	}
	c.collectKeys(to)
}

// metric returns nil for a Kind of a newer root module.
func (c *Collector) metric(s metrics.Sample) (prometheus.Metric, error) {
	made, err := metricOf(c.descs[s.Metric], s)
	if err == nil && c.exemplars != nil && s.Metric.Name == "throttle.wait" {
		made = c.exemplars.add(made, s.Labels[0])
	}
	return made, err
}

func metricOf(desc *prometheus.Desc, s metrics.Sample) (prometheus.Metric, error) {
	labels := slices.Clone(s.Labels)
	for i, name := range s.Metric.Labels {
		if name != "key" && name != "host" { // of which WithKeys has the valid ones, each whole
			labels[i] = clean(labels[i])
		}
	}
	switch s.Metric.Kind {
	case metrics.Counter:
		return prometheus.NewConstMetric(desc, prometheus.CounterValue, float64(s.Int), labels...)
	case metrics.UpDownCounter:
		return prometheus.NewConstMetric(desc, prometheus.GaugeValue, float64(s.Int), labels...)
	case metrics.Gauge:
		return prometheus.NewConstMetric(desc, prometheus.GaugeValue, s.Float, labels...)
	case metrics.Histogram:
		count, buckets := cumulated(s.Counts)
		return prometheus.NewConstHistogram(desc, count, s.Counts.Sum, buckets, labels...)
	}
	return nil, nil
}

// cumulated returns how many values there are, and how many up to each bound.
func cumulated(c metrics.Counts) (count uint64, buckets map[float64]uint64) {
	buckets = make(map[float64]uint64, len(c.Bounds))
	for i, n := range c.Counts {
		count += n
		if i < len(c.Bounds) {
			buckets[c.Bounds[i]] = count
		}
	}
	return count, buckets
}
