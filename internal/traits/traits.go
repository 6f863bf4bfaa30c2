// Package traits finds the traits by which a server may count a request, besides the keys of the limits: its host, and what else it has.
package traits

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"hash/maphash"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/httpthrottle/throttle/headers"
	"github.com/httpthrottle/throttle/internal/quota"
)

// Host returns the host of a request as the request has it.
func Host(req *http.Request) string {
	if req.Host == "" && req.URL != nil {
		return req.URL.Host
	}
	return req.Host
}

// Name returns the host of a request in lower case and without the default port of its scheme, as limits and servers' accounts know it. It
// looks at eight bytes at a time for what strings.ToLower may change, because most names are in lower case.
func Name(req *http.Request) string {
	const each = 0x0101010101010101
	host := Host(req)
	if n := len(host); n == 0 || host[n-1] < 'a' || host[n-1] > 'z' { // most end in a letter, and neither a port nor the dot of a root does
		host = withoutPort(req, host)
	}
	if len(host) < 8 {
		return strings.ToLower(host)
	}
	for i := 0; i < len(host); i += 8 {
		x := binary.LittleEndian.Uint64([]byte(host[min(i, len(host)-8):]))
		if (x&^(x<<1)&(0x40*each))|x&(0x80*each) != 0 { // a byte from 0x40 to 0x5f, as upper-case letters are, or one that is not ASCII
			return strings.ToLower(host)
		}
	}
	return host
}

// withoutPort returns a host without the default port, an empty port, which http.NewRequest removes, and the dot of a root.
func withoutPort(req *http.Request, host string) string {
	host = strings.TrimSuffix(host, ":")
	if req.URL != nil && req.URL.Scheme == "https" {
		host = strings.TrimSuffix(host, ":443")
	} else {
		host = strings.TrimSuffix(host, ":80")
	}
	return strings.TrimSuffix(host, ".")
}

// credentials are the headers that have the credential of a client, the most usual ones first.
var credentials = [...]string{"Authorization", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "Private-Token"}

// Describe sets what the requests of a client for one purpose have in common: family, method, credential and traits, but not Parts. The
// request must have a URL.
func Describe(k *quota.Key, req *http.Request, seed maphash.Seed, withModel bool) {
	resource, _, _ := cutResource(req.URL.Path)
	k.Family = hashOf(resource)
	if req.Method != "" && req.Method != http.MethodGet {
		k.Method = hashOf(req.Method)
	}
	if len(req.Header) > 0 { // many requests have none
		if c := credentialOf(req.Header); isStable(c) {
			k.Credential = maphash.String(seed, c)
		}
	}
	k.Traits = Of(req, withModel)
}

// credentialOf returns the credential of a request; "": it has none.
func credentialOf(h http.Header) string {
	for i := range credentials {
		if v := h[credentials[i]]; len(v) > 0 {
			return v[0]
		}
	}
	return ""
}

// cutResource returns the first segment of a path that names a resource, because servers count resources separately, and what follows it. It
// skips "api" and versions.
func cutResource(path string) (resource, rest string, more bool) {
	begin := 0
	for i := range len(path) {
		if path[i] != '/' {
			continue
		}
		if !isPrefix(path[begin:i]) {
			return path[begin:i], path[i+1:], true
		}
		begin = i + 1
	}
	return path[begin:], "", false
}

func isPrefix(segment string) bool {
	switch segment {
	case "", "api", "rest":
		return true
	}
	version := strings.TrimPrefix(segment, "v")
	for i := range len(version) {
		if c := version[i]; (c < '0' || c > '9') && c != '.' && c != '-' {
			return false
		}
	}
	return true
}

