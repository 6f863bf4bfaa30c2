package main

// why returns why others are better in a column of a table. It is printed only where they are.
func why(table, column string) string {
	if reason, ok := reasons[table+"/"+column]; ok {
		return reason
	}
	return reasons[table]
}

const (
	loopback = "A request takes tens of microseconds here, of which the limits take less than one. The rest is the machine's noise."
	queues   = "The server queues requests, and is busiest while its queue is full. The table of latencies shows what that costs."
)

var reasons = map[string]string{
	"in-flight/a rate of 200 a second binds": "A rate is what this server has; with both, ours is at 117 / 1.00 / 0.1.",
	"in-flight/503 above 4 requests": "All requests take the same time here, so a fifth request that is under way takes the place of one whose response is. A rate " +
		"uses that; with the number 5 some would be refused.",
	"request": "uber/ratelimit keeps a single number and changes it by compare-and-swap; it looks at no context, and has neither costs nor a queue. The bucket " +
		"of resty keeps no queue, so that the caller that asks again first is served first.",
	"http1": loopback,
	"http2": loopback,
	"try": "A semaphore does not read the clock, and failsafe-go keeps a single instant. Ours finds the bucket of each limit and key, and checks that no request " +
		"waits there, because a caller must not overtake.",
	"wait": "uber/ratelimit does one compare-and-swap, without a context. A semaphore does not read the clock, juju/ratelimit looks at no context, and resty " +
		"keeps no queue.",
	"denied": "Our rejection reports the limit, the key, the cost and the wait, which must be computed. The others return false, some of them " +
		"without reading the clock.",
	"denied/bytes":  "A whole response is made.",
	"denied/allocs": "A whole response is made.",
	"waiters": "Our waiter has a place in a queue, which its context, another priority, a hold or a new rate can change. In other limiters the waiter " +
		"sleeps until a fixed instant. A deeper call needs the runtime's next stack size, which is twice as large.",
	"lineup": "To begin to wait, our waiter takes the lock, is planned, and knows its wait in advance. Other limiters reserve an instant and sleep. A larger " +
		"stack also takes the runtime longer to fetch.",
	"late": "One timer grants the requests of a queue that are due, and wakes each of them. The hand-over under the lock costs time, but provides order, " +
		"cancellation and rates that reach all waiters. Other limiters have a runtime timer for each waiter.",
	"late/overtaken": "The request that is granted first is not always the first to run again.",
	"hammer": "64 goroutines spin on one lock. Tokens that arrive while the bucket is full are lost, and it is full while no goroutine asks: " +
		"the one with the lock was taken off its processor, or a rejection takes longer here.",
	"line": "Requests are counted while they are being woken.",
	"keys": "Our bucket can have a queue, holds and a rate of its own, and has a place in the order in which buckets are forgotten. A map of x/time/rate " +
		"and throttled forget nothing. A million buckets do not fit into the processor's caches, and ours touches more memory for each.",
	"keys/churning-idle": "What remains is the size to which the map and the order have grown.",

	"goodput/token bucket, Retry-After":                  "Each test of the limit costs a pause, in which ours sends nothing and the others go on.",
	"goodput/600 per minute, Retry-After":                "The others do not keep the pause that the server asks for, and spend the window as soon as it opens.",
	"goodput/600 per minute, bare 429":                   "Without a hint, a client finds a window only by requests that are refused until it opens. A client that sends without a pause is there first, and is refused more often.",
	"goodput/nginx, delays up to 50":                     queues,
	"goodput/10 servers at 100 ms, queue of 100":         queues,
	"goodput/limit drops tenfold at 60 s, back at 180 s": "A drop is followed by a cut to what was delivered; the return is found in steps.",
	"goodput/1,000 per second, burst 100":                "The rate starts at 10/s and doubles once a second; what is lost is lost then.",
	"goodput/half load, at random":                       "The difference is a few requests of 15,000.",
	"goodput/ten clients":                                "Each client tests the limit for itself, and all are refused when one does.",
	"goodput/2 per second, burst 5":                      "At two requests a second, each test of the limit is a large share of the requests.",

	"latency": "Where the server queues requests, others leave capacity unused at times, and the queue is shorter then.",
	"convergence": "Ours starts at 10/s and doubles once a second; the others start without a limit, or take all that they get. After a return ours looks for " +
		"the new limit in steps, and doubles only after the old one is passed.",
	"convergence/limit drops tenfold at 60 s, back at 180 s": "The SDK cuts to 0.7 of the rate at each refusal, and grows with the cube of the time since. It finds a new " +
		"limit sooner in both directions, and loses goodput each time that it touches it.",
	"convergence/nginx, delays up to 50":             "The server queues the excess, so its limit is found immediately, at the latencies above.",
	"convergence/10 servers at 100 ms, queue of 100": "The server queues the excess, so its limit is found immediately, at the latencies above.",
	"shared-10000": coldKeys,
	"fairness":     "Cuts of a tenth equalize shares more slowly than the SDK's cuts of three tenths, but each costs less: see the goodput.",
	"outages":      "The requests are those sent before the outage shows, and single probes for its end.",
}
