//go:build unix

package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/store"
)

// The tests of this file run processes: this program again, with its task in the environment.
func TestMain(m *testing.M) {
	switch task := os.Getenv("STORE_FILE_TASK"); task {
	case "":
		os.Exit(m.Run())
	case "send":
		exit(send(os.Args[1], os.Args[2], os.Args[3], os.Args[4]))
	case "queue":
		exit(queue(os.Args[1]))
	case "fill":
		exit(fillDisk(os.Args[1]))
	case "repeat":
		exit(repeat(os.Args[1]))
	case "cold":
		exit(cold(os.Args[1], os.Args[2], os.Args[3], os.Args[4]))
	case "open":
		_, err := Open(os.Args[1])
		exit(err)
	}
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func process(ctx context.Context, task string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, os.Args[0], args...)
	c.Env = append(os.Environ(), "STORE_FILE_TASK="+task)
	return c
}

// send writes a byte for each request that a quota lets pass, until it lets none pass for that long. Each of four callers pauses
// after each.
func send(name, n, patience, pause string) error {
	s, err := Open(name)
	if err != nil {
		return err
	}
	most, err := strconv.ParseInt(n, 10, 64)
	if err != nil {
		return err
	}
	patient, err := time.ParseDuration(patience)
	if err != nil {
		return err
	}
	paused, err := time.ParseDuration(pause)
	if err != nil {
		return err
	}
	year := 365 * 24 * time.Hour // no window begins meanwhile
	l, err := throttle.NewLimiter(throttle.WithMaxWait(0), throttle.WithLimit(
		throttle.FixedWindow(most, year, throttle.Name("quota"), throttle.Start(time.Date(2024, 6, 1, 0, 0, 0, 0, time.UTC)), throttle.Shared(s, throttle.StoreTimeout(patient)))))
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	defer all.Wait()
	for range 4 {
		all.Go(func() {
			for l.Wait(context.Background(), throttle.Ask{}) == nil {
				_, _ = os.Stdout.Write([]byte{'.'})
				time.Sleep(paused)
			}
		})
	}
	return nil
}

func TestEightProcessesShareAQuota(t *testing.T) {
	const n = 2000
	name := filepath.Join(t.TempDir(), "limits")
	sent, patience := make([]bytes.Buffer, 8), "10s"
	if testing.Short() {
		patience = "500ms" // a process whose turn to lease some of the rest comes later ends
	}
	var all sync.WaitGroup
	for i := range sent {
		c := process(t.Context(), "send", name, strconv.Itoa(n), patience, "100us")
		c.Stdout, c.Stderr = &sent[i], os.Stderr
		all.Go(func() { assert.NoError(t, c.Run()) })
	}
	all.Wait()
	total, used := 0, 0
	for i := range sent {
		total += sent[i].Len()
		used += min(1, sent[i].Len())
	}
	assert.LessOrEqual(t, total, n)
	if !testing.Short() {
		assert.Equal(t, n, total)
		assert.Greater(t, used, 1)
	}
	t.Logf("%d of %d, by %d processes", total, n, used)
}

// Whatever a process does when it is killed, no request is counted twice or not at all, except those that it had leased.
func TestQuotaSurvivesKills(t *testing.T) {
	const n = 8000
	name := filepath.Join(t.TempDir(), "limits")
	total, kills := 0, 0
	run := func(life time.Duration) {
		c := process(t.Context(), "send", name, strconv.Itoa(n), "1s", "300us")
		c.Stderr = os.Stderr
		out, err := c.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, c.Start())
		timer := time.AfterFunc(life, func() { _ = c.Process.Kill() })
		sent, err := io.ReadAll(out)
		require.NoError(t, err)
		timer.Stop()
		if c.Wait() != nil {
			kills++
		}
		total += len(sent)
	}
	for range 15 {
		run(time.Duration(5+rand.IntN(40)) * time.Millisecond)
	}
	require.Positive(t, kills)
	left := int(take(t, open(t, name), store.Budget{Kind: store.Fixed, Limit: "quota", N: n, Per: 365 * 24 * time.Hour,
		Start: time.Date(2024, 6, 1, 0, 0, 0, 0, time.UTC)}, 0).Left)
	lost := n - left - total
	t.Logf("%d sent, %d left and %d lost of %d after %d kills", total, left, lost, n, kills)
	require.GreaterOrEqual(t, lost, 0, "each request was charged before it was sent")
	require.LessOrEqual(t, lost, kills*500, "a kill costs what was leased: 10 ms of use, and what requests waited for")
}

// queue is a batch whose requests all wait in a queue: for a day and for a window of a tenth of a second, which processes share. It
// writes a byte for each that is sent.
func queue(name string) error {
	s, err := Open(name)
	if err != nil {
		return err
	}
	year := 365 * 24 * time.Hour
	l, err := throttle.NewLimiter(throttle.WithLimit(
		throttle.FixedWindow(8000, year, throttle.Name("quota"), throttle.Start(time.Date(2024, 6, 1, 0, 0, 0, 0, time.UTC)), throttle.Shared(s)),
		throttle.FixedWindow(20, 100*time.Millisecond, throttle.Name("rate"), throttle.Shared(s))))
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	for range 5000 {
		all.Go(func() {
			if l.Wait(context.Background(), throttle.Ask{}) == nil {
				_, _ = os.Stdout.Write([]byte{'.'})
			}
		})
	}
	all.Wait()
	return nil
}

