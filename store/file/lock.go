package file

import (
	"errors"
	"io/fs"
	"os"
)

// A lock is held by one process at a time. A process that waits for it holds the queue, and others that wait, wait for the queue. So a
// process that has just released the lock cannot take it again before them. The queue is only for that order: a process that may not
// open its file waits without it.
type lock struct {
	path        string
	file, queue *os.File // NAME.lock and NAME.queue; nil: not open
}

// try takes the lock if no process has it or waits for it.
func (l *lock) try() (locked bool, err error) {
	return l.take(tryLock)
}

// wait takes the lock when the processes that came before have had it.
func (l *lock) wait() error {
	for {
		if locked, err := l.take(waitLock); locked || err != nil {
			return err
		}
	}
}

// take takes the queue and then the lock, by one of two functions, and lets the next process into the queue.
func (l *lock) take(with func(*os.File) (bool, error)) (locked bool, err error) {
	if err := l.open(); err != nil {
		return false, err
	}
	if l.queue != nil {
		if first, err := with(l.queue); err != nil || !first {
			return false, l.failed(err)
		}
	}
	locked, err = with(l.file)
	if l.queue != nil {
		err = errors.Join(err, unlock(l.queue))
	}
	if err != nil || !locked {
		return false, l.failed(err)
	}
	return l.keepIfCurrent()
}

// keepIfCurrent closes a lock file that is no longer the one with that name, because other processes lock another one.
func (l *lock) keepIfCurrent() (current bool, err error) {
	open, err := l.file.Stat()
	if err != nil {
		return false, err
	}
	if there, err := os.Stat(l.path + ".lock"); err == nil && os.SameFile(open, there) {
		return true, nil
	}
	return false, l.close()
}

func (l *lock) unlock() error { return unlock(l.file) }

func (l *lock) failed(err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: "lock", Path: l.path + ".lock", Err: err}
}

func (l *lock) open() (err error) {
	if l.file != nil {
		return nil
	}
	if l.file, err = os.OpenFile(l.path+".lock", os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return err
	}
	l.queue, err = os.OpenFile(l.path+".queue", os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = copyMode(l.queue, l.path+".lock") // those who may lock the one may lock the other
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return errors.Join(err, l.close())
	}
	return nil
}

// close also unlocks.
func (l *lock) close() error {
	var errs []error
	for _, f := range []**os.File{&l.file, &l.queue} {
		if *f != nil {
			errs = append(errs, (*f).Close())
			*f = nil
		}
	}
	return errors.Join(errs...)
}
