package realserver_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/throttletest"
	"github.com/stretchr/testify/assert"
)

// haproxy is a stick table that allows n requests in any window, and counts those that it refuses as well, or not.
func haproxy(n int64, window time.Duration, all bool) proxy {
	const track, deny = "http-request track-sc0 path", "http-request deny deny_status 429 if "
	rules, opts := fmt.Sprintf("%s{ path,table_http_req_rate(limited) ge %d }\n\t%s", deny, n, track), []throttletest.LimitOption(nil)
	if all {
		rules = fmt.Sprintf("%s\n\t%s{ sc_http_req_rate(0) gt %d }", track, deny, n)
		opts = []throttletest.LimitOption{throttletest.CountRefused()}
	}
	return proxy{
		program: "haproxy", config: "haproxy.cfg",
		args:     func(config string) []string { return []string{"-db", "-f", config} },
		settings: map[string]string{"Window": fmt.Sprintf("%ds", window/time.Second), "Rules": rules},
		imitation: []throttletest.Option{
			throttletest.WithRetryAfter(throttletest.NoRetryAfter),
			throttletest.WithLimits(throttletest.SlidingWindow(n, window, opts...)),
		},
	}
}

// HAProxy's stick table counts what it refuses, so whoever goes on asking is let in once and never again.
func TestAdaptiveIsLetInAgainWhereRefusalsCount(t *testing.T) {
	t.Parallel()
	const (
		window = 10 * time.Second
		length = 35 * time.Second
	)
	url := haproxy(100, window, true).start(t)

	var plain, seen *recorder
	var wg sync.WaitGroup
	wg.Go(func() {
		plain = newRecorder(t)
		work(t, plain, url+"/pressing", 10, 50*time.Millisecond, length)
	})
	wg.Go(func() { seen = throttled(t, url, length, throttle.WithAdaptive()) })
	wg.Wait()

	for _, r := range []struct {
		name string
		*recorder
	}{{"a plain client:", plain}, {"adaptive:      ", seen}} {
		t.Log(r.name, "first window  ", r.between(0, window))
		t.Log(r.name, "after it      ", r.between(window, length))
		r.between(0, length).onlyRefusedBy(t, 429)
	}
	again := seen.between(window, length)
	again.fasterThan(t, 2) // 10 at best
	assert.Greater(t, again.accepted, 5*plain.between(window, length).accepted)
	assert.Less(t, seen.between(0, length).share(), 0.3)
}
