package tests

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
	"github.com/httpthrottle/throttle/store"
)

// kindsOfLimits are a limit of each kind, of a size that the requests of traceOf exceed.
var kindsOfLimits = map[string]func(...throttle.LimitOption) throttle.Limit{
	throttle.KindTokenBucket:   func(o ...throttle.LimitOption) throttle.Limit { return throttle.TokenBucket(4, time.Second, o...) },
	throttle.KindPace:          func(o ...throttle.LimitOption) throttle.Limit { return throttle.Pace(4, time.Second, o...) },
	throttle.KindQuota:         func(o ...throttle.LimitOption) throttle.Limit { return throttle.Quota(4, time.Second, o...) },
	throttle.KindSlidingWindow: func(o ...throttle.LimitOption) throttle.Limit { return throttle.SlidingWindow(4, time.Second, o...) },
	throttle.KindFixedWindow:   func(o ...throttle.LimitOption) throttle.Limit { return throttle.FixedWindow(4, time.Second, o...) },
	throttle.KindCalendarWindow: func(o ...throttle.LimitOption) throttle.Limit {
		return throttle.CalendarWindow(10, throttle.CalendarDay, time.UTC, o...)
	},
	throttle.KindInFlight: func(o ...throttle.LimitOption) throttle.Limit { return throttle.InFlight(2, o...) },
	throttle.KindAdaptive: func(o ...throttle.LimitOption) throttle.Limit {
		return throttle.Adaptive(throttle.AIMD{Initial: 4}, o...)
	},
	throttle.KindAdaptiveInFlight: func(o ...throttle.LimitOption) throttle.Limit {
		return throttle.AdaptiveInFlight(throttle.Concurrency{Initial: 2, Max: 4}, o...)
	},
	throttle.KindServerQuota: func(o ...throttle.LimitOption) throttle.Limit { return throttle.ServerQuota("tokens", o...) },
}

// kindsOfLimits have each kind of which users make limits.
func TestNoKindOfLimitsIsForgotten(t *testing.T) {
	api, err := os.ReadFile("testdata/api/throttle.txt")
	require.NoError(t, err)
	kinds := []string{throttle.KindServer, throttle.KindNone} // which no function makes
	for kind := range kindsOfLimits {
		kinds = append(kinds, kind)
	}
	var constants []string
	for _, m := range regexp.MustCompile(`(?m)^const Kind\w+ untyped string = "(.+)"$`).FindAllSubmatch(api, -1) {
		constants = append(constants, string(m[1]))
	}
	require.ElementsMatch(t, constants, kinds)
}

// caller is the key and the caller of a request.
func caller(r *http.Request) string { return r.Header.Get("Caller") }

// estimate is a cost that is above the size of a limit for one request.
func estimate(r *http.Request) int64 {
	if r.Header.Get("Large") != "" {
		return 99
	}
	return 3
}

