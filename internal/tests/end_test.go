package tests

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
)

// A gateway that ends answers 503, so that its clients try another process soon.
func TestAGatewayThatEndsAnswersUnavailable(t *testing.T) {
	tr := transportTo(t, takes(0))
	require.NoError(t, tr.Shutdown(t.Context()))
	_, err := tr.RoundTrip(request(t.Context()))
	var r *throttle.Rejection
	require.ErrorAs(t, err, &r)
	w := httptest.NewRecorder()
	r.WriteResponse(w)
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.Equal(t, "1", w.Header().Get("Retry-After"))
	var problem struct {
		Status     int
		Title      string
		RetryAfter float64 `json:"retry_after"`
		Detail     string
	}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &problem))
	require.Equal(t, 503, problem.Status)
	require.Equal(t, "Service Unavailable", problem.Title)
	require.Equal(t, 1.0, problem.RetryAfter)
	require.Equal(t, "Shutting down: retry in 1 s", problem.Detail)
}

// A Ticket whose context has ended is not sent, and gives back what it took, whether it had to wait or not.
func TestATicketWhoseContextHasEndedGivesBackWhatItTook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := 0
		tr := transportTo(t, roundTripper(func(r *http.Request) (*http.Response, error) {
			sent++
			return &http.Response{StatusCode: 200, Body: http.NoBody, Request: r}, nil
		}), throttle.WithLimit(throttle.InFlight(1), throttle.TokenBucket(2, time.Hour)))
		left := func() (slots, tokens float64) {
			all := tr.Limiter().Limits()
			return all[0].Tokens, all[1].Tokens
		}
		ctx, cancel := context.WithCancel(t.Context())
		granted, err := tr.Enqueue(request(ctx))
		require.NoError(t, err)
		waits, err := tr.Enqueue(request(ctx))
		require.NoError(t, err)
		cancel()
		_, err = granted.RoundTrip(request(ctx))
		require.ErrorIs(t, err, context.Canceled)
		synctest.Wait()
		<-waits.Decided()
		_, err = waits.RoundTrip(request(ctx))
		require.ErrorIs(t, err, context.Canceled)
		require.Zero(t, sent)
		slots, tokens := left()
		require.Equal(t, 1.0, slots)
		require.Equal(t, 2.0, tokens)
		require.NoError(t, tr.Shutdown(t.Context()))
	})
}

// So does a Ticket of a Limiter, whether it was granted on arrival, or later, or waits.
func TestATicketOfALimiterWhoseContextHasEndedGivesBackWhatItTook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiterWith(t, throttle.WithLimit(throttle.InFlight(2), throttle.TokenBucket(2, time.Second, throttle.Initial(1))))
		ctx, cancel := context.WithCancelCause(t.Context())
		var tickets []*throttle.Ticket
		for range 3 {
			ticket, err := l.Enqueue(throttle.Ask{})
			require.NoError(t, err)
			tickets = append(tickets, ticket)
		}
		<-tickets[1].Decided() // after half a second
		cause := errors.New("over")
		cancel(cause)
		for _, ticket := range tickets {
			_, err := ticket.Wait(ctx)
			require.ErrorIs(t, err, cause)
		}
		all := l.Limits()
		require.Equal(t, 2.0, all[0].Tokens)
		require.Equal(t, 2.0, all[1].Tokens)
		require.Zero(t, l.Stats().Waiting)
		require.NoError(t, l.Shutdown(t.Context()))
	})
}
