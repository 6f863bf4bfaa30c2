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
			i = f.skipBlocks(p, i, min(end, i+denseRun))
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

// After as many steps as dense, none of more bytes than nearby, so many bytes are passed over by blocks.
const dense, nearby, denseRun = 4, 24, 1024

// A block is 64 bytes, eight words of eight. In a set of its bytes, bit 8*b+w is that of byte b of word w: so what a shift by w
// leaves in ones is of one word, a byte for each of its bytes. A product with ones has in each byte the sum of those up to it.
const (
	blockSize = 64
	ones      = 0x0101010101010101
)

// where returns the set of the bytes of a block that are c.
func where(b *[blockSize]byte, c byte) uint64 {
	all := uint64(c) * ones
	others := other(b[0:], all)
	others = others>>1 | other(b[8:], all)
	others = others>>1 | other(b[16:], all)
	others = others>>1 | other(b[24:], all)
	others = others>>1 | other(b[32:], all)
	others = others>>1 | other(b[40:], all)
	others = others>>1 | other(b[48:], all)
	others = others>>1 | other(b[56:], all)
	return ^others
}

// other returns a word with the highest bit of each byte set where a word differs from all.
func other(word []byte, all uint64) uint64 {
	const low = 0x7F * ones
	w := binary.LittleEndian.Uint64(word) ^ all
	return (w&low + low | w) & (0x80 * ones)
}

// upTo returns the set of the bytes up to which, inclusive, there is an odd count of those of a set.
func upTo(set uint64) uint64 {
	set ^= set << 8
	set ^= set << 16
	set ^= set << 32
	words := set >> 56 // that have an odd count
	words ^= words << 1
	words ^= words << 2
	words ^= words << 4
	return set ^ words<<1&0xFF*ones
}

// skipBlocks passes over bytes up to end, all but the last few, among which there are no line feeds, and no brackets but
// those that count. It begins where no byte is escaped, and stops early where a backslash follows another or is not within a
// string.
func (f *Finder) skipBlocks(p []byte, i, end int) int {
	s := &f.skipped
	open, closing, depth := byte('{'), byte('}'), &s.braces
	if s.squares > 0 {
		open, closing, depth = '[', ']', &s.squares
	}
	var quoted, escaped uint64 // all, if the block begins within a string; its first byte, if after a backslash
	if s.quoted {
		quoted--
	}
	for ; i+blockSize <= end; i += blockSize {
		b := (*[blockSize]byte)(p[i:])
		slashes := where(b, '\\')
		after := slashes<<8 | slashes>>56<<1&0xFF | escaped
		inside := upTo(where(b, '"')&^after) ^ quoted
		if slashes&after|slashes&^inside != 0 {
			break
		}
		quoted, escaped = -(inside >> 63), slashes>>63
		outside := ^inside
		if outside == 0 {
			continue
		}
		opened, closed := where(b, open)&outside, where(b, closing)&outside
		if bits.OnesCount64(closed) >= *depth {
			if n := firstEnd(*depth, opened, closed, outside); n > 0 {
				*depth, s.quoted, s.escaped = 0, false, false
				if s.braces == 0 {
					f.state = afterValue
				}
				return i + n
			}
		}
		*depth += bits.OnesCount64(opened) - bits.OnesCount64(closed)
	}
	s.quoted, s.escaped = quoted != 0, escaped != 0
	return i
}

// firstEnd returns how many bytes of a block there are up to the first outside of strings where the depth is 0, or 0.
func firstEnd(depth int, opened, closed, outside uint64) int {
	for first := 0; first < 8; first += 2 {
		two := uint64(0b11*ones) << first                         // words
		if ends := bits.OnesCount64(closed & two); ends < depth { // not even if all of these came first
			depth += bits.OnesCount64(opened&two) - ends
			continue
		}
		for w := range 2 {
			w += first
			low := min(depth, 16) // no deeper can a word end
			depths := (uint64(low) + opened>>w&ones - closed>>w&ones) * ones
			if zero := (depths - ones) &^ depths & (outside >> w & ones << 7); zero != 0 { // the first is
				return 8*w + bits.TrailingZeros64(zero)/8 + 1
			}
			depth += int(depths>>56) - low
		}
	}
	return 0
}
