//go:build unix

package throttleredis

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/httpthrottle/throttle/internal/lease"
)

func TestStoppedServerHoldsNoCallBeyondItsContext(t *testing.T) {
	s := start(t)
	c := redis.NewClient(&redis.Options{Addr: s.addr(), ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = c.Close() })
	st := newStore(t, c)
	p := lease.Part{Budget: bucket("k"), Want: 1}
	lease1(t, st, p)
	must(t, s.cmd.Process.Signal(syscall.SIGSTOP))
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := try(ctx, st, p)
	if took := time.Since(began); err == nil || errors.Is(err, lease.ErrSetup) || took > 2*time.Second {
		t.Errorf("after %v: %v", took, err)
	}
	must(t, s.cmd.Process.Signal(syscall.SIGCONT))
	time.Sleep(50 * time.Millisecond)
	if got := lease1(t, st, lease.Part{Budget: p.Budget, Want: 9}); got.Tokens != 4 {
		t.Errorf("%d tokens are left: what was asked before SIGCONT was carried out after its deadline", got.Tokens)
	}
}
