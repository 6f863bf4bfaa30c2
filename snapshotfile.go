package throttle

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// SaveFile writes a [Limiter.Snapshot] to a file as JSON, readable only by its owner. Another process that reads the file, and one
// that is killed meanwhile, finds the old Snapshot or the new one, whole: the file is written beside the old one, under a name of
// its own, flushed to the disk and then renamed. So a save at intervals and one at the end of the program do not disturb each
// other; the last to end counts.
func (l *Limiter) SaveFile(name string) (err error) {
	text, err := json.Marshal(l.Snapshot())
	if err != nil {
		return fmt.Errorf("throttle: SaveFile: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*.tmp")
	if err != nil {
		return fmt.Errorf("throttle: SaveFile: %w", err)
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("throttle: SaveFile: %w", err)
	}
	return nil
}

// LoadFile restores what [Limiter.SaveFile] wrote, as [Limiter.Restore] does. A file that does not exist is no error: it is so at
// the first start.
func (l *Limiter) LoadFile(name string) error {
	text, err := os.ReadFile(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("throttle: LoadFile: %w", err)
	}
	var s Snapshot
	if err := json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf("throttle: LoadFile: %s: %w", name, err)
	}
	return l.Restore(s)
}
