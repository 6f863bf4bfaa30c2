// Package metrics is the table of the metrics that modules throttleprom and throttleotel export: the name, unit, help, labels and
// value of each. A new metric is a row in table.go.
//
// These modules have versions of their own, and a user may combine an older one with this package in a newer root module. So what this
// package exports may grow, but not change; testdata/api has it. An exporter must skip a Kind or a Source that it does not know.
package metrics

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/pool"
	"github.com/httpthrottle/throttle/retry"
)

// A Metric is a row of the table, without the value.
type Metric struct {
	Name   string   // in OpenTelemetry, such as throttle.tokens.charged
	Unit   string   // in UCUM, such as s or {token}; "": none
	Kind   Kind     // how values change
	Help   string   // a sentence
	Labels []string // names, such as limit; exporters add one for the Limiter
	Source Source   // what it is read from
}

// A Kind says how the values of a metric change.
type Kind int

const (
	Counter       Kind = iota + 1 // an integer that never decreases
	UpDownCounter                 // an integer that may be added up
	Gauge                         // a number
	Histogram                     // counts by size
)

// A Source is what a metric is read from.
type Source int

const (
	FromLimiter   Source = iota + 1 // see ReadLimiter
	FromTransport                   // see ReadTransport
	FromPolicy                      // see ReadPolicy
	FromKey                         // see ReadBucket and ReadQuota
	FromPool                        // see ReadPool
)

// PrometheusName returns the name that OpenTelemetry's Prometheus exporter makes of Name, such as throttle_tokens_charged_total.
func (m *Metric) PrometheusName() string {
	name := strings.ReplaceAll(m.Name, ".", "_")
	switch {
	case m.Unit == "s":
		name += "_seconds"
	case strings.HasSuffix(m.Unit, "/s"):
		name += "_per_second"
	}
	if m.Kind == Counter {
		name += "_total"
	}
	return name
}

// A Sample is the value of a metric for some values of its labels.
type Sample struct {
	Metric *Metric  // one of All
	Labels []string // the values of Metric.Labels, not cleaned; not valid after the call that passed the Sample
	Int    int64    // of a Counter or an UpDownCounter
	Float  float64  // of a Gauge
	Counts Counts   // of a Histogram
}

// Counts are those of a histogram.
type Counts struct {
	Bounds []float64 // upper ones, rising
	Counts []uint64  // up to each bound, and above the one before; the last has no bound
	Sum    float64
}

// All returns every metric, except those of Pools. Pointers to them are the same in each call, and the Metrics are not to be changed.
func All() []*Metric {
	return slices.Concat(limiters.metrics(), limits.metrics(), stores.metrics(), transports.metrics(), policies.metrics(), buckets.metrics(), quotas.metrics())
}

// OfPools returns the metrics of Pools, as All does the others. They are no part of All, because exporters have them under another label than
// that of a Limiter.
func OfPools() []*Metric { return slices.Concat(pools.metrics(), members.metrics()) }

// ReadLimiter passes the samples of a Limiter, of its limits and of its stores to to.
func ReadLimiter(l *throttle.Limiter, to func(Sample)) {
	s := l.Stats()
	limiters.read(&s, to)
	for _, s := range l.Limits() {
		limits.read(&s, to, s.Name)
	}
	for _, s := range l.Stores() {
		stores.read(&s, to, strings.Join(s.Limits, ","))
	}
}

// ReadTransport passes the samples of a Transport of that name to to.
func ReadTransport(name string, t *throttle.Transport, to func(Sample)) {
	s := t.Stats()
	transports.read(&s, to, name)
}

// ReadPolicy passes the samples of a client of that name to to.
func ReadPolicy(name string, p *retry.Policy, to func(Sample)) {
	s := p.Stats()
	policies.read(&s, to, name)
}

// ReadBucket passes the samples of one bucket to to.
func ReadBucket(b *throttle.BucketStats, to func(Sample)) { buckets.read(b, to, b.Limit, b.Key) }

// ReadQuota passes the samples of one quota of a host to to.
func ReadQuota(host string, q *throttle.QuotaStats, to func(Sample)) {
	quotas.read(q, to, host, q.Name)
}

// ReadPool passes the samples of a Pool and its members to to.
func ReadPool(p *pool.Pool, to func(Sample)) {
	s := p.Stats()
	pools.read(&s, to)
	for i := range s.Members {
		members.read(&s.Members[i], to, s.Members[i].Name)
	}
}

// A group has the metrics that are read from one value.
type group[S any] struct {
	rows   []row[S]
	labels int // the most labels of a metric
}

// A row is a line of the table.
type row[S any] struct {
	name, unit string
	kind       Kind
	by         string // a label besides those of the group; "": none
	help       string
	only       func(S) bool // nil: always
	value      func(S, values)
	metric     *Metric
}

func newGroup[S any](source Source, labels []string, rows []row[S]) group[S] {
	for i := range rows {
		r := &rows[i]
		r.metric = &Metric{Name: r.name, Unit: r.unit, Kind: r.kind, Help: r.help, Labels: slices.Clone(labels), Source: source}
		if r.by != "" {
			r.metric.Labels = append(r.metric.Labels, r.by)
		}
	}
	return group[S]{rows, len(labels) + 1}
}

func (g *group[S]) metrics() []*Metric {
	all := make([]*Metric, len(g.rows))
	for i := range g.rows {
		all[i] = g.rows[i].metric
	}
	return all
}

// read passes the samples of s to to. Labels are the values of those that the group has.
func (g *group[S]) read(s S, to func(Sample), labels ...string) {
	labels = append(make([]string, 0, g.labels), labels...)
	for i := range g.rows {
		if r := &g.rows[i]; r.only == nil || r.only(s) {
			r.value(s, values{r.metric, labels, to})
		}
	}
}

// values takes the values of a metric, one for each value of its own label.
type values struct {
	metric *Metric
	labels []string // with room for another
	to     func(Sample)
}

func (v values) count(n uint64, by ...string) {
	v.to(Sample{Metric: v.metric, Labels: append(v.labels, by...), Int: int64(min(n, math.MaxInt64))})
}

func (v values) number(n int) { v.to(Sample{Metric: v.metric, Labels: v.labels, Int: int64(n)}) }

func (v values) gauge(f float64) { v.to(Sample{Metric: v.metric, Labels: v.labels, Float: f}) }

func (v values) flag(on bool) {
	if on {
		v.gauge(1)
	} else {
		v.gauge(0)
	}
}

// instant takes a Unix time in seconds, 0 for the zero Time.
func (v values) instant(t time.Time) {
	if t.IsZero() {
		v.gauge(0)
	} else {
		v.gauge(float64(t.UnixMicro()) / 1e6)
	}
}

func (v values) histogram(bounds []float64, counts []uint64, sum time.Duration) {
	v.to(Sample{Metric: v.metric, Labels: v.labels, Counts: Counts{bounds, counts, sum.Seconds()}})
}
