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

func requestTable() table {
	t := table{
		id: "request", title: "In memory",
		note: "The server answers at once, with six headers that say nothing of limits. ns per request, and its ratio to the ten-line wrapper\n" +
			"of x/time/rate. The bucket of resty stands in the same ten lines; its whole client builds requests and reads answers itself.",
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
		note: "Each client takes turns with a bare one, block by block: the share is the median of the ratios of neighbours, in percent. How far\n" +
			"the bare client is from 100, compared with itself, is what the machine adds. Bytes and allocations are the server's too.",
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
		id: "floor", title: "The floor", note: "What no limiter can do without, or little more.",
		rows: []string{"time.Since", "lock", "time.Since+lock", "atomic"},
		columns: []column{{id: "1", head: "ns", bench: "Limiter", unit: "ns/op", dims: append(goroutinesOn(1, 2), "op=floor"),
			better: neither}},
	}
}

func waiterTables() []table {
	bytes := table{id: "waiters", title: "Bytes for each that waits", rows: waiterImpls,
		note: "Stack and heap, with its goroutine. The others' waiters are timers of the runtime; ours stand in one line before one timer."}
	time := table{id: "lineup", title: "Time to line up", rows: waiterImpls, note: "ns for each, until all wait and the processors rest."}
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
		note: "100 goroutines wait again and again for half a second. The k-th grant is due k intervals after the first: µs by which they\n" +
			"went later, and who was overtaken of 200 that had lined up one after the other at 1,000/s."}
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
		note: "64 goroutines take from one bucket of 100 as fast as they can, on 2 CPUs: granted, in percent of burst + rate · t. Above 100 the\n" +
			"limit is broken; below, the processors are busy or tokens are lost."}
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
	return table{id: "line", title: "Lines that change", rows: []string{"xtime", "failsafe", "resty", "client-go", "throttle"},
		note: "1,000 wait. Half of them are cancelled: the time in which the rest could have been served at best, in percent of the time it took.\n" +
			"Or the rate is changed a hundredfold, for those who can: how many were served from 20 ms until 0.4 s\nand 1 s after it, in percent of what the " +
			"new rate allows. 100 is ideal, for less the line goes on at the old rate, for more the limit is broken.",
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
		note: "Live: all keys have buckets that are not full, and are asked for at random. Churning: each comes once, and its bucket is full again\n" +
			"after 10 ms; what is left is looked at after the last request, and some seconds later. One goroutine; bytes without the keys themselves.",
		columns: []column{
			col("live", "new", "ns for a new key", "ns/newKey"), col("live", "request", "ns per request", "ns/request"), col("live", "bytes", "B per key", "B/key"),
			col("churning", "request", "ns per request", "ns/request"), col("churning", "bytes", "B per key", "B/key"),
			col("churning", "idle", "B per key when idle", "B/key-idle"),
		}}
}
