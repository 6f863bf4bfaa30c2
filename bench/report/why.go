package main

// why says why others are better in a column of a table. It is printed only where they are.
func why(table, column string) string {
	if reason, ok := reasons[table+"/"+column]; ok {
		return reason
	}
	return reasons[table]
}

const loopback = "A request takes tens of microseconds here, of which the limits are about one at most: what is beyond that is the machine's."

var reasons = map[string]string{
	"request": "Ours reads the headers of each answer for limits, which is most of the difference to the row without server hints. uber/ratelimit " +
		"keeps a single number that it changes by compare and swap, looks at no context and knows neither costs nor a line; the bucket of resty keeps no " +
		"line, so that whoever asks again first goes first.",
	"http1": loopback,
	"http2": loopback,
	"try": "A semaphore does not look at the clock, and failsafe-go keeps a single instant. Ours looks for the bucket of each limit and key, and " +
		"whether somebody waits there, which a caller must not overtake.",
	"wait": "uber/ratelimit is one compare and swap, without a context; a semaphore does not look at the clock; juju/ratelimit looks at no " +
		"context, and resty keeps no line.",
	"denied": "A refusal of ours carries its reason: the limit that binds, the key, the cost, and the wait until it could go, which is computed. The others " +
		"answer false, some of them without looking at the clock.",
	"denied/bytes":  "A whole answer is made.",
	"denied/allocs": "A whole answer is made.",
	"waiters": "One that waits has a place in a line here, of which it can be taken by its context, a neighbour's priority, a hold or another rate; the others " +
		"sleep. Where its call is deeper, its stack is the runtime's next size, which is the double.",
	"lineup": "To line up is to take the lock, to be planned for, and to know the wait before it begins; the others reserve an instant and sleep. The " +
		"more stack each has, the more memory the runtime has to fetch.",
	"late": "One timer lets go whoever is due in the line, and wakes each of them: that costs a hand-over under the lock, and brings order, " +
		"cancellation and rates that reach everyone. The others have a timer of the runtime for each.",
	"late/overtaken": "Who was let go first is not always the first to run again.",
	"hammer": "64 goroutines spin on one lock. What comes while the bucket is full is lost, and it is full when nobody gets round to asking: because " +
		"whoever has the lock was put off its processor, or because a refusal takes longer here.",
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
	"goodput/half load, at random":                       "What differs is a few requests in 15,000.",
	"goodput/ten clients":                                "Each client tests the limit for itself, and all are refused when one does.",
	"goodput/2 per second, burst 5":                      "At two requests a second each test of the limit is a large share of what is sent.",

	"latency": "Where the server queues, others leave capacity unused at times, and their queue is shorter then.",
	"convergence": "Ours starts at 10/s and doubles once a second, where the others begin with no limit at all, or take what they are let have at once; after a " +
		"return it looks for the new limit in steps, and doubles only once the old one is passed.",
	"convergence/limit drops tenfold at 60 s, back at 180 s": "The SDK cuts to 0.7 of the rate at each refusal, and grows with the cube of the time since: that finds " +
		"a new limit sooner in both directions, and costs goodput at every touch of it, as above.",
	"convergence/nginx, delays up to 50":             "The server queues what is too much, so that pressing finds its limit at once: at the latencies above.",
	"convergence/10 servers at 100 ms, queue of 100": "The server queues what is too much, so that pressing finds its limit at once: at the latencies above.",
	"shared-10000": coldKeys,
	"fairness":     "Cuts of a tenth bring shares together more slowly than the SDK's of three tenths, and cost less each time: see the goodput.",
	"outages":      "What is sent before the outage shows, and single requests that look whether it is over.",
}
