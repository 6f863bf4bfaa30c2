package headers_test

import (
	"fmt"
	"net/http"
	"time"

	"github.com/httpthrottle/throttle/headers"
)

func ExampleParse() {
	h := http.Header{}
	h.Set("X-RateLimit-Limit", "5000")
	h.Set("X-RateLimit-Remaining", "0")
	h.Set("X-RateLimit-Reset", "1795176600") // an epoch
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

	signal := headers.Parse(http.StatusTooManyRequests, h, now)
	fmt.Println("limited:", signal.Limited)
	fmt.Println("Retry-After:", signal.RetryAfter)
	fmt.Println("wait:", signal.Wait)
	for _, b := range signal.Buckets {
		fmt.Printf("%s: %v of %v left, more in %v\n", b.Name, b.Remaining, b.Limit, b.Reset)
	}
	// Output:
	// limited: true
	// Retry-After: unknown
	// wait: 10m0s
	// default: 0 of 5000 left, more in 10m0s
}

// A Retry-After that would overflow a time.Duration, and make many a client retry at once.
func ExampleParse_hostile() {
	h := http.Header{"Retry-After": {"9223372036854775807"}}
	signal := headers.Parse(http.StatusTooManyRequests, h, time.Now())
	fmt.Println(signal.Wait, signal.Saturated)
	// Output:
	// 8784h0m0s true
}

// GitHub reports secondary limits in the body.
func ExampleDialect_Parse() {
	github := headers.GitHub.Dialect()
	h := http.Header{"Content-Type": {"application/json"}, "X-Ratelimit-Remaining": {"4321"}}
	if github.WantsBody(http.StatusForbidden, h) {
		body := []byte(`{"message":"You have exceeded a secondary rate limit."}`)
		signal := github.Parse(http.StatusForbidden, h, body, time.Now())
		fmt.Println(signal.Limited, signal.Wait, signal.Reason)
	}
	// Output:
	// true 1m0s secondary rate limit
}

// A 402 that no waiting ends, and a 429 that is no limit.
func ExampleRule() {
	ours := headers.Dialect{Rules: []headers.Rule{
		{Statuses: []int{402}, Final: true, Reason: "unpaid"},
		{Statuses: []int{429}, NotLimited: true, Body: []headers.Match{{Name: "code", Values: []string{"no_such_plan"}}}},
	}}
	h := http.Header{"Content-Type": {"application/json"}}
	unpaid := ours.Parse(http.StatusPaymentRequired, h, []byte(`{"message":"The invoice of May is due."}`), time.Now())
	fmt.Println(unpaid.Limited, unpaid.Final, unpaid.Reason, unpaid.Message)
	other := ours.Parse(http.StatusTooManyRequests, h, []byte(`{"code":"no_such_plan"}`), time.Now())
	fmt.Println(other.Limited, other.NotLimited)
	// Output:
	// true true unpaid The invoice of May is due.
	// false true
}

// An API of your own that counts the requests of each model, and of each project, separately.
func ExamplePart() {
	ours := headers.Dialect{Parts: []headers.Part{{After: "projects"}, {Member: "model"}}}
	reader, err := headers.NewReader(ours)
	fmt.Println(reader.Parts("api.example.com"), err)
	_, err = headers.NewReader(headers.Dialect{Name: "ours", Parts: []headers.Part{{}}})
	fmt.Println(err)
	// Output:
	// [{projects } { model}] <nil>
	// headers: dialect "ours": part {After: Member:} is to be either after one segment of a path or a member
}

// A preset is a start: change what you know better, and add what there is no preset for.
func ExampleNewReader() {
	github := headers.GitHub.Dialect()
	github.Hosts = append(github.Hosts, "github.example.com")
	github.MinWait = 2 * time.Minute

	ours := headers.Dialect{
		Name:  "ours",
		Hosts: []string{"*.internal.example.com"},
		Fields: []headers.Field{
			{Name: "X-Points", Form: headers.UsedOf, Bucket: "points", Window: time.Minute},
		},
		Rules: []headers.Rule{
			{Statuses: []int{http.StatusTeapot}, Wait: 10 * time.Second},
		},
	}
	reader, err := headers.NewReader(github, ours, headers.Auto)
	if err != nil {
		fmt.Println(err)
		return
	}
	now := time.Now()
	fmt.Println(reader.Parse("github.example.com", 429, http.Header{}, nil, now).Wait)
	fmt.Println(reader.Parse("api.internal.example.com", 418, http.Header{}, nil, now).Wait)
	fmt.Println(reader.Parse("api.internal.example.com", 200, http.Header{"X-Points": {"75/100"}}, nil, now).Buckets[0].Remaining)
	// Output:
	// 2m0s
	// 10s
	// 25
}
