package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Tests are found that ask themselves, by a function of their package, and by one of another package; no others are.
func TestTestsThatDoMoreWithoutShortAreFound(t *testing.T) {
	in := []string{"../worlds", "../../order", "../../heap", "../../../store/storetest", "../../../store"}
	names, folders, err := find(in)
	require.NoError(t, err)
	assert.Subset(t, names, []string{"TestWorlds", "TestTurnsAgreeWithTheirModel", "TestMemoryStoreConforms"})
	assert.NotContains(t, names, "TestABlockerIsInFrontOfARequest")
	assert.NotContains(t, folders, "../../heap")
	assert.Subset(t, in, folders)
}
