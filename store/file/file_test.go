package file

import (
	"context"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
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
		require.NoError(t, os.Symlink(target, filepath.Join(root, link)))
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
				stores[i].log.slack, stores[i].log.piece = 2000, 300
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

// written waits until a Store does not write the file again.
func written(t *testing.T, s *Store) {
	t.Helper()
	require.NoError(t, s.Close())
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
	s, other := open(t, name), open(t, name)
	require.NoError(t, other.lock.wait())
	for _, says := range []string{"another process holds the lock of ", "another call waits for the lock of "} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		_, err := s.Lease(ctx, []store.Ask{{Parts: []store.Part{{Budget: day, Want: 1}}}})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, store.ErrLate, "the process may give back what the call would have given back")
		require.NotErrorIs(t, err, store.ErrSetup)
		require.ErrorContains(t, err, says+name)
	}
	require.NoError(t, other.lock.unlock())
	require.Equal(t, 7999.0, take(t, s, day, 1).Left, "a call that was given up charges nothing")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(io.EOF)
	_, err := s.Lease(ctx, nil)
	require.ErrorIs(t, err, io.EOF)
	require.ErrorIs(t, err, store.ErrLate)
	require.NoError(t, s.Close())
	require.Equal(t, 7998.0, take(t, other, day, 1).Left)
}

// A call that waits for other processes is not given up while these use the file; see store.Queuer.
func TestACallIsQueuingWhileOthersUseTheFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "limits")
	s, other := open(t, name), open(t, name)
	require.False(t, s.Queuing(), "there is no call")
	require.NoError(t, other.lock.wait())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := s.Lease(t.Context(), []store.Ask{{Parts: []store.Part{{Budget: day, Want: 1}}}})
		assert.NoError(t, err)
	}()
	require.Eventually(t, s.Queuing, time.Minute, time.Millisecond)
	forward := func(d time.Duration) { // the time since which nothing has changed
		s.others.mu.Lock()
		defer s.others.mu.Unlock()
		s.others.moved = s.others.moved.Add(-d)
	}
	forward(stands)
	require.False(t, s.Queuing(), "the process that has the lock stands still")
	state, err := os.ReadFile(name)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(name+".copy", state, 0o600))
	require.NoError(t, os.Rename(name+".copy", name))
	require.True(t, s.Queuing())
	require.NoError(t, other.lock.unlock())
	<-done
	require.True(t, s.Queuing(), "the turn has just come")
	forward(stands)
	require.False(t, s.Queuing())
}

// A panic leaves the lock free.
func TestAPanicIsAnErrorAndReleasesTheLock(t *testing.T) {
	name := filepath.Join(t.TempDir(), "limits")
	s, other := open(t, name), open(t, name)
	require.ErrorContains(t, s.locked(t.Context(), func() error { panic("bug") }), "panic: bug")
	take(t, s, day, 1)
	require.Equal(t, 7998.0, take(t, other, day, 1).Left)
}

// A process that has just had the lock waits for those that came before.
func TestProcessesTakeTurns(t *testing.T) {
	name := filepath.Join(t.TempDir(), "limits")
	s, other := open(t, name), open(t, name)
	for range 100 {
		require.NoError(t, s.lock.wait())
		came := make(chan *Store, 2)
		go func() {
			assert.NoError(t, other.lock.wait())
			came <- other
			assert.NoError(t, other.lock.unlock())
		}()
		for { // until the other one waits in the queue
			free, err := tryLock(s.lock.queue)
			require.NoError(t, err)
			if !free {
				break
			}
			require.NoError(t, unlock(s.lock.queue))
			time.Sleep(100 * time.Microsecond)
		}
		require.NoError(t, s.lock.unlock())
		require.NoError(t, s.lock.wait())
		came <- s
		require.NoError(t, s.lock.unlock())
		require.Same(t, other, <-came)
		require.Same(t, s, <-came)
	}
}

func TestFileStaysSmall(t *testing.T) {
	name := filepath.Join(t.TempDir(), "limits")
	s := open(t, name)
	s.log.slack = 10_000
	for range 1000 {
		take(t, s, day, 1)
		written(t, s)
	}
	info, err := os.Stat(name)
	require.NoError(t, err)
	assert.Less(t, info.Size(), int64(12_000))
	assert.Equal(t, 7000.0, take(t, s, day, 0).Left)
	written(t, s)
	left, err := os.ReadDir(filepath.Dir(name))
	require.NoError(t, err)
	assert.Len(t, left, 3, "the file, its lock and its queue")
}

// If the file cannot be written again, as in a directory that is full, the old one grows, nothing is lost, and a warning says so once.
func TestAFileThatCannotBeWrittenAgainStays(t *testing.T) {
	name := filepath.Join(t.TempDir(), strings.Repeat("l", 245)) // the name of the new file would be too long
	s, logged := openLogged(t, name)
	s.log.slack = 1000
	for i := range 50 {
		require.Equal(t, float64(7999-i), take(t, s, day, 1).Left)
		written(t, s)
		s.log.began = time.Time{}
	}
	info, err := os.Stat(name)
	require.NoError(t, err)
	require.Greater(t, info.Size(), int64(2000))
	require.Contains(t, logged.String(), "the file cannot be written again, and grows until it can be")
	require.Equal(t, 1, strings.Count(logged.String(), "\n"))
	require.Equal(t, 7950.0, take(t, open(t, name), day, 0).Left)
}

