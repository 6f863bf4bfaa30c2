package retry

import (
	"context"
	"time"
)

type attemptKey struct{ p *Policy }

// An attempt is what is known of an attempt when it begins.
type attempt struct {
	retries int       // before it
	due     time.Time // when another member of a pool may be tried again that has failed; zero: none has, or it is not known
}

func (p *Policy) attemptOf(ctx context.Context) attempt {
	a, _ := ctx.Value(attemptKey{p}).(attempt)
	return a
}

// attempt returns how many retries there were before.
func (p *Policy) attempt(ctx context.Context) int { return p.attemptOf(ctx).retries }

// next returns the context of the attempt after that of ctx.
func (p *Policy) next(ctx context.Context, due time.Time) context.Context {
	n := p.attempt(ctx) + 1
	return context.WithValue(context.WithValue(ctx, attemptKey{p}, attempt{n, due}), retriesKey{}, n)
}

type retriesKey struct{}

// Retries returns how many retries of the request came before this attempt: 0 for the first. ctx is the context of an attempt, as
// the hooks of a Transport have it. Of nested clients the innermost counts.
func Retries(ctx context.Context) int {
	n, _ := ctx.Value(retriesKey{}).(int)
	return n
}
