package throttle_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"sync"
	"time"

	"github.com/httpthrottle/throttle"
)

// lineUp has requests wait for the only slot, one after the other, and then prints in which order they got it.
func lineUp(limiter *throttle.Limiter, asks ...throttle.Ask) {
	slot, err := limiter.Acquire(context.Background(), throttle.Ask{Caller: "first"})
	if err != nil {
		log.Fatal(err)
	}
	var requests sync.WaitGroup
	var granted []string
	for i, ask := range asks {
		requests.Go(func() {
			slot, err := limiter.Acquire(context.Background(), ask)
			if err != nil {
				log.Fatal(err)
			}
			granted = append(granted, ask.Caller)
			slot.Done()
		})
		for limiter.Stats().Waiting <= i {
			time.Sleep(time.Millisecond)
		}
	}
	slot.Done()
	requests.Wait()
	fmt.Println(granted)
}

// Two tenants share a limit. The first has three requests in the queue when the second comes with one.
func ExampleFairBy() {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(throttle.InFlight(1,
		throttle.FairBy(throttle.ByHeader("X-Tenant")))))
	if err != nil {
		log.Fatal(err)
	}
	greedy := throttle.Ask{Caller: "greedy"}
	lineUp(limiter, greedy, greedy, greedy, throttle.Ask{Caller: "modest"})
	// Output: [greedy modest greedy greedy]
}

// A tenant that pays for twice as much gets two requests for each request of another.
func ExampleFairWeights() {
	weight := func(caller string) int {
		if caller == "gold" {
			return 2
		}
		return 1
	}
	limiter, err := throttle.NewLimiter(throttle.WithLimit(throttle.InFlight(1,
		throttle.FairBy(throttle.ByHeader("X-Tenant")), throttle.FairWeights(weight))))
	if err != nil {
		log.Fatal(err)
	}
	gold, basic := throttle.Ask{Caller: "gold"}, throttle.Ask{Caller: "basic"}
	lineUp(limiter, basic, basic, basic, gold, gold, gold, gold)
	// Output: [basic gold gold basic gold gold basic]
}

// A limit of its own for bulk work leaves three tokens of ten to urgent requests, for which it costs nothing.
func ExampleWithLimit_reserve() {
	limiter, err := throttle.NewLimiter(throttle.WithLimit(
		throttle.FixedWindow(10, time.Hour, throttle.Name("all")),
		throttle.FixedWindow(7, time.Hour, throttle.Name("bulk"))))
	if err != nil {
		log.Fatal(err)
	}
	for _, ask := range []throttle.Ask{
		{MaxWait: new(time.Duration(0))},
		{MaxWait: new(time.Duration(0)), Costs: map[string]int64{"bulk": 0}}, // urgent
	} {
		sent := 0
		for {
			if _, err := limiter.Acquire(context.Background(), ask); err != nil {
				break
			}
			sent++
		}
		fmt.Println(sent)
	}
	// Output:
	// 7
	// 3
}

// Most SDKs take only a context, so the context names the caller.
func ExampleContextWithCaller() {
	transport, err := throttle.New(offline{}, throttle.WithLimit(throttle.TokenBucket(10, time.Second,
		throttle.FairBy(throttle.ByHeader("X-Tenant"))))) // if the context names no caller
	if err != nil {
		log.Fatal(err)
	}
	ctx := throttle.ContextWithCaller(context.Background(), "nightly-export")
	fmt.Println(status(transport, ctx, http.MethodGet, "https://api.example.com/"))
	// Output: 200 OK
}
