package main

import (
	"fmt"
	"slices"
	"strings"
)

const (
	sharedHead        = "## Shared over Redis\n"
	sharedTargetsHead = "## Over Redis\n" // in TARGETS.md
)

const coldKeys = "Each token needs a decision of its own here, so only the sending is shared. Redis spends about three quarters of what a call of " +
	"redis_rate takes it, because a bucket that promises tokens, takes them back and can owe them has a dozen numbers, and the scripts keep one. " +
	"The program spends about as much as with redis_rate: each request waits in a queue that its context, a priority or another rate can change."

// sharedStages are the stages that need redis-server. Without it they measure nothing, and the section is left out.
var sharedStages = []stage{
	{bench: "^BenchmarkShared$", cpu: "1,2"},
	{bench: "^BenchmarkSharedGrant$", cpu: "2"},
	{bench: "^BenchmarkSharedLateness$", cpu: "2", benchtime: "1x"},
}

var sharedImpls = []string{"redis_rate", "counter", "gcra", "throttle-nothing-ahead", "throttle"}

func sharedQuery(unit, keys, cpu, impl string) query {
	return query{"Shared", unit, []string{"keys=" + keys, "cpu=" + cpu, "impl=" + impl}}
}

func sharedTable(keys, title string) table {
	t := table{
		id: "shared-" + keys, title: title, rows: sharedImpls,
		note: "Each of 64 callers asks for the next token as soon as it has one. In brackets the ratio to redis_rate v10. The scripts run once for\n" +
			"each token, through rueidis. The processor times are those of the program and of Redis.",
	}
	for _, cpu := range []int{1, 2} {
		dims := []string{"keys=" + keys, fmt.Sprintf("cpu=%d", cpu)}
		col := func(id, head, unit string) column {
			return column{id: fmt.Sprintf("%s-%d", id, cpu), head: head + ",<br>" + plural(cpu, "CPU"), bench: "Shared", unit: unit, dims: dims}
		}
		time := col("time", "ns per token", "ns/op")
		time.ratioTo = "redis_rate"
		program, redis := col("program", "program, µs", "cpu-µs/token"), col("redis", "Redis, µs", "redis-µs/token")
		program.better, redis.better = neither, neither
		t.columns = append(t.columns, time, program, redis)
	}
	return t
}

// sharedSection is the section about budgets over Redis; "": none was measured.
func sharedSection(m *measurements) (text string, unexplained []string) {
	if _, ok := sharedQuery("ns/op", "1", "2", "throttle").of(m); !ok {
		return "", nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, sharedHead+"\nMeasured on %s with %s, commit %s, redis-server on loopback on the same machine, %s; medians of %s.\n\n"+
		"Where the machine does other work as well, the processor times say more than the times per token.\n\n",
		m.config["m-date"], m.config["m-go"], m.config["m-commit"], strings.Join(redisModules(m), ", "), m.config["m-shared"])
	r := newReport()
	for _, t := range []table{
		sharedTable("1", "One key"), sharedTable("10000", "10,000 keys at random"),
		{
			id: "shared-grant", title: "A grant while tokens are available", rows: []string{"memory", "throttle"},
			columns: append([]column{{id: "ns", head: "ns", bench: "SharedGrant", unit: "ns/op", dims: []string{"cpu=2"}, ratioTo: "memory", better: neither}},
				neitherBetter(costs("SharedGrant", []string{"cpu=2"}))...),
		},
		{
			id: "shared-late", title: "Lateness at 1,000/s", rows: []string{"memory", "throttle"}, note: "µs, as under *Lateness and order*; beside it the median round trip to Redis: of a PING each millisecond, and of the calls that the Limiter makes.",
			columns: []column{
				{id: "p50", head: "p50", bench: "SharedLateness", unit: "p50-µs-late", dims: []string{"cpu=2"}, better: neither},
				{id: "p99", head: "p99", bench: "SharedLateness", unit: "p99-µs-late", dims: []string{"cpu=2"}, better: neither},
				{id: "trip", head: "round trip", bench: "SharedLateness", unit: "p50-µs-trip", dims: []string{"cpu=2"}, better: neither},
			},
		},
	} {
		t.render(m, r)
	}
	b.WriteString(r.tables.String())
	if len(r.titles) > 0 {
		b.WriteString("Others are better in these columns:\n\n")
		r.renderLost(&b)
	}
	return b.String(), r.unexplained
}

