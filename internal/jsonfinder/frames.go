package jsonfinder

import (
	"encoding/base64"
	"encoding/binary"
)

// A frame is where an application/vnd.amazon.eventstream is. A frame has a prelude of 12 bytes (its length, the length of its headers,
// and a checksum, the most significant byte first), headers, a payload of JSON, and a checksum of 4 bytes.
type frame struct {
	lost    bool // a length was impossible, so it is not known where the next frame begins
	at      int  // bytes that were read
	prelude [12]byte
	payload payload
}

// lengths returns how long the frame is, and where its payload begins and ends.
func (f *frame) lengths() (all, begin, end int) {
	all = int(min(binary.BigEndian.Uint32(f.prelude[:]), 1<<30))
	begin = len(f.prelude) + int(min(binary.BigEndian.Uint32(f.prelude[4:]), 1<<30))
	return all, begin, all - 4
}

// readFrames takes the next bytes of the stream, and has the payloads of its frames parsed.
func (f *Finder) readFrames(p []byte) {
	e := &f.frame
	for len(p) > 0 && !e.lost {
		if e.at < len(e.prelude) {
			n := copy(e.prelude[e.at:], p)
			p, e.at = p[n:], e.at+n
			continue
		}
		all, begin, end := e.lengths()
		if e.lost = begin > end; e.lost {
			return
		}
		to := begin
		if e.at >= begin {
			to = end
		}
		if e.at >= end {
			to = all
		}
		n := min(len(p), to-e.at)
		if to == end {
			f.readPayload(p[:n])
		}
		p, e.at = p[n:], e.at+n
		if e.at == all {
			*e = frame{}
			f.restart()
		}
	}
}

// A payload is where the payload of a frame is. Some payloads are an object whose first member is the JSON in base64.
type payload struct {
	kind payloadKind
	at   int     // bytes of inBase64 with which it begins
	four [4]byte // of base64
	have int     // of four
}

type payloadKind uint8

const (
	payloadBegins payloadKind = iota
	payloadPlain
	payloadBase64
	payloadOver // what follows does not matter
)

// inBase64 is how an object begins whose first member is JSON in base64.
const inBase64 = `{"bytes":"`

func (f *Finder) readPayload(p []byte) {
	e := &f.frame.payload
	for i, c := range p {
		switch e.kind {
		case payloadBegins:
			if c == inBase64[e.at] {
				if e.at++; e.at == len(inBase64) {
					e.kind = payloadBase64
				}
				continue
			}
			e.kind = payloadPlain
			f.parse([]byte(inBase64[:e.at]))
			f.parse(p[i:])
			return
		case payloadPlain:
			f.parse(p[i:])
			return
		case payloadBase64:
			if c == '"' {
				e.kind = payloadOver
				return
			}
			if e.four[e.have] = c; e.have < 3 {
				e.have++
				continue
			}
			e.have = 0
			var three [3]byte
			if n, err := base64.StdEncoding.Decode(three[:], e.four[:]); err == nil {
				f.parse(three[:n])
			} else {
				e.kind = payloadOver
			}
		case payloadOver:
			return
		}
	}
}