// Each option of a limit has an effect on each kind of limits, or is an error that names it.
func TestAnOptionOfALimitHasAnEffectOrIsAnError(t *testing.T) { // slow: every option with every kind of limit
	settle := throttle.Settle(func(*http.Request, *http.Response) (int64, bool) { return 1, true })
	all := slices.Sorted(maps.Keys(kindsOfLimits))
	none := []string{}
	but := func(kinds ...string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(k string) bool { return slices.Contains(kinds, k) })
	}
	const (
		bucket, pace, quota, sliding, fixed = throttle.KindTokenBucket, throttle.KindPace, throttle.KindQuota, throttle.KindSlidingWindow, throttle.KindFixedWindow
		slots, rate, flight, server         = throttle.KindInFlight, throttle.KindAdaptive, throttle.KindAdaptiveInFlight, throttle.KindServerQuota
	)
	for name, c := range map[string]struct {
		option throttle.LimitOption
		beside []throttle.LimitOption
		not    []string // the kinds for which it is an error
	}{
		"Name":       {throttle.Name("other"), nil, none},
		"Burst":      {throttle.Burst(2), nil, but(bucket)},
		"Initial":    {throttle.Initial(1), nil, but(bucket)},
		"Start":      {throttle.Start(time.UnixMilli(500)), nil, but(fixed)},
		"FromGrant":  {throttle.FromGrant(), nil, but(quota, sliding)},
		"Key":        {throttle.Key(caller), nil, none},
		"Cost":       {throttle.Cost(costing(2)), nil, none},
		"ClampCost":  {throttle.ClampCost(), []throttle.LimitOption{throttle.Cost(estimate)}, []string{pace, rate, flight, server}},
		"LearnCost":  {throttle.LearnCost(), []throttle.LimitOption{throttle.Cost(costing(3)), settle}, []string{slots, flight}},
		"Settle":     {settle, []throttle.LimitOption{throttle.Cost(costing(3))}, []string{slots, flight}},
		"SettleJSON": {throttle.SettleJSON("usage"), []throttle.LimitOption{throttle.Cost(costing(3))}, []string{slots, flight}},
		"SettleJSONFunc": {throttle.SettleJSONFunc(func(_ *http.Response, n []int64) (int64, bool) { return n[0], n[0] >= 0 }, "usage"),
			[]throttle.LimitOption{throttle.Cost(costing(3))}, []string{slots, flight}},
		"Fraction":     {throttle.Fraction(.5), nil, []string{rate, flight, server}},
		"RateFor":      {throttle.RateFor(func(string) (int64, time.Duration) { return 2, time.Second }), []throttle.LimitOption{throttle.Key(caller)}, []string{slots, rate, flight, server}},
		"Classify":     {throttle.Classify(func(*http.Response, error) throttle.Outcome { return throttle.OutcomeThrottled }), nil, but(rate, flight)},
		"UntilHeaders": {throttle.UntilHeaders(), nil, but(slots, flight)},
		"Pause":        {throttle.Pause(time.Second), nil, but(slots)},
		"Shared":       {throttle.Shared(store.NewMemory()), nil, []string{rate, flight, server}},
		"FairBy":       {throttle.FairBy(caller), nil, none},
		"FairWeights":  {throttle.FairWeights(func(c string) int { return 1 + 9*len(c) }), []throttle.LimitOption{throttle.FairBy(caller)}, none},
	} {
		for _, kind := range all {
			t.Run(name+"/"+kind, func(t *testing.T) {
				limit := kindsOfLimits[kind]
				_, err := throttle.New(nil, throttle.WithLimit(limit(append(c.beside, c.option)...)))
				if slices.Contains(c.not, kind) {
					require.ErrorContains(t, err, name)
					require.ErrorContains(t, err, kind)
					return
				}
				require.NoError(t, err)
				before := traceOf(t, false, throttle.WithLimit(limit(c.beside...)))
				require.True(t, before == traceOf(t, false, throttle.WithLimit(limit(c.beside...))), "what is compared does not depend on chance")
				require.False(t, before == traceOf(t, false, throttle.WithLimit(limit(append(c.beside, c.option)...))), before)
			})
		}
	}
}

// Each option of a Transport has an effect beside each kind of limits, or is an error that names it.
func TestAnOptionOfATransportHasAnEffectOrIsAnError(t *testing.T) {
	for name, c := range map[string]struct {
		option func() throttle.Option
		beside []throttle.Option
		not    []string
	}{
		"WithKey":            {func() throttle.Option { return throttle.WithKey(caller) }, nil, nil},
		"WithCost":           {func() throttle.Option { return throttle.WithCost(costing(2)) }, nil, nil},
		"WithWeights":        {func() throttle.Option { return throttle.WithWeights(map[string]int64{"/": 2}) }, nil, nil},
		"WithMaxWait":        {func() throttle.Option { return throttle.WithMaxWait(time.Second) }, nil, nil},
		"WithFailFast":       {func() throttle.Option { return throttle.WithFailFast() }, nil, nil},
		"WithMaxQueue":       {func() throttle.Option { return throttle.WithMaxQueue(3) }, nil, nil},
		"WithDeadlineOrder":  {func() throttle.Option { return throttle.WithDeadlineOrder(2000 * time.Hour) }, nil, nil},
		"WithMaxKeys":        {func() throttle.Option { return throttle.WithMaxKeys(1) }, []throttle.Option{throttle.WithKey(caller)}, nil},
		"WithRejectionError": {func() throttle.Option { return throttle.WithRejectionError() }, []throttle.Option{throttle.WithFailFast()}, nil},
		"WithRejectionResponse": {func() throttle.Option {
			return throttle.WithRejectionResponse(func(*throttle.Rejection, *http.Request) *http.Response { return &http.Response{StatusCode: 503} })
		}, []throttle.Option{throttle.WithFailFast()}, nil},
		"WithExempt": {func() throttle.Option {
			return throttle.WithExempt(func(r *http.Request) bool { return caller(r) == "b" })
		}, nil, nil},
		"WithDryRun": {func() throttle.Option { return throttle.WithDryRun() }, nil, nil},
		"WithServerHints": {func() throttle.Option {
			return throttle.WithServerHints(headers.Dialect{Name: "own", Fields: []headers.Field{{Name: "Come-Back", Role: headers.RoleRetryAfter}}})
		}, nil, nil},
		"WithoutServerHints": {func() throttle.Option { return throttle.WithoutServerHints() }, nil, []string{throttle.KindServerQuota}},
	} {
		for kind, limit := range kindsOfLimits {
			slots := kind == throttle.KindInFlight || kind == throttle.KindAdaptiveInFlight
			if slots && (name == "WithCost" || name == "WithWeights") {
				continue // a request takes one slot; programs often give one list of options to Transports with different limits
			}
			t.Run(name+"/"+kind, func(t *testing.T) {
				beside := append([]throttle.Option{throttle.WithLimit(limit())}, c.beside...)
				_, err := throttle.New(nil, append(beside, c.option())...)
				if slices.Contains(c.not, kind) {
					require.ErrorContains(t, err, name)
					return
				}
				require.NoError(t, err)
				refuses := strings.Contains(name, "ServerHints")
				if refuses && kind == throttle.KindCalendarWindow {
					return // a hold ends before its next window, and none is left of this one
				}
				require.False(t, traceOf(t, refuses, beside...) == traceOf(t, refuses, append(beside, c.option())...))
			})
		}
	}
}

