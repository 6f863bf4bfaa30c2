package file

import (
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/store"
)

const century = 100 * 365 * 24 * time.Hour

// previous are the budgets in testdata/previous, which the release before wrote, with the tokens that it left.
var previous = map[store.Budget]float64{
	{Kind: store.Bucket, Limit: "bucket", Key: "a", N: 1, Per: century, Burst: 100, Initial: 100}:                              94,
	{Kind: store.Sliding, Limit: "sliding", N: 100, Per: century}:                                                              94,
	{Kind: store.Fixed, Limit: "fixed", Key: "\xff", N: 100, Per: century, Start: time.Date(2024, 6, 1, 0, 0, 0, 0, time.UTC)}: 94,
}

// A release reads what the release before has written, and that one can read what it has written in turn.
func TestReleasesReadEachOther(t *testing.T) {
	text, err := os.ReadFile("testdata/previous")
	require.NoError(t, err)
	name := filepath.Join(t.TempDir(), "limits")
	require.NoError(t, os.WriteFile(name, text, 0o600))
	s, logged := openLogged(t, name)
	s.log.slack = 0
	for range 20 { // so that the file is written again
		for b, left := range previous {
			require.InDelta(t, left-1, take(t, s, b, 1).Left, 0.01)
			previous[b]--
			written(t, s)
		}
	}
	require.Empty(t, logged.String())
	text, err = os.ReadFile(name)
	require.NoError(t, err)
	require.Contains(t, string(text), "follows")
	book := readAsBefore(t, string(text))
	for b, left := range previous {
		leases := book.Lease(time.Now(), []store.Ask{{Parts: []store.Part{{Budget: b}}}})
		assert.InDelta(t, left, leases[0].Parts[0].Left, 0.01, b.Limit)
	}
}

// readAsBefore reads a log as the release before did: each line is a state, or none.
func readAsBefore(t *testing.T, text string) *store.Book {
	t.Helper()
	require.True(t, strings.HasPrefix(text, "throttle store 1 "))
	book := store.NewBook()
	for line := range strings.Lines(text[headSize:]) {
		sum, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		n, err := strconv.ParseUint(sum, 16, 32)
		require.NoError(t, err)
		require.EqualValues(t, n, crc32.Checksum([]byte(rest), crc32.MakeTable(crc32.Castagnoli)))
		kind, rest, _ := strings.Cut(rest, " ")
		b := store.Budget{Kind: store.Kind(kind)}
		for _, field := range []*string{&b.Limit, &b.Key} {
			quoted, err := strconv.QuotedPrefix(rest)
			require.NoError(t, err)
			*field, err = strconv.Unquote(quoted)
			require.NoError(t, err)
			rest = strings.TrimPrefix(rest[len(quoted):], " ")
		}
		if rest == "-" {
			rest = ""
		}
		require.NoError(t, book.SetState(&b, []byte(rest)))
	}
	return book
}
