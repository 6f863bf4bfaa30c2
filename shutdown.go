package throttle

import "context"

// Shutdown ends the Limiter gracefully. From now on, new requests of all its Transports and callers are rejected with [ReasonShutdown].
// Requests that wait are still sent. Shutdown returns nil when no request waits and none is in flight, and when unused tokens and slots of
// [Shared] limits are back in their stores.
//
// If ctx ends before, the requests that still wait are rejected with ReasonShutdown, tokens and slots that are not used begin to go
// back, and Shutdown returns the cause of ctx. Requests in flight are not stopped: end their contexts for that.
//
// A request of a Transport is in flight until its response has arrived or, if a limit settles costs or frees slots by the body, until the
// body has been read to its end or closed. A [Grant] is in flight until the calls that its limits need: Done for [InFlight], Report for
// [Adaptive]. Exempt requests are still sent, and Shutdown does not wait for them. A dry run ([WithDryRun]) still sends all requests, and
// counts those that would be rejected. Shutdown does not wait for a store that is unreachable.
//
// Shutdown may be called several times, and concurrently. Each call waits for itself. The Limiter cannot be used again.
func (l *Limiter) Shutdown(ctx context.Context) error {
	l.mustBeMade()
	return l.core.Shutdown(ctx, nil)
}

// Shutdown does for the requests of the Transport what [Limiter.Shutdown] does for all. If the Transport has a Limiter of its own, that is
// shut down. If it uses another one ([WithLimiter]), other Transports continue, and nothing goes back to a store. It does not close
// connections: see [Transport.CloseIdleConnections].
func (t *Transport) Shutdown(ctx context.Context) error {
	t.mustBeMade()
	if t.owns {
		return t.limiter.Shutdown(ctx)
	}
	return t.limiter.core.Shutdown(ctx, t.user)
}
