package content

import "bytes"

// Lines find where the events of a stream end (text/event-stream, WHATWG HTML, 9.2.6), which may come in pieces.
type Lines struct {
	begun bool // the line has a byte
	cr    bool // the last byte ended a line, and a line feed belongs to it
}

// Next returns the bytes of p up to the end of a line, or all if none ends there, and the others. It reports whether the line is the empty one
// that ends an event.
func (e *Lines) Next(p []byte) (line, rest []byte, ends bool) {
	if e.cr && p[0] == '\n' {
		e.cr = false
		return nil, p[1:], false
	}
	e.cr = false
	i := bytes.IndexByte(p, '\n')
	if i < 0 {
		i = len(p)
	}
	if k := bytes.IndexByte(p[:i], '\r'); k >= 0 {
		i = k
	}
	if i == len(p) {
		e.begun = true
		return p, nil, false
	}
	ends = i == 0 && !e.begun
	e.begun, e.cr = false, p[i] == '\r'
	return p[:i+1], p[i+1:], ends
}
