package headers

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestHeadingsAreKeptOfAFewNamesThatAreShort(t *testing.T) {
	var known headings
	long := strings.Repeat("x", longestHeading) + "-ratelimit-limit"
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for i := range 2 * mostHeadings {
				for _, name := range []string{fmt.Sprint("X-RateLimit-Remaining-", i), "Retry-After", long} {
					assert.Equal(t, understood(name), known.of(name))
				}
			}
		})
	}
	all.Wait()
	kept := *known.Load()
	assert.Len(t, kept, mostHeadings)
	assert.Contains(t, kept, "Retry-After")
	assert.NotContains(t, kept, long)
	assert.Zero(t, testing.AllocsPerRun(100, func() { known.of("Retry-After") }))
}
