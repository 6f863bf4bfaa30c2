package main

import (
	"fmt"
	"slices"
	"strings"
)

// A target is what was set before it was measured. A goal is one that need not be reached.
type target struct {
	what  string
	least float64 // 0: none
	most  float64
	value func(*measurements) (float64, bool)
	unit  string
	goal  bool
	why   string // it is missed, if it is
}

// A query is one measurement.
type query struct {
	bench, unit string
	dims        []string
}

func (q query) of(m *measurements) (float64, bool) { return m.median(q.bench, q.unit, q.dims...) }

func requestOf(impl string, n, cpu int) query {
	return query{"Request", "ns/op", append(goroutinesOn(n, cpu), "impl="+impl)}
}

// allocs is the same measurement in allocations.
func (q query) allocs() query { return query{q.bench, "allocs/op", q.dims} }

func share(a, b query) func(*measurements) (float64, bool) {
	return func(m *measurements) (float64, bool) {
		x, ok1 := a.of(m)
		y, ok2 := b.of(m)
		return x / y, ok1 && ok2
	}
}

func more(a, b query) func(*measurements) (float64, bool) {
	return func(m *measurements) (float64, bool) {
		x, ok1 := a.of(m)
		y, ok2 := b.of(m)
		return x - y, ok1 && ok2
	}
}

// times returns a measurement in another unit.
func times(q query, factor float64) func(*measurements) (float64, bool) {
	return func(m *measurements) (float64, bool) {
		x, ok := q.of(m)
		return x * factor, ok
	}
}

const (
	clockAndLock = "Reading the clock and taking the lock takes more than half of the time (see the floor). The rest finds the bucket, charges it, and keeps the charge so that it " +
		"can be given back."
	memoryBound = "A million keys do not fit into the caches of the processor: nearly all of the time is spent waiting for memory."
)

func targets(m *measurements) []target {
	all := requestTargets()
	all = append(all, keyTargets()...)
	all = append(all, scaleTargets()...)
	all = append(all, observeTargets()...)
	all = append(all, loopbackTargets()...)
	all = append(all, lineTargets()...)
	return append(all, bodyTargets(m)...)
}

func requestTargets() []target {
	xtime := requestOf("xtime", 1, 1)
	denied := func(impl string) query {
		return query{"Limiter", "ns/op", append(goroutinesOn(1, 2), "op=denied", "impl="+impl)}
	}
	weights, everything, synthetic := requestOf("throttle-weights", 1, 1), requestOf("throttle-everything", 1, 1), denied("throttle-429")
	return []target{
		{what: "request through one limit, of the x/time/rate wrapper", most: 0.62, value: share(requestOf("throttle", 1, 1), xtime), why: clockAndLock},
		{what: "the same without server hints", most: 0.62, value: share(requestOf("throttle-deaf", 1, 1), xtime), why: clockAndLock},
		{what: "64 goroutines on 2 CPUs, of the x/time/rate wrapper", most: 0.68, value: share(requestOf("throttle", 64, 2), requestOf("xtime", 64, 2)),
			why: "The goroutines wait for one lock, and the cache lines behind it move between the processors."},
		{what: "weights, three patterns, of the x/time/rate wrapper", most: 0.88, value: share(weights, xtime), why: clockAndLock},
		{what: "weights, allocations", value: weights.allocs().of},
		{what: "rejection by Try, of x/time/rate's Allow", most: 0.6, value: share(denied("throttle"), denied("xtime")),
			why: "A rejection computes exactly how long the request would have to wait, and is counted by its reason."},
		{what: "synthetic 429, of the x/time/rate wrapper", most: 7, value: share(synthetic, xtime), why: "A whole response is made, with its header, its body and its request."},
		{what: "synthetic 429, allocations", most: 7, value: synthetic.allocs().of},
		{what: "everything on, of the x/time/rate wrapper", most: 5.8, value: share(everything, xtime),
			why: "Four limits each find the bucket of a key, the server's quota is a fifth bucket, the headers are read, and the outcome is reported under a second lock."},
		{what: "everything on, allocations", value: everything.allocs().of},
	}
}

