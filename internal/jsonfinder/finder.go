package jsonfinder

import (
	"math"
	"math/bits"
	"slices"
	"strings"
)

// A Finder finds numbers in a JSON body that passes by in pieces: those of the members to which paths of names lead from
// the root object. A body may be several values, one after the other or as elements of an array, or a stream of events; of several
// numbers at a path or its alternatives, also under names that are there twice, the last counts.
//
// It finds all there is in valid JSON. What cannot matter, such as an array within a value, is passed over, and hardly checked. A value
// seen to be malformed is given up: what was found in it stays, and the next begins at the next line, or event. So a value
// that ends too soon takes what follows with it, unless it ends within a string or where a path leads.
//
// It keeps what it is, and nothing else, however deep, long or broken the body is. A copy continues from where it was made.
type Finder struct {
	paths *Paths
	sum   [maxPaths]int64 // by term
	found uint16          // terms
	form  Form
	bom   uint8 // bytes of a byte order mark passed
	line  eventLine
	frame frame

	list bool // in an array at the root

	state  state
	in     *node // the object on a path, or nil
	member *node // of which the name was read, or nil: it leads nowhere

	name    name
	number  number
	skipped skipped
}

type state uint8

const (
	beforeRoot  state = iota
	beforeFirst       // a name or the end of the object
	beforeName
	inName
	inEscape // after a backslash
	inHex    // after \u
	beforeColon
	beforeValue
	inSkipped // see skip
	inLiteral // a number, true, false or null that does not matter
	inNumber  // at a path
	afterValue
	lost // in what is malformed
)

const byteOrderMark = "\uFEFF"

// A Form is how values stand in a body.
type Form uint8

const (
	JSON   Form = iota
	Events      // text/event-stream
	Frames      // application/vnd.amazon.eventstream
)

// New returns a finder of its own for the paths, see Compile.
func New(paths []string, form Form) (*Finder, error) {
	c, err := Compile(paths)
	if err != nil {
		return nil, err
	}
	f := new(Finder)
	f.Begin(c, form)
	return f, nil
}

// Begin makes the zero Finder one for a body.
func (f *Finder) Begin(p *Paths, form Form) { f.paths, f.form = p, form }

// Sum returns the sum of what was found so far, at most math.MaxInt64, and whether that is anything: for each path the
// last number at it or its alternatives, rounded up. What is negative or above the range of int64 is none.
func (f *Finder) Sum() (n int64, ok bool) {
	for _, v := range f.sum {
		n += min(v, math.MaxInt64-n)
	}
	return n, f.found != 0
}

// missing stands for a number that was not found.
const missing = -1

// None returns what is found where there is nothing: Missing for each path.
func (p *Paths) None() []int64 { return slices.Repeat([]int64{missing}, p.terms) }

// Numbers returns what was found so far: for each path the last number at it or its alternatives, rounded up, or Missing.
func (f *Finder) Numbers() []int64 {
	all := slices.Clone(f.sum[:f.paths.terms])
	for term := range all {
		if f.found&(1<<term) == 0 {
			all[term] = missing
		}
	}
	return all
}

// Found returns for which paths something was found, as bits.
func (f *Finder) Found() uint16 { return f.found }

// All reports whether something was found for each path.
func (f *Finder) All() bool { return bits.OnesCount16(f.found) == f.paths.terms }

// Observe takes the next bytes of the body.
func (f *Finder) Observe(p []byte) {
	if f.form == Frames {
		f.readFrames(p)
		return
	}
	for f.bom < uint8(len(byteOrderMark)) && len(p) > 0 {
		if p[0] == byteOrderMark[f.bom] {
			f.bom++
			p = p[1:]
		} else {
			f.bom = uint8(len(byteOrderMark))
		}
	}
	if f.form == Events {
		f.readEvents(p)
	} else {
		f.parse(p)
	}
}

// restart forgets all but what was found: a new value comes.
func (f *Finder) restart() {
	f.state, f.in, f.list = beforeRoot, nil, false
}

// parse takes the next bytes of JSON.
func (f *Finder) parse(p []byte) {
	ahead := lookout{-1, -1, -1, -1, -1, -1}
	for i := 0; i < len(p); {
		switch f.state {
		case inSkipped:
			i = f.skip(p, i, &ahead)
		case inName:
			i = f.readName(p, i)
		case inEscape, inHex:
			if f.readEscape(p[i]); f.state != lost {
				i++ // where it is lost, a line may end
			}
		case inLiteral:
			for i < len(p) && isLiteral(p[i]) {
				i++
			}
			if i < len(p) {
				f.state = afterValue
			}
		case inNumber:
			if f.number.next(p[i]) {
				i++
			} else {
				f.endNumber(p[i])
			}
		case lost:
			i = f.recover(p, i)
		default:
			if c := p[i]; c == ' ' || c == '\n' || c == '\t' || c == '\r' || f.token(c) {
				i++
			} else {
				f.state = lost
			}
		}
	}
}

// recover looks for the next line, where the next value may begin. An event or a frame is lost to its end.
func (f *Finder) recover(p []byte, i int) int {
	if f.form != JSON {
		return len(p)
	}
	if i = next(p, i, '\n'); i < len(p) {
		f.restart()
		i++
	}
	return i
}

// token takes the first byte of what comes next, which is not space. It returns whether that is well-formed.
func (f *Finder) token(c byte) bool {
	if f.state == afterValue && f.in == nil {
		f.state = beforeRoot
	}
	switch {
	case f.state == beforeRoot && f.list && (c == ',' || c == ']'):
		f.list = c == ','
	case f.state == beforeRoot && !f.list && c == '[':
		f.list = true
	case f.state == beforeRoot:
		f.member = &f.paths.root
		return f.begin(c)
	case f.state == beforeValue:
		return f.begin(c)
	case f.state == beforeColon && c == ':':
		f.state = beforeValue
	case (f.state == beforeFirst || f.state == beforeName) && c == '"':
		f.beginName()
	case f.state == afterValue && c == ',':
		f.state = beforeName
	case (f.state == beforeFirst || f.state == afterValue) && c == '}':
		f.state, f.in = afterValue, f.in.parent
	default:
		return false
	}
	return true
}

// begin takes the first byte of a value, and returns whether it can be one.
func (f *Finder) begin(c byte) bool {
	switch {
	case c == '{' && f.member != nil && len(f.member.children) > 0:
		f.state, f.in = beforeFirst, f.member
	case (c == '-' || '0' <= c && c <= '9') && f.member != nil && f.member.term >= 0:
		f.state, f.number = inNumber, number{}
		f.number.next(c)
	case c == '{' || c == '[' || c == '"':
		f.beginSkipped(c)
	case c == '-' || '0' <= c && c <= '9' || c == 't' || c == 'f' || c == 'n':
		f.state = inLiteral
	default:
		return false
	}
	return true
}

func isLiteral(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '+' || c == '.' || c == 'E'
}

// endNumber takes the byte after a number.
func (f *Finder) endNumber(c byte) {
	f.state = lost
	if f.number.digits && strings.IndexByte(",} \n\t\r", c) >= 0 {
		f.state = afterValue
		if n, ok := f.number.Value(); ok {
			f.sum[f.member.term] = n
			f.found |= 1 << f.member.term
		}
	}
}
