package throttle_test

import (
	"fmt"
	"net/http"
	"time"

	"github.com/httpthrottle/throttle"
)

// A request is sent by the first of two Transports that can send it. Package pool does this for any number of them.
func ExampleClaim() {
	var both [2]*throttle.Transport
	for i, each := range []time.Duration{time.Hour, time.Second} {
		both[i] = throttle.Must(throttle.New(offline{}, throttle.WithLimit(throttle.TokenBucket(1, each, throttle.Initial(0)))))
	}
	req, err := http.NewRequest(http.MethodGet, "https://api.example.com/", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, t := range both {
		if _, sent, _ := t.TryRoundTrip(req); sent {
			fmt.Println("sent immediately")
			return
		}
	}
	claim := throttle.NewClaim(time.Minute)
	var tickets []*throttle.Ticket
	for _, t := range both {
		ticket, err := t.Enqueue(req, claim)
		if err != nil {
			fmt.Println(err)
			return
		}
		tickets = append(tickets, ticket)
	}
	claim.Seal()
	<-claim.Done()
	for i, ticket := range tickets {
		if !claim.Granted(ticket) {
			wait, rejected := ticket.Rejection()
			fmt.Println(i, "was too slow:", rejected, wait.Round(time.Hour))
			ticket.Cancel()
			continue
		}
		resp, err := ticket.RoundTrip(req)
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		fmt.Println(i, "sent it:", resp.Status)
	}
	// Output:
	// 0 was too slow: true 1h0m0s
	// 1 sent it: 200 OK
}