// traceOf returns all that can be seen of a Transport: when each of 60 requests of two callers to two hosts was sent, or how it was rejected,
// and the statistics. If the server refuses two of them for more than a day, times are rounded to hours, because holds end at random.
func traceOf(t *testing.T, refuses bool, opts ...throttle.Option) (trace string) {
	synctest.Test(t, func(t *testing.T) {
		start, unit := time.Now(), time.Millisecond
		if refuses {
			unit = time.Hour
		}
		sent := make([]time.Duration, 60)
		lines := make([]string, len(sent))
		tr := transportTo(t, roundTripper(func(r *http.Request) (*http.Response, error) {
			i, err := strconv.Atoi(r.URL.Query().Get("i"))
			require.NoError(t, err)
			sent[i] = time.Since(start).Round(unit)
			each := 100*time.Millisecond + time.Duration(i)*137*time.Microsecond // so that no two requests end at one instant
			time.Sleep(each)
			h := http.Header{"Content-Type": {"application/json"}, "X-Ratelimit-Limit-Tokens": {"8"},
				"X-Ratelimit-Remaining-Tokens": {strconv.Itoa(7 - i%8)}, "X-Ratelimit-Reset-Tokens": {"2s"}}
			status := http.StatusOK
			switch {
			case !refuses:
			case i == 20:
				status = http.StatusTooManyRequests
				h.Set("Retry-After", "100000")
			case i == 30:
				status = http.StatusServiceUnavailable
				h.Set("Come-Back", "200000")
			}
			return &http.Response{StatusCode: status, Header: h, Body: &slowly{strings.NewReader(`{"usage":1}`), each * 7 / 5}, Request: r}, nil
		}), opts...)
		var wg sync.WaitGroup
		for i := range lines {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 9700 * time.Microsecond)
				switch { // these know what earlier ones did cost
				case i >= 55: // two windows of the calendar later
					time.Sleep(48*time.Hour + time.Minute)
				case i >= 50:
					time.Sleep(time.Minute)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 1000*time.Hour-time.Duration(i)*time.Hour)
				defer cancel()
				r := get(t, ctx, fmt.Sprintf("http://h%d.test/items?i=%d", i%2, i))
				r.Header.Set("Caller", strings.Repeat("b", i%5/4))
				if i == 5 {
					r.Header.Set("Large", "1")
				}
				resp, err := tr.RoundTrip(r)
				if err != nil {
					lines[i] = "error"
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				lines[i] = strconv.Itoa(resp.StatusCode)
			})
		}
		wg.Wait()
		for i := range lines {
			trace += fmt.Sprintln(i, sent[i], lines[i])
		}
		if !refuses {
			for _, l := range tr.Limiter().Limits() {
				trace += fmt.Sprintln(l.Name, l.Granted, l.Estimated, l.Settled, l.Rejected, l.Keyed)
			}
			s := tr.Stats()
			trace += fmt.Sprintln(s.Exempt)
		}
	})
	return trace
}

// slowly is a body whose reads take a while.
type slowly struct {
	io.Reader
	each time.Duration
}

func (s *slowly) Read(p []byte) (int, error) {
	time.Sleep(s.each)
	return s.Reader.Read(p)
}

func (s *slowly) Close() error { return nil }
