package headers

import (
	"encoding/base64"
	"strings"
	"unicode/utf8"
)

// The part of RFC 9651, Structured Field Values, that rate-limit fields need: Lists and Dictionaries of Items. Inner Lists
// fail, because no field that we read has them.

type sfKind uint8

const (
	sfInteger sfKind = iota
	sfDecimal
	sfString
	sfToken
	sfBytes
	sfBoolean
	sfDate
	sfDisplay
)

// An sfValue is a Bare Item.
type sfValue struct {
	kind sfKind
	n    int64  // Integer, Date; Decimal in thousandths; Boolean as 0 and 1
	text string // String, Token, Byte Sequence, Display String
}

type sfItem struct {
	value  sfValue
	params []sfMember
}

// An sfMember is a member of a Dictionary, or a Parameter, which has none of its own.
type sfMember struct {
	key string
	sfItem
}

// param returns a parameter; of several by one name the last counts.
func (it sfItem) param(key string) (sfValue, bool) {
	for i := len(it.params) - 1; i >= 0; i-- {
		if it.params[i].key == key {
			return it.params[i].value, true
		}
	}
	return sfValue{}, false
}

// parseList parses the lines of a List. An empty field is an empty List.
func parseList(lines []string) (items []sfItem, ok bool) {
	s := newScanner(lines)
	ok = s.members(func() bool {
		item, ok := s.item()
		items = append(items, item)
		return ok
	})
	return items, ok
}

// parseDictionary parses the lines of a Dictionary; of several members by one name the last counts.
func parseDictionary(lines []string) (members []sfMember, ok bool) {
	s := newScanner(lines)
	ok = s.members(func() bool {
		member, ok := s.member(s.item)
		if ok && member.params == nil && member.value.kind == sfBoolean {
			member.params, ok = s.params()
		}
		members = append(members, member)
		return ok
	})
	return members, ok
}

type sfScanner struct {
	s string
	i int
}

func newScanner(lines []string) *sfScanner {
	s := &sfScanner{s: strings.Join(lines, ", ")}
	s.skip(" ")
	return s
}

func (s *sfScanner) done() bool { return s.i >= len(s.s) }

// is reports whether the next byte is c.
func (s *sfScanner) is(c byte) bool { return !s.done() && s.s[s.i] == c }

// eat passes c, if that is what is next.
func (s *sfScanner) eat(c byte) bool {
	if !s.is(c) {
		return false
	}
	s.i++
	return true
}

func (s *sfScanner) skip(set string) {
	for !s.done() && strings.IndexByte(set, s.s[s.i]) >= 0 {
		s.i++
	}
}

// take passes all bytes that belong, and returns them.
func (s *sfScanner) take(belongs func(byte) bool) string {
	start := s.i
	for !s.done() && belongs(s.s[s.i]) {
		s.i++
	}
	return s.s[start:s.i]
}

// members parses what stands between commas.
func (s *sfScanner) members(one func() bool) bool {
	for !s.done() {
		if !one() {
			return false
		}
		s.skip(" \t")
		if s.done() {
			return true
		}
		if !s.eat(',') {
			return false
		}
		s.skip(" \t")
		if s.done() {
			return false // a trailing comma
		}
	}
	return true
}

func (s *sfScanner) item() (it sfItem, ok bool) {
	if it.value, ok = s.bare(); !ok {
		return it, false
	}
	it.params, ok = s.params()
	return it, ok
}

// member parses a key and, after an equals sign, its value; without one it is true.
func (s *sfScanner) member(value func() (sfItem, bool)) (m sfMember, ok bool) {
	if s.done() || (!isLower(s.s[s.i]) && s.s[s.i] != '*') {
		return m, false
	}
	m.key = s.take(isKey)
	if s.eat('=') {
		m.sfItem, ok = value()
		return m, ok
	}
	m.value = sfValue{kind: sfBoolean, n: 1}
	return m, true
}

func (s *sfScanner) params() (params []sfMember, ok bool) {
	for s.eat(';') {
		s.skip(" ")
		m, ok := s.member(func() (it sfItem, ok bool) {
			it.value, ok = s.bare()
			return it, ok
		})
		if !ok {
			return nil, false
		}
		params = append(params, m)
	}
	return params, true
}

