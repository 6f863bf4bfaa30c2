package throttle

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"

	"github.com/httpthrottle/throttle/internal/pattern"
)

// A KeyFunc tells whom a request is counted for: each key has a bucket of its own in each limit. It must not change
// the request or read its body, and is called by many goroutines at once. Keys are kept in memory and shown in
// statistics and refusals: hash what is secret, as [ByHeader] does. A request for which it returns "" is counted under
// [NoKey].
type KeyFunc func(*http.Request) string

// NoKey is the key of requests whose key can't be computed. They share one bucket, apart from all others.
const NoKey = "(no key)"

func orNoKey(key string) string {
	if key == "" {
		return NoKey
	}
	return key
}

// keyBy returns the key of a request. It is not inlined, so that what mostly has no need of it can be.
//
//go:noinline
func keyBy(f KeyFunc, req *http.Request) string { return orNoKey(f(req)) }

// ByHost keys by the host that a request is for, in lower case, without the default port of its scheme:
// Request.Host, or the URL's host where that is empty.
func ByHost(r *http.Request) string {
	host := hostOf(r)
	if r.URL != nil && r.URL.Scheme == "https" {
		host = strings.TrimSuffix(host, ":443")
	} else {
		host = strings.TrimSuffix(host, ":80")
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

func hostOf(r *http.Request) string {
	if r.Host == "" && r.URL != nil {
		return r.URL.Host
	}
	return r.Host
}

// ByHeader keys by the value of a request header, such as Authorization. The key is the first half of the value's
// SHA-256, in hex: the same in every process, and not the secret.
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

// ByRoute keys by the pattern that matches a request, of patterns as [net/http.ServeMux] has them. A request that none
// matches has no key. ByRoute panics if a pattern can't be parsed or conflicts with another, as ServeMux does.
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

// ByContext keys by what [ContextWithKey] said.
func ByContext(r *http.Request) string { return overridesOf(r.Context()).key }
