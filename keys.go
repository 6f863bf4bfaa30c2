package throttle

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"

	"github.com/httpthrottle/throttle/internal/pattern"
	"github.com/httpthrottle/throttle/internal/traits"
)

// A KeyFunc returns the key by which a request is counted: each limit has a bucket for each key. It must not change the request
// or read its body, and must be safe for concurrent use. Keys are kept in memory and shown in statistics and rejections, so hash
// secrets, as [ByHeader] does, and long keys. A request with the key "" is counted under [NoKey].
type KeyFunc func(*http.Request) string

// NoKey is the key of requests whose key cannot be computed. They share one bucket of their own.
const NoKey = "(no key)"

// ByHost returns the host of a request, in lower case and without the default port of its scheme: Request.Host, or the host
// of the URL if that is empty.
func ByHost(r *http.Request) string { return traits.Name(r) }

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
