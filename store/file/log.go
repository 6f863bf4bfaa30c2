package file

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"strconv"
	"time"

	"github.com/httpthrottle/throttle/store"
)

// A log is the file, and what this process has read of it. Its methods are called with the lock, except readOn.
//
// The first line is the header, with a number that is another one in each file that replaces an old one. Each other line is the state
// of a budget: a checksum of what follows, the kind, the limit and the key in quotes, and the state, or "-" for none. Lines about the
// file itself have the same form, with a word instead of a kind and no state, so that earlier releases read over them; see rewrite.go.
//
// States are kept as text, and only those of the budgets of a call are decoded. So a process reads what others do, and a long file, quickly.
type log struct {
	path   string
	file   *os.File          // open during a call alone, so that it can be replaced on every system
	states map[string]*state // by name: the kind, the limit and the key in quotes
	header string
	end    int64 // of the last line that was read
	size   int64 // of the file when the lock was taken; what follows its last newline is a write that was not completed
	whole  int64 // end, when the file was new
	slack  int64 // a log this much longer than twice whole is written again
	piece  int64 // the most bytes that are read or copied with the lock
	damage damage
	rewrites
}

// A state is the text of a budget's state. It is a pointer in the map, so that a new one costs no new name.
type state struct{ text string }

// A damage is what was skipped.
type damage struct{ at, bytes int64 }

const (
	magic    = "throttle store 1 " // the version of the format
	headSize = len(magic) + 16 + 1
	none     = "-" // no state
)

// open opens the file, or makes it. It returns how many bytes of it this process has not read.
func (l *log) open() (behind int64, err error) {
	f, err := os.OpenFile(l.path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		if err := l.create([]byte(newHeader())); err != nil {
			return 0, err
		}
		f, err = os.OpenFile(l.path, os.O_RDWR, 0)
	}
	if err != nil {
		return 0, err
	}
	l.file = f
	if err := l.begin(); err != nil {
		l.close()
		return 0, err
	}
	return l.size - l.end, nil
}

func (l *log) close() {
	_ = l.file.Close() // nothing is buffered
	l.file = nil
}

// begin reads the header. If it is not the one that this process knows, or the file is shorter than it was, all of the file is new, unless
// the file follows the one that it knows.
func (l *log) begin() error {
	head := make([]byte, headSize+followsSize)
	n, err := l.file.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return err
	}
	head = head[:n]
	if n < headSize || !bytes.HasPrefix(head, []byte(magic)) || head[headSize-1] != '\n' {
		return fmt.Errorf("%w: %s is not a file that this program can read: it begins with %q, not with %q; remove or move it to start every budget again",
			store.ErrSetup, l.path, bytes.TrimRight(head[:min(n, headSize)], "\x00"), magic)
	}
	info, err := l.file.Stat()
	if err != nil {
		return err
	}
	l.size = info.Size()
	header, rest := string(head[:headSize]), head[headSize:]
	switch {
	case header == l.header && l.size >= l.end:
	case header != l.header && l.follow(rest):
		l.header, l.rewrites = header, rewrites{}
	default:
		l.states, l.header, l.end, l.whole, l.rewrites = make(map[string]*state), header, int64(headSize), 0, rewrites{}
	}
	return nil
}

// readOn reads the lines from end to size. They do not change, so this needs no lock.
func (l *log) readOn() error {
	for chunk := int64(1 << 20); l.end < l.size; {
		text := make([]byte, min(chunk, l.size-l.end))
		if _, err := l.file.ReadAt(text, l.end); err != nil {
			return err
		}
		last := bytes.LastIndexByte(text, '\n')
		if last < 0 && int64(len(text)) < l.size-l.end {
			chunk *= 2
			continue
		}
		for line := range bytes.Lines(text[:last+1]) {
			if err := l.apply(line[:len(line)-1]); errors.Is(err, errChecksum) {
				if l.damage.bytes == 0 {
					l.damage.at = l.end
				}
				l.damage.bytes += int64(len(line))
			} else if err != nil {
				return fmt.Errorf("%w: %s cannot be read at byte %d: %w; a later release may have written it", store.ErrSetup, l.path, l.end, err)
			}
			l.end += int64(len(line))
		}
		if last < 0 || last+1 < len(text) && l.end+int64(len(text)-last-1) == l.size {
			break // a write that was not completed
		}
	}
	if l.whole == 0 {
		l.whole = l.end
	}
	return nil
}

var (
	checks      = crc32.MakeTable(crc32.Castagnoli)
	errChecksum = errors.New("the checksum does not match")
	errLine     = errors.New("it is not a kind, a limit, a key and a state")
)