// A process that is killed while a queue waits for two shared limits has leased of the day no more than the other one lets go.
func TestAKillCostsWhatTheScarcestLimitLetsGo(t *testing.T) {
	name := filepath.Join(t.TempDir(), "limits")
	left := 8000
	for range 10 {
		c := process(t.Context(), "queue", name)
		c.Stderr = os.Stderr
		out, err := c.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, c.Start())
		timer := time.AfterFunc(time.Duration(100+rand.IntN(200))*time.Millisecond, func() { _ = c.Process.Kill() })
		sent, err := io.ReadAll(out)
		require.NoError(t, err)
		timer.Stop()
		require.Error(t, c.Wait(), "killed")
		before := left
		left = int(take(t, open(t, name), store.Budget{Kind: store.Fixed, Limit: "quota", N: 8000, Per: 365 * 24 * time.Hour,
			Start: time.Date(2024, 6, 1, 0, 0, 0, 0, time.UTC)}, 0).Left)
		lost := before - left - len(sent)
		t.Logf("%d sent, %d left and %d lost", len(sent), left, lost)
		require.GreaterOrEqual(t, lost, 0, "each request was charged before it was sent")
		unwritten := 0
		if testing.Short() { // on a busy machine, requests that were granted may not have written their byte yet: a window at most
			unwritten = 20
		}
		require.LessOrEqual(t, lost, 20+4+unwritten, "a window of the other limit, and 10 ms of requests")
	}
}

// fillDisk leases tokens of other and other budgets until a call fails. Then it writes how many calls succeeded.
func fillDisk(name string) error {
	signal.Ignore(syscall.SIGXFSZ)
	s, err := Open(name)
	if err != nil {
		return err
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 5000, Max: 1 << 30}); err != nil {
		return err
	}
	for i := 0; ; i++ {
		b := store.Budget{Kind: store.Fixed, Limit: "fill", Key: strconv.Itoa(i), N: 10, Per: 365 * 24 * time.Hour}
		_, err := s.Lease(context.Background(), []store.Ask{{Parts: []store.Part{{Budget: b, Want: 1}}}})
		if err == nil {
			continue
		}
		_, again := s.Lease(context.Background(), []store.Ask{{Parts: []store.Part{{Budget: b, Want: 1}}}})
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 1 << 20, Max: 1 << 30}); err != nil {
			return err
		}
		b.Key = "later"
		_, later := s.Lease(context.Background(), []store.Ask{{Parts: []store.Part{{Budget: b, Want: 1}}}})
		fmt.Println(i, errors.Is(err, store.ErrSetup), again != nil, strings.Contains(err.Error(), name), later == nil)
		return nil
	}
}

// A full disk, in the form of a bound of the size of a file, fails the call, charges nothing and damages nothing.
func TestFullDiskFailsTheCallAndLosesNothing(t *testing.T) {
	name := filepath.Join(t.TempDir(), "limits")
	out, err := process(t.Context(), "fill", name).CombinedOutput()
	require.NoError(t, err, "%s", out)
	var done int
	var setup, again, named, later bool
	_, err = fmt.Sscan(string(out), &done, &setup, &again, &named, &later)
	require.NoError(t, err, "%s", out)
	require.False(t, setup, "it is an outage: there may be room later")
	require.True(t, again)
	require.True(t, named)
	require.True(t, later, "there is room again")
	require.Greater(t, done, 20)
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	require.True(t, strings.HasSuffix(string(text), "\n"))
	s := open(t, name)
	for i := range done + 1 {
		b := store.Budget{Kind: store.Fixed, Limit: "fill", Key: strconv.Itoa(i), N: 10, Per: 365 * 24 * time.Hour}
		require.Equal(t, map[bool]float64{true: 9, false: 10}[i < done], take(t, s, b, 0).Left, i)
	}
}

// repeat leases tokens of one budget, more often than there is room for in a file of 5,000 bytes.
func repeat(name string) error {
	signal.Ignore(syscall.SIGXFSZ)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 5000, Max: 1 << 30}); err != nil {
		return err
	}
	s, err := Open(name)
	for i := 0; i < 500 && err == nil; i++ {
		_, err = s.Lease(context.Background(), []store.Ask{{Parts: []store.Part{{Budget: day, Want: 1}}}})
	}
	return err
}

// If the disk is full and most of the log is old, the file is written again immediately, because that makes room.
func TestFullDiskIsNoErrorIfTheLogIsMostlyOld(t *testing.T) {
	name := filepath.Join(t.TempDir(), "limits")
	out, err := process(t.Context(), "repeat", name).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, 7500.0, take(t, open(t, name), day, 0).Left)
}

func TestFileThatMayNotBeWrittenIsAWrongSetup(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o755))
	name := filepath.Join(dir, "limits")
	s := open(t, name)
	take(t, s, day, 1)
	require.NoError(t, os.Chmod(name, 0o444))
	c := process(t.Context(), "open", name)
	if os.Getuid() == 0 { // who may write to each file
		c = process(t.Context(), "open", name)
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		program := filepath.Join(dir, "program") // that of this test may be where others do not see it
		text, err := os.ReadFile(os.Args[0])
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(program, text, 0o755))
		for up := filepath.Dir(dir); up != os.TempDir() && len(up) > len(os.TempDir()); up = filepath.Dir(up) {
			require.NoError(t, os.Chmod(up, 0o755))
		}
		require.NoError(t, os.Chmod(name+".lock", 0o666))
		c.Path = program
	}
	out, err := c.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), store.ErrSetup.Error())
	require.Contains(t, string(out), name+": permission denied")
}
