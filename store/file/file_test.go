package file

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/store"
	"github.com/httpthrottle/throttle/store/storetest"
)

func open(t *testing.T, name string) *Store {
	t.Helper()
	s, err := Open(name)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, s.Close()) })
	return s
}

func TestFileConforms(t *testing.T) {
	for _, c := range storetest.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "limits")
			synctest.Test(t, func(t *testing.T) { c.Test(t, open(t, name)) })
		})
	}
}

// A file has one budget, whatever the names by which processes open it, and whether it existed then.
func TestAFileAndLinksToItAreOneBudget(t *testing.T) {
	root := t.TempDir()
	dir, name := filepath.Join(root, "real"), filepath.Join(root, "real", "limits")
	require.NoError(t, os.Mkdir(dir, 0o700))
	for link, target := range map[string]string{"link": name, "dir": dir, "relative": "real/limits", "further": filepath.Join(root, "link")} {
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			t.Skip(err) // Windows allows links to few users
		}
	}
	for _, first := range []string{name, "link", "relative", "further", "dir/limits"} {
		left := day.N
		for _, by := range []string{first, name, "link", "relative", "further", "dir/limits"} {
			if !filepath.IsAbs(by) {
				by = filepath.Join(root, by)
			}
			s := open(t, by)
			s.log.slack = 0 // each call writes the file again
			require.EqualValues(t, left, take(t, s, day, 1000).Left+1000, by)
			left -= 1000
		}
		info, err := os.Lstat(filepath.Join(root, "link"))
		require.NoError(t, err)
		require.Equal(t, os.ModeSymlink, info.Mode().Type())
		require.NoError(t, os.Remove(name))
	}
	require.NoError(t, os.Symlink("circle", filepath.Join(root, "circle")))
	_, err := Open(filepath.Join(root, "circle"))
	require.Error(t, err)
	_, err = Open(filepath.Join(root, "none", "limits"))
	require.ErrorIs(t, err, store.ErrSetup)
}

var day = store.Budget{Kind: store.Fixed, Limit: "daily", N: 8000, Per: 24 * time.Hour}

// take leases tokens of a budget.
func take(t *testing.T, s *Store, b store.Budget, want int64) store.LeasedPart {
	t.Helper()
	leases, err := s.Lease(t.Context(), []store.Ask{{Parts: []store.Part{{Budget: b, Want: want, Holder: "h"}}}})
	require.NoError(t, err)
	require.NoError(t, leases[0].Err)
	return leases[0].Parts[0]
}

// Several processes decide as one Book does, also when they write the file again.
func TestProcessesDecideAsOneBook(t *testing.T) {
	for seed := range uint64(5) {
		name := filepath.Join(t.TempDir(), "limits")
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 12))
			stores, book := make([]*Store, 3), store.NewBook()
			for i := range stores {
				stores[i] = open(t, name)
				stores[i].log.slack = 2000
			}
			headers, ids := make(map[string]bool), []int64{0}
			for range 400 {
				time.Sleep(time.Duration(r.IntN(30)) * time.Millisecond)
				asks := make([]store.Ask, 1+r.IntN(2))
				for i := range asks {
					for _, kind := range r.Perm(5)[:1+r.IntN(3)] {
						k := strconv.Itoa(r.IntN(5))
						b := []store.Budget{
							{Kind: store.Bucket, Limit: "l\n", Key: k, N: 10, Per: time.Second, Burst: 10, Initial: 10}, {Kind: store.Pace, Key: k, N: 50, Per: time.Second},
							{Kind: store.Sliding, Limit: "\xff \"", Key: k, N: 100, Per: time.Second}, day, {Kind: store.Slots, Limit: "s", Key: k, N: 20},
						}[kind]
						asks[i].Parts = append(asks[i].Parts, store.Part{
							Budget: b, Need: r.Int64N(2), Want: r.Int64N(4), Holder: k, Held: r.Int64N(3), Owe: r.Int64N(50) / 49, Horizon: time.Second,
							Back: []store.Return{{Tokens: r.Int64N(2), Lease: ids[r.IntN(len(ids))]}},
						})
					}
				}
				s := stores[r.IntN(len(stores))]
				got, err := s.Lease(t.Context(), asks)
				require.NoError(t, err)
				require.Equal(t, book.Lease(time.Now(), asks), got, "seed %d", seed)
				headers[s.log.header] = true
				for _, l := range got {
					for _, p := range l.Parts {
						ids = append(ids, p.ID)
					}
				}
			}
			require.Greater(t, len(headers), 3, "the file was written anew")
		})
	}
}

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