func keyTargets() []target {
	keys := func(load, impl, unit string) query {
		return query{"Keys", unit, []string{"load=" + load, "impl=" + impl, "cpu=2"}}
	}
	return []target{
		{what: "1,000,000 live keys, bytes for each", most: 205, unit: " B", value: keys("live", "throttle", "B/key").of},
		{what: "1,000,000 live keys, a request, of a map of x/time/rate", most: 0.91, value: share(keys("live", "throttle", "ns/request"), keys("live", "xtime-map", "ns/request")), why: memoryBound},
		{what: "1,000,000 keys that come once, heap left", most: 8, unit: " MB", value: times(keys("churning", "throttle", "B/key"), 1)}, // of a million, so B are MB
	}
}

// scaleTargets are for what an operation costs over many waiting requests.
func scaleTargets() []target {
	return []target{{what: "reject 1 in 100, 100,000 waiting: CPU time for each, of 1,000 waiting", most: 5. / 3, goal: true, // as their logarithms
		value: share(rejectedFor("100000", "reject_1_in_100"), rejectedFor("1000", "reject_1_in_100")),
		why: "The number of requests that are visited grows like that, which a test counts. 1,000 of them fit into the caches of the processor, and " +
			"100,000 do not."}}
}

// observeTargets are for what it costs to be observed.
func observeTargets() []target {
	grant := func(bench, attached string) query {
		return query{bench, "ns/op", []string{"attached=" + attached, "cpu=1"}}
	}
	const locked = "A reading takes the lock for some microseconds."
	return []target{
		{what: "grant with a Prometheus collector, scraped 100 times a second, more than without", most: 5, unit: " ns",
			value: more(grant("GrantProm", "scraped"), grant("GrantProm", "nothing")), why: locked},
		{what: "grant with an OpenTelemetry producer, read 100 times a second, more than without", most: 5, unit: " ns",
			value: more(grant("GrantOtel", "read"), grant("GrantOtel", "nothing")), why: locked},
		{what: "scrape with 100,000 keys", most: 1, unit: " ms", value: times(query{"Scrape", "ns/op", []string{"keys=100000", "cpu=1"}}, 1e-6)},
		{what: "Buckets over 100,000 keys", most: 100, unit: " ms", value: times(query{"Observe", "ns/op", []string{"read=Buckets", "cpu=2"}}, 1e-6)},
	}
}

func loopbackTargets() (all []target) {
	for i, protocol := range []string{"http1", "http2"} {
		name := []string{"HTTP/1.1", "HTTP/2"}[i]
		for _, n := range []int{1, 64} {
			q := query{"Loopback", "%ofBare", append(goroutinesOn(n, 2), "protocol="+protocol, "impl=throttle")}
			all = append(all, target{what: fmt.Sprintf("request over a loopback socket, %s, %s, of bare", name, plural(n, "goroutine")),
				most: 102, unit: " %", value: q.of, why: loopback})
		}
	}
	return all
}

func lineTargets() []target {
	var all []target
	for _, c := range lineTable().columns {
		q := query{c.bench, c.unit, append([]string{"impl=throttle"}, c.dims...)}
		all = append(all, target{what: "queues that change: " + plain(c.head) + ", of the ideal", least: 99, most: 101, unit: " %", value: q.of,
			why: "At 100 per second there are 40 requests in 0.4 s, so a single request that a busy machine sends late is more than a hundredth."})
	}
	late := func(impl string) query {
		return query{"Lateness", "p50-µs-late", []string{"rate=50000", "cpu=2", "impl=" + impl}}
	}
	waiters := func(unit, impl string) query {
		return query{"Waiters", unit, []string{"n=100000", "cpu=2", "impl=" + impl}}
	}
	return append(all,
		target{what: "a waiting request, more than a goroutine on a channel", most: 400, unit: " B", value: more(waiters("B/waiter", "throttle"), waiters("B/waiter", "channel")),
			why: "To find its place in the queue takes more than 2 kB of stack, so the runtime gives the goroutine 4 kB. One that waits on a channel keeps 2 kB."},
		target{what: "lateness at 50,000/s, p50, of time.Sleep", most: 1.35, goal: true, value: share(late("throttle"), late("sleep")),
			why: "The runtime fires timers about once in a millisecond. The requests that are due by then are granted one after the other, under a lock."},
		target{what: "100,000 requests begin to wait, each", most: 2, unit: " µs", goal: true, value: times(waiters("ns/waiter", "throttle"), 1e-3),
			why: "Each is planned under the lock, and knows its wait before it begins."})
}

