// Package file is a [store.Store] in a file, for the processes of one host: budgets survive a restart and a kill -9, without a
// server. If a process is killed, the tokens that it had leased and not used are lost: what it used in the last 10 ms (see
// throttle.LeaseAhead), and what waiting requests were promised, which is due within 50 ms and three round trips.
//
//	day, err := file.Open("/var/lib/sync/limits")
//	if err != nil {
//		return err
//	}
//	limit := throttle.FixedWindow(8000, 24*time.Hour, throttle.Name("daily"), throttle.Shared(day))
//
// # The file
//
// The file is a log. Each call locks it, reads what other processes have appended, lets a [store.Book] decide, and appends the new
// states of the budgets in one write, each with a checksum, before it returns a lease. Bytes after the last newline come from a
// process that was killed during a write. It got no lease, so they are dropped. When the log has grown enough, one of the processes
// writes the current states to a new file, which is flushed to the disk and then replaces the old one. Other processes go on meanwhile.
// The new file has the mode, the owner and the group of the old one. If the process may not set the owner, it is the process's user.
//
// The lock is on a second file, NAME.lock. The process whose turn is next locks NAME.queue, so that processes take turns. Neither is
// ever deleted, and their modes must let all processes write.
//
// A crash of the machine itself, unlike that of a process, may lose the leases of the last seconds, because a call does not wait for
// the disk.
//
// # Size
//
// The file is for up to 100,000 budgets and some tens of processes: 8 processes with 16 callers each, in which each request needs another
// budget, get about 23,000 tokens a second. If the callers pause for 15 ms between requests, which makes 6,800, no call fails, and none
// takes longer than 50 ms on a machine with idle processors. On a busy machine, requests wait for as long as they may while other processes
// use the file, because a [store.Queuer] is not unreachable then. Each process keeps all states in memory, about 500 bytes for each budget.
// Beyond that size, the Store logs a warning, once a minute at most; use module throttleredis instead.
//
// # Errors
//
// If the disk is full, calls fail and charge no budget, and the limits behave as in any outage; see throttle.WithoutStore. They
// succeed again as soon as there is room. If a part of the file is damaged, as by a crash of the machine, it is skipped, and a warning
// says how many bytes that were: a budget whose latest state was there has the state before it. If the state of a budget was written by a
// later release, asks for this budget fail.
//
// Other errors have [store.ErrSetup] in their chain: the file is not a log or has another version, a permission is missing, or, on Linux,
// the directory is on a network file system. Such an error does not change the file. To start every budget again, remove or move the
// file; you can do that at any time.
//
// Do not put the file on a network file system, because its locks do not order the reads and writes of several hosts. Use module
// throttleredis instead.
package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/httpthrottle/throttle/store"
)

// A Store keeps budgets in a file. Make it with [Open]. It has a goroutine only while a call waits for the lock, and while the file is
// written again. Its methods may be called concurrently.
type Store struct {
	path      string
	logger    *slog.Logger  // nil: the default logger
	warned    atomic.Int64  // when the latest warning was logged, in Unix time
	rewriting chan struct{} // has a value while the file is written again

	others others

	turn chan struct{} // has a value while a call is under way; the fields below are that call's
	lock lock
	log  log
}

var _ store.Queuer = (*Store)(nil)

// An Option changes how a [Store] works.
type Option interface{ apply(*Store) error }

type option func(*Store) error

func (f option) apply(s *Store) error { return f(s) }

// WithLogger sets the logger of warnings: that a part of the file is damaged, that it cannot be written again, and that there are more
// budgets or processes than a file is for. The default is [slog.Default].
func WithLogger(logger *slog.Logger) Option {
	return option(func(s *Store) error {
		if logger == nil {
			return errors.New("WithLogger(nil): a logger is needed")
		}
		s.logger = logger
		return nil
	})
}

// Open returns a Store that uses the named file, and creates the file if it does not exist. The directory must exist and be writable.
// All processes that open the same file share its budgets, also by the name of a symbolic link to it or to its directory. A hard link
// is another file.
func Open(name string, opts ...Option) (*Store, error) {
	path, err := resolve(name)
	if err != nil {
		return nil, fmt.Errorf("%w: throttle/store/file: %w", store.ErrSetup, err)
	}
	if kind := networkFileSystem(filepath.Dir(path)); kind != "" {
		return nil, fmt.Errorf("%w: throttle/store/file: %s is on a network file system (%s), whose locks do not order the writes of several hosts",
			store.ErrSetup, path, kind)
	}
	s := &Store{path: path, rewriting: make(chan struct{}, 1), turn: make(chan struct{}, 1), lock: lock{path: path}, log: log{path: path, slack: 1 << 20, piece: 1 << 20}}
	var faults []error
	for _, o := range opts {
		if o == nil {
			faults = append(faults, errors.New("an Option is nil"))
			continue
		}
		faults = append(faults, o.apply(s))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, fmt.Errorf("throttle/store/file: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := s.Lease(ctx, nil); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// resolve returns the path of a file, which need not exist, without symbolic links: by each name, the lock is the same file, and a
// file that is written again replaces the file and not the link.
func resolve(name string) (string, error) {
	path, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	resolved, err := filepath.EvalSymlinks(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return resolved, err
	}
	if target, err := os.Readlink(path); err == nil { // to a file that does not exist yet
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(path), target)
		}
		return resolve(target)
	}
	if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
		path = filepath.Join(dir, filepath.Base(path))
	}
	return path, nil
}

