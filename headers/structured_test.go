package headers

import (
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestListsOfEveryKindOfItem(t *testing.T) {
	items, ok := parseList([]string{`"a\"b\\";r=1;t=-2 `, ` tok/en:*;x;y=?0,	12.250, :aGk=:;d=@-9;s=%"f%c3%bc"`})
	require.True(t, ok)
	require.Len(t, items, 4)
	assert.Equal(t, sfValue{kind: sfString, text: `a"b\`}, items[0].value)
	two, _ := items[0].param("t")
	assert.Equal(t, sfValue{kind: sfInteger, n: -2}, two)
	assert.Equal(t, sfValue{kind: sfToken, text: "tok/en:*"}, items[1].value)
	x, _ := items[1].param("x")
	assert.Equal(t, sfValue{kind: sfBoolean, n: 1}, x)
	assert.Equal(t, sfValue{kind: sfDecimal, n: 12250}, items[2].value)
	assert.Equal(t, sfValue{kind: sfBytes, text: "hi"}, items[3].value)
	d, _ := items[3].param("d")
	assert.Equal(t, sfValue{kind: sfDate, n: -9}, d)
	s, _ := items[3].param("s")
	assert.Equal(t, sfValue{kind: sfDisplay, text: "fü"}, s)
	_, there := items[3].param("r")
	assert.False(t, there)
}

func TestTheLastOfSeveralParametersCounts(t *testing.T) {
	items, ok := parseList([]string{`a;r=50;r=0`})
	require.True(t, ok)
	r, _ := items[0].param("r")
	assert.Equal(t, int64(0), r.n)
}

func TestBytesMayLackPaddingAndHaveAnyPadBits(t *testing.T) {
	for text, want := range map[string]string{":YQ==:": "a", ":YQ:": "a", ":YR==:": "a", "::": ""} {
		items, ok := parseList([]string{text})
		require.True(t, ok, text)
		assert.Equal(t, want, items[0].value.text, text)
	}
}

func TestMalformedListsFailWhole(t *testing.T) {
	for _, text := range []string{
		`"a",`, `,`, `"a" "b"`, `"a" ;r=1`, `"a`, `"a\x"`, `"a` + "\t" + `"`, `"é"`, `(a b)`, `a;=1`, `a;R=1`, `a;r=`, `-`, `1.`, `.5`, `1.2345`,
		`1234567890123456`, `1234567890123.1`, `--1`, `+1`, `:a b:`, `:YQ==`, `:Y:`, `?2`, `?`, `@1.5`, `@`, `%"%C3"`, `%"%c3"`, `%"%c`, `%a`, `%"`, `=`, `a=1`,
	} {
		_, ok := parseList([]string{text})
		assert.False(t, ok, text)
	}
	items, ok := parseList([]string{""})
	assert.True(t, ok)
	assert.Empty(t, items)
}

func TestDictionaries(t *testing.T) {
	members, ok := parseDictionary([]string{`limit=100;w=60, flag;x=1`, `reset=5, *a=tok`})
	require.True(t, ok)
	require.Len(t, members, 4)
	assert.Equal(t, "limit", members[0].key)
	w, _ := members[0].param("w")
	assert.Equal(t, int64(60), w.n)
	x, _ := members[1].param("x")
	assert.Equal(t, sfValue{kind: sfBoolean, n: 1}, members[1].value)
	assert.Equal(t, int64(1), x.n)
	for _, text := range []string{`a=1,`, `A=1`, `1=a`, `a=`, `a=1 b=2`, `a=(1)`, `a;b=1;`} {
		_, ok := parseDictionary([]string{text})
		assert.False(t, ok, text)
	}
}

// The oracle wants padding in Byte Sequences, and knows Inner Lists.
var unpadded = regexp.MustCompile(`:[A-Za-z0-9+/]*=?:`)

func FuzzStructuredFieldsAgainstOracle(f *testing.F) {
	for _, seed := range []string{
		`"default";r=50;t=30`, `"burst";q=100;w=60,"daily";q=1000;w=86400;pk=:dHJpYWwxMjEzMjM=:`, `limit=100, remaining=50, reset=5`,
		`10;w=1, 50;w=60;comment="sliding, window"`, `a;b;c=?0;d=1.5;e=@5;f=%"f%c3%bc"`, `*a/b:c;*=-1`, `""`, `a,b`, "a\t,\tb",
	} {
		f.Add(seed, "")
		f.Add(seed, seed)
	}
	f.Fuzz(func(t *testing.T, one, two string) {
		lines := []string{one, two}
		if two == "" {
			lines = lines[:1]
		}
		text := strings.Join(lines, ", ")
		items, ok := parseList(lines)
		list, err := httpsfv.UnmarshalList(lines)
		if ok != (err == nil) && !unpadded.MatchString(text) && !strings.Contains(text, "(") {
			t.Fatalf("List %q: %v, oracle: %v", text, ok, err)
		}
		if ok && err == nil {
			require.Len(t, items, len(list))
			for i, member := range list {
				same(t, member.(httpsfv.Item), items[i])
			}
		}
		members, ok := parseDictionary(lines)
		dictionary, err := httpsfv.UnmarshalDictionary(lines)
		if ok != (err == nil) && !unpadded.MatchString(text) && !strings.Contains(text, "(") {
			t.Fatalf("Dictionary %q: %v, oracle: %v", text, ok, err)
		}
		if ok && err == nil {
			last := map[string]sfItem{}
			for _, m := range members {
				last[m.key] = m.sfItem
			}
			require.Len(t, last, len(dictionary.Names()))
			for key, item := range last {
				member, _ := dictionary.Get(key)
				same(t, member.(httpsfv.Item), item)
			}
		}
	})
}

func same(t *testing.T, want httpsfv.Item, got sfItem) {
	t.Helper()
	require.Equal(t, fromOracle(want.Value), got.value)
	for _, key := range want.Params.Names() {
		value, _ := want.Params.Get(key)
		mine, there := got.param(key)
		require.True(t, there)
		require.Equal(t, fromOracle(value), mine)
	}
}

func fromOracle(value any) sfValue {
	switch v := value.(type) {
	case int64:
		return sfValue{kind: sfInteger, n: v}
	case float64:
		return sfValue{kind: sfDecimal, n: int64(math.Round(v * 1000))}
	case string:
		return sfValue{kind: sfString, text: v}
	case httpsfv.Token:
		return sfValue{kind: sfToken, text: string(v)}
	case []byte:
		return sfValue{kind: sfBytes, text: string(v)}
	case bool:
		if v {
			return sfValue{kind: sfBoolean, n: 1}
		}
		return sfValue{kind: sfBoolean}
	case time.Time:
		return sfValue{kind: sfDate, n: v.Unix()}
	case httpsfv.DisplayString:
		return sfValue{kind: sfDisplay, text: string(v)}
	}
	panic("a type that RFC 9651 doesn't have")
}
