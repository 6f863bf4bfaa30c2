package jsonfinder

import (
	"encoding/json"
	"errors"
	"io"
	"math"
	"math/big"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// FuzzJSONFinder gives a Finder any paths and body, cut anywhere. How it is cut does not matter, and what is found in
// valid JSON is what encoding/json finds.
func FuzzJSONFinder(f *testing.F) {
	for i, c := range jsonCases() {
		if len(c.body) < 3000 {
			f.Add(c.paths, c.body, c.events, uint(len(c.body)/2), uint(7), int64(i))
		}
	}
	f.Fuzz(func(t *testing.T, paths, body string, events bool, cut, size uint, seed int64) {
		c, err := compileJSON(paths)
		if err != nil {
			return
		}
		find := func(events bool, pieces ...string) int64 {
			f := c.Finder(formOf(events))
			return observeJSON(&f, pieces...)
		}
		whole := find(events, body)
		cut = min(cut, uint(len(body)))
		size = max(1, size%512)
		require.Equal(t, whole, find(events, body[:cut], body[cut:]))
		require.Equal(t, whole, find(events, cutJSON(body, 1)...))
		require.Equal(t, whole, find(events, cutJSON(body, int(size))...))
		require.Equal(t, whole, find(events, cutAnywhere(body, seed)...))
		if !utf8.ValidString(paths) || strings.ContainsRune(paths, utf8.RuneError) {
			return // encoding/json makes every malformed byte of a name one of these
		}
		if want, ok := oracle(paths, body); ok {
			require.Equal(t, want, find(false, body))
			lines := strings.NewReplacer("\r", "\ndata: ", "\n", "\ndata: ").Replace(body)
			event := "event: x\ndata: " + lines + "\n\n"
			require.Equal(t, want, find(true, event), "as an event")
			f := c.Finder(Frames)
			require.Equal(t, want, observeJSON(&f, cutAnywhere(frameOf("{}")+frameOf(body)+frameOf("["), seed)...), "as a frame")
			require.Equal(t, want, find(true, cutAnywhere("data: {}\n\n"+event+"data: [\n\n", seed)...), "among events")
		}
	})
}

func cutAnywhere(body string, seed int64) (pieces []string) {
	r := rand.New(rand.NewPCG(uint64(seed), 0))
	for len(body) > 0 {
		n := 1 + r.IntN(min(len(body), 1<<r.IntN(10)))
		pieces, body = append(pieces, body[:n]), body[n:]
	}
	return pieces
}

func cutJSON(body string, size int) (pieces []string) {
	for i := 0; i < len(body); i += size {
		pieces = append(pieces, body[i:min(i+size, len(body))])
	}
	return pieces
}

// Random values, mostly brackets, quotes and backslashes: what is found is what encoding/json finds, and, also once a byte
// was changed, the same as byte by byte.
func TestJSONFinderFindsTheSameInDenseValues(t *testing.T) {
	const paths = "a+b.a|c.b.a+b"
	seed := rand.Uint64()
	t.Log("seed", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	bodies := 3000
	if testing.Short() {
		bodies = 600
	}
	for range bodies {
		var b []byte
		for range 1 + r.IntN(3) {
			b = append(appendObject(b, r, 6), " \n"[r.IntN(2)])
		}
		body := string(b)
		want, ok := oracle(paths, body)
		require.True(t, ok, body)
		require.Equal(t, want, findJSON(t, paths, false, body), body)
		require.Equal(t, want, findJSON(t, paths, false, cutAnywhere(body, r.Int64())...), body)
		b[r.IntN(len(b))] = "\"\\[]{},:\n a1"[r.IntN(12)]
		body = string(b)
		want = findJSON(t, paths, false, cutJSON(body, 1)...)
		require.Equal(t, want, findJSON(t, paths, false, body), body)
		require.Equal(t, want, findJSON(t, paths, false, cutAnywhere(body, r.Int64())...), body)
	}
}

func appendObject(b []byte, r *rand.Rand, depth int) []byte {
	return appendList(b, r, "{}", func(b []byte) []byte {
		b = append(b, '"', "abcx"[r.IntN(4)], '"', ':')
		return appendValue(b, r, depth-1)
	})
}

func appendValue(b []byte, r *rand.Rand, depth int) []byte {
	kind := r.IntN(6)
	switch {
	case kind == 0:
		return strconv.AppendInt(b, r.Int64()>>r.IntN(64), 10)
	case kind == 1 || depth <= 0:
		b = append(b, '"')
		for range r.IntN(1 << r.IntN(8)) {
			b = append(b, []string{`\"`, `\\`, "[", "]", "{", "}", "text", "\u00dd", "\xa2\xdc"}[r.IntN(9)]...)
		}
		return append(b, '"')
	case kind < 4:
		return appendObject(b, r, depth)
	}
	return appendList(b, r, "[]", func(b []byte) []byte { return appendValue(b, r, depth-1) })
}

func appendList(b []byte, r *rand.Rand, brackets string, item func([]byte) []byte) []byte {
	b = append(b, brackets[0])
	for i := range r.IntN(6) {
		if i > 0 {
			b = append(b, ',')
		}
		b = item(b)
	}
	return append(b, brackets[1])
}

// An oracleTerm is the alternatives of a path, each as the names that are still to come, and what was found.
type oracleTerm struct {
	alternatives [][]string
	found        int64
}

// oracle returns what encoding/json finds at the paths, and whether the body is valid. For the last number under names that
// are there twice it takes the tokens one by one; without such names it is the same as what values are.
func oracle(paths, body string) (int64, bool) {
	var terms []*oracleTerm
	for path := range strings.SplitSeq(paths, "+") {
		term := &oracleTerm{found: none}
		for alternative := range strings.SplitSeq(path, "|") {
			term.alternatives = append(term.alternatives, strings.Split(alternative, "."))
		}
		terms = append(terms, term)
	}
	values := json.NewDecoder(strings.NewReader(body))
	for {
		var raw json.RawMessage
		err := values.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return oracleSum(terms), true
		}
		if err != nil {
			return 0, false
		}
		elements := []json.RawMessage{raw}
		if raw[0] == '[' {
			if err := json.Unmarshal(raw, &elements); err != nil {
				return 0, false
			}
		}
		for _, element := range elements {
			for _, term := range terms {
				term.read(string(element))
			}
		}
	}
}

func oracleSum(terms []*oracleTerm) int64 {
	sum, any := new(big.Int), false
	for _, term := range terms {
		if term.found != none {
			any = true
			sum.Add(sum, big.NewInt(term.found))
		}
	}
	if !any {
		return none
	}
	if !sum.IsInt64() {
		return math.MaxInt64
	}
	return sum.Int64()
}

// read takes a value.
func (o *oracleTerm) read(raw string) {
	before, twice := o.found, false
	d := json.NewDecoder(strings.NewReader(raw))
	d.UseNumber()
	o.walk(d, o.alternatives, &twice)
	if twice || len(o.alternatives) > 1 {
		return
	}
	var v any
	d = json.NewDecoder(strings.NewReader(raw))
	d.UseNumber()
	if d.Decode(&v) != nil {
		panic("the oracle disagrees with itself")
	}
	n := walkValue(v, o.alternatives[0])
	if n == none {
		n = before
	}
	if n != o.found {
		panic("the oracle disagrees with itself")
	}
}

// walk reads a value to which the rest of some alternatives leads.
func (o *oracleTerm) walk(d *json.Decoder, rests [][]string, twice *bool) {
	token, err := d.Token()
	if err != nil {
		panic(err)
	}
	seen := map[string]bool{}
	switch token := token.(type) {
	case json.Delim:
		for d.More() {
			var below [][]string
			if token == '{' {
				name, _ := d.Token()
				*twice = *twice || seen[name.(string)]
				seen[name.(string)] = true
				for _, rest := range rests {
					if len(rest) > 0 && rest[0] == name {
						below = append(below, rest[1:])
					}
				}
			}
			o.walk(d, below, twice)
		}
		_, _ = d.Token()
	case json.Number:
		for _, rest := range rests {
			if n := exactly(token); len(rest) == 0 && n != none {
				o.found = n
			}
		}
	}
}

func walkValue(v any, names []string) int64 {
	for _, name := range names {
		object, _ := v.(map[string]any)
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
	if strings.Trim(mantissa, "-0.") == "" {
		return 0
	}
	if strings.HasPrefix(mantissa, "-") {
		return none
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
