package headers

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

var clock = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func TestNumbersAreDigitsAndAFraction(t *testing.T) {
	for text, want := range map[string]number{
		"0":                     {},
		"42":                    {whole: 42},
		"007":                   {whole: 7, padded: true},
		"00":                    {padded: true},
		"2.0":                   {whole: 2},
		"7.66":                  {whole: 7, nano: 660_000_000},
		"0.000000001":           {nano: 1},
		"0.0000000001":          {nano: 1}, // up
		"0.1000000000":          {nano: 100_000_000},
		"0.9999999999":          {nano: 1e9},
		"18446744073709551615":  {whole: math.MaxUint64},
		"18446744073709551616":  {whole: math.MaxUint64},
		strings.Repeat("9", 99): {whole: math.MaxUint64},
	} {
		got, ok := scanNumber(text)
		assert.True(t, ok, text)
		assert.Equal(t, want, got, text)
	}
}

func TestWhatStrconvTakesForNumbersIsRefused(t *testing.T) {
	for _, text := range []string{
		"", " ", ".", "1.", ".5", "1.2.3", "+1", "-1", "1e9", "1E9", "0x10", "0x1p4", "1_000", "1,000", "1 000", "NaN", "nan", "Inf",
		"Infinity", "-Inf", "１２", "1\x00", "1s", "٣", "½",
	} {
		_, ok := scanNumber(text)
		assert.False(t, ok, "%q", text)
	}
}

func TestDelaysAreRoundedUpAndNeverOverflow(t *testing.T) {
	for _, c := range []struct {
		text string
		unit time.Duration
		want time.Duration
		fits bool
	}{
		{"1", time.Second, time.Second, true},
		{"0.0000000001", time.Second, 1, true},
		{"0.5", time.Millisecond, 500 * time.Microsecond, true},
		{"1.0000001", time.Millisecond, time.Millisecond + 1, true},
		{"0.1", time.Nanosecond, 1, true},
		{"0.9999999999", 24 * time.Hour, 24 * time.Hour, true},
		{"31622400", time.Second, ceiling, true},
		{"31622400.1", time.Second, 0, false},
		{"31622401", time.Second, 0, false},
		{"31622400000", time.Millisecond, ceiling, true},
		{"9223372036854775807", time.Second, 0, false},
		{"18446744073", time.Second, 0, false},
		{"18446744073709551616", time.Nanosecond, 0, false},
	} {
		n, ok := scanNumber(c.text)
		assert.True(t, ok)
		got, fits := n.of(c.unit)
		assert.Equal(t, c.fits, fits, "%+v", c)
		if fits {
			assert.Equal(t, c.want, got, "%+v", c)
		}
	}
}

func TestCountsKeepAbsentMalformedAndZeroApart(t *testing.T) {
	unknown := Maybe[int64]{}
	for text, want := range map[string]struct{ limit, left, used Maybe[int64] }{
		"0":                    {known[int64](0), known[int64](0), known[int64](0)},
		"-0":                   {known[int64](0), known[int64](0), known[int64](0)},
		"5":                    {known[int64](5), known[int64](5), known[int64](5)},
		"5.0":                  {known[int64](5), known[int64](5), known[int64](5)},
		"5.5":                  {unknown, known[int64](5), known[int64](6)}, // so that less is left
		"0.5":                  {unknown, known[int64](0), known[int64](1)},
		"-7":                   {known[int64](-1), known[int64](-1), unknown},
		"":                     {},
		"unlimited":            {},
		"--1":                  {},
		"9223372036854775806":  {known[int64](math.MaxInt64 - 1), known[int64](math.MaxInt64 - 1), known[int64](math.MaxInt64 - 1)},
		"9223372036854775807":  {},
		"99999999999999999999": {},
	} {
		got := scanCount(text)
		assert.Equal(t, want.limit, got.whole(), "limit %q", text)
		assert.Equal(t, want.left, got.down(), "remaining %q", text)
		assert.Equal(t, want.used, got.up(), "used %q", text)
	}
}

func TestLinesThatAreTooLongOrNotTextAreNotRead(t *testing.T) {
	for line, want := range map[string]string{
		"  42\t":                        "42",
		"a\tb":                          "a\tb",
		strings.Repeat("9", 256):        strings.Repeat("9", 256),
		strings.Repeat(" ", 999) + "42": "42",
	} {
		got, ok := clean(line)
		assert.True(t, ok, "%q", line)
		assert.Equal(t, want, got)
	}
	for _, line := range []string{"4\x002", "4\r\n2", "\x1b[2J", "42\x7f", "après", "\xff\xfe", strings.Repeat("9", 257)} {
		_, ok := clean(line)
		assert.False(t, ok, "%q", line)
	}
}

func TestMaybeDistinguishesUnknownFromZero(t *testing.T) {
	zero, unknown := known(time.Duration(0)), Maybe[time.Duration]{}
	assert.NotEqual(t, zero, unknown)
	assert.Equal(t, "0s", zero.String())
	assert.Equal(t, "unknown", unknown.String())
	assert.Equal(t, time.Duration(0), zero.Or(time.Second))
	assert.Equal(t, time.Second, unknown.Or(time.Second))
	d, known := known(time.Hour).Get()
	assert.Equal(t, time.Hour, d)
	assert.True(t, known)
}
