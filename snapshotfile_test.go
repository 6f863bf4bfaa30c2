package throttle_test

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func daily(t *testing.T) *throttle.Limiter {
	l, err := throttle.NewLimiter(throttle.WithLimit(throttle.FixedWindow(100, 24*time.Hour, throttle.Name("daily"))))
	require.NoError(t, err)
	return l
}

func TestSavedFileIsContinuedFrom(t *testing.T) {
	name := filepath.Join(t.TempDir(), "limits.json")
	l := daily(t)
	require.NoError(t, l.LoadFile(name), "there is none at the first start")
	require.NoError(t, l.Wait(t.Context(), throttle.Ask{Cost: 30}))
	require.NoError(t, l.SaveFile(name))
	info, err := os.Stat(name)
	require.NoError(t, err)
	assert.EqualValues(t, 0o600, info.Mode().Perm())
	next := daily(t)
	require.NoError(t, next.LoadFile(name))
	assert.EqualValues(t, 70, tokensLeft(t, next, "daily"))
}

// A program that saves at intervals and at its end, and a reader meanwhile.
func TestSavesDoNotDisturbEachOther(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "limits.json")
	l := daily(t)
	require.NoError(t, l.Wait(t.Context(), throttle.Ask{Cost: 30}))
	require.NoError(t, l.SaveFile(name))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 10 {
				assert.NoError(t, l.SaveFile(name))
				assert.NoError(t, daily(t).LoadFile(name))
			}
		})
	}
	all.Wait()
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, left, 1, "nothing else is left")
}

func TestFileThatCannotBeReadOrWrittenIsNamed(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "limits.json")
	require.NoError(t, os.WriteFile(name, []byte(`{"taken":`), 0o600))
	assert.ErrorContains(t, daily(t).LoadFile(name), name)
	assert.ErrorContains(t, daily(t).SaveFile(filepath.Join(dir, "no", "such")), "no such file or directory")
	assert.ErrorContains(t, daily(t).SaveFile(dir), "SaveFile")
	left, err := os.ReadDir(filepath.Dir(dir))
	require.NoError(t, err)
	assert.Len(t, left, 1, "no temporary file is left")
}
