package main

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/httpthrottle/throttle/throttletest"
)

// An api is a local server that allows each client many or few requests per second, in turns. It counts them in windows and says
// in the RateLimit header what is left, except for the adaptive client: that one has a token bucket, and does not read the header.
type api struct {
	*throttletest.Server
	every time.Duration // between two changes
}

const (
	many, few = 40, 15 // requests per second
	window    = 20     // seconds
)

func startAPI(every time.Duration) (*api, error) {
	// cost lets a limit apply to the adaptive client, or to the others.
	cost := func(adaptive bool) throttletest.LimitOption {
		return throttletest.Cost(func(r *http.Request) int64 {
			if (clientOf(r) == "adaptive") == adaptive {
				return 1
			}
			return 0
		})
	}
	server, err := throttletest.New(
		throttletest.WithLimits(
			throttletest.FixedWindow(many*window, window*time.Second, throttletest.Name("requests"), cost(false)),
			throttletest.TokenBucket(many, time.Second, throttletest.Burst(10), throttletest.Name("hidden"), cost(true)),
		),
		throttletest.WithKey(clientOf),
		throttletest.WithFields(throttletest.Draft),
		throttletest.WithServiceTime(throttletest.LogNormal(80*time.Millisecond, 0.4)),
	)
	return &api{server, every}, err
}

func clientOf(r *http.Request) string { return r.Header.Get("X-Client") }

// change changes the limits until ctx ends.
func (a *api) change(ctx context.Context) error {
	for n := int64(few); ; n = many + few - n {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(a.every):
		}
		if err := errors.Join(a.SetRate("requests", n*window, window*time.Second), a.SetRate("hidden", n, time.Second)); err != nil {
			return err
		}
	}
}
