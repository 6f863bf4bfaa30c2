package quota

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// keyOf returns the key of a host with these keys, by limit.
func keyOf(host string, keys ...string) Key {
	g := Key{Host: host}
	for i, key := range keys {
		g.Join(i, key)
	}
	return g
}

func TestAccountsDifferIfAKeyDoes(t *testing.T) {
	parts := []string{"", "h", "x", "y", "x\x00y", "1:1:y", "x1:1:y", ":", "2:1:x"}
	r := rand.New(rand.NewPCG(1, 2))
	seen := make(map[Key][]string)
	for range 20_000 {
		keys := make([]string, 3)
		for i := range keys {
			keys[i] = parts[r.IntN(len(parts))]
		}
		g := keyOf("h", keys...)
		if known, ok := seen[g]; ok {
			require.Equal(t, known, keys)
		}
		seen[g] = keys
		want := make(map[int]string)
		for i, key := range keys {
			if key != "" {
				want[i] = key
			}
		}
		require.Equal(t, want, maps.Collect(g.Keys()), "%q", keys)
	}
	require.Greater(t, len(seen), 700, "nearly all of 729")
}

func TestKeysOfLimitsBeyondTheFirst32AreKeys(t *testing.T) {
	for _, key := range []string{"h", "x", "y"} {
		g := Key{Host: "h"}
		g.Join(3, "x")
		g.Join(32, key)
		g.Join(100, "x")
		require.Equal(t, map[int]string{3: "x", 32: key, 100: "x"}, maps.Collect(g.Keys()))
		g = Key{Host: "h"}
		g.Join(32, key)
		g.Join(65, "x")
		require.Equal(t, map[int]string{32: key, 65: "x"}, maps.Collect(g.Keys()))
	}
}

func TestTheUsualKeysOfAGateTakeNoAllocation(t *testing.T) {
	require.Zero(t, testing.AllocsPerRun(100, func() {
		g := Key{Host: "h"}
		for i, key := range []string{"h", "tenant", "", "tenant", "h"} {
			g.Join(i, key)
		}
	}))
}

func TestTheAccountOfAGateIsQuotedWhereItMustBe(t *testing.T) {
	for want, keys := range map[string][]string{
		"":                        {"h", "h"},
		"a b":                     {"a", "h", "b", "a"},
		`"a b"`:                   {"a b"},
		`"a\nb" c`:                {"a\nb", "c"},
		`"\"a"`:                   {`"a`},
		`"\x80" é`:                {"\x80", "é"},
		`"\u2028" "\u00a0" /a:1,`: {"\u2028", "\u00a0", "/a:1,"},
	} {
		g := keyOf("h", keys...)
		require.Equal(t, want, g.Account())
		require.Equal(t, strings.TrimSpace("h "+want), g.Name())
	}
	g := Key{Host: "a\nb"}
	require.Equal(t, `"a\nb"`, g.Name())
	require.Equal(t, `""`, Plain(""))
}

func FuzzKeysOfAGateAreReadAsTheyWereJoined(f *testing.F) {
	f.Add("h", "x", "y", "x")
	f.Add("", "1:1:x", ":", "0:0:")
	f.Fuzz(func(t *testing.T, host, a, b, c string) {
		g := keyOf(host, a, b, c)
		want := make(map[int]string)
		for i, key := range []string{a, b, c} {
			if key != "" {
				want[i] = key
			}
		}
		require.Equal(t, want, maps.Collect(g.Keys()))
		for i := range 3 { // whatever stops early
			n := 0
			for range g.Keys() {
				if n++; n > i {
					break
				}
			}
			require.LessOrEqual(t, n, i+1)
		}
		_ = fmt.Sprint(g.Name())
	})
}
