package queue

import (
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A GateKey is what a server probably counts a request by. Two requests have the same account there if their hosts are equal, and
// their keys in each limit.
//
// A key that several of the first 32 limits share is there once, so that the usual key takes no allocation: the host in none of the
// strings, and the first other key as it is. Further keys follow it, each after its limit and its length.
type GateKey struct {
	Host   string
	keys   string
	first  int32  // the length of the first key
	atHost uint32 // limits whose key is the host
	atKey  uint32 // limits whose key is the first one
	Family uint64 // a hash, because paths may contain secrets
}

// Join adds the key of the limit of that index. Limits join in their order; "" is no key.
func (g *GateKey) Join(limit int, key string) {
	switch bit := uint32(1) << limit; {
	case key == "":
	case bit != 0 && key == g.Host:
		g.atHost |= bit
	case bit != 0 && g.atKey == 0 && g.keys == "":
		g.keys, g.first, g.atKey = key, int32(len(key)), bit
	case bit != 0 && g.atKey != 0 && key == g.keys[:g.first]:
		g.atKey |= bit
	default:
		g.keys += fmt.Sprintf("%d:%d:%s", limit, len(key), key)
	}
}

// account returns the key without a family.
func (g GateKey) account() GateKey {
	g.Family = 0
	return g
}

// clone returns a copy that keeps no longer strings in memory.
func (g GateKey) clone() GateKey {
	g.Host, g.keys = strings.Clone(g.Host), strings.Clone(g.keys)
	return g
}

// Keys yields the keys by limit.
func (g *GateKey) Keys() iter.Seq2[int, string] {
	return func(yield func(int, string) bool) {
		for limit := range 32 {
			bit := uint32(1) << limit
			switch {
			case g.atHost&bit != 0 && !yield(limit, g.Host), g.atKey&bit != 0 && !yield(limit, g.keys[:g.first]):
				return
			}
		}
		for rest := g.keys[g.first:]; rest != ""; {
			number, length, key := "", "", ""
			number, rest, _ = strings.Cut(rest, ":")
			length, rest, _ = strings.Cut(rest, ":")
			limit, _ := strconv.Atoi(number)
			n, _ := strconv.Atoi(length)
			key, rest = rest[:n], rest[n:]
			if !yield(limit, key) {
				return
			}
		}
	}
}

// Party returns the keys besides the host, for people: each once, with spaces between, and quoted if it could be taken for something
// else.
func (g *GateKey) Party() string {
	var keys []string
	for _, key := range g.Keys() {
		if key = Plain(key); key != g.Host && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return strings.Join(keys, " ")
}

// Name is the key of a party in rejections and statistics.
func (g *GateKey) Name() string {
	if g.keys == "" {
		return Plain(g.Host)
	}
	return strings.TrimSpace(Plain(g.Host) + " " + g.Party())
}

// Plain returns a name as it is if it is one word without quotes, otherwise quoted.
func Plain(name string) string {
	if name == "" || strings.ContainsFunc(name, func(r rune) bool { return r == '"' || unicode.IsSpace(r) || !unicode.IsPrint(r) }) || !utf8.ValidString(name) {
		return strconv.Quote(name)
	}
	return name
}
