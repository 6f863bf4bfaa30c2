package throttle

import (
	"context"
	"hash/maphash"
	"net/http"
	"strings"
)

// gateOf returns the gate of a request.
func (t *Transport) gateOf(req *http.Request) *gateKey {
	g := &gateKey{host: ByHost(req), family: t.limiter.family(req)}
	key := t.keyOf(overridesOf(req.Context()), req)
	policies := t.limiter.own()
	for i := range policies {
		g.join(policies[i].keyOf(req, key))
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
func (l *Limiter) hear(ctx context.Context, key *gateKey, m mark, a *answer, charges []charge, by *asker) {
	if e := l.hearAndServe(key, m, a, charges, &by.counts); e.by > 0 {
		by.observer.held(holdEventOf(ctx, &e))
	}
}
