package file

import (
	"errors"
	"os"
	"syscall"
	"unsafe"
)

var (
	kernel       = syscall.NewLazyDLL("kernel32.dll")
	lockFileEx   = kernel.NewProc("LockFileEx")
	unlockFileEx = kernel.NewProc("UnlockFileEx")
)

const (
	failImmediately = 1
	exclusive       = 2

	errorLockViolation = syscall.Errno(33)
)

// tryLock locks a file for this process, unless another one has locked it. The system unlocks it when the process ends.
func tryLock(f *os.File) (bool, error) {
	ok, _, err := lockFileEx.Call(f.Fd(), exclusive|failImmediately, 0, 1, 0, uintptr(unsafe.Pointer(new(syscall.Overlapped))))
	switch {
	case ok != 0:
		return true, nil
	case errors.Is(err, errorLockViolation), errors.Is(err, syscall.ERROR_IO_PENDING):
		return false, nil
	}
	return false, err
}

// waitLock waits until no other process has locked a file, and locks it.
func waitLock(f *os.File) (bool, error) {
	ok, _, err := lockFileEx.Call(f.Fd(), exclusive, 0, 1, 0, uintptr(unsafe.Pointer(new(syscall.Overlapped))))
	if ok != 0 {
		return true, nil
	}
	return false, err
}

func unlock(f *os.File) error {
	ok, _, err := unlockFileEx.Call(f.Fd(), 0, 1, 0, uintptr(unsafe.Pointer(new(syscall.Overlapped))))
	if ok != 0 {
		return nil
	}
	return err
}

func isReadOnly(error) bool { return false } // it is a missing permission

func copyMode(*os.File, string) error { return nil } // a new file has the rights of its directory
