package tests

import (
	"errors"
	"math"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/store"
)

// Each kind of limits answers each question, or says that it is not known, or that it does not fit: never by a zero that is none.
func TestEachKindAnswersEachQuestion(t *testing.T) {
	set := []string{throttle.KindTokenBucket, throttle.KindPace, throttle.KindQuota, throttle.KindSlidingWindow, throttle.KindFixedWindow, throttle.KindCalendarWindow}
	slots := []string{throttle.KindInFlight, throttle.KindAdaptiveInFlight}
	for kind, of := range kindsOfLimits {
		limit := func(opts ...throttle.LimitOption) throttle.Limit { return of(append(opts, throttle.Name(kind))...) }
		// spent returns a Limiter that grants nothing more now, and how many requests it has granted.
		spent := func(t *testing.T, opts ...throttle.Option) (*throttle.Limiter, []*throttle.Grant) {
			l := limiterWith(t, append(opts, throttle.WithLimit(limit()))...)
			var grants []*throttle.Grant
			for range 100 {
				g, err := l.Acquire(t.Context(), throttle.Ask{MaxWait: new(time.Duration)})
				if err != nil {
					require.ErrorIs(t, err, throttle.ErrThrottled)
					break
				}
				grants = append(grants, g)
			}
			require.NotEmpty(t, grants)
			require.Less(t, len(grants), 100)
			return l, grants
		}
		inBubble(t, kind+"/grant and wait", func(t *testing.T) {
			l, grants := spent(t)
			ticket, err := l.Enqueue(throttle.Ask{})
			require.NoError(t, err)
			require.Equal(t, 1, l.Stats().Waiting)
			w, ok := ticket.Waiting()
			require.True(t, ok)
			require.Equal(t, kind, w.Limit)
			if slices.Contains(slots, kind) {
				require.True(t, w.Due.IsZero() || w.Due.After(time.Now()), "a slot that is taken is free later, or it is not known when")
				grants[0].Done()
			} else {
				require.True(t, w.Due.IsZero() && !slices.Contains(set, kind) || w.Due.After(time.Now()))
			}
			start := time.Now()
			_, err = ticket.Wait(t.Context())
			require.NoError(t, err)
			if slices.Contains(set, kind) {
				require.Equal(t, w.Due.Sub(start), time.Since(start), "what was said is what happens")
			}
		})
		inBubble(t, kind+"/forecast", func(t *testing.T) {
			l, _ := spent(t)
			f, err := l.Forecast(throttle.Ask{}, 10)
			require.NoError(t, err)
			require.Equal(t, kind, f.Limit)
			require.Positive(t, f.Tenths[0], "nothing can be sent now")
			require.True(t, slices.IsSorted(f.Tenths[:]))
			if slices.Contains(set, kind) {
				require.False(t, f.Least)
				require.Less(t, f.Done(), 48*time.Hour)
			} else {
				require.True(t, f.Least)
			}
			if slices.Contains(slots, kind) {
				require.Equal(t, time.Duration(math.MaxInt64), f.Done(), "no request has ended")
			}
		})
		inBubble(t, kind+"/rejection", func(t *testing.T) {
			l, _ := spent(t)
			_, err := l.Acquire(t.Context(), throttle.Ask{MaxWait: new(time.Duration)})
			var r *throttle.Rejection
			require.ErrorAs(t, err, &r)
			require.Equal(t, kind, r.Limit)
			require.Equal(t, throttle.ReasonNoTokens, r.Reason)
			require.True(t, r.Wait > 0 || slices.Contains(slots, kind) || kind == throttle.KindAdaptive, "%v", r)
			require.Contains(t, r.Error(), `limit "`+kind+`"`)
			require.NotContains(t, r.Error(), "ever")
			_, err = l.Acquire(t.Context(), throttle.Ask{Cost: 1 << 40, MaxWait: new(time.Duration)})
			if errors.As(err, &r) && r.Reason == throttle.ReasonCost {
				require.Positive(t, r.Most, "%v", r)
			}
		})
		inBubble(t, kind+"/tokens and snapshot", func(t *testing.T) {
			l, _ := spent(t)
			before, ok := l.Bucket(kind, "")
			require.True(t, ok)
			if kind == throttle.KindServerQuota {
				require.True(t, math.IsInf(before.Tokens, 1), "no server has reported a bound")
			} else {
				require.Less(t, before.Tokens, 1.0)
			}
			other := limiterWith(t, throttle.WithLimit(limit()))
			require.NoError(t, other.Restore(l.Snapshot()))
			after, _ := other.Bucket(kind, "")
			if slices.Contains(set, kind) {
				require.InDelta(t, before.Tokens, after.Tokens, 1e-6, "what was spent stays spent")
			}
		})
		inBubble(t, kind+"/changes", func(t *testing.T) {
			l, _ := spent(t)
			per := time.Second
			if kind == throttle.KindCalendarWindow {
				per = 24 * time.Hour
			}
			err := l.SetRate(kind, 1000, per)
			if slices.Contains(set, kind) {
				require.NoError(t, err)
				b, _ := l.Bucket(kind, "")
				require.InDelta(t, 1000/per.Seconds(), b.Rate, 1e-9)
			} else {
				require.ErrorContains(t, err, kind)
			}
			err = l.SetInFlight(kind, 50)
			if kind == throttle.KindInFlight {
				require.NoError(t, err)
				_, err = l.Acquire(t.Context(), throttle.Ask{MaxWait: new(time.Duration)})
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, kind)
			}
		})
		inBubble(t, kind+"/shared", func(t *testing.T) {
			shared := store.NewMemory()
			_, err := throttle.NewLimiter(throttle.WithLimit(limit(throttle.Shared(shared))))
			if !slices.Contains(set, kind) && kind != throttle.KindInFlight {
				require.ErrorContains(t, err, "Shared")
				return
			}
			require.NoError(t, err)
			granted := 0
			for range 3 { // processes
				l := limiterWith(t, throttle.WithLimit(limit(throttle.Shared(shared))))
				for range 20 {
					_, err := l.Acquire(t.Context(), throttle.Ask{MaxWait: new(time.Duration)})
					if err == nil {
						granted++
					}
				}
			}
			require.Positive(t, granted)
			require.LessOrEqual(t, granted, 10, "one budget for all")
		})
		inBubble(t, kind+"/dry run", func(t *testing.T) {
			sent := 0
			start := time.Now()
			tr := transportTo(t, roundTripper(func(r *http.Request) (*http.Response, error) {
				sent++
				return &http.Response{StatusCode: 200, Body: http.NoBody, Request: r}, nil
			}), throttle.WithLimit(limit()), throttle.WithDryRun())
			for range 100 {
				resp, err := tr.RoundTrip(request(t.Context()))
				require.NoError(t, err)
				resp.Body.Close()
			}
			require.Zero(t, time.Since(start))
			require.Equal(t, 100, sent)
			time.Sleep(1000 * time.Hour)                                               // for those that would still wait
			waits := !slices.Contains(slots, kind) && kind != throttle.KindServerQuota // their requests have ended, and none is in flight
			require.Equal(t, waits, tr.Stats().Delayed > 0)
		})
	}
}