func TestDamagedFileIsAnErrorAndStaysAsItIs(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "limits")
	s := open(t, name)
	for range 3 {
		take(t, s, day, 100)
	}
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
	for i := range len(whole) - 1 { // the last byte, a newline, shows that the last line is whole
		if i >= len(magic) && i < headSize-1 {
			continue // any number does
		}
		text := append([]byte(nil), whole...)
		text[i] ^= 1
		check(text, map[bool]string{true: "is not a file that this program can read", false: "is damaged at byte"}[i < headSize])
	}
	check(nil, "is not a file")
	check([]byte("{}"), "is not a file")
	check([]byte("throttle store 2 0123456789abcdef\n"), `it begins with "throttle store 2 `)
	check(whole[:headSize-3], "is not a file")
	line := `fixed-window "daily" "" {"v":9,"rule":[1,1,1,1]}`
	check(append(whole[:headSize:headSize], checksum(line)+" "+line+"\n"...), "version 9")
	for _, line := range []string{"", "x", `fixed-window daily "" -`, `fixed-window "daily" -`} {
		check(append(whole[:headSize:headSize], checksum(line)+" "+line+"\n"...), "is damaged at byte 34")
	}

	// A file that is damaged while a Store uses it is an error of the call, until it is put right.
	text := append([]byte(nil), whole...)
	text = append(text, "deadbeef -\n"...)
	require.NoError(t, os.WriteFile(name, text, 0o600))
	for range 2 {
		_, err = s.Lease(t.Context(), nil)
		require.ErrorIs(t, err, store.ErrSetup)
	}
	require.NoError(t, os.WriteFile(name, whole, 0o600))
	require.Equal(t, 7700.0, take(t, s, day, 0).Left)
}

func TestRemovedFileStartsEveryBudgetAgain(t *testing.T) {
	name := filepath.Join(t.TempDir(), "limits")
	s, other := open(t, name), open(t, name)
	take(t, s, day, 100)
	require.NoError(t, os.Remove(name))
	require.Equal(t, 7999.0, take(t, other, day, 1).Left)
	require.Equal(t, 7998.0, take(t, s, day, 1).Left)
	require.NoError(t, os.Remove(name+".lock"))
	require.Equal(t, 7997.0, take(t, other, day, 1).Left, "and another lock file is made")
	require.Equal(t, 7996.0, take(t, s, day, 1).Left)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	require.Equal(t, 7995.0, take(t, s, day, 1).Left, "a closed Store opens its lock file again")
}

func TestPathThatCannotBeIsAnError(t *testing.T) {
	dir := t.TempDir()
	_, err := Open(filepath.Join(dir, "no", "limits"))
	assert.ErrorIs(t, err, store.ErrSetup)
	assert.ErrorContains(t, err, filepath.Join(dir, "no", "limits.lock"))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "taken"), 0o700))
	_, err = Open(filepath.Join(dir, "taken"))
	assert.ErrorContains(t, err, filepath.Join(dir, "taken"))
}

// A call waits for the lock until its context is done, and not for a process that was stopped while it held the lock.
func TestLockThatIsHeldIsAnErrorAfterTheDeadline(t *testing.T) {
	name := filepath.Join(t.TempDir(), "limits")
	synctest.Test(t, func(t *testing.T) {
		s, other := open(t, name), open(t, name)
		require.NoError(t, other.acquire(t.Context()))
		ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
		defer cancel()
		began := time.Now()
		_, err := s.Lease(ctx, nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, store.ErrSetup)
		require.ErrorContains(t, err, "another process holds the lock of "+name)
		require.Equal(t, 250*time.Millisecond, time.Since(began))
		go func() {
			time.Sleep(time.Second)
			assert.NoError(t, unlock(other.lock))
		}()
		began = time.Now()
		take(t, s, day, 1)
		require.InDelta(t, time.Second, time.Since(began), float64(2*time.Millisecond))
		_, err = s.Lease(ctx, nil)
		require.Error(t, err, "its context is done")
		synctest.Wait()
	})
}

