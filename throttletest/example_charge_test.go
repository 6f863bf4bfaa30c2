package throttletest_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/httpthrottle/throttle/throttletest"
)

// The server reserves 100 tokens for each request, and gives back what its response did not use.
func ExampleCharge() {
	h, err := throttletest.NewHandler(
		throttletest.WithLimits(throttletest.TokenBucket(1000, time.Hour, throttletest.Name("tokens"),
			throttletest.Cost(func(*http.Request) int64 { return 100 }))),
		throttletest.WithFields(throttletest.OpenAI), throttletest.WithFullResets(),
		throttletest.WithHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			const used = 30
			fmt.Fprintf(w, `{"usage":{"total_tokens":%d}}`, used)
			if err := throttletest.Charge(r, "tokens", used-100); err != nil {
				fmt.Println(err)
			}
		})),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: h.Direct()}
	for range 2 {
		resp, err := client.Get("http://api.example.com/")
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		fmt.Println(resp.Header.Get("X-RateLimit-Remaining-Tokens"))
	}
	// Output:
	// 900
	// 870
}

// Each model has a limit of its own, and is named in the body of a request.
func ExampleBodyOf() {
	model := func(r *http.Request) string {
		var body struct{ Model string }
		_ = json.Unmarshal(throttletest.BodyOf(r), &body) // a body without a model has the key ""
		return body.Model
	}
	h, err := throttletest.NewHandler(throttletest.WithLimits(
		throttletest.FixedWindow(1, time.Hour, throttletest.FromFirstRequest(), throttletest.Key(model))))
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: h.Direct()}
	for _, body := range []string{`{"model":"large"}`, `{"model":"small"}`, `{"model":"large"}`} {
		resp, err := client.Post("http://api.example.com/", "application/json", strings.NewReader(body))
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		fmt.Println(resp.StatusCode)
	}
	// Output:
	// 200
	// 200
	// 429
}
