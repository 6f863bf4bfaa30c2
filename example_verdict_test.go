package throttle_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/httpthrottle/throttle"
)

// A server asks for a wait, and a later request cannot wait so long. Hook, statistics and rejection say why in the same words.
func ExampleVerdict() {
	api := roundTripper(func(r *http.Request) (*http.Response, error) {
		return &http.Response{Status: "429 Too Many Requests", StatusCode: http.StatusTooManyRequests, Body: http.NoBody, Request: r,
			Header: http.Header{"Retry-After": {"60"}}}, nil
	})
	t, err := throttle.New(api, throttle.WithMaxWait(time.Second), throttle.WithHooks(throttle.Hooks{OnHold: func(e throttle.HoldEvent) {
		fmt.Println("held:", e.Verdict, "guessed:", e.Guessed)
	}}))
	if err != nil {
		log.Fatal(err)
	}
	client := http.Client{Transport: t}
	for range 2 {
		req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "https://api.example.com/", nil)
		if err != nil {
			log.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			log.Fatal(err)
		}
		if rejection, ok := throttle.RejectionOf(resp); ok {
			fmt.Println("rejected:", rejection.Reason, rejection.Verdict)
		}
		resp.Body.Close()
	}
	last := t.Limiter().Servers()[0].Last
	fmt.Println("last:", last.Status, last.Verdict, last.Verdict.Label())
	// Output:
	// held: too fast guessed: false
	// rejected: held too fast
	// last: 429 too fast too_fast
}
