package throttleprom_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// promtool runs promtool. If it is not installed, it logs that, or fails if THROTTLE_REAL_SERVERS is set.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		require.Empty(t, os.Getenv("THROTTLE_REAL_SERVERS"), "THROTTLE_REAL_SERVERS is set, and there is no promtool")
		t.Log("promtool is not installed, so the alert rules are not checked")
		return
	}
	out, err := exec.CommandContext(t.Context(), path, args...).CombinedOutput()
	require.NoError(t, err, "promtool %v: %s", args, out)
}

type board struct {
	Panels []struct {
		ID      int
		Title   string
		Targets []struct{ Expr string }
	}
	Annotations struct{ List []struct{ Expr string } }
	Templating  struct {
		List []struct{ Name, Definition string }
	}
}

type rules struct {
	Groups []group `yaml:"groups"`
}

type group struct {
	Name  string `yaml:"name"`
	Rules []rule `yaml:"rules"`
}

type rule struct {
	Alert  string `yaml:"alert,omitempty"`
	Record string `yaml:"record,omitempty"`
	Expr   string `yaml:"expr"`
}

func readBoard(t *testing.T) (b board) {
	t.Helper()
	text, err := os.ReadFile("grafana/board.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &b))
	return b
}

func readRules(t *testing.T) (r rules) {
	t.Helper()
	text, err := os.ReadFile("grafana/alerts.yaml")
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, &r))
	return r
}

// expressions returns those of the board, with its variables filled in.
func (b board) expressions() (all []string) {
	fill := strings.NewReplacer("$__rate_interval", "5m", "$__interval", "1m", "$job", ".*", "$limiter", ".*", "$limit", ".*")
	for _, p := range b.Panels {
		for _, target := range p.Targets {
			all = append(all, fill.Replace(target.Expr))
		}
	}
	for _, a := range b.Annotations.List {
		all = append(all, fill.Replace(a.Expr))
	}
	return all
}

func TestExpressionsOfTheBoardAndTheAlertsAreValid(t *testing.T) {
	promtool(t, "check", "rules", "grafana/alerts.yaml")
	var made rules
	made.Groups = []group{{Name: "board"}}
	for i, expr := range readBoard(t).expressions() {
		made.Groups[0].Rules = append(made.Groups[0].Rules, rule{Record: fmt.Sprintf("board:%d", i), Expr: expr})
	}
	text, err := yaml.Marshal(made)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "board.yaml")
	require.NoError(t, os.WriteFile(file, text, 0o600))
	promtool(t, "check", "rules", file)
}

func TestPanelsOfTheBoardHaveIDsAndTitlesOfTheirOwn(t *testing.T) {
	ids, titles := make(map[int]bool), make(map[string]bool)
	for _, p := range readBoard(t).Panels {
		assert.False(t, ids[p.ID], p.ID)
		assert.False(t, titles[p.Title], p.Title)
		assert.NotEmpty(t, p.Targets, p.Title)
		ids[p.ID], titles[p.Title] = true, true
	}
	assert.Len(t, ids, 39)
}

// Series are those of the tests of promtool: a start, a step for each minute, and how many.
type series map[string]string

