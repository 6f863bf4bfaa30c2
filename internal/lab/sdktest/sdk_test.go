package sdktest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/throttletest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An sdk is a client library, and what its calls do over a Transport.
type sdk struct {
	api
	call    caller                                                     // with the SDK's own retries, as it has them by default
	refused func(error) (resp *http.Response, ok bool)                 // finds the SDK's error for a status of 429, and the response if it keeps it
	open    func(t *testing.T, url string, client *http.Client) stream // nil: it has no streams

	rejected rejections
	errored  outcome       // rejected by an error, with a wait of an hour
	deadline outcome       // rejected for a deadline in 5 s, with a wait of an hour
	late     time.Duration // what the SDK adds to a server's Retry-After
}

// rejections are the outcomes of a call that is rejected by a response, by the wait that the response has.
type rejections struct{ short, long, hour outcome }

const (
	shortWait = 1500 * time.Millisecond
	longWait  = 50 * time.Second
	patience  = 5 * time.Second
)

// An outcome is what becomes of a call that is rejected at first.
type outcome struct {
	tries    uint64        // requests that the SDK sends in all
	most     uint64        // the most that they may be, where chance decides; 0: exactly tries
	min, max time.Duration // how long the call takes; max 0: exactly min
	ok       bool          // whether it succeeds
	unlike   bool          // whether its error is not the one that all SDKs should return
}

// object is what stores of objects hold.
const object = "what the object holds"

// googleRefusal is a 429 of the APIs of Google.
const googleRefusal = `{"error": {"code": 429, "message": "Rate Limit Exceeded", "status": "RESOURCE_EXHAUSTED",
	"errors": [{"message": "Rate Limit Exceeded", "domain": "usageLimits", "reason": "rateLimitExceeded"}]}}`

// once is the outcome of an SDK that does not retry.
var once = outcome{tries: 1}

// checkSDK checks every property of an SDK.
func checkSDK(t *testing.T, s sdk) {
	t.Helper()
	t.Run("keeps the limit", func(t *testing.T) { checkLimitKept(t, s.api, s.call) })
	checkRejectedByResponse(t, s)
	checkRejectedByError(t, s)
	checkDeadline(t, s)
	checkServersOwnRefusal(t, s)
	checkSlots(t, s)
}

// A counted counts the requests that an SDK sends, and ends a loop that has no end.
type counted struct {
	next  http.RoundTripper
	tries atomic.Uint64
}

const endless = 2000

var errEndless = errors.New("the SDK retries without end")

func (c *counted) RoundTrip(req *http.Request) (*http.Response, error) {
	if c.tries.Add(1) > endless {
		return nil, errEndless
	}
	return c.next.RoundTrip(req)
}

// check makes a call right after another one that took the only token, and compares what becomes of it.
func (s sdk) check(t *testing.T, ctx context.Context, wait time.Duration, want outcome, opts ...throttle.Option) error {
	t.Helper()
	server := s.start(t)
	transport, _ := throttled(t, server, append(opts, throttle.WithLimit(throttle.Pace(1, wait)))...)
	trips := &counted{next: transport}
	call := s.call(t, server.URL, &http.Client{Transport: trips})
	require.NoError(t, call(t.Context()))

	trips.tries.Store(0)
	begun := time.Now()
	err := call(ctx)
	took := time.Since(begun)
	within(t, trips.tries.Load(), want.tries, want.most, "requests that the SDK sent")
	within(t, took, want.min, want.max, "time that the call took")
	if want.ok {
		assert.NoError(t, err)
		assert.EqualValues(t, 2, server.Counts().Received)
	} else {
		assert.Error(t, err)
		assert.EqualValues(t, 1, server.Counts().Received)
	}
	return err
}

// within checks that a value is from min to max; max 0: exactly min.
func within[T uint64 | time.Duration](t *testing.T, got, min, max T, what string) {
	t.Helper()
	if max == 0 {
		assert.Equal(t, min, got, what)
		return
	}
	assert.GreaterOrEqual(t, got, min, what)
	assert.LessOrEqual(t, got, max, what)
}

