//go:build !(darwin || dragonfly || freebsd || illumos || linux || netbsd || openbsd || windows)

package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
)

func tryLock(*os.File) (bool, error) {
	return false, fmt.Errorf("files cannot be locked on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

func waitLock(f *os.File) (bool, error) { return tryLock(f) }

func unlock(*os.File) error { return nil }

func isReadOnly(error) bool { return false } // it is a missing permission

func copyMode(f *os.File, like string) error {
	info, err := os.Stat(like)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Chmod(info.Mode().Perm())
}