// One process writes the file again, and another one may begin if it is not done after ten seconds. It removes what was left.
func TestFileIsWrittenAgainByAnotherProcessIfOneIsKilled(t *testing.T) {
	name := filepath.Join(t.TempDir(), "limits")
	synctest.Test(t, func(t *testing.T) {
		s, other := open(t, name), open(t, name)
		s.rewriting <- struct{}{} // so that it does not
		s.log.slack, other.log.slack = 100, 100
		take(t, s, day, 1)
		take(t, s, day, 1)
		require.NotZero(t, s.log.began)
		left := s.log.newName(number(newHeader()))
		require.NoError(t, os.WriteFile(left, nil, 0o600))
		s.log.files = []string{strings.TrimPrefix(left, name+".new-")}
		header := s.log.header
		<-s.rewriting
		for range 5 {
			time.Sleep(respite/5 - 1)
			take(t, other, day, 1)
			written(t, other)
			require.Equal(t, header, other.log.header)
		}
		other.log.files = s.log.files
		time.Sleep(5 * time.Nanosecond)
		take(t, other, day, 1)
		written(t, other)
		take(t, other, day, 0)
		require.NotEqual(t, header, other.log.header)
		require.NoFileExists(t, left)
	})
}

// A process that knows the old file reads on in the new one. One that does not reads all of it.
func TestProcessesFollowTheFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "limits")
	writer, follower, late := open(t, name), open(t, name), open(t, name)
	budget := func(i int) store.Budget {
		b := day
		b.Key = strconv.Itoa(i)
		return b
	}
	for i := range 100 {
		take(t, writer, budget(i), 1000)
	}
	take(t, follower, day, 1)
	next := newHeader()
	writer.rewriting <- struct{}{}
	take(t, writer, day, 1)
	snapshot := writer.log.snapshot(next)
	take(t, follower, budget(1), 1) // while the file is written
	take(t, follower, budget(200), 1)
	writer.rewrite(snapshot)
	follower.log.states[`fixed-window "daily" "0"`].text = "known"
	late.log.states[`fixed-window "daily" "0"`] = &state{"unknown"}
	for _, s := range []*Store{follower, late, writer} {
		require.Equal(t, 7000.0, take(t, s, budget(99), 0).Left)
		require.Equal(t, 6999.0, take(t, s, budget(1), 0).Left)
		require.Equal(t, 7999.0, take(t, s, budget(200), 0).Left)
		require.Equal(t, 7998.0, take(t, s, day, 0).Left)
		require.Equal(t, next, s.log.header)
	}
	require.Equal(t, "known", follower.log.states[`fixed-window "daily" "0"`].text, "it reads nothing twice")
	require.Equal(t, 7000.0, take(t, late, budget(0), 0).Left)
}

// The states of windows that have ended are forgotten by the process that writes the file, and by the others.
func TestStatesThatHaveEndedAreForgotten(t *testing.T) {
	name := filepath.Join(t.TempDir(), "limits")
	synctest.Test(t, func(t *testing.T) {
		stores := []*Store{open(t, name), open(t, name)}
		short := store.Budget{Kind: store.Fixed, Limit: "short", N: 10, Per: time.Second}
		for i := range 20_000 {
			short.Key = strconv.Itoa(i)
			take(t, stores[i%2], short, 1)
			if i%100 == 0 {
				time.Sleep(time.Second)
			}
			for _, s := range stores {
				if i%1000 == 0 {
					written(t, s)
					require.Less(t, len(s.log.states), 13_000)
				}
			}
		}
		info, err := os.Stat(name)
		require.NoError(t, err)
		require.Less(t, info.Size(), int64(2<<20))
	})
}

// The file keeps the mode that it was given.
func TestFileKeepsItsMode(t *testing.T) {
	if runtime.GOOS == "windows" {
		return // it has no modes
	}
	name := filepath.Join(t.TempDir(), "limits")
	s := open(t, name)
	take(t, s, day, 1)
	for i, mode := range []os.FileMode{0o660, 0o600, 0o666, 0o640} {
		require.NoError(t, os.Chmod(name, mode))
		s.log.slack = 0
		header := s.log.header
		for s.log.header == header {
			take(t, s, day, 1)
			written(t, s)
		}
		info, err := os.Stat(name)
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode(), i)
	}
	require.NoError(t, os.Chmod(name+".lock", 0o660))
	require.NoError(t, s.Close())
	take(t, s, day, 0)
	info, err := os.Stat(name + ".queue")
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o660), info.Mode(), "those who may lock the file may wait for the lock")
}

func TestWrongOptionsAreErrors(t *testing.T) {
	name := filepath.Join(t.TempDir(), "limits")
	_, err := Open(name, WithLogger(nil), nil)
	require.ErrorContains(t, err, "WithLogger(nil)")
	require.ErrorContains(t, err, "an Option is nil")
	require.NoFileExists(t, name)
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