func checkRejectedByResponse(t *testing.T, s sdk) {
	t.Helper()
	for name, c := range map[string]struct {
		wait time.Duration
		want outcome
	}{"1.5 s": {shortWait, s.rejected.short}, "50 s": {longWait, s.rejected.long}, "1 h": {time.Hour, s.rejected.hour}} {
		bubble(t, "rejected by a response, for "+name, func(t *testing.T) {
			err := s.check(t, t.Context(), c.wait, c.want, throttle.WithFailFast())
			if c.want.ok {
				return
			}
			resp, ok := s.refused(err)
			assert.Equal(t, !c.want.unlike, ok, "the SDK's own error for a 429: %v", err)
			if resp != nil {
				rejection, ok := throttle.RejectionOf(resp)
				require.True(t, ok)
				assert.Equal(t, throttle.ReasonNoTokens, rejection.Reason)
			}
		})
	}
}

func checkRejectedByError(t *testing.T, s sdk) {
	t.Helper()
	bubble(t, "rejected by an error", func(t *testing.T) {
		err := s.check(t, t.Context(), time.Hour, s.errored, throttle.WithFailFast(), throttle.WithRejectionError())
		require.ErrorIs(t, err, throttle.ErrThrottled)
		rejection, ok := errors.AsType[*throttle.Rejection](err)
		require.True(t, ok)
		assert.Equal(t, throttle.ReasonNoTokens, rejection.Reason)
	})
}

func checkDeadline(t *testing.T, s sdk) {
	t.Helper()
	bubble(t, "rejected for the deadline", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		err := s.check(t, ctx, time.Hour, s.deadline)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, !s.deadline.unlike, errors.Is(err, throttle.ErrThrottled))
	})
}

// held is how long the server's own Retry-After asks to stay away.
const held = 3 * time.Second

// The spread of what leaves after a hold (a tenth of it), and what an SDK adds on its own.
func checkServersOwnRefusal(t *testing.T, s sdk) {
	t.Helper()
	bubble(t, "keeps away after the server's own refusal", func(t *testing.T) {
		var requests atomic.Int64
		serve := s.serve
		s.serve = func(w http.ResponseWriter, r *http.Request) {
			if requests.Add(1) > 1 {
				serve(w, r)
				return
			}
			w.Header().Set("Retry-After", strconv.Itoa(int(held/time.Second)))
			s.refusal(w, r, throttletest.Refusal{Status: http.StatusTooManyRequests, Wait: held})
		}
		server := s.start(t)
		_, client := throttled(t, server)
		call := s.call(t, server.URL, client)
		if err := call(t.Context()); err != nil {
			resp, _ := s.refused(err)
			_, ok := throttle.RejectionOf(resp)
			assert.False(t, ok, "it is the server's own")
			require.NoError(t, call(t.Context()))
		}
		accepted := server.Accepted()
		require.Len(t, accepted, 2)
		gap := accepted[1].Sub(accepted[0])
		assert.GreaterOrEqual(t, gap, held)
		assert.LessOrEqual(t, gap, held+held/10+s.late)
	})
}

// checkSlots checks that a call gives its slot back, and that a stream holds it until it is over.
func checkSlots(t *testing.T, s sdk) {
	t.Helper()
	slots := throttle.WithLimit(throttle.InFlight(1, throttle.Name("slots")))
	bubble(t, "a call gives its slot back", func(t *testing.T) {
		server := s.start(t)
		transport, client := throttled(t, server, slots)
		require.NoError(t, s.call(t, server.URL, client)(t.Context()))
		assert.EqualValues(t, 1, left(t, transport, "slots"))
	})
	if s.open == nil {
		return
	}
	for how, end := range ends {
		bubble(t, "a stream holds its slot until it is "+how, func(t *testing.T) {
			server := s.start(t)
			transport, client := throttled(t, server, slots)
			checkSlotHeld(t, transport, s.open(t, server.URL, client), end)
		})
	}
}

// A stream is a response that is being read.
type stream struct {
	rest  func() error // reads it to its end, without closing it
	close func() error // leaves it
}

// streamOf is the stream of a body.
func streamOf(body io.ReadCloser) stream {
	return stream{close: body.Close, rest: func() error {
		_, err := io.Copy(io.Discard, body)
		return err
	}}
}

// ends are the ways in which a stream ends.
var ends = map[string]func(stream) error{
	"read":   func(s stream) error { return s.rest() },
	"closed": func(s stream) error { return s.close() },
}

// checkSlotHeld checks that a stream holds the only slot until it ends.
func checkSlotHeld(t *testing.T, transport *throttle.Transport, s stream, end func(stream) error) {
	t.Helper()
	assert.Zero(t, left(t, transport, "slots"))
	require.NoError(t, end(s))
	assert.EqualValues(t, 1, left(t, transport, "slots"))
	require.NoError(t, s.close())
	assert.EqualValues(t, 1, left(t, transport, "slots"))
}
