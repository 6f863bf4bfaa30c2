package throttleredis

import (
	"crypto/sha256"
	"encoding/base64"
	"unicode/utf8"

	"github.com/httpthrottle/throttle/store"
)

// version is part of every key name. The format of a state is not: it is in the state's first byte, so that a release that finds a
// later format reports the budget as unreadable, instead of starting another budget beside it.
const version = "1"

// letters are the last part of a key name, because each kind has a format of its own.
var letters = map[store.Kind]string{
	store.Bucket: "b", store.Pace: "p", store.Sliding: "s", store.Fixed: "f", store.Calendar: "c", store.Slots: "i",
}

const slotCount = 1 << 14

// tag returns the hash tag of a budget's key.
func (s *Store) tag(b *store.Budget) string {
	switch {
	case s.oneSlot:
		return "#"
	case s.byLimit && b.Key == "":
		return "#" + safe(b.Limit)
	}
	return safe(b.Key)
}

// key returns the key name of a budget's state:
//
//	throttle:1:{key}limit:b
func (s *Store) key(b *store.Budget) string { return string(s.appendKey(nil, b)) }

func (s *Store) appendKey(to []byte, b *store.Budget) []byte {
	to = append(append(to, s.prefix...), ":"+version+":{"...)
	to = append(append(to, s.tag(b)...), '}')
	if s.oneSlot {
		to = append(append(to, safe(b.Key)...), '}') // the tag ends at the first brace; names contain none
	}
	to = append(append(to, safe(b.Limit)...), ':')
	return append(to, letters[b.Kind]...)
}

// nonceKey returns the key name that records, for ten seconds, that a script with that nonce has run.
func (s *Store) nonceKey(tag, nonce string) string {
	return s.prefix + ":" + version + ":{" + tag + "}#" + nonce
}

// safe returns name, or a hash of it if name is long or contains characters that could confuse Redis or its operators.
func safe(name string) string {
	switch {
	case name == "":
		return "#"
	case !isHashed(name):
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "#" + base64.RawURLEncoding.EncodeToString(sum[:16])
}

func isHashed(name string) bool {
	if len(name) > 64 || name[0] == '#' {
		return true
	}
	for i := range len(name) {
		if c := name[i]; c < ' ' || c == 0x7f || c == '{' || c == '}' {
			return true
		}
	}
	return !utf8.ValidString(name)
}

// slotOf returns the slot of a hash tag in a Cluster, by CRC-16/XMODEM, as specified for Redis Cluster.
func slotOf(tag string) int {
	crc := uint16(0)
	for i := range len(tag) {
		crc ^= uint16(tag[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc) % slotCount
}
