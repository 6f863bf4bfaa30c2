package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/httpthrottle/throttle/store"
)

// A log of which most is old is written again: by one process, while all of them go on.
//
//   - The process appends a line "rewrites", so that no other begins for a while. The line has the number of the new file.
//   - It writes the states that it knows to NAME.new-NUMBER, and has the system write that to the disk. This needs no lock.
//   - With the lock, it copies what was appended to the old file meanwhile, and replaces the old file.
//
// The new file begins with a line "follows": which file it follows, up to where the states are those of the lines below, and at which byte
// what was copied begins. A process that has read the old file as far as that knows these states, and reads on from there.

// rewrites is what lines of a log say about its being written again.
type rewrites struct {
	began time.Time // the latest one
	files []string  // the numbers of the new files, which are left if a process was killed
}

// respite is the time during which no other process begins. If the file is written in a second, the next one can begin then.
const respite = 10 * time.Second

// apply takes a line without a state.
func (r *rewrites) apply(word, number, at string) error {
	if word != "rewrites" {
		return nil
	}
	number, _ = strconv.Unquote(number)
	at, _ = strconv.Unquote(at)
	began, err := strconv.ParseInt(at, 10, 64)
	if err != nil || len(number) != 16 || strings.Trim(number, "0123456789abcdef") != "" {
		return errLine
	}
	r.began = time.UnixMicro(began)
	r.files = append(r.files, number)
	return nil
}

func newHeader() string { return fmt.Sprintf("%s%016x\n", magic, rand.Uint64()) }

// number returns that of a header.
func number(header string) string { return header[len(magic) : headSize-1] }

// followsSize is the size of the line "follows".
var followsSize = len(follows(newHeader(), 0, 0, 0))

// follows returns that line: the file with a header is followed, and its first from bytes are in this file before the byte to, in
// that number of lines.
func follows(header string, from, to int64, lines int) []byte {
	return appendLine(nil, fmt.Sprintf(`follows "%s" "%020d %020d %020d"`, number(header), from, to, lines), none)
}

// follow goes on in a file that follows the one that was read. It reports false if there is no such line, or if this process has not
// read enough of the old file. It also does if the process has many more states than the file: they have ended, and it should forget them.
func (l *log) follow(line []byte) bool {
	if l.header == "" || len(line) < followsSize {
		return false
	}
	var from, to int64
	var lines int
	form := fmt.Sprintf(`follows "%s" "%%d %%d %%d" -`, number(l.header))
	if _, err := fmt.Sscanf(string(line[sumSize:]), form, &from, &to, &lines); err != nil || !bytes.Equal(line[:followsSize], follows(l.header, from, to, lines)) {
		return false
	}
	if l.end < from || to+l.end-from > l.size || len(l.states) > 2*lines+1000 {
		return false
	}
	l.end, l.whole = to+l.end-from, to
	return true
}

// isDue reports whether most of the log is old, and no other process has begun to write it again.
func (l *log) isDue(now time.Time) bool {
	return l.end > 2*l.whole+l.slack && (l.began.IsZero() || now.Sub(l.began).Abs() >= respite)
}

// intent returns the line "rewrites".
func intent(next string, now time.Time) change {
	return change{fmt.Sprintf(`rewrites "%s" "%d"`, number(next), now.UnixMicro()), none}
}

// A snapshot is the states of a log up to a byte, and the header of the file that is to follow it.
type snapshot struct {
	of, next string
	end      int64
	states   []change
	left     []string // the numbers of files that processes left that were killed
}

func (l *log) snapshot(next string) *snapshot {
	s := &snapshot{of: l.header, next: next, end: l.end, states: make([]change, 0, len(l.states)), left: l.files}
	for name, state := range l.states {
		s.states = append(s.states, change{name, state.text})
	}
	return s
}

