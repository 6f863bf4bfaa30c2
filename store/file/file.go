// Package file is a [store.Store] in a file, for the processes of one host: budgets survive a restart and a kill -9, without a
// server. If a process is killed, the tokens that it had leased and not used are lost: by default what it uses in 10 ms.
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
// process that was killed during a write. It got no lease, so they are dropped. When the log has grown enough, the current states are
// written to a new file, which is flushed to the disk and then replaces the old one. The lock is on a second file, NAME.lock, which
// is never deleted.
//
// A crash of the machine itself, unlike that of a process, may lose the leases of the last seconds, because a call does not wait for
// the disk.
//
// # Errors
//
// If the disk is full, calls fail and charge no budget, and the limits behave as in any outage; see throttle.WithoutStore. Errors have
// [store.ErrSetup] in their chain if the file is damaged or has another version, if a permission is missing, or, on Linux, if the
// directory is on a network file system. Such an error does not change the file. To start every budget again, remove or move the
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
	"os"
	"path/filepath"
	"time"

	"github.com/httpthrottle/throttle/store"
)

// A Store keeps budgets in a file. Make it with [Open]. It has no goroutine. Its methods may be called concurrently.
type Store struct {
	path string
	turn chan struct{} // has a value while a call is under way; the fields below are that call's
	lock *os.File
	log  log
}

// Open returns a Store that uses the named file, and creates the file if it does not exist. The directory must exist and be writable.
// All processes that open the same file share its budgets, also by the name of a symbolic link to it or to its directory. A hard link
// is another file.
func Open(name string) (*Store, error) {
	path, err := resolve(name)
	if err != nil {
		return nil, fmt.Errorf("%w: throttle/store/file: %w", store.ErrSetup, err)
	}
	if kind := networkFileSystem(filepath.Dir(path)); kind != "" {
		return nil, fmt.Errorf("%w: throttle/store/file: %s is on a network file system (%s), whose locks do not order the writes of several hosts",
			store.ErrSetup, path, kind)
	}
	s := &Store{path: path, turn: make(chan struct{}, 1), log: log{path: path, slack: 1 << 20}}
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

// Lease implements [store.Store]. It gives up waiting for the lock when ctx is done.
func (s *Store) Lease(ctx context.Context, asks []store.Ask) (leases []store.Lease, err error) {
	select {
	case <-ctx.Done():
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	}
	if err := context.Cause(ctx); err != nil {
		return nil, s.wrap(err)
	}
	if err := s.acquire(ctx); err != nil {
		return nil, s.wrap(err)
	}
	defer func() { err = errors.Join(err, s.wrap(unlock(s.lock))) }()
	if err := s.log.read(); err != nil {
		return nil, s.wrap(err)
	}
	defer s.log.close()
	now := time.Now()
	leases = s.log.book.Lease(now, asks)
	if err := s.log.write(asks); err != nil {
		return nil, s.wrap(err)
	}
	s.log.compact(now)
	return leases, nil
}

// Close closes the lock file. A later Lease opens it again.
func (s *Store) Close() (err error) {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	if s.lock != nil {
		err, s.lock = s.lock.Close(), nil
	}
	return err
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

// acquire locks the lock file.
func (s *Store) acquire(ctx context.Context) error {
	name := s.path + ".lock"
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 2*time.Millisecond) {
		if s.lock == nil {
			f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
			if err != nil {
				return err
			}
			s.lock = f
		}
		locked, err := tryLock(s.lock)
		if err != nil {
			return &fs.PathError{Op: "lock", Path: name, Err: err}
		}
		if locked && s.isCurrent(name) {
			return nil
		}
		if locked { // it was removed or replaced: other processes lock another one
			err, s.lock = s.lock.Close(), nil
			if err != nil {
				return err
			}
			continue
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("another process holds the lock of %s: %w", name, context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}

// isCurrent reports whether the open lock file is still the one with that name.
func (s *Store) isCurrent(name string) bool {
	open, err := s.lock.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(name)
	return err == nil && os.SameFile(open, there)
}
