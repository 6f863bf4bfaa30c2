package example

import (
	"context"
	"errors"
	"flag"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
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

func TestAProgramWithoutFlagsTakesNoArguments(t *testing.T) {
	failed := errors.New("failed")
	run := WithoutFlags("Shows it.", func(context.Context, io.Writer, ...int) error { return failed })
	for args, want := range map[string]struct {
		text   string // of the error
		out    string
		status int
	}{
		"":       {"failed", "", 1},
		"-h":     {flag.ErrHelp.Error(), "Shows it.\n", 0},
		"-what":  {"-what", "", 2},
		"x":      {`unexpected argument "x"`, "", 2},
		"-- -h":  {`unexpected argument "-h"`, "", 2},
		"-what=": {"-what", "", 2},
	} {
		var out strings.Builder
		err := run(t.Context(), strings.Fields(args), &out)
		assert.ErrorContains(t, err, want.text, args)
		assert.Equal(t, want.out, out.String(), args)
		assert.Equal(t, want.status, Status(err), args)
	}
}

// Each program is run by Main, and -h prints the first paragraph of its package comment, also in examples/apps. Only quota is not: it is
// the text of a recipe, which readers copy, so it imports nothing that they cannot.
func TestEveryProgramSaysWhatItShows(t *testing.T) {
	shows := regexp.MustCompile("(?s)const shows = `(.*?)`")
	programs := 0
	require.NoError(t, filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if filepath.Base(path) != "main.go" || filepath.Base(filepath.Dir(path)) == "quota" {
			return err
		}
		programs++
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		source := string(text)
		comment, _, _ := strings.Cut(source, "\n//\n")
		help := shows.FindStringSubmatch(source)
		require.NotNil(t, help, path)
		assert.Equal(t, strings.Fields(strings.ReplaceAll(comment, "//", "")), strings.Fields(help[1]), path)
		assert.True(t, strings.Contains(source, "example.Main("), path)
		return nil
	}))
	assert.Greater(t, programs, 15)
}
