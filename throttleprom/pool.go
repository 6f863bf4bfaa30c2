package throttleprom

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/httpthrottle/throttle/internal/metrics"
	"github.com/httpthrottle/throttle/pool"
)

// A PoolCollector is a [prometheus.Collector] of one Pool. It is safe for concurrent use.
type PoolCollector struct {
	pool  *pool.Pool
	descs map[*metrics.Metric]*prometheus.Desc
}

// NewPoolCollector returns a Collector of p, whose metrics have the label pool with that name: the Pool as a whole, in which each request counts
// once, and what it knows of its members. A Collector of the Limiter of a member has the limits of that. A nil Pool, and a name that is
// registered already, are errors of Register.
func NewPoolCollector(p *pool.Pool, name string) *PoolCollector {
	c := &PoolCollector{p, make(map[*metrics.Metric]*prometheus.Desc)}
	for _, m := range metrics.OfPools() {
		c.descs[m] = newDesc(m, "pool", name)
	}
	return c
}

// Describe implements [prometheus.Collector].
func (c *PoolCollector) Describe(out chan<- *prometheus.Desc) {
	if c.pool == nil {
		out <- prometheus.NewInvalidDesc(errors.New("throttleprom: the Pool is nil"))
		return
	}
	for _, d := range c.descs {
		out <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *PoolCollector) Collect(out chan<- prometheus.Metric) {
	metrics.ReadPool(c.pool, func(s metrics.Sample) {
		switch made, err := metricOf(c.descs[s.Metric], s); {
		case err != nil:
			out <- prometheus.NewInvalidMetric(c.descs[s.Metric], err)
		case made != nil:
			out <- made
		}
	})
}
