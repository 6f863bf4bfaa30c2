package throttle

import (
	"bytes"
	"compress/gzip"
	"io"
	"maps"
	"net/http"
	"strings"
)

// A coding is what the Content-Encoding of a response says about its body. net/http removes that header if it decompresses the body, which it
// does unless the request has an Accept-Encoding of its own.
type coding uint8

const (
	plain      coding = iota
	gzipped           // once; the beginning of the body can be decoded
	unreadable        // by the standard library, or in one pass
)

const contentEncoding = "Content-Encoding"

func codingOf(h http.Header) coding {
	c := plain
	for _, line := range h[contentEncoding] {
		for name := range strings.SplitSeq(line, ",") {
			switch strings.ToLower(strings.TrimSpace(name)) {
			case "", "identity":
			case "gzip", "x-gzip":
				c = min(c+gzipped, unreadable)
			default:
				return unreadable
			}
		}
	}
	return c
}

// decodedHeader returns h as net/http returns it for a body that it has decompressed: without Content-Encoding. h is not changed.
func decodedHeader(h http.Header) http.Header {
	if _, ok := h[contentEncoding]; !ok {
		return h
	}
	h = maps.Clone(h)
	delete(h, contentEncoding)
	return h
}

// gunzip returns the beginning of a text, at most that many bytes, of which begin is the beginning in gzip. It returns begin if that is not
// gzip, because some transports decompress a body and leave the header.
func gunzip(begin []byte, most int) []byte {
	z, err := gzip.NewReader(bytes.NewReader(begin))
	if err != nil {
		return begin
	}
	text := make([]byte, most)
	n, _ := io.ReadFull(z, text) // begin may end anywhere
	return text[:n]
}
