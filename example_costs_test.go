package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/httpthrottle/throttle"
)

// An API of language models limits requests and tokens. A request is sent when both limits can pay for it, and one that is
// rejected is charged nowhere.
func ExampleContextWithCost_twoLimits() {
	transport := throttle.Must(throttle.New(offline{}, throttle.WithFailFast(), throttle.WithRejectionError(), throttle.WithLimit(
		throttle.SlidingWindow(5, time.Hour, throttle.Name("requests")), // a request costs 1 here, which is the default
		throttle.SlidingWindow(1000, time.Hour, throttle.Name("tokens")))))
	client := &http.Client{Transport: transport}
	for _, tokens := range []int64{20, 400, 400, 400, 20, 20, 20, 5000} {
		ctx := throttle.ContextWithCost(context.Background(), tokens, "tokens") // passes through any SDK
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://api.example.com/complete", nil)
		if err != nil {
			log.Fatal(err)
		}
		resp, err := client.Do(req)
		var rejection *throttle.Rejection
		if errors.As(err, &rejection) {
			fmt.Printf("%d rejected by %q: %s\n", tokens, rejection.Limit, rejection.Reason)
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		resp.Body.Close()
		fmt.Println(tokens, "sent")
	}
	// Output:
	// 20 sent
	// 400 sent
	// 400 sent
	// 400 rejected by "tokens": no tokens
	// 20 sent
	// 20 sent
	// 20 rejected by "requests": no tokens
	// 5000 rejected by "tokens": cost
}

// A program may spend a dollar a day on a language model. Each call is charged the most that it may cost, in micro-dollars, and
// then what it cost.
func ExampleReceipt_Settle() {
	const promptPrice, outputPrice = 3, 15 // micro-dollars for a token
	transport := throttle.Must(throttle.New(offline{}, throttle.WithFailFast(), throttle.WithRejectionError(),
		throttle.WithLimit(throttle.FixedWindow(1_000_000, 24*time.Hour, throttle.Name("budget")))))
	client := &http.Client{Transport: transport}
	left := func() float64 { return transport.Limiter().Limits()[0].Tokens / 1e6 }
	call := func(prompt, most int64) error {
		ctx := throttle.ContextWithCost(context.Background(), prompt*promptPrice+most*outputPrice, "budget")
		ctx, receipt := throttle.ContextWithReceipt(ctx)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://api.example.com/complete", nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		resp.Body.Close()
		used := most / 3 // as the response of an API reports
		return receipt.Settle("budget", prompt*promptPrice+used*outputPrice)
	}
	for calls := 0; ; calls++ {
		err := call(200, 3000)
		var rejection *throttle.Rejection
		if errors.As(err, &rejection) {
			fmt.Printf("after %d calls, the next may cost $%.4f, and $%.4f is left\n", calls, float64(rejection.Cost)/1e6, left())
			return
		}
		if err != nil {
			log.Fatal(err)
		}
	}
	// Output: after 62 calls, the next may cost $0.0456, and $0.0328 is left
}
