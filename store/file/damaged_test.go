package file

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/store"
)

// A process that is killed while it writes has written a part of its last line. It got no lease, and the next process finds the state from before.
func TestWriteThatWasNotCompletedIsDropped(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "limits")
	s := open(t, name)
	take(t, s, day, 100)
	before, err := os.ReadFile(name)
	require.NoError(t, err)
	take(t, s, day, 100)
	whole, err := os.ReadFile(name)
	require.NoError(t, err)
	for size := len(before); size <= len(whole); size++ {
		for _, junk := range []string{"", "\x00\x00\x00", "deadbeef x"} {
			if size == len(whole) && junk == "" {
				continue
			}
			cut := filepath.Join(dir, "cut")
			require.NoError(t, os.WriteFile(cut, append(whole[:size:size], junk...), 0o600))
			want := 7900.0
			if size == len(whole) {
				want = 7800
			}
			next, other := open(t, cut), open(t, cut)
			require.Equal(t, want-1, take(t, next, day, 1).Left, "%d bytes", size)
			require.Equal(t, want-2, take(t, other, day, 1).Left)
			require.Equal(t, want-2, take(t, open(t, cut), day, 0).Left)
		}
	}
}

func TestFileThatIsNoLogIsAnErrorAndStaysAsItIs(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "limits")
	s := open(t, name)
	take(t, s, day, 100)
	whole, err := os.ReadFile(name)
	require.NoError(t, err)
	bad := filepath.Join(dir, "bad")
	check := func(text []byte, says string) {
		t.Helper()
		require.NoError(t, os.WriteFile(bad, text, 0o600))
		_, err := Open(bad)
		require.ErrorIs(t, err, store.ErrSetup, "%q", text)
		require.ErrorContains(t, err, bad)
		require.ErrorContains(t, err, says)
		still, err := os.ReadFile(bad)
		require.NoError(t, err)
		require.Equal(t, string(text), string(still))
	}
	for i := range headSize {
		if i >= len(magic) && i < headSize-1 {
			continue // any number does
		}
		text := append([]byte(nil), whole...)
		text[i] ^= 1
		check(text, "is not a file that this program can read")
	}
	check(nil, "is not a file")
	check([]byte("{}"), "remove or move it to start every budget again")
	check([]byte("throttle store 2 0123456789abcdef\n"), `it begins with "throttle store 2 `)
	check(whole[:headSize-3], "is not a file")
	for _, line := range []string{"", "x", `fixed-window daily "" -`, `fixed-window "daily" -`, `fixed-window "daily" "" `, `fixed-window "daily""" -`} {
		text := checksum(whole[:headSize:headSize], []byte(line))
		check(append(append(text, line...), '\n'), "cannot be read at byte 34")
	}

	// A file that is replaced while a Store uses it is an error of the call, until it is put right.
	require.NoError(t, os.WriteFile(name, []byte("{}"), 0o600))
	for range 2 {
		_, err = s.Lease(t.Context(), nil)
		require.ErrorIs(t, err, store.ErrSetup)
	}
	require.NoError(t, os.WriteFile(name, whole, 0o600))
	require.Equal(t, 7900.0, take(t, s, day, 0).Left)
}

// openLogged returns a Store and what it logs.
func openLogged(t *testing.T, name string) (*Store, *bytes.Buffer) {
	t.Helper()
	var logged bytes.Buffer
	s, err := Open(name, WithLogger(slog.New(slog.NewTextHandler(&logged, nil))))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s, &logged
}

