package throttle

import (
	"hash/maphash"
	"net/http"
	"strings"

	"github.com/httpthrottle/throttle/internal/quota"
)

// This file is what a server may count a request by, besides its host and the keys of the limits.

// credentials are the headers by which clients say who they are, the most usual ones first.
var credentials = [...]string{"Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "Private-Token"}

// kindOf sets what requests have in common that a client sends for one purpose.
func (l *Limiter) kindOf(req *http.Request, k *quota.Key) {
	if req.URL == nil {
		return
	}
	k.Family = maphash.String(l.seed, familyOf(req.URL.Path))
	if req.Method != "" && req.Method != http.MethodGet {
		k.Method = hashOf(req.Method)
	}
	for _, name := range credentials {
		if v := req.Header[name]; len(v) > 0 {
			k.Credential = maphash.String(l.seed, v[0])
			break
		}
	}
	k.Traits = (*traits)(req)
}

// traits are those of a request.
type traits http.Request

// The traits, of which a server that counts by path has mostly few first: the number of segments after the first that names a resource,
// and each of these.
const (
	traitModel = iota
	traitLength
	traitSegments
)

// Trait implements [quota.Traits].
func (t *traits) Trait(n int) uint64 {
	if t.URL == nil || n < traitLength {
		return 0
	}
	_, rest, more := strings.Cut(resourceOf(t.URL.Path), "/")
	if n == traitLength {
		if !more {
			return 1
		}
		return uint64(2 + strings.Count(rest, "/"))
	}
	segment := ""
	for range n - traitSegments + 1 {
		if segment, rest, more = strings.Cut(rest, "/"); segment == "" && !more {
			return 0
		}
	}
	return hashOf(segment)
}

// hashOf returns the FNV-1a hash of a short text.
func hashOf(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}
