// Package content is what the headers of a response say of its body, and where the events of a stream end.
package content

import (
	"net/http"
	"strings"
)

// Types of streams, as TypeOf returns them.
const (
	EventStream  = "text/event-stream"
	AmazonStream = "application/vnd.amazon.eventstream"
)

// TypeOf returns the media type that a header says, in lower case; "" if it says none.
func TypeOf(h http.Header) string {
	lines := h["Content-Type"]
	if len(lines) == 0 {
		return ""
	}
	kind, _, _ := strings.Cut(lines[0], ";")
	return strings.ToLower(strings.TrimSpace(kind))
}

// MayBeJSON reports whether a body may hold JSON, or a stream of it, once it is decoded: its type is one of these or missing.
func MayBeJSON(h http.Header) bool {
	kind := TypeOf(h)
	return kind == "" || kind == EventStream || kind == AmazonStream || strings.Contains(kind, "json")
}

// MayHave reports whether the body of a response may have content to read.
func MayHave(req *http.Request, resp *http.Response) bool {
	return !IsEmpty(req, resp) && resp.StatusCode != http.StatusSwitchingProtocols
}

// IsEmpty reports whether the body of a response certainly has nothing to read, so that callers need not close it.
// The empty body of HTTP/2 has no name to compare with. A length of 0 may be one that a RoundTripper has left unset.
func IsEmpty(req *http.Request, resp *http.Response) bool {
	if resp.Body == nil || resp.Body == http.NoBody {
		return true
	}
	switch resp.StatusCode {
	case http.StatusSwitchingProtocols:
		return false
	case http.StatusNoContent, http.StatusNotModified:
		return true
	}
	return req.Method == http.MethodHead ||
		resp.ContentLength == 0 && (resp.ProtoMajor > 1 || resp.Header.Get("Content-Length") == "0")
}
