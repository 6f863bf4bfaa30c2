// Package grpctest has the interceptor of docs/recipes.md, which limits the calls of a gRPC client, and its tests.
package grpctest

import (
	"context"
	"errors"

	"github.com/httpthrottle/throttle"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func throttled(l *throttle.Limiter) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		grant, err := l.Acquire(ctx, throttle.Ask{Key: conn.Target()})
		if errors.Is(err, throttle.ErrThrottled) {
			return status.Error(codes.ResourceExhausted, err.Error())
		} else if err != nil { // the context has ended
			return status.FromContextError(err).Err()
		}
		defer grant.Done() // a slot of InFlight
		err = call(ctx, method, req, reply, conn, opts...)
		switch status.Code(err) { // for Adaptive
		case codes.OK:
			grant.Report(throttle.OutcomeOK)
		case codes.ResourceExhausted:
			grant.Report(throttle.OutcomeThrottled)
		case codes.Unavailable, codes.DeadlineExceeded:
			grant.Report(throttle.OutcomeUnavailable)
		default:
			grant.Report(throttle.OutcomeClientError)
		}
		return err
	}
}
