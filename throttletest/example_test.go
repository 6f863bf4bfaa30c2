package throttletest_test

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle/throttletest"
)

func ExampleNew() {
	api, err := throttletest.New(
		throttletest.WithLimits(throttletest.FixedWindow(2, 24*time.Hour, throttletest.FromFirstRequest())),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer api.Close()
	for range 3 {
		resp, err := api.Client().Get(api.URL + "/items")
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		fmt.Println(resp.Status)
	}
	fmt.Println(api.Counts().RefusedBy)
	// Output:
	// 200 OK
	// 200 OK
	// 429 Too Many Requests
	// map[window:1]
}

// What the package is for, as a user's test: in a bubble of testing/synctest a minute passes at once.
func TestStartInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := throttletest.Start(t, throttletest.WithInMemory(),
			throttletest.WithLimits(throttletest.SlidingWindow(1, time.Minute)))
		for _, want := range []int{200, 429, 200} {
			resp, err := api.Client().Get(api.URL)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("status %d, want %d", resp.StatusCode, want)
			}
			if want == 429 {
				time.Sleep(time.Minute)
			}
		}
		if most, err := api.MaxAccepted("sliding", time.Minute); err != nil || most > 1 {
			t.Errorf("%d in a minute, %v", most, err)
		}
	})
}

func ExampleHandler_Direct() {
	h, err := throttletest.NewHandler(
		throttletest.WithLimits(throttletest.InFlight(5, throttletest.Name("calls"))),
		throttletest.WithFaults(throttletest.Respond(500, nil).OnRequests(2)),
		throttletest.WithFields(throttletest.Draft),
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
		fmt.Println(resp.Status, resp.Header.Get("RateLimit"))
	}
	// Output:
	// 200 OK "calls";r=4
	// 500 Internal Server Error "calls";r=4
}

func ExampleHandler_SetRate() {
	h, err := throttletest.NewHandler(
		throttletest.WithLimits(throttletest.TokenBucket(100, time.Second, throttletest.Name("rate"))))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(h.SetRate("rate", 10, time.Second))
	fmt.Println(h.SetRate("rat", 10, time.Second))
	// Output:
	// <nil>
	// throttletest: there is no limit named "rat"
}

// Flask-Limiter adds a second to each reset and then cuts off the fraction, and it sets Retry-After on every response.
func ExampleWithLateResets() {
	h, err := throttletest.NewHandler(
		throttletest.WithLimits(throttletest.FixedWindow(2, time.Minute, throttletest.FromFirstRequest())),
		throttletest.WithFields(throttletest.XDelta),
		throttletest.WithRetryAfterAlways(),
		throttletest.WithLateResets(time.Second),
		throttletest.WithRounding(throttletest.RoundDown),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: h.Direct()}
	for range 3 {
		resp, err := client.Get("http://api.example.com/")
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		fmt.Println(resp.Status, resp.Header.Get("X-RateLimit-Remaining"), len(resp.Header.Get("Retry-After")) > 0)
	}
	// Output:
	// 200 OK 1 true
	// 200 OK 0 true
	// 429 Too Many Requests 0 true
}

// nginx counts in milliseconds, so that a rate of 30/s lets a request through every 34 ms.
func TestResolutionOfNginx(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, err := throttletest.NewHandler(
			throttletest.WithLimits(throttletest.LeakyBucket(30, time.Second, throttletest.Resolution(time.Millisecond))))
		if err != nil {
			t.Fatal(err)
		}
		client := &http.Client{Transport: h.Direct()}
		for range 1000 {
			resp, err := client.Get("http://api.example.com/")
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			time.Sleep(time.Millisecond)
		}
		if got := h.Counts().Accepted; got != 30 {
			t.Errorf("%d accepted in a second, want 30", got)
		}
	})
}

// A stopped server answers all that it was sent when it continues.
func TestStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := throttletest.Start(t, throttletest.WithInMemory())
		api.Stall(4 * time.Second)
		start := time.Now()
		resp, err := api.Client().Get(api.URL)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got := time.Since(start); got != 4*time.Second {
			t.Errorf("answered after %v", got)
		}
	})
}
