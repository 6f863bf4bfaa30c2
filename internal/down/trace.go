package down

import (
	"context"
	"net/http/httptrace"
	"sync/atomic"
)

// A Trace notes whether a request got a connection.
type Trace struct{ asked, got atomic.Bool }

// On returns a context under which the Trace records connections.
func (t *Trace) On(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { t.asked.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { t.got.Store(true) },
	})
}

// Seen returns whether the base asked for a connection, which shows that it calls hooks, and whether it got one.
func (t *Trace) Seen() (asked, got bool) { return t.asked.Load(), t.got.Load() }
