//go:build darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd

package file

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// tryLock locks a file for this process, unless another one has locked it. The system unlocks it when the process ends.
func tryLock(f *os.File) (bool, error) {
	switch err := flock(f, syscall.LOCK_EX|syscall.LOCK_NB); {
	case err == nil:
		return true, nil
	case errors.Is(err, syscall.EWOULDBLOCK):
		return false, nil
	default:
		return false, err
	}
}

// waitLock waits until no other process has locked a file, and locks it.
func waitLock(f *os.File) (bool, error) {
	err := flock(f, syscall.LOCK_EX)
	return err == nil, err
}

func unlock(f *os.File) error { return flock(f, syscall.LOCK_UN) }

func flock(f *os.File, how int) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	outer := c.Control(func(fd uintptr) {
		for {
			if err = syscall.Flock(int(fd), how); !errors.Is(err, syscall.EINTR) {
				return
			}
		}
	})
	return errors.Join(outer, err)
}

// isReadOnly reports whether a file system is mounted for reading only.
func isReadOnly(err error) bool { return errors.Is(err, syscall.EROFS) }

// copyMode gives a file the mode, the owner and the group of another one, if that exists. If this process may not set the owner,
// it keeps the group.
func copyMode(f *os.File, like string) error {
	info, err := os.Stat(like)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		if f.Chown(int(s.Uid), int(s.Gid)) != nil {
			if err := f.Chown(-1, int(s.Gid)); err != nil {
				return err
			}
		}
	}
	return f.Chmod(info.Mode().Perm())
}
