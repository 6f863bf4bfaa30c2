package headers

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestSeparatorsInQuotesDontSeparate(t *testing.T) {
	for text, want := range map[string][]string{
		"":                    {""},
		"a":                   {"a"},
		"a,b":                 {"a", "b"},
		" a ,\tb , ":          {"a", "b", ""},
		`"a,b",c`:             {`"a,b"`, "c"},
		`"a\",b",c`:           {`"a\",b"`, "c"},
		`a,"b,c`:              {"a", `"b,c`},
		`a,"b\`:               {"a", `"b\`},
		`a\,b`:                {`a\`, "b"},
		",":                   {"", ""},
		`100;c="x, y", 5;w=1`: {`100;c="x, y"`, "5;w=1"},
	} {
		assert.Equal(t, want, slices.Collect(splitQuoted(text, ',')), text)
	}
	for first := range splitQuoted("a,b", ',') {
		assert.Equal(t, "a", first)
		break
	}
}

func TestElementsOfLists(t *testing.T) {
	minute := known(time.Minute)
	for _, c := range []struct {
		text string
		want []element
	}{
		{"100", []element{{count: count{n: 100, ok: true}}}},
		{"100;w=60", []element{{count: count{n: 100, ok: true}, window: minute}}},
		{"100 ; window=60", []element{{count: count{n: 100, ok: true}, window: minute}}},
		{"100;w=0", []element{{count: count{n: 100, ok: true}}}},
		{"100;w=x;burst=5", []element{{count: count{n: 100, ok: true}}}},
		{`100;comment="a;w=9";w=60`, []element{{count: count{n: 100, ok: true}, window: minute}}},
		{"100,x", []element{{count: count{n: 100, ok: true}}, {}}},
		{"x", []element{{}}},
		{"", []element{{}}},
	} {
		assert.Equal(t, c.want, (&reading{}).readList([]string{c.text}, RoleLimit, 0).elements, c.text)
	}
	many := (&reading{}).readList([]string{strings.Repeat("1,", 100), "2"}, RoleLimit, 0)
	assert.Len(t, many.elements, maxElements)
}

func TestWindowsHaveALength(t *testing.T) {
	for _, c := range []struct {
		text string
		unit TimeUnit
		want Maybe[time.Duration]
	}{
		{"60", Seconds, known(time.Minute)},
		{"60", ByMagnitude, known(time.Minute)},
		{"60000", Milliseconds, known(time.Minute)},
		{"600s", Seconds, known(10 * time.Minute)},
		{"1h", Milliseconds, known(time.Hour)},
		{"0", Seconds, Maybe[time.Duration]{}},
		{"0s", Seconds, Maybe[time.Duration]{}},
		{"-1", Seconds, Maybe[time.Duration]{}},
		{"99999999999", Seconds, Maybe[time.Duration]{}},
		{"minute", Seconds, Maybe[time.Duration]{}},
	} {
		assert.Equal(t, c.want, readWindow(c.text, c.unit), "%+v", c)
	}
}

func TestNamesShowWindowsAndUnits(t *testing.T) {
	for name, want := range map[string]struct {
		window time.Duration
		unit   string
	}{
		"":                {},
		"second":          {time.Second, ""},
		"requests-minute": {time.Minute, "requests"},
		"tokens-hour":     {time.Hour, "tokens"},
		"input-tokens":    {0, "tokens"},
		"daily":           {24 * time.Hour, ""},
		"month":           {},
		"complexity":      {0, "points"},
		"day-pass":        {},
	} {
		assert.Equal(t, want.window, windowOf(name).Value, name)
		assert.Equal(t, want.unit, unitOf(name), name)
	}
}

func TestOfTwoListsTheFirstThatCanBeReadCounts(t *testing.T) {
	list := func(text string) list { return (&reading{}).readList([]string{text}, RoleLimit, 0) }
	g := &group{}
	g.put(RoleLimit, list("x"))
	g.put(RoleLimit, list("5"))
	g.put(RoleLimit, list("7"))
	assert.Equal(t, known[int64](5), g.bucket(0, 1).Limit)
}

func TestAPauseIsRefinedWithinItsSecond(t *testing.T) {
	known := func(d time.Duration) pause { return pause{d: d, known: true} }
	for _, c := range []struct{ coarse, fine, want pause }{
		{pause{}, pause{}, pause{}},
		{known(2 * time.Second), pause{}, known(2 * time.Second)},
		{pause{}, known(time.Millisecond), known(time.Millisecond)},
		{known(0), pause{}, known(0)},
		{known(0), known(time.Millisecond), known(time.Millisecond)},
		{known(time.Second), known(0), known(time.Second)},
		{pause{}, known(0), pause{}},
		{known(2 * time.Second), known(time.Second + 1), known(time.Second + 1)},
		{known(2 * time.Second), known(time.Second), known(2 * time.Second)}, // a whole second isn't rounding
		{known(2 * time.Second), known(3 * time.Second), known(3 * time.Second)},
	} {
		assert.Equal(t, c.want, c.coarse.refined(c.fine), "%+v", c)
	}
}
