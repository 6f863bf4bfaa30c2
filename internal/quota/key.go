package quota

import (
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A Key is what a server probably counts a request by. Two requests have the same account there if their hosts are equal, and
// their keys in each limit.
//
// A key that several of the first 32 limits share is there once, so that the usual key takes no allocation: the host in none of the
// strings, and the first other key as it is. Further keys follow it, each after its limit and its length.
type Key struct {
	Host   string
	keys   string
	first  int32  // the length of the first key
	atHost uint32 // limits whose key is the host
	atKey  uint32 // limits whose key is the first one

	Parts string // of the request, by which its API is known to count separately; "": none

	// What requests have in common that a client sends for one purpose. Hashes, because paths may contain secrets.
	Family     uint64 // of the first segment of the path that names a resource
	Method     uint64
	Credential uint64
	Traits     Traits // what else the server may count the request by; nil: nothing
}

// Join adds the key of the limit of that index. Limits join in their order; "" is no key.
func (k *Key) Join(limit int, key string) {
	switch bit := uint32(1) << limit; {
	case key == "":
	case bit != 0 && key == k.Host:
		k.atHost |= bit
	case bit != 0 && k.atKey == 0 && k.keys == "":
		k.keys, k.first, k.atKey = key, int32(len(key)), bit
	case bit != 0 && k.atKey != 0 && key == k.keys[:k.first]:
		k.atKey |= bit
	default:
		k.keys += fmt.Sprintf("%d:%d:%s", limit, len(key), key)
	}
}

// ofGroup returns the key without what is of single requests.
func (k Key) ofGroup() Key {
	k.Parts, k.Family, k.Method, k.Credential, k.Traits = "", 0, 0, 0, nil
	return k
}

// sameGroup reports whether two keys differ at most by what is of single requests.
func (k *Key) sameGroup(other *Key) bool {
	return k.Host == other.Host && k.keys == other.keys && k.first == other.first && k.atHost == other.atHost && k.atKey == other.atKey
}

// clone returns a copy that keeps no longer strings in memory.
func (k Key) clone() Key {
	k.Host, k.keys = strings.Clone(k.Host), strings.Clone(k.keys)
	return k
}

// Keys yields the keys by limit.
func (k *Key) Keys() iter.Seq2[int, string] {
	return func(yield func(int, string) bool) {
		for limit := range 32 {
			bit := uint32(1) << limit
			switch {
			case k.atHost&bit != 0 && !yield(limit, k.Host), k.atKey&bit != 0 && !yield(limit, k.keys[:k.first]):
				return
			}
		}
		for rest := k.keys[k.first:]; rest != ""; {
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

// Account returns the keys besides the host, for people: each once, with spaces between, and quoted if it could be taken for something
// else.
func (k *Key) Account() string {
	var keys []string
	for _, key := range k.Keys() {
		if key = Plain(key); key != k.Host && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return strings.Join(keys, " ")
}

// Name is the key of an account in rejections and statistics.
func (k *Key) Name() string {
	if k.keys == "" {
		return Plain(k.Host)
	}
	return strings.TrimSpace(Plain(k.Host) + " " + k.Account())
}

// Plain returns a name as it is if it is one word without quotes, otherwise quoted.
func Plain(name string) string {
	odd := func(r rune) bool { return r == '"' || unicode.IsSpace(r) || !unicode.IsPrint(r) }
	if name == "" || strings.ContainsFunc(name, odd) || !utf8.ValidString(name) {
		return strconv.Quote(name)
	}
	return name
}