// isStable reports whether a credential is the same in each request: it is one token (token68 of RFC 9110, section 11.2), with or without a
// scheme. Schemes with parameters sign each request, as AWS, OAuth 1 and Digest do, so that each would be taken for one of another client.
func isStable(credential string) bool {
	if _, token, ok := strings.Cut(credential, " "); ok {
		credential = strings.TrimLeft(token, " ")
	}
	credential = strings.TrimRight(credential, "=")
	return credential != "" && !strings.ContainsFunc(credential, func(c rune) bool {
		return (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') && !strings.ContainsRune("-._~+/", c)
	})
}

// Of returns the traits of a request, with its model if the server counts by that.
func Of(req *http.Request, withModel bool) quota.Traits {
	if withModel {
		if model := memberOf(req, "model"); model != "" {
			return &modelTraits{(*traits)(req), hashOf(model)}
		}
	}
	return (*traits)(req)
}

// Parts returns the parts of a request by which its server counts, with spaces between.
func Parts(req *http.Request, parts []headers.Part) (all string) {
	for _, p := range parts {
		part := ""
		if p.After != "" {
			part = segmentAfter(req.URL.EscapedPath(), p.After)
		} else {
			part = memberOf(req, p.Member)
		}
		switch {
		case part == "":
		case all == "":
			all = part
		default:
			all += " " + part
		}
	}
	return all
}

// segmentAfter returns the segment of an escaped path that follows another one, up to a colon, without escapes; "": there is none.
func segmentAfter(path, before string) string {
	for path != "" {
		segment, rest, _ := strings.Cut(path, "/")
		if segment == before {
			segment, _, _ = strings.Cut(rest, "/")
			segment, _, _ = strings.Cut(segment, ":")
			if text, err := url.PathUnescape(segment); err == nil {
				return text
			}
			return segment
		}
		path = rest
	}
	return ""
}

// memberMost is how much of the body of a request is read for a member, in bytes. Longer prompts may come before it.
const memberMost = 256 << 10

// memberOf returns a member of the JSON object that is the body of a request, if it is a string. It reads a copy of the body.
func memberOf(req *http.Request, name string) string {
	if req.GetBody == nil || req.Body == nil || req.Body == http.NoBody || !isJSONType(req.Header.Get("Content-Type")) {
		return ""
	}
	body, err := req.GetBody()
	if err != nil {
		return ""
	}
	defer body.Close()
	d := json.NewDecoder(io.LimitReader(body, memberMost))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return ""
	}
	for d.More() {
		key, err := d.Token()
		var value json.RawMessage
		if err != nil || d.Decode(&value) != nil {
			return ""
		}
		if key == name {
			text := ""
			if json.Unmarshal(value, &text) != nil || len(text) > partMost {
				return ""
			}
			return text
		}
	}
	return ""
}

// partMost is the longest part of a request by which it is counted, in bytes.
const partMost = 256

func isJSONType(contentType string) bool {
	kind, _, _ := strings.Cut(contentType, ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	return kind == "application/json" || strings.HasSuffix(kind, "+json")
}

// traits are the traits of a request whose model is not known.
type traits http.Request

// The traits: the model, the number of segments of the path after the first one that names a resource, and each of these segments. A
// server that counts by path mostly counts by the first few of them.
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
	_, rest, more := cutResource(t.URL.Path)
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

// String implements [quota.Traits]. It has the method, and the segments of the path that are words: others may be secret, or of one
// request.
func (t *traits) String() string {
	var path strings.Builder
	if t.URL != nil {
		for segment := range strings.SplitSeq(strings.Trim(t.URL.Path, "/"), "/") {
			if !isWord(segment) {
				segment = "*"
			}
			if path.WriteString("/" + segment); len(path.String()) > exampleMost {
				break
			}
		}
	}
	return cmp.Or(t.Method, http.MethodGet) + " " + path.String()
}

const (
	exampleMost = 60 // bytes of a path that are shown, and a segment
	wordMost    = 24 // bytes of a segment that is a word
)

// isWord reports whether a segment of a path looks like a name in an API, such as v1 or chat.postMessage: it has no digits after its
// second byte, nor a mixture of cases as tokens have.
func isWord(s string) bool {
	upper := 0
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c == '-', c == '_', c == '.', c >= '0' && c <= '9' && i == 1:
		case c >= 'A' && c <= 'Z':
			upper++
		default:
			return false
		}
	}
	return s != "" && len(s) <= wordMost && upper <= 2
}

// modelTraits are the traits of a request whose model is known.
type modelTraits struct {
	*traits
	model uint64
}

// Trait implements [quota.Traits].
func (t *modelTraits) Trait(n int) uint64 {
	if n == traitModel {
		return t.model
	}
	return t.traits.Trait(n)
}

// hashOf returns the FNV-1a hash of a short text.
func hashOf(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}