// Lease implements [store.Store]. It gives up waiting for the lock when ctx is done, and then decides nothing.
func (s *Store) Lease(ctx context.Context, asks []store.Ask) (leases []store.Lease, err error) {
	err = s.locked(ctx, func() error {
		if err := s.read(); err != nil {
			return err
		}
		defer s.log.close()
		now, next := time.Now(), ""
		decided, changed := s.log.decide(now, asks)
		if s.log.isDue(now) {
			next = newHeader()
			changed = append(changed, intent(next, now))
		}
		if err := s.log.write(now, changed); err != nil {
			return err
		}
		if next != "" {
			s.log.began = now
			s.beginRewrite(s.log.snapshot(next))
		}
		leases = decided
		return nil
	})
	return leases, s.wrap(err)
}

// slow is how long a call waits before the Store logs it. mostBudgets is the number of budgets that a file is for.
const (
	slow        = 50 * time.Millisecond
	mostBudgets = 100_000
)

// warn logs a warning, once a minute at most.
func (s *Store) warn(what string, args ...any) {
	now, last := time.Now().Unix(), s.warned.Load()
	if now-last >= 60 && s.warned.CompareAndSwap(last, now) {
		s.slog().Warn("throttle/store/file: "+what, append([]any{"file", s.path}, args...)...)
	}
}

func (s *Store) slog() *slog.Logger {
	if s.logger == nil {
		return slog.Default()
	}
	return s.logger
}

// locked calls f with the lock, unless ctx is done before. It waits for other processes in a goroutine, which calls f itself, because the
// lock would be held for longer if it first had to wake this one.
func (s *Store) locked(ctx context.Context, f func() error) error {
	select {
	case <-ctx.Done():
		return fmt.Errorf("another call waits for the lock of %s: %w: %w", s.path, store.ErrLate, context.Cause(ctx))
	case s.turn <- struct{}{}:
	}
	if err := context.Cause(ctx); err != nil {
		<-s.turn
		return fmt.Errorf("%w: %w", store.ErrLate, err)
	}
	locked, err := s.lock.try()
	if err != nil {
		<-s.turn
		return err
	}
	if locked {
		return s.call(f)
	}
	began, result := time.Now(), make(chan error, 1)
	var claimed atomic.Bool // by the goroutine that calls f, or by the end of ctx
	s.others.await(s.path)
	go func() {
		err := s.lock.wait()
		s.others.awaited()
		if err != nil {
			<-s.turn
			result <- err
			return
		}
		if !claimed.CompareAndSwap(false, true) {
			_ = s.release(nil) // the next call finds out
			return
		}
		if waited := time.Since(began); waited > slow {
			s.warn("a call waited for other processes: there may be more of them, or more budgets, than a file is for, or the machine is busy", "waited", waited, "budgets", len(s.log.states))
		}
		result <- s.call(f)
	}()
	select {
	case err = <-result:
		return err
	case <-ctx.Done():
		if claimed.CompareAndSwap(false, true) {
			return fmt.Errorf("another process holds the lock of %s: %w: %w", s.path, store.ErrLate, context.Cause(ctx))
		}
		return <-result
	}
}

// call calls f with the lock, and releases it. A panic, which no caller could recover in a goroutine, is an error.
func (s *Store) call(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
		err = s.release(err)
	}()
	return f()
}

func (s *Store) release(err error) error {
	err = errors.Join(err, s.lock.unlock())
	<-s.turn
	return err
}

// read reads what is new in the file. Much of it is read without the lock, so that other processes need not wait.
func (s *Store) read() error {
	for tries := 0; ; tries++ {
		behind, err := s.log.open()
		if err != nil {
			return err
		}
		if behind <= s.log.piece || tries == 4 {
			break
		}
		if err := s.lock.unlock(); err != nil {
			return err
		}
		err = s.log.readOn()
		s.log.close()
		if err := errors.Join(err, s.lock.wait()); err != nil {
			return err
		}
	}
	err := s.log.readOn()
	if err != nil {
		s.log.close()
	}
	if d := s.log.damage; d.bytes > 0 {
		s.log.damage = damage{}
		s.slog().Warn("throttle/store/file: a part of the file is damaged and was skipped: budgets whose latest state was there have the state before it",
			"file", s.path, "at", d.at, "bytes", d.bytes)
	}
	return err
}

// Close closes the lock files, and waits until the file is written if that is under way. A later Lease opens them again.
func (s *Store) Close() error {
	s.rewriting <- struct{}{}
	defer func() { <-s.rewriting }()
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	return s.lock.close()
}

// wrap adds the package's name, and store.ErrSetup if retrying does not help.
func (s *Store) wrap(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrNotExist), isReadOnly(err), errors.Is(err, errors.ErrUnsupported):
		return fmt.Errorf("%w: throttle/store/file: %w", store.ErrSetup, err)
	}
	return fmt.Errorf("throttle/store/file: %w", err)
}
