package words

import (
	"bytes"
	"encoding/binary"
	"strconv"
	"unicode/utf8"
)

// AppendQuoted is [strconv.AppendQuote], and faster for most names.
func AppendQuoted(b []byte, name string) []byte {
	if plain := []byte(name); plainPrefix(plain) < len(name) || bytes.IndexByte(plain, 0x7f) >= 0 {
		return strconv.AppendQuote(b, name)
	}
	return append(append(append(b, '"'), name...), '"')
}

// AppendJSON appends a text as a string of JSON. What is not UTF-8 becomes U+FFFD, as in encoding/json.
func AppendJSON(b, text []byte) []byte {
	b = append(b, '"')
	for {
		n := plainPrefix(text)
		if b = append(b, text[:n]...); n == len(text) {
			return append(b, '"')
		}
		text = text[n:]
		size := 1
		switch c := text[0]; {
		case c >= utf8.RuneSelf:
			var r rune
			r, size = utf8.DecodeRune(text)
			b = utf8.AppendRune(b, r)
		case c < ' ':
			b = append(b, '\\', 'u', '0', '0', "0123456789abcdef"[c>>4], "0123456789abcdef"[c&15])
		default:
			b = append(b, '\\', c)
		}
		text = text[size:]
	}
}

// plainPrefix returns how many bytes at the beginning of a text stand for themselves in a string of JSON. It skips eight at a time
// where the highest bit of each stays clear: by itself, less a space, and less one after a quote or a backslash was made a zero.
func plainPrefix(text []byte) int {
	const ones = 0x0101010101010101
	n := 0
	for ; len(text)-n >= 8; n += 8 {
		x := binary.LittleEndian.Uint64(text[n:])
		if (x|(x-ones*' ')|((x^ones*'"')-ones)|((x^ones*'\\')-ones))&(ones<<7) != 0 {
			break
		}
	}
	for n < len(text) && text[n] >= ' ' && text[n] < utf8.RuneSelf && text[n] != '"' && text[n] != '\\' {
		n++
	}
	return n
}
