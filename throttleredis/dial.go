package throttleredis

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// A dials is a hook of a client. It remembers how the latest attempt to connect went, because go-redis makes five attempts, which takes
// longer than a call may, and reports the error after the last one.
type dials struct {
	mu    sync.Mutex
	open  int       // attempts under way
	since time.Time // when the oldest of them, or one after it, began
	addr  string    // of the latest
	err   error     // of the latest that has ended
}

// DialHook implements [redis.Hook].
func (d *dials) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		d.begin(addr)
		conn, err := next(ctx, network, addr)
		d.end(err)
		return conn, err
	}
}

// ProcessHook implements [redis.Hook].
func (d *dials) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook implements [redis.Hook].
func (d *dials) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (d *dials) begin(addr string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open == 0 {
		d.since = time.Now()
	}
	d.open++
	d.addr = addr
}

func (d *dials) end(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open--
	d.err = err
}

// Cause returns the error of the latest attempt to connect to Redis, or that one is under way; nil if the latest one succeeded. See
// [store.Explainer].
func (s *Store) Cause() error {
	d := &s.dials
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil && d.open > 0 {
		return fmt.Errorf("throttleredis: connecting to %s for %v", d.addr, time.Since(d.since).Round(time.Millisecond))
	}
	return d.err
}

// watch adds the hook to the client.
func (s *Store) watch() {
	if c, ok := s.client.(*redis.ClusterClient); ok {
		c.OnNewNode(func(node *redis.Client) { node.AddHook(&s.dials) })
		return
	}
	s.client.AddHook(&s.dials)
}
