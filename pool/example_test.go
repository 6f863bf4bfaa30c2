package pool_test

import (
	"fmt"
	"net/http"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
	"github.com/httpthrottle/throttle/pool"
	"github.com/httpthrottle/throttle/retry"
)

// A bearer sets the token of an account.
type bearer struct {
	token string
	base  http.RoundTripper
}

func (b bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+b.token)
	return b.base.RoundTrip(req)
}

// Tokens of two GitHub accounts have a quota each, which tokens of one account would share. What is left of it, and the secondary limits, are
// those of the account.
func Example_gitHub() {
	github := &server{} // http.DefaultTransport
	var members []pool.Member
	for name, token := range map[string]string{"ci": "ghp_1", "bot": "ghp_2"} {
		t, err := throttle.New(bearer{token, github},
			throttle.WithLimit(throttle.Quota(900, time.Minute, throttle.Name("points")), throttle.InFlight(100)),
			throttle.WithWeights(map[string]int64{"GET /": 1, "/": 5}),
			throttle.WithServerHints(headers.GitHub))
		if err != nil {
			fmt.Println(err)
			return
		}
		members = append(members, pool.Member{Name: name, Transport: t})
	}
	p, err := pool.New(members)
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: p}
	start := time.Now()
	for range 1500 { // one token alone has 900 a minute
		resp, err := client.Get("https://api.github.com/repos/golang/go")
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
	}
	fmt.Println(github.sent.Load(), "requests without a wait:", time.Since(start) < 10*time.Second)
	// Output:
	// 1500 requests without a wait: true
}

// Three deployments of a model: the reserved one first, if it can send a request within half a second, and then those that are paid by
// token. Requests of one conversation go to one deployment, whose cache knows the prompt.
func Example_deployments() {
	model := &server{}
	deployment := func(name string, tokens int64, after time.Duration) pool.Member {
		t, err := throttle.New(model, throttle.WithLimit(throttle.TokenBucket(tokens, time.Minute, throttle.Name("tpm"),
			throttle.Cost(func(r *http.Request) int64 { return r.ContentLength/4 + 1000 }), throttle.SettleJSON("usage.total_tokens"))))
		if err != nil {
			fmt.Println(err)
		}
		return pool.Member{Name: name, Transport: t, After: after}
	}
	members := []pool.Member{
		deployment("reserved", 30_000, 0), deployment("east", 90_000, time.Second/2), deployment("west", 240_000, time.Second/2),
	}
	p, err := pool.New(members, pool.Sticky(func(r *http.Request) string { return r.Header.Get("X-Conversation") }, time.Second))
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: p}
	for range 100 {
		resp, err := client.Post("https://models.example.com/v1/chat", "application/json", http.NoBody)
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
	}
	fmt.Println(members[0].Transport.Stats().Granted, "by the reserved one,", model.sent.Load(), "in all")
	// Output:
	// 30 by the reserved one, 100 in all
}

// A request that one deployment refuses is sent by the other one immediately, although the server asked to wait for a minute.
func Example_retry() {
	busy := &server{status: http.StatusTooManyRequests, header: http.Header{"Retry-After": {"60"}}}
	free := &server{}
	p, err := pool.New([]pool.Member{
		{Name: "busy", Transport: throttle.Must(throttle.New(busy))},
		{Name: "free", Transport: throttle.Must(throttle.New(free)), After: time.Millisecond},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := retry.NewClient(p)
	start := time.Now()
	resp, err := client.Get("https://models.example.com/v1/models")
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.StatusCode, client.Policy.Stats().Attempts, "attempts, without a wait:", time.Since(start) < 10*time.Second)
	// Output:
	// 200 2 attempts, without a wait: true
}
