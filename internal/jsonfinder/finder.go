package jsonfinder

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// A Finder finds one number in a JSON body that passes by in pieces: that of the member to which a path of names leads
// from the root object. A body may be several values, one after the other, or a stream of events; of several numbers at
// the path, also under names that are there twice, the last counts.
//
// It finds all there is in valid JSON. What cannot matter, such as an array, is passed over, and hardly checked. A value
// seen to be malformed is given up: what was found in it stays, and the next begins at the next line, or event. So a value
// that ends too soon takes what follows with it, unless it ends within a string or where the path leads.
//
// It keeps less than 1 KiB, however deep, long or broken the body is, not counting the text of the path.
type Finder struct {
	path   []string
	events *eventLines // nil: the body is JSON
	bom    int         // bytes of a byte order mark passed

	n     int64
	found bool

	state jsonState
	level int // of the objects on the path, which one this is: its members' names are compared to path[level]; -1: none

	// What is passed over: a string, or brackets and what is between. In an array only square brackets count.
	quoted, escaped bool // within a string; after a backslash in it
	braces, squares int64
	next            [len(landmarks)]int // see ahead

	// A name.
	matched int    // bytes of path[level] that it begins with; -1: it is another
	high    rune   // the first half of a surrogate pair, or 0
	hex     rune   // of an escape
	digits  int    // of hex, to come
	number  number // at the path
}

type jsonState uint8

const (
	beforeRoot  jsonState = iota
	beforeFirst           // a name or the end of the object
	beforeName
	inName
	inEscape // after a backslash
	inHex    // after \u
	beforeColon
	beforeValue
	inSkipped // see skip
	inLiteral // a number, true, false or null that does not matter
	inNumber  // at the path
	afterValue
	lost // in what is malformed
)

const (
	maxJSONPath = 16  // names
	maxJSONName = 256 // bytes

	byteOrderMark = "\uFEFF"
	dataField     = "data:"
)

// New returns a finder for a path of names with dots between them. If events, the body is text/event-stream.
func New(path string, events bool) (*Finder, error) {
	if path == "" {
		return nil, errors.New("the path is empty")
	}
	names := strings.Split(path, ".")
	if len(names) > maxJSONPath {
		return nil, fmt.Errorf("path %q: more than %d names", path, maxJSONPath)
	}
	if slices.Contains(names, "") {
		return nil, fmt.Errorf("path %q: an empty name", path)
	}
	f := &Finder{path: names, level: -1}
	if events {
		f.events = newEventLines(names[len(names)-1])
	}
	return f, nil
}

// Value returns the last number found so far, rounded up. What is negative or above the range of int64 is none.
func (f *Finder) Value() (n int64, ok bool) { return f.n, f.found }

// Observe takes the next bytes of the body.
func (f *Finder) Observe(p []byte) {
	for f.bom < len(byteOrderMark) && len(p) > 0 {
		if p[0] == byteOrderMark[f.bom] {
			f.bom++
			p = p[1:]
		} else {
			f.bom = len(byteOrderMark)
		}
	}
	if f.events != nil {
		f.events.read(p, f)
	} else {
		f.parse(p)
	}
}

// restart forgets all but what was found: a new value comes.
func (f *Finder) restart() {
	f.state, f.level = beforeRoot, -1
}

// parse takes the next bytes of JSON.
func (f *Finder) parse(p []byte) {
	f.next = [len(landmarks)]int{-1, -1, -1, -1, -1, -1}
	for i := 0; i < len(p); {
		switch f.state {
		case inSkipped:
			i = f.skip(p, i)
		case inName:
			i = f.name(p, i)
		case inEscape, inHex:
			if f.escape(p[i]); f.state != lost {
				i++ // where it is lost, a line may end
			}
		case inLiteral:
			for i < len(p) && isLiteral(p[i]) {
				i++
			}
			if i < len(p) {
				f.state = afterValue
			}
		case inNumber:
			if f.number.next(p[i]) {
				i++
				continue
			}
			f.state = lost
			if f.number.digits && strings.IndexByte(",} \n\t\r", p[i]) >= 0 {
				f.state = afterValue
				if n, ok := f.number.Value(); ok {
					f.n, f.found = n, true
				}
			}
		case lost:
			i = f.recover(p, i)
		default:
			if c := p[i]; c == ' ' || c == '\n' || c == '\t' || c == '\r' || f.token(c) {
				i++
			} else {
				f.state = lost
			}
		}
	}
}

