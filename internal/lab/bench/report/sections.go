package main

import "fmt"

var clientImpls = []string{
	"bare", "xtime", "uber", "failsafe", "failsafe-adaptive", "resty", "resty-client", "gofri",
	"throttle", "throttle-deaf", "throttle-host", "throttle-weights", "throttle-three", "throttle-adaptive", "throttle-told", "throttle-everything",
}

var limiterImpls = []string{
	"xtime", "uber", "failsafe", "failsafe-adaptive", "resty", "juju", "sethvargo", "throttled", "client-go", "semaphore",
	"throttle", "throttle-key", "throttle-three", "throttle-429",
}

var pacerImpls = []string{"sleep", "xtime", "uber", "failsafe", "resty", "juju", "client-go", "throttle"}

// A section is a part of the page.
type section struct {
	title, note string
	parts       []part
}

// A part of a section is a table.
type part interface{ render(*measurements, *report) }

// adapting is the title before which the section about budgets over Redis stands.
const adapting = "Adapting"

func sections() []section {
	all := []section{
		{"The cost of a request", "These requests need not wait.\n\n![ns per request](request.svg)",
			[]part{requestTable(), loopbackTable("http1", "HTTP/1.1 over a loopback socket"), loopbackTable("http2", "HTTP/2 over a loopback socket")}},
		{"The cost of the limiter alone", "On 2 CPUs. The ratio to x/time/rate is in brackets.", []part{floorTable(),
			limiterTable("try", "Granted", "These calls never wait."), limiterTable("wait", "Granted by Wait", "These calls could wait, but need not."),
			limiterTable("denied", "Rejected", "These calls find no tokens and do not wait.")}},
		{"Waiting", "", nil},
		{"Keys", "", []part{keysTable()}},
		{"Scale", "![µs that other callers wait](scale.svg)", nil},
		{"Observability", "", []part{observeTable{}}},
		{adapting, "The real code of each implementation runs against the same servers, in bubbles of `testing/synctest`. There are 50 callers that always have another request, unless\n" +
			"the name of the scene says otherwise. The fixed rates stand for a client that knows the limit, or has guessed half or double of it.\n" +
			"Scenes with hundreds of callers are played once for the others.\n\n![Requests per second over time](adapting.svg)", nil},
	}
	for _, t := range waiterTables() {
		all[2].parts = append(all[2].parts, t)
	}
	all[2].parts = append(all[2].parts, latenessTable(), hammerTable(), lineTable(), picture("![Queues that change](line.svg)"))
	for _, t := range scaleTables {
		all[4].parts = append(all[4].parts, t)
	}
	for _, t := range sceneTables {
		all[6].parts = append(all[6].parts, t)
	}
	return all
}

// A picture stands between tables.
type picture string

func (p picture) render(_ *measurements, r *report) { r.tables.WriteString(string(p) + "\n\n") }

func requestTable() table {
	t := table{
		id: "request", title: "In memory",
		note: "The server responds immediately, with six headers that say nothing about limits. The time of a request in ns, and in brackets its ratio to that\n" +
			"of a wrapper of ten lines around x/time/rate. The bucket of resty has the same wrapper. Resty's whole client also builds requests and reads responses.",
		rows: clientImpls,
	}
	for _, n := range []int{1, 64} {
		for _, cpu := range []int{1, 2} {
			t.columns = append(t.columns, column{
				id: fmt.Sprintf("%d-%d", n, cpu), head: fmt.Sprintf("%s,<br>%s, ns", plural(n, "goroutine"), plural(cpu, "CPU")),
				bench: "Request", unit: "ns/op", dims: goroutinesOn(n, cpu), ratioTo: "xtime",
			})
		}
	}
	t.columns = append(t.columns, costs("Request", goroutinesOn(1, 1))...)
	return t
}

