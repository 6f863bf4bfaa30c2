package words

import (
	"encoding/json"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What is written eight bytes at a time here is what the standard library writes.
func TestTextsAreThoseOfTheStandardLibrary(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	const odd = "@AZ[`az{ !\"\\\x00\x1f\x7f\x80\xff/é€😀\u2028"
	for range 20_000 {
		b := []byte(strings.Repeat("a.example.com:8080", 3)[:r.IntN(40)])
		for range r.IntN(4) {
			if at := r.IntN(len(b) + 1); at < len(b) {
				b[at] = odd[r.IntN(len(odd))]
			}
		}
		text := string(b)
		require.Equal(t, strconv.Quote(text), string(AppendQuoted(nil, text)))
		want, err := json.Marshal(text)
		require.NoError(t, err)
		var is, should string
		require.NoError(t, json.Unmarshal(AppendJSON(nil, b), &is), "%q", text)
		require.NoError(t, json.Unmarshal(want, &should))
		require.Equal(t, should, is)
	}
}