// text returns the new file. It has the states that count now, and those that cannot be decoded; the others are expired.
func (s *snapshot) text(now time.Time) (text []byte, expired []change) {
	text = append(append(text, s.next...), follows(s.of, 0, 0, 0)...)
	for _, c := range s.states {
		kind, _, _ := strings.Cut(c.name, " ")
		book, b := store.NewBook(), store.Budget{Kind: store.Kind(kind)}
		if book.SetState(&b, []byte(c.text)) == nil && !book.Until(&b).After(now) {
			expired = append(expired, c)
			continue
		}
		text = appendLine(text, c.name, c.text)
	}
	copy(text[headSize:], follows(s.of, s.end, int64(len(text)), len(s.states)-len(expired)))
	return text, expired
}

// beginRewrite has a goroutine write the file again, unless one does.
func (s *Store) beginRewrite(from *snapshot) {
	select {
	case s.rewriting <- struct{}{}:
		go s.rewrite(from)
	default:
	}
}

func (s *Store) rewrite(from *snapshot) {
	defer func() { <-s.rewriting }()
	for _, number := range from.left {
		_ = os.Remove(s.log.newName(number))
	}
	name := s.log.newName(number(from.next))
	text, expired := from.text(time.Now())
	if n := len(from.states) - len(expired); n > mostBudgets {
		s.warn("there are more budgets than a file is for", "budgets", n)
	}
	err := s.log.writeFile(name, text)
	if err == nil {
		err = s.replace(from, name, expired)
	}
	if err != nil {
		_ = os.Remove(name)
	}
	if err != nil && !errors.Is(err, errReplaced) {
		s.warn("the file cannot be written again, and grows until it can be", "err", err)
	}
}

// replace replaces the file that a snapshot is of, unless another process has done that. It copies most of what was appended meanwhile
// before it has the lock for long.
func (s *Store) replace(from *snapshot, name string, expired []change) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	for end, last := from.end, false; !last; {
		var meanwhile []byte
		err := s.locked(context.Background(), func() error {
			if err := s.read(); err != nil {
				return err
			}
			l := &s.log
			defer l.close()
			if l.header != from.of {
				return errReplaced
			}
			meanwhile = make([]byte, l.end-end)
			if _, err := l.file.ReadAt(meanwhile, end); err != nil {
				return err
			}
			if last = int64(len(meanwhile)) <= l.piece; !last {
				return nil
			}
			_, err := f.Write(meanwhile)
			if err = errors.Join(err, copyMode(f, l.path), f.Close()); err != nil { // the mode may be another one by now
				return err
			}
			l.close() // some systems do not replace an open file
			if err := os.Rename(name, l.path); err != nil {
				return err
			}
			for _, c := range expired {
				if s := l.states[c.name]; s != nil && s.text == c.text {
					delete(l.states, c.name)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		if !last {
			if _, err := f.Write(meanwhile); err != nil {
				return err
			}
			end += int64(len(meanwhile))
		}
	}
	return nil
}

var errReplaced = errors.New("another process has written the file again")

func (l *log) newName(number string) string { return l.path + ".new-" + number }

// makeRoom writes the file again while the process has the lock, because the disk is full. It reports whether that worked.
func (l *log) makeRoom(now time.Time) bool {
	if l.end <= 2*l.whole {
		return false
	}
	text, _ := l.snapshot(newHeader()).text(now)
	l.close() // some systems do not replace an open file
	err := l.create(text)
	behind, failed := l.open()
	return err == nil && failed == nil && behind == 0
}

// create makes the file, or replaces it, while the process has the lock.
func (l *log) create(text []byte) error {
	name := l.path + ".new" // one left by a process that was killed is overwritten
	err := l.writeFile(name, text)
	if err == nil {
		err = os.Rename(name, l.path)
	}
	if err != nil {
		_ = os.Remove(name)
	}
	return err
}

// writeFile writes a file to the disk.
func (l *log) writeFile(name string, text []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, copyMode(f, l.path), f.Sync(), f.Close())
}