const sumSize = 8 + 1

// checksum appends the checksum of a line and a space.
func checksum(to, line []byte) []byte { return fmt.Appendf(to, "%08x ", crc32.Checksum(line, checks)) }

// apply sets the state of a line.
func (l *log) apply(line []byte) error {
	if len(line) < sumSize || !bytes.Equal(line[:sumSize], checksum(make([]byte, 0, sumSize), line[sumSize:])) {
		return errChecksum
	}
	line = line[sumSize:]
	limit := bytes.IndexByte(line, ' ') + 1
	key := limit + quoted(line[limit:])
	end := key + quoted(line[key:])
	if limit == 0 || key == limit || end == key || end == len(line) {
		return errLine
	}
	name, text := line[:end-1], line[end:]
	if string(text) == none {
		delete(l.states, string(name))
		return l.rewrites.apply(string(line[:limit-1]), string(line[limit:key-1]), string(line[key:end-1]))
	}
	l.set(string(name), string(text))
	return nil
}

func (l *log) set(name, text string) {
	if s := l.states[name]; s != nil {
		s.text = text
		return
	}
	l.states[name] = &state{text}
}

// quoted returns the length of a text in quotes and of the space after it; 0: there is none.
func quoted(text []byte) int {
	for i := 1; i < len(text) && text[0] == '"'; i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			if i+1 < len(text) && text[i+1] == ' ' {
				return i + 2
			}
			return 0
		}
	}
	return 0
}

// appendName appends the name of a budget.
func appendName(to []byte, b *store.Budget) []byte {
	to = append(append(to, b.Kind...), ' ')
	to = append(strconv.AppendQuote(to, b.Limit), ' ')
	return strconv.AppendQuote(to, b.Key)
}

// appendLine appends the line of a state.
func appendLine(to []byte, name, text string) []byte {
	at := len(to)
	to = append(to, "00000000 "...)
	to = append(append(append(to, name...), ' '), text...)
	checksum(to[at:at], to[at+sumSize:])
	return append(to, '\n')
}

// A change is the new state of a budget.
type change struct{ name, text string }

// decide decides asks, and returns the states that they change. If a state cannot be decoded, asks for this budget fail.
func (l *log) decide(now time.Time, asks []store.Ask) (leases []store.Lease, changed []change) {
	book, names := store.NewBook(), make(map[string]*store.Budget)
	leases = make([]store.Lease, len(asks))
	good, at := make([]store.Ask, 0, len(asks)), make([]int, 0, len(asks))
	for i := range asks {
		if leases[i].Err = l.load(book, &asks[i], names); leases[i].Err == nil {
			good, at = append(good, asks[i]), append(at, i)
		}
	}
	for i, lease := range book.Lease(now, good) {
		leases[at[i]] = lease
	}
	for name, b := range names {
		text := none
		if state := book.State(b); state != nil {
			text = string(state)
		}
		changed = append(changed, change{name, text})
	}
	return leases, changed
}

// load puts the states of an ask's budgets into a Book.
func (l *log) load(book *store.Book, a *store.Ask, names map[string]*store.Budget) error {
	for k := range a.Parts {
		b := &a.Parts[k].Budget
		if b.Check() != nil {
			continue // the Book says so
		}
		name := string(appendName(nil, b))
		if names[name] != nil {
			continue
		}
		if s := l.states[name]; s != nil {
			if err := book.SetState(b, []byte(s.text)); err != nil {
				return fmt.Errorf("throttle/store/file: %s: %w", l.path, err)
			}
		}
		names[name] = b
	}
	return nil
}

// write appends the lines of changes. If it fails, the file is as before.
func (l *log) write(now time.Time, changed []change) error {
	if len(changed) == 0 {
		return nil
	}
	var text []byte
	for _, c := range changed {
		text = appendLine(text, c.name, c.text)
	}
	err := l.append(text)
	if err != nil && l.makeRoom(now) {
		err = l.append(text)
	}
	if err != nil {
		return err
	}
	l.end += int64(len(text))
	for _, c := range changed {
		if c.text == none {
			delete(l.states, c.name)
		} else {
			l.set(c.name, c.text)
		}
	}
	return nil
}

// append writes after the last whole line. What a process that was killed has left there is cut off first, so that no part of it stays
// behind a shorter text.
func (l *log) append(text []byte) error {
	if l.size > l.end {
		if err := l.file.Truncate(l.end); err != nil {
			return err
		}
	}
	if _, err := l.file.WriteAt(text, l.end); err != nil {
		return errors.Join(err, l.file.Truncate(l.end))
	}
	return nil
}
