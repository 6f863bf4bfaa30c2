package jsonfinder

import (
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// A name is that of a member of an object on a path, as far as it was read.
type name struct {
	bytes  int    // that it has, as far as it may be one of:
	may    uint16 // the names of the object's children that begin like it
	high   rune   // the first half of a surrogate pair, or 0
	hex    rune   // of an escape
	digits int8   // of hex, to come
}

func (f *Finder) beginName() {
	f.state, f.name = inName, name{may: 1<<len(f.in.children) - 1}
}

// readName passes over the bytes of a name up to its end or an escape.
func (f *Finder) readName(p []byte, i int) int {
	if f.name.high != 0 && p[i] != '\\' {
		f.name.high = 0
		f.matchRune(utf8.RuneError)
	}
	start := i
	for i < len(p) && p[i] != '"' && p[i] != '\\' && p[i] >= ' ' {
		i++
	}
	f.match(p[start:i])
	if i == len(p) {
		return i
	}
	switch p[i] {
	case '"':
		f.state = beforeColon
		f.endName()
	case '\\':
		f.state = inEscape
	default:
		f.state = lost
		return i
	}
	return i + 1
}

// match takes the next bytes of the name.
func (f *Finder) match(p []byte) {
	n := &f.name
	for k, c := range f.in.children {
		if n.may&(1<<k) != 0 && (len(p) > len(c.name)-n.bytes || c.name[n.bytes:n.bytes+len(p)] != string(p)) {
			n.may &^= 1 << k
		}
	}
	n.bytes += len(p)
}

func (f *Finder) endName() {
	f.member = nil
	for k, c := range f.in.children {
		if f.name.may&(1<<k) != 0 && len(c.name) == f.name.bytes {
			f.member = c
		}
	}
}

// readEscape takes the next byte of an escape in a name.
func (f *Finder) readEscape(c byte) {
	if f.state == inEscape {
		if c == 'u' {
			f.state, f.name.digits, f.name.hex = inHex, 4, 0
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
	k := hexDigit(c)
	if k < 0 {
		f.state = lost
		return
	}
	f.name.hex = f.name.hex<<4 | rune(k)
	f.name.digits--
	if f.name.digits == 0 {
		f.unescaped(f.name.hex)
	}
}

// hexDigit returns the value of one, or -1.
func hexDigit(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c|0x20 && c|0x20 <= 'f':
		return int(c|0x20-'a') + 10
	}
	return -1
}

// unescaped takes the meaning of an escape, which may be half of a surrogate pair.
func (f *Finder) unescaped(r rune) {
	f.state = inName
	if high := f.name.high; high != 0 {
		f.name.high = 0
		pair := utf16.DecodeRune(high, r)
		f.matchRune(pair) // utf8.RuneError if it is none
		if pair != utf8.RuneError {
			return
		}
	}
	if 0xD800 <= r && r < 0xDC00 {
		f.name.high = r
		return
	}
	f.matchRune(r) // if r is the second half alone: as utf8.RuneError
}

func (f *Finder) matchRune(r rune) {
	var buf [utf8.UTFMax]byte
	f.match(utf8.AppendRune(buf[:0], r))
}
