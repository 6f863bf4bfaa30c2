package throttle

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"hash/maphash"
	"net/http"
	"strings"

	"github.com/httpthrottle/throttle/internal/pattern"
	"github.com/httpthrottle/throttle/internal/queue"
)

// A KeyFunc returns the key by which a request is counted: each limit has a bucket for each key. It must not change the
// request or read its body, and must be safe for concurrent use. Keys are kept in memory and shown in statistics and
// rejections, so hash secrets, as [ByHeader] does, and keys of any length. A request with the key "" is counted under [NoKey].
type KeyFunc func(*http.Request) string

// NoKey is the key of requests whose key cannot be computed. They share one bucket, apart from all others.
const NoKey = "(no key)"

func orNoKey(key string) string {
	if key == "" {
		return NoKey
	}
	return key
}

// keyBy returns the key of a request. It is not inlined, so that its callers can be.
//
//go:noinline
func keyBy(f KeyFunc, req *http.Request) string { return orNoKey(f(req)) }

// ByHost returns the host of a request, in lower case and without the default port of its scheme: Request.Host, or the host
// of the URL if that is empty.
func ByHost(r *http.Request) string {
	host := strings.TrimSuffix(hostOf(r), ":") // an empty port, which http.NewRequest removes
	if r.URL != nil && r.URL.Scheme == "https" {
		host = strings.TrimSuffix(host, ":443")
	} else {
		host = strings.TrimSuffix(host, ":80")
	}
	return lower(strings.TrimSuffix(host, "."))
}

// lower is [strings.ToLower], and faster for a host that is in lower case already. It looks at eight bytes at a time: the highest
// bit of each stays clear unless that byte is from 'A' to 'Z', or is not ASCII.
func lower(host string) string {
	const ones, highest = 0x0101010101010101, 0x8080808080808080
	n := len(host)
	if n < 8 {
		return strings.ToLower(host)
	}
	for i := 0; i < n; i += 8 {
		x := le64(host[min(i, n-8):])
		if (x|(x+ones*(0x80-'A'))&^(x+ones*(0x7f-'Z')))&highest != 0 {
			return strings.ToLower(host)
		}
	}
	return host
}

func hostOf(r *http.Request) string {
	if r.Host == "" && r.URL != nil {
		return r.URL.Host
	}
	return r.Host
}

// ByHeader returns a KeyFunc for the value of a request header, such as Authorization. The key is the first half of the
// value's SHA-256, in hex. It is the same in every process, and does not reveal the value.
func ByHeader(name string) KeyFunc {
	name = http.CanonicalHeaderKey(name)
	return func(r *http.Request) string {
		values := r.Header[name]
		if len(values) == 0 {
			return ""
		}
		sum := sha256.Sum256([]byte(strings.Join(values, "\n")))
		return hex.EncodeToString(sum[:sha256.Size/2])
	}
}

// ByRoute returns a KeyFunc for the pattern that matches a request, among patterns of [net/http.ServeMux]. A request that
// matches none has no key. ByRoute panics if a pattern is invalid or conflicts with another, as ServeMux does.
func ByRoute(patterns ...string) KeyFunc {
	matcher, err := pattern.New(patterns, func(p string) string { return p })
	if err != nil {
		panic("throttle: ByRoute: " + err.Error())
	}
	return func(r *http.Request) string {
		key, _ := matcher.Match(r)
		return key
	}
}

// ByContext is a KeyFunc that returns the key set by [ContextWithKey].
func ByContext(r *http.Request) string { return overridesOf(r.Context()).key }

// gateOf returns the gate of a request.
func (t *Transport) gateOf(req *http.Request) *queue.GateKey {
	g := &queue.GateKey{Host: ByHost(req), Family: t.limiter.family(req)}
	key := t.keyOf(overridesOf(req.Context()), req)
	policies := t.limiter.own()
	for i := range policies {
		g.Join(i, policies[i].keyOf(req, key))
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
	e := l.core.HearAndServe(key, m, a, charges, &by.counts)
	if e.Forgot != "" {
		by.observer.forgot(ctx, e.Forgot)
	}
	if e.By > 0 {
		by.observer.held(holdEventOf(ctx, &e))
	}
}