// Each alert fires for the first series, and not for the second.
var alerts = map[string]struct {
	at            string
	fires, silent series
}{
	// Two minutes after a deployment at 5 min that makes a server refuse a fifth.
	"ThrottleServerRefusesMany": {"7m",
		series{`throttle_server_refusals_total{limiter="l"}`: "0x5 60+60x60", `throttle_requests_total{limiter="l", outcome="granted"}`: "0+200x60"},
		series{`throttle_server_refusals_total{limiter="l"}`: "0x5 10+10x60", `throttle_requests_total{limiter="l", outcome="granted"}`: "0+200x60"}},
	"ThrottlePoolMemberOut": {"15m",
		series{`throttle_pool_member_out{pool="p", member="a"}`: "1x60"},
		series{`throttle_pool_member_out{pool="p", member="a"}`: "1x6 0x60"}},
	"ThrottlePoolRejects": {"15m",
		series{`throttle_pool_rejections_total{pool="p", reason="max_wait"}`: "0+2x60", `throttle_pool_requests_total{pool="p", outcome="sent"}`: "0+100x60"},
		series{`throttle_pool_rejections_total{pool="p", reason="shutdown"}`: "0+2x60", `throttle_pool_requests_total{pool="p", outcome="sent"}`: "0+100x60"}},
	"ThrottleQueueGrows": {"8m",
		series{`throttle_waiting_requests{limiter="l", limit="a"}`: "0x5 120+120x60"},
		series{`throttle_waiting_requests{limiter="l", limit="a"}`: "9000x60"}},
	"ThrottleRetryBudgetEmpty": {"7m",
		series{`throttle_retry_budget{limiter="l", client="c"}`: "100x5 0x60"},
		series{`throttle_retry_budget{limiter="l", client="c"}`: "100x5 1x60"}},
	// Two minutes after one that makes a server refuse 2.5 %.
	"ThrottleServerStillRefuses": {"7m",
		series{`throttle_server_refusals_total{limiter="l"}`: "0x5 5+5x60", `throttle_requests_total{limiter="l", outcome="granted"}`: "0+200x60"},
		series{`throttle_server_refusals_total{limiter="l"}`: "0+1x60", `throttle_requests_total{limiter="l", outcome="granted"}`: "0+200x60",
			`throttle_server_refusals_total{limiter="few"}`: "0x5 1+1x60", `throttle_requests_total{limiter="few", outcome="granted"}`: "0+10x60"}},
	"ThrottleWaitsTooLong": {"25m",
		series{`throttle_wait_seconds_bucket{limiter="l", limit="a", le="30"}`: "0+80x60", `throttle_wait_seconds_bucket{limiter="l", limit="a", le="60"}`: "0+100x60", `throttle_wait_seconds_bucket{limiter="l", limit="a", le="+Inf"}`: "0+100x60"},
		series{`throttle_wait_seconds_bucket{limiter="l", limit="a", le="30"}`: "0+95x60", `throttle_wait_seconds_bucket{limiter="l", limit="a", le="60"}`: "0+100x60", `throttle_wait_seconds_bucket{limiter="l", limit="a", le="+Inf"}`: "0+100x60"}},
	"ThrottleQueueNearlyFull": {"10m",
		series{`throttle_waiting_requests{limiter="l", limit="a"}`: "81x60", `throttle_waiting_requests{limiter="l", limit="b"}`: "1x60", `throttle_queue_max_requests{limiter="l"}`: "100x60"},
		series{`throttle_waiting_requests{limiter="l", limit="a"}`: "41x60", `throttle_waiting_requests{limiter="l", limit="b"}`: "41x60", `throttle_queue_max_requests{limiter="l"}`: "100x60"}},
	"ThrottleDeadlinesCannotBeMet": {"25m",
		series{`throttle_rejections_total{limiter="l", limit="a", reason="deadline"}`: "0+7x60"},
		series{`throttle_rejections_total{limiter="l", limit="a", reason="deadline"}`: "0+5x60", `throttle_rejections_total{limiter="l", limit="a", reason="max_wait"}`: "0+100x60"}},
	"ThrottleStoreUnreachable": {"5m",
		series{`throttle_store_up{store="s", instance="1"}`: "1x60", `throttle_store_up{store="s", instance="2"}`: "0x60"},
		series{`throttle_store_up{store="s", instance="1"}`: "1x60", `throttle_store_up{store="s", instance="2"}`: "1x60"}},
	// A single failed call of few is no reason.
	"ThrottleStoreCallsFail": {"20m",
		series{`throttle_store_calls_total{store="s", outcome="ok"}`: "0+90x60", `throttle_store_calls_total{store="s", outcome="failed"}`: "0+8x60", `throttle_store_calls_total{store="s", outcome="setup"}`: "0+2x60"},
		series{`throttle_store_calls_total{store="s", outcome="ok"}`: "0+96x60", `throttle_store_calls_total{store="s", outcome="failed"}`: "0+4x60",
			`throttle_store_calls_total{store="few", outcome="ok"}`: "0+5x60", `throttle_store_calls_total{store="few", outcome="failed"}`: "0+1x60"}},
	"ThrottleStoreAlone": {"20m",
		series{`throttle_store_tokens_total{store="s", kind="alone"}`: "0+1x60"},
		series{`throttle_store_tokens_total{store="s", kind="alone"}`: "7x60", `throttle_store_tokens_total{store="s", kind="leased"}`: "0+100x60"}},
	"ThrottleStoreAsksFail": {"20m",
		series{`throttle_store_asks_total{limiter="l", store="s", outcome="faulty"}`: "0+1x60"},
		series{`throttle_store_asks_total{limiter="l", store="s", outcome="faulty"}`: "1x60", `throttle_store_asks_total{limiter="l", store="s", outcome="differs"}`: "0+1x60"}},
	// A deployment may take 20 minutes.
	"ThrottleStoreRulesDiffer": {"50m",
		series{`throttle_store_asks_total{limiter="l", store="s", outcome="differs"}`: "0+1x60"},
		series{`throttle_store_asks_total{limiter="l", store="s", outcome="differs"}`: "0x20 1+1x20 21x60"}},
	"ThrottleStoreCallsPerRequest": {"40m",
		series{`throttle_store_calls_total{limiter="l", store="s", outcome="ok"}`: "0+2100x60", `throttle_requests_total{limiter="l", outcome="granted"}`: "0+200x60"},
		series{`throttle_store_calls_total{limiter="l", store="s", outcome="ok"}`: "0+1900x60", `throttle_requests_total{limiter="l", outcome="granted"}`: "0+200x60",
			`throttle_store_calls_total{limiter="few", store="s", outcome="ok"}`: "0+20x60", `throttle_requests_total{limiter="few", outcome="granted"}`: "0+1x60"}},
	"ThrottleKeysForgotten": {"20m",
		series{`throttle_keys_evicted_total{limiter="l", limit="a"}`: "0+1x60"},
		series{`throttle_keys_evicted_total{limiter="l", limit="a"}`: "7x60"}},
	"ThrottleNoWaitingHelps": {"20m",
		series{`throttle_rejections_total{limiter="l", limit="server", reason="final"}`: "0x15 1x60"},
		series{`throttle_rejections_total{limiter="l", limit="server", reason="held"}`: "0x15 1x60"}},
	"ThrottleCostCanNeverBePaid": {"20m",
		series{`throttle_rejections_total{limiter="l", limit="a", reason="cost"}`: "0x15 1x60"},
		series{`throttle_rejections_total{limiter="l", limit="a", reason="cost"}`: "1x60"}},
	"ThrottleHeldForLong": {"10m",
		series{`throttle_held_until_seconds{limiter="l", limit="a"}`: "3600x60"},
		series{`throttle_held_until_seconds{limiter="l", limit="a"}`: "900x60"}},
	"ThrottleQuotaGoneBeforeReset": {"10m",
		series{`throttle_server_quota_remaining{host="h", quota="q"}`: "4x60", `throttle_server_quota_limit{host="h", quota="q"}`: "100x60", `throttle_server_quota_reset_seconds{host="h", quota="q"}`: "3600x60"},
		series{`throttle_server_quota_remaining{host="h", quota="q"}`: "4x60", `throttle_server_quota_limit{host="h", quota="q"}`: "100x60", `throttle_server_quota_reset_seconds{host="h", quota="q"}`: "1000x60"}},
	"ThrottleLearnedRateHalved": {"26h",
		series{`throttle_rate_per_second{limiter="l", limit="a"}`: "100x1450 49x200"},
		series{`throttle_rate_per_second{limiter="l", limit="a"}`: "100x1450 51x200"}},
}

