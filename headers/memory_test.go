//go:build !race

package headers_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle/headers"
)

// The race detector has a sync.Pool forget at random.
func TestAReaderAllocatesOnlyTheBucketsOfAResponse(t *testing.T) {
	reader, err := headers.NewReader()
	assert.NoError(t, err)
	h := github()
	read := func() { reader.Parse("api.github.com", 200, h, nil, noon) }
	read()
	assert.LessOrEqual(t, testing.AllocsPerRun(1000, read), 1.0)
}
