package jsonfinder

import (
	"encoding/json"
	"errors"
	"io"
	"math/big"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// FuzzJSONFinder gives a Finder any path and body, cut anywhere. How it is cut does not matter, and what is found in
// valid JSON is what encoding/json finds.
func FuzzJSONFinder(f *testing.F) {
	for _, c := range jsonCases() {
		if len(c.body) < 3000 {
			f.Add(c.path, c.body, c.events, uint(len(c.body)/2), uint(7))
		}
	}
	f.Fuzz(func(t *testing.T, path, body string, events bool, cut, size uint) {
		if _, err := New(path, events); err != nil {
			return
		}
		whole := findJSON(t, path, events, body)
		cut = min(cut, uint(len(body)))
		size = max(1, size%512)
		require.Equal(t, whole, findJSON(t, path, events, body[:cut], body[cut:]))
		require.Equal(t, whole, findJSON(t, path, events, cutJSON(body, 1)...))
		require.Equal(t, whole, findJSON(t, path, events, cutJSON(body, int(size))...))
		if !utf8.ValidString(path) || strings.ContainsRune(path, utf8.RuneError) {
			return // encoding/json makes every malformed byte of a name one of these
		}
		if want, ok := oracle(path, body); ok {
			require.Equal(t, want, findJSON(t, path, false, body))
			lines := strings.NewReplacer("\r", "\ndata: ", "\n", "\ndata: ").Replace(body)
			require.Equal(t, want, findJSON(t, path, true, "event: x\ndata: "+lines+"\n\n"), "as an event")
		}
	})
}

func cutJSON(body string, size int) (pieces []string) {
	for i := 0; i < len(body); i += size {
		pieces = append(pieces, body[i:min(i+size, len(body))])
	}
	return pieces
}

// oracle returns what encoding/json finds at the path, and whether the body is valid. For the last number under names that
// are there twice it takes the tokens one by one; without such names it is the same as what values are.
func oracle(path, body string) (int64, bool) {
	names := strings.Split(path, ".")
	found := int64(none)
	values := json.NewDecoder(strings.NewReader(body))
	for {
		var raw json.RawMessage
		err := values.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return found, true
		}
		if err != nil {
			return 0, false
		}
		d := json.NewDecoder(strings.NewReader(string(raw)))
		d.UseNumber()
		twice := false
		n := walkTokens(d, names, &twice)
		if !twice {
			var v any
			d := json.NewDecoder(strings.NewReader(string(raw)))
			d.UseNumber()
			if d.Decode(&v) != nil || walkValue(v, names) != n {
				panic("the oracle disagrees with itself")
			}
		}
		if n != none {
			found = n
		}
	}
}

// walkTokens reads a value and returns the last number at the path below it.
func walkTokens(d *json.Decoder, names []string, twice *bool) int64 {
	token, err := d.Token()
	if err != nil {
		panic(err)
	}
	found := int64(none)
	seen := map[string]bool{}
	switch token {
	case json.Delim('{'), json.Delim('['):
		for d.More() {
			var rest []string // of the path; nil: it does not lead there
			if token == json.Delim('{') {
				name, _ := d.Token()
				*twice = *twice || seen[name.(string)]
				seen[name.(string)] = true
				if len(names) > 0 && name == names[0] && len(names[0]) <= maxJSONName {
					rest = names[1:]
				}
			}
			if n := walkTokens(d, rest, twice); rest != nil && n != none {
				found = n
			}
		}
		_, _ = d.Token()
	default:
		if number, ok := token.(json.Number); ok && names != nil && len(names) == 0 {
			return exactly(number)
		}
	}
	return found
}

func walkValue(v any, names []string) int64 {
	for _, name := range names {
		object, _ := v.(map[string]any)
		if len(name) > maxJSONName {
			return none
		}
		v = object[name]
	}
	if number, ok := v.(json.Number); ok {
		return exactly(number)
	}
	return none
}

// exactly returns a number rounded up, or none if it is negative or too large.
func exactly(number json.Number) int64 {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(string(number)), "e")
	if strings.HasPrefix(mantissa, "-") {
		return none
	}
	if strings.Trim(mantissa, "0.") == "" {
		return 0
	}
	// As a big.Rat an exponent of many digits would take all memory.
	if e := strings.TrimLeft(exponent, "+-0"); len(e) > 5 {
		if strings.HasPrefix(exponent, "-") {
			return 1
		}
		return none
	}
	r, ok := new(big.Rat).SetString(string(number))
	if !ok {
		panic("not a number: " + number)
	}
	n, rest := new(big.Int).QuoRem(r.Num(), r.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		n.Add(n, big.NewInt(1))
	}
	if !n.IsInt64() {
		return none
	}
	return n.Int64()
}
