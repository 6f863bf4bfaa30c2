package example

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestVerdictHasColorOnATerminalAlone(t *testing.T) {
	var out strings.Builder
	Verdict(&out, false, "refused %d", 3)
	assert.Equal(t, "refused 3\n", out.String())
	device, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0) // is a character device, as a terminal is
	require.NoError(t, err)
	defer device.Close()
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	assert.True(t, hasColor(device))
	t.Setenv("NO_COLOR", "1")
	assert.False(t, hasColor(device))
}
