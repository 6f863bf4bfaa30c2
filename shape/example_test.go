package shape_test

import (
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/shape"
)

// The SDK of S3 retries only responses that look like errors of S3.
func Example() {
	transport, err := throttle.New(nil, throttle.WithFailFast(), throttle.WithRejectionResponse(shape.S3),
		throttle.WithLimit(throttle.TokenBucket(1, time.Hour, throttle.Initial(0))))
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}
	resp, err := client.Get("https://bucket.s3.amazonaws.com/object")
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status, resp.Header.Get("Content-Type"))
	// Output: 503 Service Unavailable application/xml
}

// A gateway names its limits to the services of the same company.
func ExampleProblem() {
	transport, err := throttle.New(nil, throttle.WithFailFast(), throttle.WithRejectionResponse(shape.Problem),
		throttle.WithLimit(throttle.TokenBucket(1, time.Hour, throttle.Initial(0), throttle.Name("reports"))))
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}
	resp, err := client.Get("https://gateway.example.com/report")
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	var problem struct {
		Rejection struct{ Limit, Reason string }
	}
	if err := json.NewDecoder(resp.Body).Decode(&problem); err != nil {
		log.Fatal(err)
	}
	fmt.Println(problem.Rejection.Limit, problem.Rejection.Reason)
	// Output: reports no_tokens
}
