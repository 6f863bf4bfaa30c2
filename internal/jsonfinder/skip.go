package jsonfinder

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// skipped is a value that is passed over: a string, or brackets and what is between. In an array only square brackets count.
type skipped struct {
	quoted, escaped bool // within a string; after a backslash in it
	braces, squares int
}

// A lookout knows where in a piece of the body the next byte of each kind is, or the end. As that is remembered until it is
// passed, no byte is looked at more than once for each kind.
type lookout struct{ openSquare, closeSquare, openBrace, closeBrace, backslash, lineFeed int }

// see makes sure that at, where the next c is, is not before i.
func see(at *int, p []byte, i int, c byte) int {
	if *at < i {
		*at = next(p, i, c)
	}
	return *at
}

// next returns where in p, from i on, the next c is, or len(p).
func next(p []byte, i int, c byte) int {
	if k := bytes.IndexByte(p[i:], c); k >= 0 {
		return i + k
	}
	return len(p)
}

func (f *Finder) beginSkipped(c byte) {
	f.state, f.skipped = inSkipped, skipped{}
	f.bracket(c)
}

// skip passes over what is skipped, up to its end.
func (f *Finder) skip(p []byte, i int, ahead *lookout) int {
	s := &f.skipped
	near := 0 // steps in a row
	for i < len(p) && f.state == inSkipped {
		end := see(&ahead.lineFeed, p, i, '\n')
		if s.squares == 0 && s.braces > 0 {
			end = min(end, see(&ahead.openSquare, p, i, '['))
		}
		start := i
		switch {
		case near == dense:
			near = 0
			i = f.skipWords(p, i, min(end, i+denseRun))
			continue
		case s.quoted:
			i = f.skipString(p, i, ahead)
		case s.squares > 0:
			i = f.skipTo(p, i, min(end, see(&ahead.backslash, p, i, '\\'), see(&ahead.openSquare, p, i, '['), see(&ahead.closeSquare, p, i, ']')))
		default:
			i = f.skipTo(p, i, min(end, see(&ahead.backslash, p, i, '\\'), see(&ahead.openBrace, p, i, '{'), see(&ahead.closeBrace, p, i, '}')))
		}
		if near++; i-start > nearby {
			near = 0
		}
	}
	return i
}

// skipTo passes over bytes up to end, among which only quotes matter, and the one at end.
func (f *Finder) skipTo(p []byte, i, end int) int {
	f.skipped.quoted = bytes.Count(p[i:end], []byte{'"'})%2 != 0
	if end == len(p) || f.skipped.quoted {
		return end
	}
	f.bracket(p[end])
	return end + 1
}

// bracket takes a byte of what is passed over that is not within a string.
func (f *Finder) bracket(c byte) {
	s := &f.skipped
	switch c {
	case '"':
		s.quoted = true
		return
	case '[':
		s.squares++
	case ']':
		s.squares--
	case '{':
		s.braces++
	case '}':
		s.braces--
	case '\\':
		f.state = lost
		return
	}
	if s.squares == 0 && s.braces == 0 {
		f.state = afterValue
	}
}

// skipString passes over the rest of a string, or as far as an escaped quote.
func (f *Finder) skipString(p []byte, i int, ahead *lookout) int {
	s := &f.skipped
	if s.escaped {
		s.escaped = false
		if p[i] != '\n' {
			i++
		}
	}
	end := next(p, i, '"')
	if line := see(&ahead.lineFeed, p, i, '\n'); line < end {
		f.state = lost
		return line
	}
	k := end
	for k > i && p[k-1] == '\\' {
		k--
	}
	escaped := (end-k)%2 != 0
	if end == len(p) {
		s.escaped = escaped
		return end
	}
	if !escaped {
		s.quoted = false
		if s.squares == 0 && s.braces == 0 {
			f.state = afterValue
		}
	}
	return end + 1
}

// After as many steps as dense, none of more bytes than nearby, so many bytes are passed over eight at a time.
const dense, nearby, denseRun = 4, 16, 512

// In a word of eight bytes, the first the least significant, ones has each byte 1. A product with ones has in each byte the
// sum of the bytes up to it.
const ones = 0x0101010101010101

// equal returns a word with 1 in each byte where a and b are equal.
func equal(a, b uint64) uint64 {
	const low = 0x7F * ones
	a ^= b
	return ^((a&low + low) | a) >> 7 & ones
}

// skipWords passes over bytes up to end, all but the last few, among which there are no line feeds, and no brackets but those
// that count. It begins where no byte is escaped, and stops early where a backslash follows another or is not within a string.
func (f *Finder) skipWords(p []byte, i, end int) int {
	s := &f.skipped
	open, closing, depth := uint64('{'*ones), uint64('}'*ones), &s.braces
	if s.squares > 0 {
		open, closing, depth = '['*ones, ']'*ones, &s.squares
	}
	d := *depth
	var quoted, escaped uint64 // in each byte 1 if the word begins within a string, in the first 1 if after a backslash
	if s.quoted {
		quoted = ones
	}
	for ; i+8 <= end; i += 8 {
		w := binary.LittleEndian.Uint64(p[i:])
		slashes := equal(w, '\\'*ones)
		after := slashes<<8 | escaped
		quotes := (equal(w, '"'*ones) &^ after) * ones
		unquoted := ^(quotes ^ quoted) & ones
		if slashes&(after|unquoted) != 0 {
			break
		}
		low := min(d, 16) // no deeper can a word end
		depths := (uint64(low) + equal(w, open)&unquoted - equal(w, closing)&unquoted) * ones
		if zero := (depths - ones) &^ depths & (unquoted << 7); zero != 0 { // the first is
			*depth, s.quoted, s.escaped = 0, false, false
			if s.braces == 0 {
				f.state = afterValue
			}
			return i + bits.TrailingZeros64(zero)/8 + 1
		}
		d += int(depths>>56) - low
		quoted ^= quotes >> 56 & 1 * ones
		escaped = slashes >> 56
	}
	*depth, s.quoted, s.escaped = d, quoted != 0, escaped != 0
	return i
}