func redisModules(m *measurements) []string {
	return slices.DeleteFunc(strings.Split(m.config["m-modules"], "; "), func(module string) bool { return !strings.Contains(module, "redis") })
}

func neitherBetter(columns []column) []column {
	for i := range columns {
		columns[i].better = neither
	}
	return columns
}

// sharedTargets is the section of TARGETS.md for budgets over Redis.
func sharedTargets(m *measurements) string {
	faster := func(keys, cpu, impl string) func(*measurements) (float64, bool) {
		return share(sharedQuery("ns/op", keys, cpu, "redis_rate"), sharedQuery("ns/op", keys, cpu, impl))
	}
	work := func(keys, cpu string) func(*measurements) (float64, bool) {
		return func(m *measurements) (float64, bool) {
			var sum [2]float64
			for i, impl := range []string{"throttle", "redis_rate"} {
				for _, unit := range []string{"cpu-µs/token", "redis-µs/token"} {
					x, ok := sharedQuery(unit, keys, cpu, impl).of(m)
					if !ok {
						return 0, false
					}
					sum[i] += x
				}
			}
			return sum[0] / sum[1], true
		}
	}
	late := func(unit, impl string) query { return query{"SharedLateness", unit, []string{"cpu=2", "impl=" + impl}} }
	var targets []target
	for _, cpu := range []string{"1", "2"} {
		of := " tokens/s of redis_rate's, " + cpu + " CPU"
		targets = append(targets,
			target{what: "one key," + of, least: 10, value: faster("1", cpu, "throttle")},
			target{what: "one key, nothing leased ahead," + of, least: 5, value: faster("1", cpu, "throttle-nothing-ahead"),
				why: "All 64 callers share a call, but each must be queued and woken, which takes most of the remaining time."},
			target{what: "10,000 keys," + of, least: 2, value: faster("10000", cpu, "throttle"), why: coldKeys},
			target{what: "10,000 keys, processor time of program and Redis, of redis_rate's, " + cpu + " CPU", most: 0.5, value: work("10000", cpu),
				why: coldKeys})
	}
	targets = append(targets,
		target{what: "a grant while tokens are available, of one in memory", most: 1.5,
			value: share(query{"SharedGrant", "ns/op", []string{"cpu=2", "impl=throttle"}}, query{"SharedGrant", "ns/op", []string{"cpu=2", "impl=memory"}})},
		target{what: "its allocations", most: 0, value: query{"SharedGrant", "allocs/op", []string{"cpu=2", "impl=throttle"}}.of},
		target{what: "median lateness, more than in memory, in round trips", most: 1, value: func(m *measurements) (float64, bool) {
			more, ok := more(late("p50-µs-late", "throttle"), late("p50-µs-late", "memory"))(m)
			trip, known := late("p50-µs-trip", "throttle").of(m)
			return more / trip, ok && known
		}, why: "The second request comes before anything is known of the use, so it waits for a response, in which the bucket of one token is " +
			"full: this delay stays. So does that of each ask that a busy machine sends too late, because a shared bucket never makes up for lost " +
			"time; in memory, 20 ms are made up for. In simulated time, half of a round trip is the median."})
	var b strings.Builder
	b.WriteString(sharedTargetsHead + "\n")
	writeTargets(m, &b, targets)
	return b.String()
}

// replaceSection puts a section, which begins with head, in the place of the one in a text, or before the section about
// adapting, or at the end.
func replaceSection(text, head, section string) string {
	begin := strings.Index(text, head)
	if begin < 0 {
		if begin = strings.Index(text, "## Adapting\n"); begin < 0 {
			begin = len(text)
		}
		return text[:begin] + section + text[begin:]
	}
	rest := text[begin+len(head):]
	if end := strings.Index(rest, "\n## "); end >= 0 {
		return text[:begin] + section + rest[end+1:]
	}
	return text[:begin] + section
}
