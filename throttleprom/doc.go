// Package throttleprom exports the counters of a [throttle.Limiter] to Prometheus.
//
//	prometheus.MustRegister(throttleprom.NewCollector(limiter, "github"))
//
// A scrape reads counters that the Limiter keeps anyway. It takes microseconds, however many keys there are, and requests pay
// nothing for it. Series are bounded by the number of limits, never by keys, hosts or anything else that a caller or a server can
// make up. All reasons, outcomes, sources and causes are exported from the start, as 0.
//
// docs/prometheus.md describes every metric. The directory grafana has a board and alert rules.
package throttleprom
