package throttletest

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRetryAfterIsRoundedUp(t *testing.T) {
	for _, c := range []struct {
		per  time.Duration
		form RetryAfter
		want string
	}{
		{time.Millisecond, RetryAfterSeconds, "1"},
		{time.Second, RetryAfterSeconds, "1"},
		{time.Second + 1, RetryAfterSeconds, "2"},
		{90 * time.Minute, RetryAfterSeconds, "5400"},
		{time.Second, RetryAfterDate, "Sat, 01 Jan 2000 00:00:01 GMT"},
		{time.Second + 1, RetryAfterDate, "Sat, 01 Jan 2000 00:00:02 GMT"},
		{time.Second, NoRetryAfter, ""},
	} {
		t.Run(fmt.Sprint(c.per, c.form), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newCaller(t, WithLimits(TokenBucket(1, c.per)), WithRetryAfter(c.form))
				assert.Equal(t, 200, api.status())
				refused := api.do()
				assert.Equal(t, "429 Too Many Requests", refused.Status)
				assert.Equal(t, c.want, refused.Header.Get("Retry-After"))
			})
		})
	}
}

func TestTheLongestWaitHasTheSay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithStatus(403), WithLimits(
			FixedWindow(1, time.Minute, Status(420)), FixedWindow(1, time.Hour), InFlight(1, Status(503))))
		assert.Equal(t, 200, api.status())
		refused := api.do()
		assert.Equal(t, 403, refused.StatusCode)
		assert.Equal(t, "3600", refused.Header.Get("Retry-After"))
	})
}

func TestDraftFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithFields(Draft), WithLimits(
			FixedWindow(5, time.Minute, Name("minute")),
			TokenBucket(2, 500*time.Millisecond, Burst(3)),
			SlidingWindow(9, time.Hour, Cost(costHeader("Points"))),
			InFlight(4)))
		time.Sleep(20 * time.Second)
		resp := api.do("Points", "2")
		assert.Equal(t, `"minute";q=5;w=60, "bucket";q=4;w=1, "sliding";q=9;w=3600, "inflight";q=4;qu="concurrent-requests"`,
			resp.Header.Get("RateLimit-Policy"))
		assert.Equal(t, `"minute";r=4;t=40, "bucket";r=2;t=1, "sliding";r=7;t=3600, "inflight";r=3`, resp.Header.Get("RateLimit"))
		resp = api.do()
		assert.Equal(t, `"minute";r=3;t=40, "bucket";r=1;t=1, "inflight";r=3`, resp.Header.Get("RateLimit"),
			"a limit that does not apply is not in the headers")
		api.take(3)
		resp = api.do()
		assert.Equal(t, 429, resp.StatusCode)
		assert.Equal(t, `"minute";r=2;t=40, "bucket";r=0;t=1, "inflight";r=4`, resp.Header.Get("RateLimit"))
	})
}

func TestXFieldsSpeakOfTheTightestLimit(t *testing.T) {
	for form, reset := range map[Fields]string{XDelta: "2", XEpoch: "946684802"} {
		synctest.Test(t, func(t *testing.T) {
			api := newCaller(t, WithFields(form), WithLimits(
				InFlight(1), FixedWindow(100, time.Hour), TokenBucket(60, time.Minute, Burst(4))))
			api.do()
			time.Sleep(500 * time.Millisecond)
			api.do()
			time.Sleep(time.Second - 1)
			resp := api.do() // 4-1+0.5-1+1-1 are left, so the next token is due at 2 s
			assert.Equal(t, "4", resp.Header.Get("X-RateLimit-Limit"))
			assert.Equal(t, "2", resp.Header.Get("X-RateLimit-Remaining"))
			want := map[Fields]string{XDelta: "1", XEpoch: reset}[form]
			assert.Equal(t, want, resp.Header.Get("X-RateLimit-Reset"))
		})
	}
}

func TestFieldsOfUntouchedLimitsAreFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithFields(Draft), WithKey(byHeader("Tenant")), WithLimits(
			SlidingWindow(1, time.Minute, Key(func(*http.Request) string { return "" })),
			SlidingWindow(3, time.Minute), FixedWindow(4, time.Minute, FromFirstRequest()), TokenBucket(5, time.Minute)))
		api.do()
		resp := api.do("Tenant", "another")
		assert.Equal(t, 429, resp.StatusCode)
		assert.Equal(t, `"sliding";r=0;t=60, "sliding-2";r=3;t=0, "window";r=4;t=0, "bucket";r=5;t=0`, resp.Header.Get("RateLimit"))
	})
}

func TestOlderDraftsSpeakOfTheTightestLimit(t *testing.T) {
	for form, want := range map[Fields]map[string]string{
		Draft6: {"RateLimit-Policy": "5;w=60", "RateLimit-Limit": "5", "RateLimit-Remaining": "4", "RateLimit-Reset": "40"},
		Draft7: {"RateLimit-Policy": "5;w=60", "RateLimit": "limit=5, remaining=4, reset=40", "RateLimit-Limit": ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			api := newCaller(t, WithFields(form, XDelta), WithLimits(FixedWindow(5, time.Minute), FixedWindow(100, time.Hour)))
			time.Sleep(20 * time.Second)
			resp := api.do()
			for name, value := range want {
				assert.Equal(t, value, resp.Header.Get(name), name)
			}
			assert.Equal(t, "40", resp.Header.Get("X-RateLimit-Reset"))
		})
	}
}