func (s *sfScanner) bare() (sfValue, bool) {
	if s.done() {
		return sfValue{}, false
	}
	switch c := s.s[s.i]; {
	case c == '-' || isDigit(c):
		return s.number()
	case c == '"':
		return s.quoted()
	case c == '*' || isAlpha(c):
		return sfValue{kind: sfToken, text: s.take(isToken)}, true
	case c == ':':
		return s.bytes()
	case c == '?':
		return s.boolean()
	case c == '@':
		s.i++
		v, ok := s.number()
		ok = ok && v.kind == sfInteger
		v.kind = sfDate
		return v, ok
	case c == '%':
		return s.display()
	}
	return sfValue{}, false
}

// number parses an Integer of up to 15 digits, or a Decimal of up to 12 and 3.
func (s *sfScanner) number() (v sfValue, ok bool) {
	negative := s.eat('-')
	digits := s.take(isDigit)
	v.kind, v.n = sfInteger, int64(parseDigits(digits))
	ok = 1 <= len(digits) && len(digits) <= 15
	if ok && s.eat('.') {
		fraction := s.take(isDigit)
		ok = len(digits) <= 12 && 1 <= len(fraction) && len(fraction) <= 3
		v.kind, v.n = sfDecimal, v.n*1000+int64(billionths(fraction)/1e6)
	}
	if negative {
		v.n = -v.n
	}
	return v, ok
}

func (s *sfScanner) quoted() (sfValue, bool) {
	var b strings.Builder
	for s.i++; !s.done(); s.i++ {
		switch c := s.s[s.i]; {
		case c == '"':
			s.i++
			return sfValue{kind: sfString, text: b.String()}, true
		case c == '\\':
			s.i++
			if !s.is('"') && !s.is('\\') {
				return sfValue{}, false
			}
			b.WriteByte(s.s[s.i])
		case c < ' ' || c >= 0x7f:
			return sfValue{}, false
		default:
			b.WriteByte(c)
		}
	}
	return sfValue{}, false
}

// bytes parses a Byte Sequence. As RFC 9651 advises, padding may be missing, and pad bits need not be zero.
func (s *sfScanner) bytes() (sfValue, bool) {
	s.i++
	text := s.take(func(c byte) bool { return c != ':' })
	if !s.eat(':') || strings.ContainsAny(text, "\r\n") { // which the decoder would skip
		return sfValue{}, false
	}
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		raw, err = base64.RawStdEncoding.DecodeString(text)
	}
	return sfValue{kind: sfBytes, text: string(raw)}, err == nil
}

func (s *sfScanner) boolean() (sfValue, bool) {
	s.i++
	switch {
	case s.eat('0'):
		return sfValue{kind: sfBoolean}, true
	case s.eat('1'):
		return sfValue{kind: sfBoolean, n: 1}, true
	}
	return sfValue{}, false
}

func (s *sfScanner) display() (sfValue, bool) {
	if !strings.HasPrefix(s.s[s.i:], `%"`) {
		return sfValue{}, false
	}
	var b strings.Builder
	for s.i += 2; !s.done(); s.i++ {
		switch c := s.s[s.i]; {
		case c == '"':
			s.i++
			return sfValue{kind: sfDisplay, text: b.String()}, utf8.ValidString(b.String())
		case c == '%':
			if len(s.s)-s.i < 3 {
				return sfValue{}, false
			}
			high, low := strings.IndexByte(lowerHex, s.s[s.i+1]), strings.IndexByte(lowerHex, s.s[s.i+2])
			if high < 0 || low < 0 {
				return sfValue{}, false
			}
			b.WriteByte(byte(high<<4 | low))
			s.i += 2
		case c < ' ' || c >= 0x7f:
			return sfValue{}, false
		default:
			b.WriteByte(c)
		}
	}
	return sfValue{}, false
}

const lowerHex = "0123456789abcdef"

func isLower(c byte) bool { return 'a' <= c && c <= 'z' }
func isAlpha(c byte) bool { return isLower(c | 0x20) }
func isKey(c byte) bool   { return isLower(c) || isDigit(c) || strings.IndexByte("_-.*", c) >= 0 }
func isToken(c byte) bool {
	return isAlpha(c) || isDigit(c) || strings.IndexByte("!#$%&'*+-.^_`|~:/", c) >= 0
}
