package throttleprom_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/metrics"
	"github.com/httpthrottle/throttle/internal/metrics/metricstest"
	"github.com/httpthrottle/throttle/throttleprom"
)

// types are the types in Prometheus of metrics of a Kind.
var types = map[metrics.Kind]string{
	metrics.Counter: "counter", metrics.UpDownCounter: "gauge", metrics.Gauge: "gauge", metrics.Histogram: "histogram",
}

// tableByName returns the table of metrics by the names in Prometheus.
func tableByName() map[string]*metrics.Metric {
	all := make(map[string]*metrics.Metric)
	for _, m := range metrics.All() {
		all[m.PrometheusName()] = m
	}
	return all
}

// tableWithPools returns those of pools, too.
func tableWithPools() map[string]*metrics.Metric {
	all := tableByName()
	for _, m := range metrics.OfPools() {
		all[m.PrometheusName()] = m
	}
	return all
}

func TestEveryMetricOfTheTableIsExported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := metricstest.Play(t)
		families, err := registry(t, throttleprom.NewCollector(s.Transport.Limiter(), "x", throttleprom.WithTransport("t", s.Transport),
			throttleprom.WithKeys("requests", metricstest.Host), throttleprom.WithRetries("c", s.Policy))).Gather()
		require.NoError(t, err)
		exported := make(map[string]string)
		for _, f := range families {
			exported[f.GetName()] = strings.ToLower(f.GetType().String())
		}
		for name, m := range tableByName() {
			assert.Equal(t, types[m.Kind], exported[name], "type of %s", name)
			delete(exported, name)
		}
		assert.Empty(t, exported, "not in the table")
	})
}

// documented is a row of the table in docs/prometheus.md.
type documented struct{ kind, labels string }

func readDocs(t *testing.T) map[string]documented {
	t.Helper()
	text, err := os.ReadFile("../docs/prometheus.md")
	require.NoError(t, err)
	_, table, _ := strings.Cut(string(text), "| metric | type | labels | meaning |")
	table, _, _ = strings.Cut(table, "\n\n")
	all := make(map[string]documented)
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) < 5 {
			continue
		}
		for _, name := range regexp.MustCompile("`(throttle_[a-z_]+)`").FindAllStringSubmatch(cells[1], -1) {
			all[name[1]] = documented{strings.TrimSpace(cells[2]), cells[3]}
		}
	}
	return all
}

func TestDocumentsNameEveryMetric(t *testing.T) {
	docs := readDocs(t)
	for _, m := range slices.Concat(metrics.All(), metrics.OfPools()) {
		name := m.PrometheusName()
		row, ok := docs[name]
		delete(docs, name)
		if !assert.True(t, ok, "docs/prometheus.md lacks %s in its table", name) {
			continue
		}
		assert.Equal(t, types[m.Kind], row.kind, "the type of %s in docs/prometheus.md", name)
		for _, label := range m.Labels {
			assert.Regexp(t, `\b`+label+`\b`, row.labels, "the labels of %s in docs/prometheus.md", name)
		}
	}
	assert.Empty(t, docs, "in docs/prometheus.md, and not in the table of metrics")
}

// labelsOfAll are those of every series: of the Collectors, of Prometheus, and of the buckets of a histogram.
var labelsOfAll = []string{"limiter", "pool", "job", "le"}

// usedIn returns the names of the metrics in expressions. Each must be in the table, with the labels that are selected.
func usedIn(t *testing.T, expressions []string) map[string]bool {
	t.Helper()
	table := tableWithPools()
	for _, m := range metrics.All() {
		if name := m.PrometheusName(); m.Kind == metrics.Histogram {
			table[name+"_bucket"], table[name+"_count"], table[name+"_sum"] = m, m, m
		}
	}
	used := make(map[string]bool)
	for _, expr := range expressions {
		for _, found := range regexp.MustCompile(`\b(throttle_\w+)(\{[^}]*\})?`).FindAllStringSubmatch(expr, -1) {
			m := table[found[1]]
			if !assert.NotNil(t, m, "%s is not in the table of metrics: %s", found[1], expr) {
				continue
			}
			used[m.PrometheusName()] = true
			for _, label := range regexp.MustCompile(`(\w+)\s*[=!]`).FindAllStringSubmatch(found[2], -1) {
				assert.Contains(t, slices.Concat(m.Labels, labelsOfAll), label[1], "a label of %s: %s", found[1], expr)
			}
		}
	}
	return used
}

func TestBoardShowsEveryMetric(t *testing.T) {
	b := readBoard(t)
	expressions := b.expressions()
	for _, v := range b.Templating.List {
		expressions = append(expressions, v.Definition)
	}
	used := usedIn(t, expressions)
	for name := range tableWithPools() {
		assert.True(t, used[name], "grafana/board.json lacks %s", name)
	}
}

// unwatched are the metrics that no alert needs, by the reason.
var unwatched = map[string][]string{
	"no value is wrong by itself": {
		"throttle_tokens_charged_total", "throttle_tokens_returned_total", "throttle_tokens_estimated_total", "throttle_tokens_settled_total", "throttle_tokens_available", "throttle_tokens_capacity",
		"throttle_in_flight_requests", "throttle_waiting_callers", "throttle_keys", "throttle_keys_max", "throttle_dry_run",
		"throttle_transport_requests_total", "throttle_grants_undone_total", "throttle_retry_attempts_total", "throttle_retry_budget_max",
		"throttle_store_processes", "throttle_store_age_seconds",
	},
	"no value is wrong by itself, and ThrottlePoolMemberOut reports a member that stays out": {
		"throttle_pool_moves_total", "throttle_pool_delayed_requests_total", "throttle_pool_waiting_requests", "throttle_pool_in_flight_requests",
		"throttle_pool_member_held", "throttle_pool_member_failures", "throttle_pool_member_latency_seconds", "throttle_pool_member_requests_total",
		"throttle_pool_member_in_flight_requests", "throttle_pool_member_waiting_requests",
	},
	"ThrottleHeldForLong reports the holds that matter":                {"throttle_holds_total"},
	"ThrottleLearnedRateHalved reports the changes that matter":        {"throttle_retunes_total"},
	"ThrottleRetryBudgetEmpty fires when too many are needed":          {"throttle_retries_total", "throttle_retry_give_ups_total"},
	"ThrottleStoreUnreachable fires if they last":                      {"throttle_store_outages_total"},
	"ThrottleWaitsTooLong includes the time that requests wait for it": {"throttle_store_call_seconds"},
	"a user who names keys knows how much is too much": {
		"throttle_key_tokens_available", "throttle_key_rate_per_second", "throttle_key_waiting_requests", "throttle_key_held_until_seconds",
	},
}

// A new metric has an alert, or a reason why it has none.
func TestAlertsUseEveryMetricThatNeedsOne(t *testing.T) {
	var expressions []string
	for _, g := range readRules(t).Groups {
		for _, r := range g.Rules {
			expressions = append(expressions, r.Expr)
		}
	}
	used := usedIn(t, expressions)
	table := tableWithPools()
	for reason, names := range unwatched {
		for _, name := range names {
			assert.Contains(t, table, name, "listed as unwatched")
			assert.False(t, used[name], "%s has an alert, and is listed as unwatched: %s", name, reason)
			used[name] = true
		}
	}
	for name := range table {
		assert.True(t, used[name], "grafana/alerts.yaml lacks %s, and unwatched has no reason for that", name)
	}
}