func TestFileStaysSmall(t *testing.T) {
	name := filepath.Join(t.TempDir(), "limits")
	s := open(t, name)
	s.log.slack = 10_000
	for range 1000 {
		take(t, s, day, 1)
	}
	info, err := os.Stat(name)
	require.NoError(t, err)
	assert.Less(t, info.Size(), int64(12_000))
	assert.Equal(t, 7000.0, take(t, s, day, 0).Left)
	left, err := os.ReadDir(filepath.Dir(name))
	require.NoError(t, err)
	assert.Len(t, left, 2, "the file and its lock")
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

// If the file cannot be written again, the old one grows, and nothing is lost. It is tried again when that is twice as long.
func TestFileThatCannotBeWrittenAnewStays(t *testing.T) {
	name := filepath.Join(t.TempDir(), "limits")
	s := open(t, name)
	s.log.slack = 1000
	require.NoError(t, os.Mkdir(name+".new", 0o700))
	require.NoError(t, os.Mkdir(filepath.Join(name+".new", "in-use"), 0o700)) // so that it cannot be removed either
	size := func() int64 {
		info, err := os.Stat(name)
		require.NoError(t, err)
		return info.Size()
	}
	for i := range 50 {
		require.Equal(t, float64(7999-i), take(t, s, day, 1).Left)
	}
	long := size()
	require.Greater(t, long, int64(2000))
	require.NoError(t, os.RemoveAll(name+".new"))
	for i := range 400 {
		require.Equal(t, float64(7949-i), take(t, s, day, 1).Left)
		require.LessOrEqual(t, size(), 4*long)
	}
	require.Less(t, size(), long, "it was written anew")
	require.Equal(t, 7550.0, take(t, open(t, name), day, 0).Left)
}

// A budget that is as good as new is a line too: other processes must not keep what they have read before.
func TestBudgetThatIsNewAgainIsNewForEveryProcess(t *testing.T) {
	name := filepath.Join(t.TempDir(), "limits")
	s, other := open(t, name), open(t, name)
	slots := store.Budget{Kind: store.Slots, Limit: "slots", N: 5}
	require.EqualValues(t, 5, take(t, s, slots, 5).Tokens)
	require.Equal(t, 5.0, take(t, other, slots, 0).Left, "the same holder asks, and has none any more")
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Regexp(t, `\n[0-9a-f]{8} in-flight "slots" "" -\n$`, string(text))
	require.EqualValues(t, 5, take(t, s, slots, 5).Tokens)
}

// An ask that is rejected leaves the budgets that it names as they are, and other asks of the call are carried out.
func TestAskThatIsRejectedChangesNothing(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "limits"))
	take(t, s, day, 100)
	twice := store.Part{Budget: day, Need: 5, Want: 5}
	leases, err := s.Lease(t.Context(), []store.Ask{{Parts: []store.Part{twice, twice}}, {Parts: []store.Part{twice}}})
	require.NoError(t, err)
	require.ErrorIs(t, leases[0].Err, store.ErrSetup)
	require.EqualValues(t, 5, leases[1].Parts[0].Tokens)
	require.Equal(t, 7895.0, take(t, s, day, 0).Left)
}

func BenchmarkLease(b *testing.B) {
	s, err := Open(filepath.Join(b.TempDir(), "limits"))
	require.NoError(b, err)
	asks := []store.Ask{{Parts: []store.Part{{Budget: store.Budget{Kind: store.Fixed, N: 1 << 50, Per: 24 * time.Hour}, Want: 1}}}}
	for b.Loop() {
		_, err := s.Lease(b.Context(), asks)
		require.NoError(b, err)
	}
}