// bodyTargets are for reading costs in bodies as they pass.
func bodyTargets(m *measurements) (all []target) {
	for _, load := range m.order["CopyTCP/load"] {
		if slices.Contains(observedBodies, load) {
			all = append(all, target{what: "finding a cost in a body over loopback TCP, " + spaced(load) + ", of io.Copy", least: 0.8, goal: true,
				value: query{"CopyTCP", "ofCopy", []string{"load=" + load, "cpu=2"}}.of,
				why:   "Each byte is looked at once more. Loopback is ten times as fast as most networks."})
		}
	}
	return all
}

// set returns what a target asks for.
func (t target) set() string {
	switch {
	case t.least > 0 && t.most > 0:
		return number(t.least) + " to " + number(t.most) + t.unit
	case t.least > 0:
		return "≥ " + number(t.least) + t.unit
	}
	return "≤ " + number(t.most) + t.unit
}

func (t target) reached(x float64) bool {
	return (t.least == 0 || x >= t.least) && (x <= t.most || t.most == 0 && t.least > 0)
}

// reachedOnce reports whether a round reaches the target.
func (t target) reachedOnce(m *measurements) bool {
	for one := range m.rounds() {
		if x, ok := t.value(one); ok && t.reached(x) {
			return true
		}
	}
	return false
}

// verdict returns whether the median x reaches the target, in words, and whether the target is reached in the median or in a round.
func (t target) verdict(m *measurements, x float64) (string, bool) {
	switch {
	case t.reached(x):
		return "pass", true
	case t.reachedOnce(m):
		return "only in some rounds", true
	case t.goal:
		return "goal, not required", false
	}
	return "**fail**", false
}

// renderTargets returns TARGETS.md.
func renderTargets(m *measurements) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Targets\n\n`make bench` and `go run ./report -targets` write this page. It was measured at %s on %s: %s, %s × %s. Targets were set before the measurement. "+
		"The figures are medians of all rounds, and a target is missed if each round misses it: on a shared machine a single round misses targets that a quiet one reaches. "+
		"The time of a request is a share of another limiter's in the same round, because machines differ: where these targets were set, the x/time/rate wrapper took 91 ns.\n\n## In one process\n\n",
		m.config["m-commit"], m.config["m-date"], m.config["m-shared"], m.config["m-cpus"], m.config["cpu"])
	writeTargets(m, &b, targets(m))
	b.WriteString(sharedTargets(m))
	return b.String()
}

func writeTargets(m *measurements, b *strings.Builder, targets []target) {
	var missed strings.Builder
	b.WriteString("| target | set | measured | |\n|---|---:|---:|---|\n")
	for _, t := range targets {
		x, ok := t.value(m)
		if !ok {
			continue
		}
		verdict, reached := t.verdict(m, x)
		if !reached && t.why != "" {
			fmt.Fprintf(&missed, "- **%s**: %s\n", t.what, t.why)
		}
		fmt.Fprintf(b, "| %s | %s | %s%s | %s |\n", t.what, t.set(), number(x), t.unit, verdict)
	}
	b.WriteString("\n")
	if missed.Len() > 0 {
		fmt.Fprintf(b, "Why targets are missed:\n\n%s\n", missed.String())
	}
}
