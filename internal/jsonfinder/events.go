package jsonfinder

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// eventLines finds the data of a text/event-stream.
type eventLines struct {
	name  []byte // what an event of interest contains, unless it contains \u00; nil: that cannot be said
	begun bool   // an event is
	cr    bool   // the last byte ended a line, and a line feed belongs to it
	at    int    // bytes of "data:" that the line begins with, or:
}

const (
	atData = len(dataField) + iota // the space after the colon may come
	inData
	inOther
)

// newEventLines takes the last name of the path, of which it looks for the end, from its rarest letter on.
func newEventLines(name string) *eventLines {
	const letters, escaped = "etaoinsrldhcu_mpgyfbwvkxjqz", `"\/`
	rarest := 0
	for i, c := range []byte(name) {
		if c < ' ' || c >= utf8.RuneSelf || strings.IndexByte(escaped, c) >= 0 {
			return &eventLines{} // there are more ways to write it
		}
		if uint(strings.IndexByte(letters, c)) > uint(strings.IndexByte(letters, name[rarest])) { // what is no letter is rare
			rarest = i
		}
	}
	return &eventLines{name: []byte(name[rarest:] + `"`)}
}

// read takes the next bytes of the body, and has f parse the data.
func (e *eventLines) read(p []byte, f *Finder) {
	name, escape, looked, line := -1, -1, -1, -1 // where the next is; how far whole events were looked for
	for i := 0; i < len(p); {
		if e.cr {
			e.cr = false
			if p[i] == '\n' {
				i++
				continue
			}
		}
		if !e.begun && e.name != nil && i >= looked {
			if name < i {
				name = index(p, i, e.name)
			}
			if escape < i {
				escape = index(p, i, []byte(`\u00`))
			}
			looked = min(name, escape)
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
			line = index(p, i, []byte{'\n'})
		}
		rest := before(p[i:line], '\r')
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

// index returns where sep begins in p, from i on, or len(p).
func index(p []byte, i int, sep []byte) int {
	if k := bytes.Index(p[i:], sep); k >= 0 {
		return i + k
	}
	return len(p)
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
