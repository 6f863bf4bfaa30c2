package throttleprom

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/httpthrottle/throttle"
)

// Exemplars keeps the last request of each bucket of throttle_wait_seconds, so that a graph of waits leads to a trace:
//
//	exemplars := throttleprom.NewExemplars(func(ctx context.Context) prometheus.Labels {
//		span := trace.SpanContextFromContext(ctx)
//		if !span.IsSampled() {
//			return nil
//		}
//		return prometheus.Labels{"trace_id": span.TraceID().String()}
//	})
//	limiter, err := throttle.NewLimiter(throttle.WithHooks(exemplars.Hooks()), …)
//	collector := throttleprom.NewCollector(limiter, "github", throttleprom.WithExemplars(exemplars))
//
// Only requests that have waited cost anything. It is safe for concurrent use, and serves one Limiter.
type Exemplars struct {
	labels func(context.Context) prometheus.Labels

	mu   sync.Mutex                              // guards last; nothing is called under it
	last map[string]*[waitBuckets]exemplarOrNone // by limit
}

var bounds = throttle.WaitBounds()

const waitBuckets = len(throttle.Waits{}.Counts)

type exemplarOrNone struct {
	prometheus.Exemplar
	kept bool
}

// NewExemplars returns Exemplars whose labels f returns for the context of a request; nil means that the request is no exemplar.
// Prometheus allows 128 characters of labels and values together; labels with more are omitted.
func NewExemplars(f func(context.Context) prometheus.Labels) *Exemplars {
	if f == nil {
		panic("throttleprom: NewExemplars(nil): a function is needed")
	}
	return &Exemplars{labels: f, last: make(map[string]*[waitBuckets]exemplarOrNone)}
}

// WithExemplars adds exemplars to throttle_wait_seconds. Give the Hooks of e to the Limiter.
func WithExemplars(e *Exemplars) Option {
	return option(func(c *Collector) {
		if c.exemplars = e; e == nil {
			c.fault("WithExemplars(nil): Exemplars are needed")
		}
	})
}

// Hooks returns the hook that keeps exemplars.
func (e *Exemplars) Hooks() throttle.Hooks {
	return throttle.Hooks{OnGrant: func(g throttle.GrantEvent) {
		if g.Waited <= 0 {
			return
		}
		if labels := e.labels(g.Context); labels != nil {
			e.keep(g.Limit, g.Waited, labels)
		}
	}}
}

func (e *Exemplars) keep(limit string, waited time.Duration, labels prometheus.Labels) {
	i, _ := slices.BinarySearch(bounds, waited)
	kept := exemplarOrNone{prometheus.Exemplar{Value: waited.Seconds(), Labels: labels, Timestamp: time.Now()}, true}
	e.mu.Lock()
	defer e.mu.Unlock()
	of := e.last[limit]
	if of == nil {
		of = new([waitBuckets]exemplarOrNone)
		e.last[limit] = of
	}
	of[i] = kept
}

// add returns the histogram of a limit with its exemplars. One that Prometheus does not take is left out.
func (e *Exemplars) add(m prometheus.Metric, limit string) prometheus.Metric {
	for _, x := range e.of(limit) {
		if with, err := prometheus.NewMetricWithExemplars(m, x); err == nil {
			m = with
		}
	}
	return m
}

func (e *Exemplars) of(limit string) (all []prometheus.Exemplar) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if of := e.last[limit]; of != nil {
		for _, x := range of {
			if x.kept {
				all = append(all, x.Exemplar)
			}
		}
	}
	return all
}
