package main

// why says why others are better in a column of a table. It is printed only where they are.
func why(table, column string) string {
	if reason, ok := reasons[table+"/"+column]; ok {
		return reason
	}
	return reasons[table]
}

const loopback = "A request takes tens of microseconds here, of which the limits are less than one: what is beyond that is the machine's."

var reasons = map[string]string{
	"request": "Ours reads the headers of each answer for limits, which is most of the difference to the row without server hints. uber/ratelimit " +
		"keeps a single number that it changes by compare and swap, looks at no context and knows neither costs nor a line; the bucket of resty keeps no " +
		"line, so that whoever asks again first goes first.",
	"http1": loopback,
	"http2": loopback,
	"try": "Ours looks for limits by name and key, and whether somebody waits, under one lock. A semaphore does not look at the clock; the others " +
		"have a single bucket, and none of them a line that it would have to respect.",
	"wait": "uber/ratelimit is one compare and swap, without a context; a semaphore does not look at the clock; resty and juju/ratelimit keep no line.",
	"denied": "A refusal of ours carries its reason: the limit that binds, the key, the cost, and the wait until it could go, which is computed. The others " +
		"answer false, some of them without looking at the clock.",
	"denied/bytes":  "The reason of the refusal is allocated.",
	"denied/allocs": "The reason of the refusal is allocated.",
	"waiters": "One that waits has a place in a line here, of which it can be taken by its context, a neighbour's priority, a hold or another rate; the others " +
		"sleep. Where its call is deeper, its stack is the runtime's next size, which is the double.",
	"lineup": "To line up is to take the lock, to be planned for, and to know the wait before it begins; the others reserve an instant and sleep. The " +
		"more stack each has, the more memory the runtime has to fetch.",
	"late": "One timer wakes the head of the line, who wakes the next: that costs a hand-over, and brings order, cancellation and rates that reach " +
		"everyone. What the others show is the runtime's timers.",
	"late/overtaken": "Who was let go first is not always the first to run again.",
	"hammer": "Where 64 goroutines spin, a processor is busy with whoever has the lock, and what is granted is what the processors achieve: tokens " +
		"that come while the bucket is full are lost. Ours does more under its lock.",
	"line": "The count of those who were served is taken while they are being woken.",
	"keys": "A bucket of ours can have a line, holds and a rate of its own, and has a place in the order in which buckets are forgotten; x/time/rate in a map " +
		"and throttled forget nothing. A million of them do not fit into the processor's cache, and ours touches more memory for each.",
	"keys/churning-idle": "What remains is what the map and the order have grown to.",

	"goodput/token bucket, Retry-After":                  "Each test of the limit costs a pause here, in which nothing is sent, and which the others do not keep.",
	"goodput/600 per minute, Retry-After":                "The others do not keep the pause that the server asks for, and spend the window as soon as it opens.",
	"goodput/600 per minute, bare 429":                   "Without a word of the server a window can be found only by pressing until it opens; who presses without a pause is there at once, and is refused more.",
	"goodput/nginx, delays up to 50":                     "The server queues, and is busiest when its queue is full: what that costs is in the table of latencies.",
	"goodput/10 servers at 100 ms, queue of 100":         "The server queues, and is busiest when its queue is full: what that costs is in the table of latencies.",
	"goodput/limit drops tenfold at 60 s, back at 180 s": "The drop is answered by a cut that starts from what was delivered, and the return is looked for in steps.",
	"goodput/1,000 per second, burst 100":                "From 10/s, where it starts, the rate doubles once a second; what is lost is lost then.",
	"goodput/half load, at random":                       "Nothing is refused, and what differs is the requests that were under way at the end.",
	"goodput/ten clients":                                "Each client tests the limit for itself, and all are refused when one does.",
	"goodput/2 per second, burst 5":                      "At two requests a second each test of the limit is a large share of what is sent.",

	"latency": "Where the server queues, others leave capacity unused at times, and their queue is shorter then.",
	"convergence": "Ours starts at 10/s and doubles once a second, where the others begin with no limit at all, or take what they are let have at once; after a " +
		"return it looks for the new limit in steps, and doubles only once the old one is passed.",
	"convergence/nginx, delays up to 50":             "The server queues what is too much, so that pressing finds its limit at once: at the latencies above.",
	"convergence/10 servers at 100 ms, queue of 100": "The server queues what is too much, so that pressing finds its limit at once: at the latencies above.",
	"fairness": "Each touches the limit at a time of its own, and is cut alone.",
	"outages":  "What is sent before the outage shows, and single requests that look whether it is over.",
}
