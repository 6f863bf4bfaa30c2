package throttle

import (
	"context"
	"hash/maphash"
	"net/http"
	"strings"

	"github.com/httpthrottle/throttle/internal/queue"
)

// gateOf returns the gate of a request.
func (t *Transport) gateOf(req *http.Request) *queue.GateKey {
	g := &queue.GateKey{Host: ByHost(req), Family: t.limiter.family(req)}
	key := t.keyOf(overridesOf(req.Context()), req)
	policies := t.limiter.own()
	for i := range policies {
		g.Join(policies[i].keyOf(req, key))
	}
	return g
}

func (l *Limiter) family(req *http.Request) uint64 {
	if req.URL == nil {
		return 0
	}
	return maphash.String(l.seed, familyOf(req.URL.Path))
}

// familyOf returns the first segment of a path that names a resource, because servers count resources separately. It skips "api"
// and versions.
func familyOf(path string) string {
	for {
		segment, rest, more := strings.Cut(strings.TrimPrefix(path, "/"), "/")
		if !more || !isPrefix(segment) {
			return segment
		}
		path = rest
	}
}

func isPrefix(segment string) bool {
	switch segment {
	case "", "api", "rest":
		return true
	}
	version := strings.TrimPrefix(segment, "v")
	return strings.IndexFunc(version, func(r rune) bool { return (r < '0' || r > '9') && r != '.' && r != '-' }) < 0
}

// hear takes a response to a request that passed no gate, because no server had sent rate-limit information when it left.
func (l *Limiter) hear(ctx context.Context, key *queue.GateKey, m queue.Mark, a *queue.Answer, charges []queue.Charge, by *asker) {
	if e := l.core.HearAndServe(key, m, a, charges, &by.counts); e.By > 0 {
		by.observer.held(holdEventOf(ctx, &e))
	}
}
