package content

import (
	"bytes"
	"compress/gzip"
	"io"
	"maps"
	"net/http"
	"strings"
)

// A Coding is what the Content-Encoding of a response says about its body. net/http removes that header if it decompresses the body, which it
// does unless the request has an Accept-Encoding of its own.
type Coding uint8

const (
	Plain      Coding = iota
	Gzipped           // once; the beginning of the body can be decoded
	Unreadable        // by the standard library, or in one pass
)

// Encoding is the header of a Coding.
const Encoding = "Content-Encoding"

// CodingOf returns the Coding that a header says.
func CodingOf(h http.Header) Coding {
	c := Plain
	for _, line := range h[Encoding] {
		for name := range strings.SplitSeq(line, ",") {
			switch strings.ToLower(strings.TrimSpace(name)) {
			case "", "identity":
			case "gzip", "x-gzip":
				c = min(c+Gzipped, Unreadable)
			default:
				return Unreadable
			}
		}
	}
	return c
}

// Decoded returns h as net/http returns it for a body that it has decompressed: without Content-Encoding. h is not changed.
func Decoded(h http.Header) http.Header {
	if _, ok := h[Encoding]; !ok {
		return h
	}
	h = maps.Clone(h)
	delete(h, Encoding)
	return h
}

// Gunzip returns the beginning of a text, at most that many bytes, of which begin is the beginning in gzip. It returns begin if that is not
// gzip, because some transports decompress a body and leave the header.
func Gunzip(begin []byte, most int) []byte {
	z, err := gzip.NewReader(bytes.NewReader(begin))
	if err != nil {
		return begin
	}
	text := make([]byte, most)
	n, _ := io.ReadFull(z, text) // begin may end anywhere
	return text[:n]
}