// recover looks for the next line, where the next value may begin. An event is lost to its end.
func (f *Finder) recover(p []byte, i int) int {
	if f.events != nil {
		return len(p)
	}
	if i += len(before(p[i:], '\n')); i < len(p) {
		f.restart()
		i++
	}
	return i
}

// token takes the first byte of what comes next, which is not space. It returns whether that is well-formed.
func (f *Finder) token(c byte) bool {
	if f.state == afterValue && f.level < 0 {
		f.state = beforeRoot
	}
	switch {
	case f.state == beforeRoot || f.state == beforeValue:
		return f.begin(c)
	case f.state == beforeColon && c == ':':
		f.state = beforeValue
	case (f.state == beforeFirst || f.state == beforeName) && c == '"':
		f.state, f.matched, f.high = inName, 0, 0
	case f.state == afterValue && c == ',':
		f.state = beforeName
	case (f.state == beforeFirst || f.state == afterValue) && c == '}':
		f.state = afterValue
		f.level--
	default:
		return false
	}
	return true
}

// begin takes the first byte of a value, and returns whether it can be one.
func (f *Finder) begin(c byte) bool {
	on := f.level < 0 || f.matched == len(f.path[f.level]) && f.matched <= maxJSONName
	last := f.level == len(f.path)-1
	switch {
	case on && !last && c == '{':
		f.level++
		f.state = beforeFirst
	case on && last && '0' <= c && c <= '9':
		f.state, f.number = inNumber, number{}
		f.number.next(c)
	case c == '{' || c == '[' || c == '"':
		f.state, f.quoted, f.escaped, f.braces, f.squares = inSkipped, false, false, 0, 0
		f.bracket(c)
	case c == '-' || '0' <= c && c <= '9' || c == 't' || c == 'f' || c == 'n':
		f.state = inLiteral
	default:
		return false
	}
	return true
}

func isLiteral(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '+' || c == '.' || c == 'E'
}

// name passes over the bytes of a name up to its end or an escape.
func (f *Finder) name(p []byte, i int) int {
	want, m := f.path[f.level], f.matched
	if f.high != 0 && p[i] != '\\' {
		m = f.match(utf8.RuneError, m)
		f.high = 0
	}
	for ; i < len(p); i++ {
		c := p[i]
		if c == '"' || c == '\\' || c < ' ' {
			break
		}
		if m >= 0 && m < len(want) && want[m] == c {
			m++
		} else {
			m = -1
		}
	}
	f.matched = m
	switch {
	case i == len(p):
		return i
	case p[i] == '"':
		f.state = beforeColon
	case p[i] == '\\':
		f.state = inEscape
	default:
		f.state = lost
		return i
	}
	return i + 1
}

// escape takes the next byte of an escape in a name.
func (f *Finder) escape(c byte) {
	if f.state == inEscape {
		if c == 'u' {
			f.state, f.digits, f.hex = inHex, 4, 0
			return
		}
		k := strings.IndexByte(`"\/bfnrt`, c)
		if k < 0 {
			f.state = lost
			return
		}
		f.unescaped(rune("\"\\/\b\f\n\r\t"[k]))
		return
	}
	k := strings.IndexByte("0123456789abcdefABCDEF", c)
	if k < 0 {
		f.state = lost
		return
	}
	if k > 15 {
		k -= 6
	}
	f.hex = f.hex<<4 | rune(k)
	f.digits--
	if f.digits == 0 {
		f.unescaped(f.hex)
	}
}

