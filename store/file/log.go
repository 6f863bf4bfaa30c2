package file

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/httpthrottle/throttle/store"
)

// A log is the file, and what this process has read of it. Its methods are called with the lock.
//
// The first line is the header, with a number that is another one in each file that replaces an old one. Each other line is the state
// of a budget: a checksum of what follows, the kind, the limit and the key in quotes, and the state, or "-" for none.
type log struct {
	path   string
	file   *os.File // open during a call alone, so that it can be replaced on every system
	book   *store.Book
	header string
	end    int64 // of the last line that was read; what follows in the file is a write that was not completed
	whole  int64 // end, when the file was new
	slack  int64 // a log this much longer than twice whole is written again
}

const (
	magic    = "throttle store 1 " // the version of the format
	headSize = len(magic) + 16 + 1
)

var checks = crc32.MakeTable(crc32.Castagnoli)

// read opens the file, or makes it, and reads what is new in it.
func (l *log) read() error {
	f, err := os.OpenFile(l.path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		if err := l.replace(store.NewBook(), time.Time{}); err != nil {
			return err
		}
		f, err = os.OpenFile(l.path, os.O_RDWR, 0)
	}
	if err != nil {
		return err
	}
	l.file = f
	if err := l.readNew(); err != nil {
		l.forget()
		l.close()
		return err
	}
	return nil
}

func (l *log) close() {
	_ = l.file.Close() // nothing is buffered
	l.file = nil
}

// forget has the next call read the whole file.
func (l *log) forget() { l.header, l.book = "", nil }

func (l *log) readNew() error {
	head := make([]byte, headSize)
	if _, err := l.file.ReadAt(head, 0); err != nil && err != io.EOF {
		return err
	}
	if !bytes.HasPrefix(head, []byte(magic)) || head[headSize-1] != '\n' {
		return fmt.Errorf("%w: %s is not a file that this program can read: it begins with %q, not with %q", store.ErrSetup, l.path, bytes.TrimRight(head, "\x00"), magic)
	}
	info, err := l.file.Stat()
	if err != nil {
		return err
	}
	if string(head) != l.header || info.Size() < l.end {
		l.header, l.book, l.end, l.whole = string(head), store.NewBook(), int64(headSize), 0
	}
	if info.Size() > l.end {
		text := make([]byte, info.Size()-l.end)
		if _, err := l.file.ReadAt(text, l.end); err != nil {
			return err
		}
		for line := range bytes.Lines(text) {
			if !bytes.HasSuffix(line, []byte("\n")) {
				break
			}
			if err := l.apply(string(line[:len(line)-1])); err != nil {
				return fmt.Errorf("%w: %s is damaged at byte %d: %w; remove or move it to start every budget again", store.ErrSetup, l.path, l.end, err)
			}
			l.end += int64(len(line))
		}
	}
	if l.whole == 0 {
		l.whole = l.end
	}
	return nil
}

var errChecksum = errors.New("the checksum does not match")

// apply sets the state of a line.
func (l *log) apply(line string) error {
	sum, rest, _ := strings.Cut(line, " ")
	if sum != checksum(rest) {
		return errChecksum
	}
	kind, rest, _ := strings.Cut(rest, " ")
	b := store.Budget{Kind: store.Kind(kind)}
	for _, field := range []*string{&b.Limit, &b.Key} {
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			return err
		}
		if *field, err = strconv.Unquote(quoted); err != nil {
			return err
		}
		rest = strings.TrimPrefix(rest[len(quoted):], " ")
	}
	if rest == "-" {
		rest = ""
	}
	return l.book.SetState(&b, []byte(rest))
}

// appendLine appends the line of a budget.
func appendLine(text []byte, book *store.Book, b *store.Budget) []byte {
	state := book.State(b)
	if state == nil {
		state = []byte("-")
	}
	line := fmt.Sprintf("%s %q %q %s", b.Kind, b.Limit, b.Key, state)
	return fmt.Appendf(text, "%s %s\n", checksum(line), line)
}

func checksum(text string) string { return fmt.Sprintf("%08x", crc32.Checksum([]byte(text), checks)) }

// write appends the states of the budgets that were asked for. If it fails, the file is as before.
func (l *log) write(asks []store.Ask) error {
	type name struct {
		kind       store.Kind
		limit, key string
	}
	seen := make(map[name]bool)
	var text []byte
	for i := range asks {
		for k := range asks[i].Parts {
			b := &asks[i].Parts[k].Budget
			if n := (name{b.Kind, b.Limit, b.Key}); !seen[n] && b.Check() == nil {
				seen[n] = true
				text = appendLine(text, l.book, b)
			}
		}
	}
	if len(text) == 0 {
		return nil
	}
	if err := l.append(text); err != nil {
		l.forget()
		return err
	}
	l.end += int64(len(text))
	return nil
}

// append writes after the last whole line. What a process that was killed has left there is cut off first, so that no part of it stays
// behind a shorter text.
func (l *log) append(text []byte) error {
	info, err := l.file.Stat()
	if err != nil {
		return err
	}
	if info.Size() > l.end {
		if err := l.file.Truncate(l.end); err != nil {
			return err
		}
	}
	if _, err := l.file.WriteAt(text, l.end); err != nil {
		return errors.Join(err, l.file.Truncate(l.end))
	}
	return nil
}

// compact writes the file again if most of it is old. If that fails, as on a full disk, the old one stays.
func (l *log) compact(now time.Time) {
	if l.end <= 2*l.whole+l.slack {
		return
	}
	l.close() // some systems do not replace an open file
	err := l.replace(l.book, now)
	if f, again := os.OpenFile(l.path, os.O_RDWR, 0); again == nil {
		l.file = f // for close
	}
	if err != nil {
		l.whole = l.end // it is tried again when the file is twice as long
	} else {
		l.forget()
	}
}

// replace makes a file with the states that count now, or the first one.
func (l *log) replace(book *store.Book, now time.Time) (err error) {
	text := fmt.Appendf(nil, "%s%016x\n", magic, rand.Uint64())
	for b := range book.All(now) {
		text = appendLine(text, book, &b)
	}
	name := l.path + ".new" // one left by a process that was killed is overwritten
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(name, l.path)
	}
	if err != nil {
		_ = os.Remove(name)
	}
	return err
}
