package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// raw is what a run leaves: measurements that are lost, that are won, and one without a reason.
const raw = `m-os: linux/amd64
m-go: go1.26
m-cpus: 2
m-commit: 0123456789ab
m-modules: golang.org/x/time v0.16.0; go.uber.org/ratelimit v0.3.1
m-missing: example.com/none: the module proxy does not serve it
m-run: 3 rounds of 1ms each
goos: linux
cpu: Some CPU
BenchmarkRequest/goroutines=1/impl=bare 	100	 2.000 ns/op	 0 B/op	 0 allocs/op
BenchmarkRequest/goroutines=1/impl=xtime 	100	 80.00 ns/op	 0 B/op	 0 allocs/op
BenchmarkRequest/goroutines=1/impl=xtime 	100	 100.0 ns/op	 0 B/op	 0 allocs/op
BenchmarkRequest/goroutines=1/impl=xtime 	100	 1200 ns/op	 0 B/op	 0 allocs/op
BenchmarkRequest/goroutines=1/impl=throttle 	100	 70.00 ns/op	 0 B/op	 0 allocs/op
BenchmarkRequest/goroutines=1/impl=uber-2 	100	 40.00 ns/op	 0 B/op	 0 allocs/op
BenchmarkRequest/goroutines=1/impl=throttle-2 	100	 70.00 ns/op	 0 B/op	 0 allocs/op
BenchmarkGrantOtel/attached=nothing 1 50 ns/op
BenchmarkGrantOtel/attached=read 1 48 ns/op
BenchmarkGrantProm/attached=nothing 1 50 ns/op
BenchmarkGrantProm/attached=scraped 1 56 ns/op
BenchmarkCancelled/impl=throttle-2 	1	 500000000 ns/op	 99.50 %ofIdeal
BenchmarkCancelled/impl=xtime-2 	1	 1000000000 ns/op	 51.00 %ofIdeal
BenchmarkScale/of=keys/n=1000/op=SetRate-2 1 1000000 ns/op 5.000 µs-stall
BenchmarkScale/of=waiters/n=1000/op=Hold-2 1 1000 ns/op 6.000 µs-stall
BenchmarkScale/of=waiters/n=100000/op=Hold-2 1 1000 ns/op 60.00 µs-stall
BenchmarkScale/of=waiters/n=1000/op=reject_1_in_100-2 1 1000 ns/op 900.0 µs-stall 5000 ns-cpu/rejected
BenchmarkScale/of=waiters/n=100000/op=reject_1_in_100-2 1 1000 ns/op 900.0 µs-stall 6000 ns-cpu/rejected
BenchmarkKeys/load=churning/impl=throttle-2 1 1 ns/op 3.000 B/key
BenchmarkAdapting/scene=token_bucket,_bare_429/impl=throttle 1 90 %goodput 1 %refused 50 p50-ms 60 p99-ms 3.4 s-found
BenchmarkAdapting/scene=token_bucket,_bare_429/impl=aws 1 99 %goodput 0.5 %refused 50 p50-ms 60 p99-ms 3.4 s-found
BenchmarkAdaptingTime/second=0/impl=throttle 1 10 sent 100 limit
BenchmarkAdaptingTime/second=1/impl=throttle 1 0 sent 100 limit
BenchmarkInFlight/scene=16_workers,_45-85_s/impl=throttle 1 99.4 %goodput 1.06 times-p99 0.01 %refused 1 jain
BenchmarkInFlight/scene=16_workers,_45-85_s/impl=failsafe-adaptive 1 93.6 %goodput 1.12 times-p99 0 %refused 1 jain
BenchmarkInFlight/scene=16_workers,_45-85_s/impl=aws 1 100 %goodput 0.9 times-p99 0 %refused 1 jain
BenchmarkOverload/scene=500_above_200_a_second/impl=throttle-rate 1 95.4 %use 40.4 p50-ms 0.12 %failed
BenchmarkOverload/scene=500_above_200_a_second/impl=throttle-both 1 94 %use 40 p50-ms 2 %failed
BenchmarkOverload/scene=500_above_200_a_second/impl=vegas 1 98 %use 39 p50-ms 0.01 %failed
BenchmarkOverload/scene=500_above_200_a_second/impl=gradient2 1 0 %use 0 p50-ms 100 %failed
BenchmarkInFlightLatency/n=8 1 60 mean-ms
BenchmarkInFlightLatency/n=16 1 70 mean-ms
BenchmarkInFlightTime/second=0/impl=throttle 1 300 goodput 80 p99-ms
BenchmarkInFlightTime/second=0/impl=fixed-best 1 310 goodput 70 p99-ms
BenchmarkInFlightTime/second=0/impl=failsafe-adaptive 1 310 goodput 70 p99-ms
`