// A line with a wrong byte is skipped. The budget has the state before it, and every process says so.
func TestDamagedLineIsSkipped(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "limits")
	s := open(t, name)
	lines := []int{headSize}
	for i := range 3 {
		b := day
		if i == 1 {
			b.Key = "other"
		}
		take(t, s, b, 100)
		info, err := os.Stat(name)
		require.NoError(t, err)
		lines = append(lines, int(info.Size()))
	}
	whole, err := os.ReadFile(name)
	require.NoError(t, err)
	bad := filepath.Join(dir, "bad")
	for at := headSize; at < len(whole)-1; at++ {
		text := append([]byte(nil), whole...)
		text[at] ^= 1
		if whole[at] == '\n' || text[at] == '\n' {
			continue // it joins two lines or parts one, as zeros may, too
		}
		require.NoError(t, os.WriteFile(bad, text, 0o600))
		for range 2 {
			s, logged := openLogged(t, bad)
			line := 0
			for at >= lines[line+1] {
				line++
			}
			first, other := 7800.0, 7900.0
			switch line {
			case 1:
				other = 8000
			case 2:
				first = 7900
			}
			b := day
			require.Equal(t, first, take(t, s, b, 0).Left, "byte %d", at)
			b.Key = "other"
			require.Equal(t, other, take(t, s, b, 0).Left, "byte %d", at)
			require.Contains(t, logged.String(), fmt.Sprintf("at=%d bytes=%d", lines[line], lines[line+1]-lines[line]))
			require.NoError(t, os.WriteFile(bad, text, 0o600))
		}
	}
}

// A crash of the machine may leave zeros where a page was not written: those lines are lost, and no others.
func TestZerosInsideALogAreSkipped(t *testing.T) {
	name := filepath.Join(t.TempDir(), "limits")
	s := open(t, name)
	other, _ := openLogged(t, name)
	for i := range 100 {
		b := day
		b.Key = strconv.Itoa(i)
		take(t, s, b, 1000)
	}
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	clear(text[5120:5632])
	require.NoError(t, os.WriteFile(name, text, 0o600))
	reader, logged := openLogged(t, name)
	lost := 0
	for i := range 100 {
		b := day
		b.Key = strconv.Itoa(i)
		left := take(t, reader, b, 1).Left
		if left == 7999 {
			lost++
		} else {
			require.Equal(t, 6999.0, left)
		}
		require.Equal(t, left-1, take(t, other, b, 1).Left, "another process skips the same")
	}
	require.Greater(t, lost, 1)
	require.LessOrEqual(t, lost, 6)
	require.Regexp(t, `damaged and was skipped.* at=\d+ bytes=\d+`, logged.String())
	require.Equal(t, 1, strings.Count(logged.String(), "\n"))
}

// A budget whose state is that of a later release is unreadable, and no other. The state stays when the file is written again.
func TestStateOfALaterReleaseConcernsOneBudget(t *testing.T) {
	name := filepath.Join(t.TempDir(), "limits")
	s := open(t, name)
	take(t, s, day, 100)
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	text = appendLine(text, `fixed-window "daily" "later"`, `{"v":9,"rule":[1,1,1,1]}`)
	require.NoError(t, os.WriteFile(name, text, 0o600))
	later, free := day, day
	later.Key, free.Key = "later", "free"
	for range 50 {
		part := func(b store.Budget) store.Part { return store.Part{Budget: b, Want: 1} }
		leases, err := s.Lease(t.Context(), []store.Ask{{Parts: []store.Part{part(day)}}, {Parts: []store.Part{part(free), part(later)}}, {Parts: []store.Part{part(free)}}})
		require.NoError(t, err)
		require.NoError(t, leases[0].Err)
		require.ErrorIs(t, leases[1].Err, store.ErrSetup)
		require.ErrorContains(t, leases[1].Err, name)
		require.ErrorContains(t, leases[1].Err, "version 9")
		require.NoError(t, leases[2].Err)
		s.log.slack = 1000
	}
	require.Equal(t, 7950.0, take(t, s, free, 0).Left, "the ask with the unreadable budget charged nothing")
	written(t, s)
	text, err = os.ReadFile(name)
	require.NoError(t, err)
	require.Contains(t, string(text), "follows")
	require.Contains(t, string(text), `{"v":9,"rule":[1,1,1,1]}`)
}

// A file that is put back, as from a backup, is what counts, also for a Store that has read more of it.
func TestFileThatIsShorterThanBeforeIsReadAgain(t *testing.T) {
	name := filepath.Join(t.TempDir(), "limits")
	s, other := open(t, name), open(t, name)
	take(t, s, day, 100)
	backup, err := os.ReadFile(name)
	require.NoError(t, err)
	take(t, s, day, 1000)
	require.Equal(t, 6900.0, take(t, other, day, 0).Left)
	require.NoError(t, os.WriteFile(name, backup, 0o600))
	require.Equal(t, 7899.0, take(t, s, day, 1).Left)
	require.Equal(t, 7898.0, take(t, other, day, 1).Left)
}
