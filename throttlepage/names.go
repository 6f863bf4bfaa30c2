package throttlepage

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

const longest = 80 // runes of a name that are shown

// A naming returns what is shown for a key or a host.
type naming func(string) string

func plainNames(key string) string { return printable(key) }

// secretNames returns a naming by hashes with a new secret.
func secretNames() naming {
	secret := make([]byte, sha256.Size)
	_, _ = rand.Read(secret) // never fails
	return func(key string) string {
		if key == "" {
			return ""
		}
		h := hmac.New(sha256.New, secret)
		h.Write([]byte(key))
		return "#" + hex.EncodeToString(h.Sum(nil)[:6])
	}
}

// printable returns name so that it can be read in one line: cut, and quoted as in Go if it contains anything that is not
// printable, such as control characters, invalid UTF-8, or marks that turn the direction of the text.
func printable(name string) string {
	shown := cut(name)
	if !utf8.ValidString(shown) || strings.ContainsFunc(shown, unprintable) || strings.TrimSpace(shown) != shown {
		return cut(strconv.Quote(shown))
	}
	return shown
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

// cut returns the first runes of text.
func cut(text string) string {
	n := 0
	for i := range text {
		if n++; n > longest {
			return text[:i] + "…"
		}
	}
	return text
}