// unescaped takes the meaning of an escape, which may be half of a surrogate pair.
func (f *Finder) unescaped(r rune) {
	f.state = inName
	if f.high != 0 {
		pair := utf16.DecodeRune(f.high, r)
		f.high = 0
		if pair != utf8.RuneError {
			f.matched = f.match(pair, f.matched)
			return
		}
		f.matched = f.match(utf8.RuneError, f.matched)
	}
	if 0xD800 <= r && r < 0xDC00 {
		f.high = r
		return
	}
	f.matched = f.match(r, f.matched) // if r is the second half alone: as utf8.RuneError
}

// match returns how much of the name is matched once r has come after m bytes of it.
func (f *Finder) match(r rune, m int) int {
	var buf [utf8.UTFMax]byte
	b := utf8.AppendRune(buf[:0], r)
	if m < 0 || !strings.HasPrefix(f.path[f.level][m:], string(b)) {
		return -1
	}
	return m + len(b)
}

// skip passes over a string, or brackets and what is between them, up to the end.
func (f *Finder) skip(p []byte, i int) int {
	for i < len(p) && f.state == inSkipped {
		if f.quoted {
			i = f.skipString(p, i)
			continue
		}
		// Up to the next landmark nothing matters but how many quotes there are.
		first, last := closeSquare, openSquare
		if f.squares == 0 {
			first, last = backslash, closeBrace
		}
		end := len(p)
		for k := first; k <= last; k++ {
			end = min(end, f.ahead(k, p, i))
		}
		f.quoted = bytes.Count(p[i:end], []byte{'"'})%2 != 0
		i = end
		if i < len(p) && !f.quoted {
			f.bracket(p[i])
			i++
		}
	}
	return i
}

// Of the landmarks, those up to openSquare matter in an array, those from backslash on outside of arrays.
const (
	closeSquare = iota
	backslash
	lineFeed
	openSquare
	openBrace
	closeBrace
	landmarks = "]\\\n[{}"
)

// ahead returns where in p, from i on, the next landmark of a kind is, or len(p). As that is remembered until it is passed,
// no byte is looked at more than once for each kind.
func (f *Finder) ahead(kind int, p []byte, i int) int {
	if f.next[kind] < i {
		f.look(kind, p, i)
	}
	return f.next[kind]
}

func (f *Finder) look(kind int, p []byte, i int) {
	f.next[kind] = i + len(before(p[i:], landmarks[kind]))
}

func before(p []byte, c byte) []byte {
	k := bytes.IndexByte(p, c)
	if uint(k) < uint(len(p)) {
		p = p[:k]
	}
	return p
}

// bracket takes a byte of what is passed over that is not within a string.
func (f *Finder) bracket(c byte) {
	switch {
	case c == '"':
		f.quoted = true
		return
	case c == '[':
		f.squares++
	case c == ']' && f.squares > 0:
		f.squares--
	case c == '{' && f.squares == 0:
		f.braces++
	case c == '}' && f.squares == 0:
		f.braces--
	case c == '\\':
		f.state = lost
		return
	}
	if f.squares == 0 && f.braces == 0 {
		f.state = afterValue
	}
}

// skipString passes over the rest of a string.
func (f *Finder) skipString(p []byte, i int) int {
	if f.escaped {
		f.escaped = false
		if p[i] != '\n' {
			i++
		}
	}
	s := before(p[i:], '"')
	if line := f.ahead(lineFeed, p, i); line < i+len(s) {
		f.state = lost
		return line
	}
	slashes := len(s) - len(bytes.TrimRight(s, `\`))
	i += len(s)
	if i == len(p) {
		f.escaped = slashes%2 != 0
		return i
	}
	if slashes%2 == 0 {
		f.quoted = false
		if f.squares == 0 && f.braces == 0 {
			f.state = afterValue
		}
	}
	return i + 1
}
