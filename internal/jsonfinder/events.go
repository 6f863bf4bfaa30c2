package jsonfinder

import "bytes"

// An eventLine is where a text/event-stream is.
type eventLine struct {
	begun bool  // an event is
	cr    bool  // the last byte ended a line, and a line feed belongs to it
	at    uint8 // bytes of "data:" that the line begins with, or:
}

const (
	dataField = "data:"

	atData = uint8(len(dataField)) + iota - 1 // the space after the colon may come
	inData
	inOther
)

// readEvents takes the next bytes of the stream, and has the data of its events parsed.
func (f *Finder) readEvents(p []byte) {
	e := &f.line
	hints := hints{paths: f.paths}
	line, looked := -1, -1 // where the next line feed is, and how far whole events were looked for
	for i := 0; i < len(p); {
		if e.cr {
			e.cr = false
			if p[i] == '\n' {
				i++
				continue
			}
		}
		if !e.begun && i >= looked {
			looked = hints.look(p, i)
			if k := wholeEvents(p[i:looked]); k > 0 {
				i += k
				continue
			}
		}
		if c := p[i]; c != '\n' && c != '\r' && e.at <= atData {
			e.begun = true
			if e.at == atData {
				e.at = inData
				if c != ' ' {
					continue
				}
			} else if c == dataField[e.at] {
				e.at++
				if e.at == atData && f.state != beforeRoot {
					f.parse([]byte{'\n'}) // between the lines
				}
			} else {
				e.at = inOther
			}
			i++
			continue
		}
		if line < i {
			line = next(p, i, '\n')
		}
		rest := p[i:line]
		if k := bytes.IndexByte(rest, '\r'); k >= 0 {
			rest = rest[:k]
		}
		if e.at == inData {
			f.parse(rest)
		}
		i += len(rest)
		if i == len(p) {
			return
		}
		if e.at == 0 {
			f.restart()
			e.begun = false
		}
		e.at, e.cr = 0, p[i] == '\r'
		i++
	}
}

// wholeEvents returns the length of the events in p up to the last empty line; those that carriage returns end do not count.
func wholeEvents(p []byte) int {
	for end := bytes.LastIndexByte(p, '\n'); end > 0; end = bytes.LastIndexByte(p[:end], '\n') {
		if p[end-1] == '\n' || end > 1 && p[end-1] == '\r' && p[end-2] == '\n' {
			return end + 1
		}
	}
	return 0
}

// hints are where in a piece of the body the next needles are, as text or as an escape of a byte of theirs, or its end.
// Where a name at the end of a path is not between two events, nothing is found there.
type hints struct {
	paths *Paths
	next  [maxPaths + 1]int // the last is that of an escape
}

// look returns where the first is that is not before i, or i if that cannot be said.
func (h *hints) look(p []byte, i int) int {
	if len(h.paths.needles) == 0 {
		return i
	}
	escape := &h.next[maxPaths]
	if *escape <= i {
		*escape = i + h.paths.escape(p[i:])
	}
	first := *escape
	for k, needle := range h.paths.needles {
		if h.next[k] <= i {
			h.next[k] = len(p)
			if at := bytes.Index(p[i:], needle); at >= 0 {
				h.next[k] = i + at
			}
		}
		first = min(first, h.next[k])
	}
	return first
}

// escape returns where the next escape is that may mean a byte of a needle, or len(p).
func (c *Paths) escape(p []byte) int {
	for i := 0; ; i++ {
		i = next(p, i, '\\')
		if len(p)-i < len(`\u0061`) {
			return i
		}
		if p[i+1] == 'u' && p[i+2] == '0' && p[i+3] == '0' {
			high, low := hexDigit(p[i+4]), hexDigit(p[i+5])
			if high >= 0 && low >= 0 && c.escapes[high<<4|low] {
				return i
			}
		}
	}
}
