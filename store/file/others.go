package file

import (
	"os"
	"sync"
	"time"
)

// Others is what a process that waits for the lock knows of the others: each call changes the file. If the file does not change, a process
// that stands still has locked it.
type others struct {
	mu    sync.Mutex
	waits bool
	path  string
	file  os.FileInfo // as it was last seen; nil: it could not be seen
	moved time.Time   // when it was first seen like that, or the latest wait began or ended
}

// stands is after how long without a change a process seems to stand still. On a busy machine, it may be a while until it runs.
const stands = time.Second

// await begins a wait for the lock.
func (o *others) await(path string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waits, o.path, o.moved = true, path, time.Now()
	o.file, _ = os.Stat(path)
}

// awaited ends a wait.
func (o *others) awaited() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waits, o.moved = false, time.Now()
}

// move reports whether the process waits, and others have used the file lately, or it has just waited.
func (o *others) move() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.waits {
		was := o.file
		o.file, _ = os.Stat(o.path)
		if was == nil || o.file == nil || !os.SameFile(was, o.file) || was.Size() != o.file.Size() {
			o.moved = time.Now()
		}
	}
	return time.Since(o.moved) < stands
}

// Queuing implements [store.Queuer]: it reports whether a call waits for other processes, and these use the file.
func (s *Store) Queuing() bool { return s.others.move() }