func loopbackTable(protocol, title string) table {
	t := table{
		id: protocol, title: title,
		note: "Each client takes turns with a bare one, block by block. The figure is the median of the ratios of two neighbours, in percent. The bare client is\n" +
			"compared with itself: its distance from 100 is the machine's noise. Bytes and allocations include the server's.",
		rows: clientImpls,
	}
	for _, n := range []int{1, 64} {
		for _, cpu := range []int{1, 2} {
			t.columns = append(t.columns, column{
				id: fmt.Sprintf("%d-%d", n, cpu), head: fmt.Sprintf("%s,<br>%s, %% of bare", plural(n, "goroutine"), plural(cpu, "CPU")),
				bench: "Loopback", unit: "%ofBare", dims: append(goroutinesOn(n, cpu), "protocol="+protocol),
			})
		}
	}
	one := append(goroutinesOn(1, 2), "protocol="+protocol)
	t.columns = append(t.columns, column{id: "ns", head: "1 goroutine,<br>2 CPUs, ns", bench: "Loopback", unit: "ns/op", dims: one, better: neither})
	for _, c := range costs("Loopback", one) {
		c.better = neither
		t.columns = append(t.columns, c)
	}
	return t
}

func goroutinesOn(n, cpu int) []string {
	return []string{fmt.Sprintf("goroutines=%d", n), fmt.Sprintf("cpu=%d", cpu)}
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func costs(bench string, dims []string) []column {
	return []column{
		{id: "bytes", head: "B", bench: bench, unit: "B/op", dims: dims},
		{id: "allocs", head: "allocs", bench: bench, unit: "allocs/op", dims: dims},
	}
}

func limiterTable(op, title, note string) table {
	t := table{id: op, title: title, note: note, rows: limiterImpls}
	for _, n := range []int{1, 64} {
		dims := append(goroutinesOn(n, 2), "op="+op)
		t.columns = append(t.columns, column{
			id: fmt.Sprint(n), head: plural(n, "goroutine") + ", ns", bench: "Limiter", unit: "ns/op", dims: dims, ratioTo: "xtime"})
	}
	t.columns = append(t.columns, costs("Limiter", append(goroutinesOn(1, 2), "op="+op))...)
	return t
}

func floorTable() table {
	return table{
		id: "floor", title: "The floor", note: "This is what every limiter needs, or little more.",
		rows: []string{"time.Since", "lock", "time.Since+lock", "atomic"},
		columns: []column{{id: "1", head: "ns", bench: "Limiter", unit: "ns/op", dims: append(goroutinesOn(1, 2), "op=floor"),
			better: neither}},
	}
}

func waiterTables() []table {
	bytes := table{id: "waiters", title: "Bytes for each waiting request", rows: waiterImpls,
		note: "The figure includes the stack, the heap and the goroutine. In other limiters each waiter has a runtime timer; ours share a queue with one timer."}
	time := table{id: "lineup", title: "Time to begin to wait", rows: waiterImpls, note: "The time in ns for each request, until all requests wait and the processors are idle."}
	var most string
	for _, n := range []string{"1000", "10000", "100000", "1000000"} {
		head := group(n) + " wait"
		dims := []string{"n=" + n, "cpu=2"}
		bytes.columns = append(bytes.columns, column{id: n, head: head, bench: "Waiters", unit: "B/waiter", dims: dims, ratioTo: "channel"})
		time.columns = append(time.columns, column{id: n, head: head, bench: "Waiters", unit: "ns/waiter", dims: dims})
		most = n
	}
	bytes.columns = append(bytes.columns, column{id: "stack", head: "of these stack,<br>100,000 wait", bench: "Waiters", unit: "stackB/waiter",
		dims: []string{"n=100000", "cpu=2"}, better: neither})
	time.columns = append(time.columns, column{id: "idle", head: "% of a CPU while<br>" + group(most) + " wait", bench: "Waiters", unit: "%cpuIdle",
		dims: []string{"n=" + most, "cpu=2"}})
	return []table{bytes, time}
}

// group writes digits in groups.
func group(digits string) string {
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

func latenessTable() table {
	t := table{id: "late", title: "Lateness and order", rows: pacerImpls,
		note: "100 goroutines wait again and again for half a second. The k-th grant is due k intervals after the first; the figure is by how many µs it was\n" +
			"later. Overtaken is the share of 200 requests that came one after the other, at 1,000/s, and were not sent in that order."}
	for _, r := range []string{"1000", "50000"} {
		for _, p := range []string{"p50", "p99"} {
			t.columns = append(t.columns, column{id: p + "-" + r, head: group(r) + "/s,<br>" + p + ", µs", bench: "Lateness", unit: p + "-µs-late",
				dims: []string{"rate=" + r, "cpu=2"}})
		}
	}
	t.columns = append(t.columns, column{id: "overtaken", head: "overtaken, %", bench: "Order", unit: "%overtaken", dims: []string{"cpu=2"}})
	return t
}

func hammerTable() table {
	t := table{id: "hammer", title: "Exactness under contention", rows: []string{"xtime", "failsafe", "juju", "throttle"},
		note: "64 goroutines take tokens from one bucket of 100 as fast as they can, on 2 CPUs. The figure is what was granted, in percent of burst + rate · t. Above 100\n" +
			"the limit is broken. Below 100 the processors are busy, or tokens are lost."}
	for _, op := range []string{"try", "wait"} {
		for _, r := range []string{"10000", "1000000"} {
			t.columns = append(t.columns, column{id: op + "-" + r, head: op + ",<br>" + group(r) + "/s", bench: "Hammer", unit: "%ofAllowed",
				dims: []string{"rate=" + r, "op=" + op, "cpu=2"}, better: hundred})
		}
	}
	return t
}

func lineTable() table {
	up, down := []string{"from=10", "to=1000", "cpu=2"}, []string{"from=10000", "to=100", "cpu=2"}
	return table{id: "line", title: "Queues that change", rows: []string{"xtime", "failsafe", "resty", "client-go", "throttle"},
		note: "1,000 requests wait. In the first column half of them are cancelled: the figure is the time in which the others can be served at best, in percent of\n" +
			"the time it took. In the others the rate changes a hundredfold, where that is possible: the figure is how many requests were sent from 20 ms until\n" +
			"0.4 s and 1 s after the change, in percent of what the new rate allows. 100 is ideal; below 100, the queue continues at the old rate; above 100, the limit is broken.",
		columns: []column{
			{id: "cancelled", head: "half cancelled", bench: "Cancelled", unit: "%ofIdeal", dims: []string{"cpu=2"}, better: hundred},
			{id: "up-0.4", head: "10 → 1,000/s,<br>0.4 s", bench: "Retuned", unit: "%ofIdeal-0.4s", dims: up, better: hundred},
			{id: "up-1", head: "10 → 1,000/s,<br>1 s", bench: "Retuned", unit: "%ofIdeal-1s", dims: up, better: hundred},
			{id: "down-0.4", head: "10,000 → 100/s,<br>0.4 s", bench: "Retuned", unit: "%ofIdeal-0.4s", dims: down, better: hundred},
			{id: "down-1", head: "10,000 → 100/s,<br>1 s", bench: "Retuned", unit: "%ofIdeal-1s", dims: down, better: hundred},
		}}
}

func keysTable() table {
	col := func(load, id, head, unit string) column {
		return column{id: load + "-" + id, head: load + ",<br>" + head, bench: "Keys", unit: unit, dims: []string{"load=" + load, "cpu=2"}}
	}
	return table{id: "keys", title: "Many keys", rows: []string{"xtime-map", "sethvargo", "throttled", "throttle"},
		note: "Live: no bucket is full, and keys come at random. Churning: each key comes once, and its bucket is full again after 10 ms; the heap is measured after\n" +
			"the last request, and some seconds later. One goroutine; bytes without the keys themselves.",
		columns: []column{
			col("live", "new", "ns for a new key", "ns/newKey"), col("live", "request", "ns per request", "ns/request"), col("live", "bytes", "B per key", "B/key"),
			col("churning", "request", "ns per request", "ns/request"), col("churning", "bytes", "B per key", "B/key"),
			col("churning", "idle", "B per key when idle", "B/key-idle"),
		}}
}
