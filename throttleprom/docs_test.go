package throttleprom_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/throttleprom"
)

// TestDocumentsNameEveryMetric compares the table of docs/observability.md with what a collector describes.
func TestDocumentsNameEveryMetric(t *testing.T) {
	text, err := os.ReadFile("../docs/observability.md")
	require.NoError(t, err)
	_, table, _ := strings.Cut(string(text), "| metric | type | labels | meaning |")
	table, _, _ = strings.Cut(table, "\n\n")
	documented := make(map[string]bool)
	for line := range strings.Lines(table) {
		first, _, _ := strings.Cut(strings.TrimPrefix(line, "|"), "|")
		for _, name := range regexp.MustCompile("`(throttle_[a-z_]+)`").FindAllStringSubmatch(first, -1) {
			documented[name[1]] = true
		}
	}
	l, err := throttle.NewLimiter()
	require.NoError(t, err)
	all := make(chan *prometheus.Desc, 100)
	throttleprom.NewCollector(l, "x").Describe(all)
	close(all)
	described := make(map[string]bool)
	for d := range all {
		described[regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(d.String())[1]] = true
	}
	require.Greater(t, len(described), 20)
	require.Equal(t, described, documented)
}
