package main

import (
	"fmt"
	"strings"
)

// A target is what was set as a goal before it was measured.
type target struct {
	what  string
	least float64 // 0: none
	most  float64 // 0 beside a least: none
	value func(*measurements) (float64, bool)
	unit  string
	why   string // it is missed, should it be
}

// query is a measurement; over is what it is divided by, less what it is reduced by.
type query struct {
	bench, unit string
	dims        []string
}

func (q query) of(m *measurements) (float64, bool) { return m.median(q.bench, q.unit, q.dims...) }

func requestOf(impl string, n, cpu int) query {
	return query{"Request", "ns/op", append(goroutinesOn(n, cpu), "impl="+impl)}
}

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

const clockAndLock = "A clock and a lock alone are more than half of it (see the floor); what is left finds the bucket, pays, and keeps what was paid " +
	"so that it can be given back."

func targets() []target {
	xtime := requestOf("xtime", 1, 1)
	denied := func(impl string) query {
		return query{"Limiter", "ns/op", append(goroutinesOn(1, 2), "op=denied", "impl="+impl)}
	}
	waiter := func(impl string) query {
		return query{"Waiters", "B/waiter", []string{"n=100000", "cpu=2", "impl=" + impl}}
	}
	everything := query{"Request", "allocs/op", append(goroutinesOn(1, 1), "impl=throttle-everything")}
	all := []target{
		{what: "a request through one limit, of x/time/rate's wrapper", most: 0.6, value: share(requestOf("throttle", 1, 1), xtime),
			why: "The headers of each answer are read for what the server says of its limits, which a wrapper does not: to go through a map of six takes nearly " +
				"as long as all the rest. The next row is like for like."},
		{what: "the same without server hints, so that it does no more than the wrapper", most: 0.6, value: share(requestOf("throttle-deaf", 1, 1), xtime),
			why: clockAndLock},
		{what: "a request through one limit, of failsafehttp with its rate limiter", most: 0.06,
			value: share(requestOf("throttle", 1, 1), requestOf("failsafe", 1, 1)), why: "The same headers. " + clockAndLock},
		{what: "everything on, more than bare", most: 200, unit: " ns", value: more(requestOf("throttle-everything", 1, 1), requestOf("bare", 1, 1)),
			why: "Four limits each look up the bucket of a key, the gate of what the server has said is a fifth, the answer is reported to two of them, and " +
				"net/http's ServeMux finds the weight: that alone is more than half of what was set. One pattern language that everybody knows is worth it."},
		{what: "everything on, allocations", most: 0, value: everything.of,
			why: "One is ServeMux's, for what a wildcard matched; one is where five charges are noted: there is room for four without."},
		{what: "64 goroutines on 2 CPUs, of x/time/rate's wrapper", most: 0.7, value: share(requestOf("throttle", 64, 2), requestOf("xtime", 64, 2)),
			why: "The headers again."},
		{what: "the same without server hints", most: 0.7, value: share(requestOf("throttle-deaf", 64, 2), requestOf("xtime", 64, 2)),
			why: "The clock is read under the lock here, so that nothing is granted by a time that has passed; x/time/rate reads it before, and grants more " +
				"than its rate allows."},
		{what: "a refusal by the limiter, of x/time/rate's", most: 0.5, value: share(denied("throttle"), denied("xtime")),
			why: "A clock and a lock alone are about half of x/time/rate's, and a refusal of ours says which limit binds and, exactly, how long it would take."},
		{what: "a waiter, more than a goroutine on a channel", most: 400, unit: " B", value: more(waiter("throttle"), waiter("channel"))},
	}
	all = append(all, loopbackTargets()...)
	return append(all, lineTargets()...)
}

func loopbackTargets() (all []target) {
	for i, protocol := range []string{"http1", "http2"} {
		name := []string{"HTTP/1.1", "HTTP/2"}[i]
		for _, n := range []int{1, 64} {
			q := query{"Loopback", "%ofBare", append(goroutinesOn(n, 2), "protocol="+protocol, "impl=throttle")}
			all = append(all, target{what: fmt.Sprintf("over a loopback socket, %s, %s, of bare", name, plural(n, "goroutine")),
				most: 102, unit: " %", value: q.of, why: loopback})
		}
	}
	return all
}

func lineTargets() (all []target) {
	for _, c := range lineTable().columns {
		q := query{c.bench, c.unit, append([]string{"impl=throttle"}, c.dims...)}
		t := target{what: "lines that change: " + plain(c.head) + ", of the ideal", least: 99, most: 101, unit: " %", value: q.of}
		all = append(all, t)
	}
	for _, r := range []string{"1000", "50000"} {
		for _, p := range []string{"p50", "p99"} {
			late := func(impl string) query {
				return query{"Lateness", p + "-µs-late", []string{"rate=" + r, "cpu=2", "impl=" + impl}}
			}
			all = append(all, target{what: "lateness at " + group(r) + "/s, " + p + ", of time.Sleep's (a tenth is noise)", most: 1.1,
				value: share(late("throttle"), late("sleep")),
				why:   "Both are late by the runtime's timers, which fire once in a millisecond; whoever is due by then goes one after the other, over a lock."})
		}
	}
	return all
}

func renderTargets(m *measurements, b *strings.Builder) { writeTargets(m, b, targets()) }

func writeTargets(m *measurements, b *strings.Builder, targets []target) {
	var missed strings.Builder
	b.WriteString("| target | set | measured | |\n|---|---:|---:|---|\n")
	for _, t := range targets {
		x, ok := t.value(m)
		if !ok {
			continue
		}
		set := "≤ " + number(t.most) + t.unit
		switch {
		case t.least > 0 && t.most > 0:
			set = number(t.least) + " to " + number(t.most) + t.unit
		case t.least > 0:
			set = "≥ " + number(t.least) + t.unit
		}
		verdict := "pass"
		if x < t.least || x > t.most && (t.most > 0 || t.least == 0) {
			verdict = "**fail**"
			if t.why != "" {
				fmt.Fprintf(&missed, "- **%s**: %s\n", t.what, t.why)
			}
		}
		fmt.Fprintf(b, "| %s | %s | %s%s | %s |\n", t.what, set, number(x), t.unit, verdict)
	}
	b.WriteString("\n")
	if missed.Len() > 0 {
		fmt.Fprintf(b, "Where one is missed:\n\n%s\n", missed.String())
	}
}