// What a server may say 0.3 s into a window of 2 s that the second request exhausts.
func TestTimesAreReportedInTheConfiguredForm(t *testing.T) {
	for name, c := range map[string]struct {
		opts                            []Option
		reset, afterRefused, afterFirst string
	}{
		"rounded up":         {nil, "2", "2", ""},
		"rounded down":       {[]Option{WithRounding(RoundDown)}, "1", "1", ""},
		"late":               {[]Option{WithLateResets(time.Second)}, "3", "3", ""},
		"late, rounded down": {[]Option{WithLateResets(time.Second), WithRounding(RoundDown)}, "2", "2", ""},
		"on 200s":            {[]Option{WithRetryAfterAlways()}, "2", "2", "2"},
		"on 200s, as a date": {[]Option{WithRetryAfterAlways(), WithRetryAfter(RetryAfterDate), WithLateResets(time.Second)}, "3",
			"Sat, 01 Jan 2000 00:00:03 GMT", "Sat, 01 Jan 2000 00:00:03 GMT"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newCaller(t, append(c.opts, WithFields(XDelta), WithLimits(FixedWindow(1, 2*time.Second)))...)
				time.Sleep(300 * time.Millisecond)
				first, refused := api.do(), api.do()
				assert.Equal(t, 200, first.StatusCode)
				assert.Equal(t, 429, refused.StatusCode)
				assert.Equal(t, c.reset, first.Header.Get("X-RateLimit-Reset"))
				assert.Equal(t, c.reset, refused.Header.Get("X-RateLimit-Reset"))
				assert.Equal(t, c.afterFirst, first.Header.Get("Retry-After"))
				assert.Equal(t, c.afterRefused, refused.Header.Get("Retry-After"))
			})
		})
	}
}

func TestAWaitRoundedDownToZeroIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithRounding(RoundDown), WithLimits(FixedWindow(1, time.Second)))
		time.Sleep(time.Nanosecond)
		api.do()
		assert.Equal(t, []string{"0"}, api.do().Header.Values("Retry-After"))
	})
}

func TestResetsInSecondsSinceTheEpochAreLateByUpToASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithFields(XEpoch), WithLimits(FixedWindow(5, time.Second, FromFirstRequest())))
		time.Sleep(300 * time.Millisecond)
		resp := api.do()
		assert.Equal(t, "946684802", resp.Header.Get("X-RateLimit-Reset"), "of 946684801.3")
		assert.Equal(t, "Sat, 01 Jan 2000 00:00:00 GMT", resp.Header.Get("Date"))
	})
}

func TestFullResetsReportWhenEverythingIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithFullResets(), WithFields(Draft), WithLimits(
			TokenBucket(60, time.Minute), SlidingWindow(100, 10*time.Second), FixedWindow(100, 20*time.Second)))
		api.take(3)
		time.Sleep(time.Second)
		assert.Equal(t, `"bucket";r=57;t=3, "sliding";r=96;t=10, "window";r=96;t=19`, api.do().Header.Get("RateLimit"))
	})
}

func TestFieldsAreLeftOutWithoutLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithFields(Draft, XDelta), WithLimits(InFlight(1, Cost(costHeader("Points")))))
		resp := api.do()
		assert.Empty(t, resp.Header.Values("RateLimit"))
		assert.Empty(t, resp.Header.Values("X-RateLimit-Limit"))
	})
}

func TestRefusalIsWrittenByTheUser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got Refusal
		api := newCaller(t, WithLimits(FixedWindow(1, time.Minute, Name("calls"), Status(403))),
			WithRefusal(func(w http.ResponseWriter, _ *http.Request, refusal Refusal) {
				got = refusal
				w.Header().Set("Retry-After", "0.5")
				w.WriteHeader(http.StatusBadRequest)
			}))
		api.do()
		resp := api.do()
		assert.Equal(t, 400, resp.StatusCode)
		assert.Equal(t, "0.5", resp.Header.Get("Retry-After"))
		assert.Equal(t, Refusal{Limit: "calls", Status: 403, Wait: time.Minute}, got)
	})
}

func TestTheWaitInRetryAfterIsEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newCaller(t, WithLimits(TokenBucket(7, time.Second), SlidingWindow(10, 3*time.Second), FixedWindow(13, 5*time.Second)))
		for range 200 {
			resp := api.do()
			if resp.StatusCode == 200 {
				continue
			}
			d, err := time.ParseDuration(resp.Header.Get("Retry-After") + "s")
			require.NoError(t, err)
			time.Sleep(d)
			require.Equal(t, 200, api.status())
		}
	})
}
