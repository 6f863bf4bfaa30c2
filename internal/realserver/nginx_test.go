package realserver_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/throttletest"
	"github.com/stretchr/testify/assert"
)

// nginx is limit_req with so many requests per second and these directives. The imitation has nginx's status unless
// it says otherwise, and no Retry-After.
func nginx(rate int64, limit string, imitation ...throttletest.LimitOption) proxy {
	return proxy{
		program: "nginx", config: "nginx.conf",
		args:     func(config string) []string { return []string{"-c", config} },
		settings: map[string]string{"Rate": fmt.Sprintf("%dr/s", rate), "Limit": limit},
		imitation: []throttletest.Option{
			throttletest.WithStatus(http.StatusServiceUnavailable),
			throttletest.WithRetryAfter(throttletest.NoRetryAfter),
			throttletest.WithLimits(throttletest.LeakyBucket(rate, time.Second, imitation...)),
		},
	}
}

const (
	startUp = 8 * time.Second // twice what an adaptive limit that begins at 10/s needs to find 100/s
	whole   = 24 * time.Second
	pressed = 2 * time.Second
)

// What a plain client meets shows that the limit is there.
func assertPressed(t *testing.T, url string, status int) tally {
	t.Helper()
	plain := pressing(t, url, pressed).between(0, pressed)
	t.Log("a plain client:", plain)
	plain.onlyRefusedBy(t, status)
	assert.Positive(t, plain.accepted)
	assert.Greater(t, plain.share(), 0.5)
	return plain
}

// From a start at twice the limit, and counted from there, 50 callers who always have a next request get nearly all that
// the servers allow, each 50 per second, and few refusals.
func TestAdaptiveReachesWhatServersAllow(t *testing.T) {
	t.Parallel()
	const rate = 50
	for name, test := range map[string]struct {
		proxy   proxy
		status  int
		length  time.Duration
		goodput float64
		refused float64
	}{
		// Whatever comes a millisecond early is refused.
		"nginx, even":  {nginx(rate, "limit_req zone=paths;"), 503, 20 * time.Second, 0.75, 0.10},
		"nginx, burst": {nginx(rate, "limit_req zone=paths burst=20 nodelay;", throttletest.Burst(20)), 503, 20 * time.Second, 0.85, 0.05},
		"nginx, burst, 429": {nginx(rate, "limit_req zone=paths burst=20 nodelay; limit_req_status 429;",
			throttletest.Burst(20), throttletest.Status(429)), 429, 20 * time.Second, 0.85, 0.05},
		"nginx, delay": {nginx(rate, "limit_req zone=paths burst=50;", throttletest.Burst(50), throttletest.Delay(0)),
			503, 20 * time.Second, 0.85, 0.05},
		"HAProxy, accepted counted": {haproxy(rate, time.Second, false), 429, 20 * time.Second, 0.85, 0.05},
		"HAProxy, all counted":      {haproxy(rate, time.Second, true), 429, 60 * time.Second, 0.60, 0.05},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := test.proxy.start(t)
			seen := throttled(t, url, test.length, throttle.WithAdaptive(throttle.AIMD{Initial: 2 * rate}))
			sum := seen.between(0, test.length)
			t.Logf("%s: %.1f %% of the limit, %.2f %% refused; %v", name, 100*sum.rate()/rate, 100*sum.share(), sum)
			sum.onlyRefusedBy(t, test.status)
			assert.LessOrEqual(t, sum.share(), test.refused)
			sum.fasterThan(t, test.goodput*rate)
		})
	}
}

// Whoever fills the queue of a server that delays waits for a second; refusals are none to learn from.
func TestAdaptiveKeepsAQueueShort(t *testing.T) {
	t.Parallel()
	url := nginx(50, "limit_req zone=paths burst=50;", throttletest.Burst(50), throttletest.Delay(0)).start(t)
	plain := newRecorder(t)
	work(t, plain, url+"/pressing", 50, 0, 4*time.Second)
	full := plain.between(time.Second, 2*time.Second) // answered before they all leave
	t.Log("50 plain callers:", full)
	assert.Greater(t, full.median, 600*time.Millisecond)

	seen := throttled(t, url, whole, throttle.WithAdaptive())
	t.Log("start-up:        ", seen.between(0, startUp))
	t.Log("after it:        ", seen.between(startUp, whole))
	end := seen.between(whole-6*time.Second, whole-time.Second)
	t.Log("at the end:      ", end)
	assert.Less(t, end.median, 300*time.Millisecond)
	seen.between(0, whole-time.Second).fasterThan(t, 25)
	assert.Less(t, seen.between(0, whole).share(), 0.02)
}

// Without any limit of one's own, what the server says is heeded.
func TestRetryAfterIsHeeded(t *testing.T) {
	t.Parallel()
	proxy := nginx(100, "limit_req zone=paths burst=20 nodelay; limit_req_status 429; error_page 429 @limited;",
		throttletest.Burst(20), throttletest.Status(429))
	proxy.imitation = append(proxy.imitation, throttletest.WithRetryAfter(throttletest.RetryAfterSeconds))
	url := proxy.start(t)
	plain := assertPressed(t, url, 429)

	seen := throttled(t, url, whole)
	sum := seen.between(0, whole)
	t.Log("by hints only: ", sum)
	t.Log("the last half: ", seen.between(whole/2, whole))
	sum.onlyRefusedBy(t, 429)
	assert.Less(t, float64(sum.refusals())/sum.over.Seconds(), float64(plain.refusals())/plain.over.Seconds()/10)
	sum.fasterThan(t, 15)
}

// Who knows the limit is not refused at all, if a margin is left: of the rate 5 %, and of the burst as much as may come
// together that left apart, because the way or a busy machine held up the first. Here that is 11 requests, those of
// 110 ms; where the machine stood still for half as long, nothing is promised but that they are few.
func TestAKnownLimitIsKept(t *testing.T) {
	t.Parallel()
	url := nginx(100, "limit_req zone=paths burst=20 nodelay;", throttletest.Burst(20)).start(t)
	assertPressed(t, url, 503)

	limit := throttle.TokenBucket(100, time.Second, throttle.Burst(10), throttle.Share(0.95))
	sum := throttled(t, url, whole, throttle.WithLimit(limit)).between(0, whole)
	t.Log("a known limit: ", sum)
	if sum.stalled < 55*time.Millisecond {
		assert.Zero(t, sum.refusals())
	}
	assert.Less(t, sum.share(), 0.05)
	sum.fasterThan(t, 70)
}