func TestEachAlertFiresAndStaysSilent(t *testing.T) { // slow: promtool, once for each alert
	known := make(map[string]bool)
	for _, g := range readRules(t).Groups {
		for _, r := range g.Rules {
			known[r.Alert] = true
			assert.Contains(t, alerts, r.Alert)
		}
	}
	for name, c := range alerts {
		t.Run(name, func(t *testing.T) {
			require.True(t, known[name])
			for fires, values := range map[bool]series{true: c.fires, false: c.silent} {
				checkAlert(t, name, c.at, fires, values)
			}
		})
	}
}

// checkAlert has promtool find out whether an alert fires. What its labels are is for promtool to say: an expectation of
// none must fail if it fires.
func checkAlert(t *testing.T, name, at string, fires bool, values series) {
	t.Helper()
	type input struct {
		Series string `yaml:"series"`
		Values string `yaml:"values"`
	}
	type sample struct {
		Labels string  `yaml:"labels"`
		Value  float64 `yaml:"value"`
	}
	type query struct {
		Expr     string   `yaml:"expr"`
		At       string   `yaml:"eval_time"`
		Expected []sample `yaml:"exp_samples"`
	}
	inputs := make([]input, 0, len(values))
	for s, v := range values {
		inputs = append(inputs, input{s, v})
	}
	expect := query{Expr: fmt.Sprintf(`count(ALERTS{alertname=%q, alertstate="firing"})`, name), At: at}
	if fires {
		expect.Expected = []sample{{"{}", 1}}
	}
	rulesFile, err := filepath.Abs("grafana/alerts.yaml")
	require.NoError(t, err)
	text, err := yaml.Marshal(map[string]any{
		"rule_files": []string{rulesFile}, "evaluation_interval": "1m",
		"tests": []any{map[string]any{"interval": "1m", "input_series": inputs, "promql_expr_test": []query{expect}}},
	})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "test.yaml")
	require.NoError(t, os.WriteFile(file, text, 0o600))
	promtool(t, "test", "rules", file)
}
