package throttlepage

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestNumber(t *testing.T) {
	for want, x := range map[string]float64{
		"0": 0, "0.12": 0.1234, "8.3": 25.0 / 3, "23.4": 23.4, "212": 212.3, "4,231": 4231, "1,234,567": 1234567, "12.3\u00a0M": 12.34e6,
		"9.2\u00a0P": 9.2e15, "−4": -4, "−1,204": -1204, "1": 0.999, "7": 7.0000001, "∞": math.Inf(1), none: math.NaN(),
	} {
		assert.Equal(t, want, number(x), "%g", x)
	}
	assert.Equal(t, "0", number(-0.001))
}

func TestRate(t *testing.T) {
	for want, x := range map[string]float64{
		none: 0, "8.3/s": 25.0 / 3, "1/s": 1, "15/min": 0.25, "30/h": 30.0 / 3600, "7/day": 7.0 / 86400, "0.5/day": 0.5 / 86400,
	} {
		assert.Equal(t, want, rate(x), "%g", x)
	}
}

func TestDuration(t *testing.T) {
	for want, d := range map[string]time.Duration{
		"0": 0, "<\u00a01\u00a0ms": time.Microsecond, "40\u00a0ms": 40 * time.Millisecond, "1.1\u00a0s": 1100 * time.Millisecond, "34\u00a0s": 34 * time.Second,
		"2\u00a0min": 2 * time.Minute, "90\u00a0min": 90 * time.Minute, "5\u00a0h": 5 * time.Hour, "30\u00a0d": 720 * time.Hour, "never": math.MaxInt64,
	} {
		assert.Equal(t, want, duration(d), "%v", d)
	}
}

func TestPercent(t *testing.T) {
	assert.Equal(t, "1.2\u00a0%", percent(12, 1000))
	assert.Equal(t, "0\u00a0%", percent(0, 0))
}

func TestPrintable(t *testing.T) {
	for name, want := range map[string]string{
		"":                           "",
		"acme":                       "acme",
		"مفتاح":                      "مفتاح",
		"a b":                        "a b",
		" a":                         `" a"`,
		"a\nb":                       `"a\nb"`,
		"a\xff":                      `"a\xff"`,
		"a\u202eb":                   `"a\u202eb"`,
		"a\u00a0b":                   `"a\u00a0b"`,
		"\ufffd":                     "\ufffd",
		strings.Repeat("ü", 80):      strings.Repeat("ü", 80),
		strings.Repeat("ü", 81):      strings.Repeat("ü", 80) + "…",
		strings.Repeat("\x00", 1000): `"` + strings.Repeat(`\x00`, 19) + `\x0…`,
	} {
		assert.Equal(t, want, printable(name), "%.40q", name)
	}
}

func TestQuantile(t *testing.T) {
	w := waits{none: 90, some: make([]uint64, 19)}
	assert.Equal(t, "0", w.quantile(0.9))
	w.some[9] = 10 // longer than 500 ms, up to 1 s
	assert.Equal(t, "0", w.quantile(0.9))
	assert.Equal(t, "750\u00a0ms", w.quantile(0.95))
	assert.Equal(t, "1\u00a0s", w.quantile(1))
	assert.Equal(t, none, waits{}.quantile(0.5))
	assert.Equal(t, ">\u00a060\u00a0min", waits{some: append(make([]uint64, 18), 1)}.quantile(0.5))
}

func TestGauge(t *testing.T) {
	assert.Equal(t, gauge{Text: "212 / 500", Width: "42.4%"}, gaugeOf(212, 500))
	assert.Equal(t, gauge{Text: "−4 / 20", Level: "low", Width: "0.0%"}, gaugeOf(-4, 20))
	assert.Equal(t, gauge{Text: "0.8"}, gaugeOf(0.8, 0))
	assert.Equal(t, gauge{Text: none}, gaugeOf(math.Inf(1), 0))
}