func TestResultsAreMediansWithRatiosTargetsAndReasons(t *testing.T) {
	m, err := readMeasurements(strings.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	results, targets, unexplained := render(m)
	text := results + targets
	for _, want := range []string{
		"| x/time/rate | 100 (1.00×) |", // the median
		"| **throttle** | 70 (0.70×) |",
		"uber/ratelimit 40. ", "## Where others are better",
		"| Hold | 6 / 0.001 | 60 / 0.001 |",
		"| reject 1 in 100, 100,000 waiting: CPU time for each, of 1,000 waiting | ≤ 1.67 | 1.20 | pass |", "| 900 / 0.001, 6 µs each |",
		"| 1,000,000 keys that come once, heap left | ≤ 8 MB | 3 MB | pass |", "half of them are cancelled",
		"more than without | ≤ 5 ns | -2 ns | pass |",
		"| request through one limit, of the x/time/rate wrapper | ≤ 0.62 | 0.70 | only in some rounds |", // 70 of 1,200 in the third
		"more than without | ≤ 5 ns | 6 ns | **fail** |",
		"| queues that change: half cancelled, of the ideal | 99 to 101 % | 99.5 % | pass |",
		"| token bucket, bare 429 | 90 / 1 | 99 / 0.50 |",
		"| 16 workers, 45-85 s | 99 / 1.06 / 0 | – | – | 94 / 1.12 / 0 | 100 / 0.90 / 0 |", "**16 workers, 45-85 s**: AWS SDK, adaptive mode 100 / 0.90 / 0, ours",
		"| 500 above 200 a second | – | 95 / 40 / 0.1 | – | 94 / 40 / 2.0 | – | – | – | 0 / – / 100.0 | 98 / 39 / 0 |",
		"- **500 above 200 a second**: Netflix, Vegas 98 / 39 / 0. ",
		"golang.org/x/time v0.16.0", "2 × Some CPU", "| missing | example.com/none",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("missing: %s", want)
		}
	}
	if fmt.Sprint(unexplained) != "[goodput/token bucket, bare 429]" {
		t.Errorf("unexplained: %v", unexplained)
	}
	if strings.Contains(text, "Netflix, Gradient2 0 /") {
		t.Error("Gradient2 fails")
	}
	if t.Failed() {
		t.Log(text)
	}
}

func TestWithoutABetterPeerNoReasonIsGiven(t *testing.T) {
	m, err := readMeasurements(strings.NewReader("BenchmarkCancelled/impl=throttle-2 1 99.5 %ofIdeal\nBenchmarkCancelled/impl=xtime-2 1 51 %ofIdeal\n"))
	if err != nil {
		t.Fatal(err)
	}
	if text, _, _ := render(m); strings.Contains(text, "others are better") {
		t.Error(text)
	}
}

func TestSectionOverRedisIsReplacedAlone(t *testing.T) {
	m, err := readMeasurements(strings.NewReader("m-date: 2026-11-22\nm-modules: a.com/x v1; b.com/redis v2\n" +
		"BenchmarkShared/keys=1/impl=throttle-2 1 100 ns/op 0.1 redis-µs/token\nBenchmarkShared/keys=1/impl=redis_rate-2 1 5000 ns/op\n" +
		"BenchmarkSharedLateness/impl=throttle-2 1 700 p50-µs-late 100 p50-µs-trip\nBenchmarkSharedLateness/impl=memory-2 1 650 p50-µs-late\n"))
	if err != nil {
		t.Fatal(err)
	}
	section, unexplained := sharedSection(m)
	for _, want := range []string{
		"2026-11-22", "b.com/redis v2", "| **throttle** |", "| one key, tokens/s of redis_rate's, 2 CPU | ≥ 10 | 50 | pass |",
		"| median lateness, more than in memory, in round trips | ≤ 1 | 0.50 | pass |",
	} {
		if text := section + sharedTargets(m); !strings.Contains(text, want) {
			t.Errorf("missing: %s in\n%s", want, text)
		}
	}
	if len(unexplained) > 0 || strings.Contains(section, "a.com") {
		t.Errorf("unexplained: %v\n%s", unexplained, section)
	}
	for _, text := range []string{"# R\n\n## Keys\n\nk\n\n## Adapting\n\na\n", "# R\n\n## Keys\n\nk\n\n## Shared over Redis\n\nold\n\n## Adapting\n\na\n"} {
		if got, want := replaceSection(text, sharedHead, section), "# R\n\n## Keys\n\nk\n\n"+section+"## Adapting\n\na\n"; got != want {
			t.Errorf("%s", got)
		}
	}
}

func TestNothingMeasuredIsAnError(t *testing.T) {
	if _, err := readMeasurements(strings.NewReader("PASS\n")); err == nil {
		t.Error("no error")
	}
}

func TestPlotsHaveNoGroundAndAnyFont(t *testing.T) {
	m, err := readMeasurements(strings.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := draw(m, dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"request.svg", "line.svg", "adapting.svg", "scale.svg", "deploy-goodput.svg", "deploy-latency.svg", "elasticity.svg"} {
		svg, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
			continue
		}
		if s := string(svg); strings.Contains(s, "#FFFFFF") || !strings.Contains(s, "sans-serif") {
			t.Errorf("%s has a white ground, or a font that some readers lack", name)
		}
	}
}

func TestNumbersAreGrouped(t *testing.T) {
	for x, want := range map[float64]string{0: "0", 3: "3", 0.0123: "0.012", 1.234: "1.23", 12.34: "12.3", 123.4: "123", 1234: "1,234", 1234567.8: "1,234,568", -1234: "-1,234"} {
		if got := number(x); got != want {
			t.Errorf("%v: %s, want %s", x, got, want)
		}
	}
}
