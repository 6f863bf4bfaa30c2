package throttle_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"time"

	"github.com/httpthrottle/throttle"
)

// An API's own SDK may know another form of a 429.
func ExampleRejection_Response() {
	transport := throttle.Must(throttle.New(offline{},
		throttle.WithLimit(throttle.SlidingWindow(1, time.Hour)), throttle.WithFailFast(),
		throttle.WithRejectionResponse(func(r *throttle.Rejection, req *http.Request) *http.Response {
			resp := r.Response(req)
			resp.StatusCode = http.StatusServiceUnavailable
			resp.Header.Set("X-Error-Code", "SlowDown")
			return resp
		})))
	client := &http.Client{Transport: transport}
	for range 2 {
		resp, err := client.Get("https://api.example.com/")
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		fmt.Printf("%s %q\n", resp.Status, resp.Header.Get("X-Error-Code"))
	}
	// Output:
	// 200 OK ""
	// 503 Service Unavailable "SlowDown"
}

// A proxy passes its rejections on to its clients, instead of the 502 that ReverseProxy answers errors with.
func ExampleRejection_WriteResponse() {
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "https", Host: "api.example.com"})
	proxy.Transport = throttle.Must(throttle.New(offline{},
		throttle.WithLimit(throttle.SlidingWindow(1, time.Hour)), throttle.WithMaxWait(3*time.Second), throttle.WithRejectionError()))
	proxy.ErrorHandler = func(w http.ResponseWriter, r *http.Request, err error) {
		if rejection, ok := errors.AsType[*throttle.Rejection](err); ok {
			rejection.WriteResponse(w)
			return
		}
		w.WriteHeader(http.StatusBadGateway)
	}
	for range 2 {
		w := httptest.NewRecorder()
		proxy.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		fmt.Printf("%d %q\n", w.Code, w.Header().Get("Content-Type"))
	}
	// Output:
	// 200 ""
	// 429 "application/problem+json"
}
