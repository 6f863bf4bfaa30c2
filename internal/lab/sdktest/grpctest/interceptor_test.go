package grpctest

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/httpthrottle/throttle"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

// client returns a client of a server in memory, whose calls are limited, and the service that it calls.
func client(t *testing.T, l *throttle.Limiter) (grpc_health_v1.HealthClient, *health.Server) {
	t.Helper()
	listener := bufconn.Listen(1 << 16)
	server, service := grpc.NewServer(), health.NewServer()
	grpc_health_v1.RegisterHealthServer(server, service)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(throttled(l)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		server.Stop()
		require.NoError(t, <-served)
	})
	return grpc_health_v1.NewHealthClient(conn), service
}

func TestCallsAreLimitedAndReported(t *testing.T) {
	limiter, err := throttle.NewLimiter(throttle.WithMaxWait(0), throttle.WithLimit(
		throttle.SlidingWindow(3, time.Hour), throttle.InFlight(1), throttle.Adaptive(throttle.AIMD{Initial: 1000})))
	require.NoError(t, err)
	api, _ := client(t, limiter)
	ask := func(ctx context.Context, service string) codes.Code {
		_, err := api.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service})
		return status.Code(err)
	}
	require.Equal(t, codes.OK, ask(t.Context(), ""))
	require.Equal(t, codes.NotFound, ask(t.Context(), "unknown"))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.Equal(t, codes.Canceled, ask(ended, ""), "and nothing is charged")
	require.Equal(t, codes.OK, ask(t.Context(), ""))
	require.Equal(t, codes.ResourceExhausted, ask(t.Context(), ""), "the window is full")
	require.EqualValues(t, 3, limiter.Stats().Granted)
}
