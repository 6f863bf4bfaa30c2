package throttle_test

import (
	"fmt"
	"net/http"
	"time"

	"github.com/httpthrottle/throttle"
)

// A request is sent immediately if it can be. Otherwise it takes a place in the queue, and its owner does other work meanwhile.
func ExampleTransport_Enqueue() {
	transport := throttle.Must(throttle.New(offline{}, throttle.WithLimit(throttle.TokenBucket(1, time.Second))))
	for range 2 {
		req, err := http.NewRequest(http.MethodGet, "https://api.example.com/", nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		resp, sent, err := transport.TryRoundTrip(req)
		if !sent {
			ticket, failed := transport.Enqueue(req)
			if failed != nil {
				fmt.Println(failed)
				return
			}
			fmt.Println("waits")
			<-ticket.Decided()
			resp, err = ticket.RoundTrip(req)
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		fmt.Println(resp.Status)
	}
	// Output:
	// 200 OK
	// waits
	// 200 OK
}
