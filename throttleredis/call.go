package throttleredis

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/httpthrottle/throttle/store"
)

// mostParts bounds the parts of one script, and so the time for which it blocks Redis: 0.2 ms. Only an ask with more parts has a longer one.
const mostParts = 32

// A call is one run of the script, which decides several asks with keys on the same server.
type call struct {
	clock int // the index of that server's clock in Store.clocks
	tag   string
	asks  []int  // indexes of the asks
	parts []int  // the number of parts of each
	names []byte // of all keys, one after the other
	ends  []int  // of each in names
	keys  []string
	backs bool // a part gives tokens back
	args  []byte

	budget  [9]int64 // the numbers of the latest part's budget
	windows [4]int64 // those of a Calendar
	kinds   int      // the set of files of the budgets' kinds

	reply string
	early int64 // how much earlier the response could have arrived, in µs; see clock
	err   error
}

const (
	headerSize = 3 * 8
	askSize    = 8 * 8 // of an ask for one part, at least
	budgetSize = 9 * 8
	keySize    = 48 // of most names
)

// calls returns the calls that decide asks. It sets the leases of asks that are invalid.
func (s *Store) calls(asks []store.Ask, leases []store.Lease) []*call {
	var calls []*call
	var latest *call
	var open map[int]*call // by clock, in a Cluster
	var numbers []store.Call
	for i := range asks {
		a := &asks[i]
		clock, err := s.clockOf(a)
		if err == nil {
			err = a.Check()
		}
		numbers = numbers[:0]
		for k := range a.Parts {
			if err == nil {
				var c store.Call
				c, err = store.NewCall(&a.Parts[k])
				numbers = append(numbers, c)
			}
		}
		if err != nil || len(a.Parts) == 0 {
			leases[i] = store.Lease{Err: err}
			continue
		}
		if s.cluster {
			latest = open[clock]
		}
		if latest == nil || len(latest.ends)+len(a.Parts) > mostParts {
			most := 1 // as in a Cluster
			if !s.cluster {
				most = min(mostParts, len(asks)-i)
			}
			latest = newCall(clock, s.tag(&a.Parts[0].Budget), most)
			calls = append(calls, latest)
			if s.cluster {
				if open == nil {
					open = make(map[int]*call)
				}
				open[clock] = latest
			}
		}
		latest.add(i, numbers)
		for k := range a.Parts {
			latest.names = s.appendKey(latest.names, &a.Parts[k].Budget)
			latest.ends = append(latest.ends, len(latest.names))
		}
	}
	for _, c := range calls {
		c.finish(s)
	}
	return calls
}

// newCall returns a call with room for most asks of one part.
func newCall(clock int, tag string, most int) *call {
	return &call{
		clock: clock, tag: tag, args: make([]byte, headerSize, headerSize+budgetSize+most*askSize),
		asks: make([]int, 0, most), parts: make([]int, 0, most), names: make([]byte, 0, most*keySize), ends: make([]int, 0, most),
	}
}

// clockOf returns the index of the clock for an ask. In a Cluster that is the slot of all its keys.
func (s *Store) clockOf(a *store.Ask) (clock int, err error) {
	if !s.cluster {
		return 0, nil
	}
	for i := range a.Parts {
		slot := slotOf(s.tag(&a.Parts[i].Budget))
		if i > 0 && slot != clock {
			return 0, store.ErrApart
		}
		clock = slot
	}
	return clock, nil
}

var kinds = map[store.Kind]int64{store.Bucket: 1, store.Pace: 1, store.Sliding: 2, store.Fixed: 3, store.Slots: 4, store.Calendar: 5}

// files are the indexes of the files of kinds in kindFiles.
var files = map[store.Kind]int{store.Bucket: 0, store.Pace: 0, store.Sliding: 1, store.Fixed: 2, store.Calendar: 2, store.Slots: 3}

// The numbers of a budget are left out where they are those of the part before, and other numbers where all are 0.
const (
	withBudget = 1
	withExtras = 2
	replaces   = 4
	whole      = 8
	queues     = 16
	queued     = 32
)

// add appends an ask, in the format that asks.lua reads.
func (c *call) add(ask int, parts []store.Call) {
	c.asks = append(c.asks, ask)
	c.parts = append(c.parts, len(parts))
	c.number(int64(len(parts)))
	for i := range parts {
		p := &parts[i]
		c.kinds |= 1 << files[p.Kind]
		budget := [...]int64{kinds[p.Kind], p.Tick, p.N, p.Per, p.Full, p.Initial, p.Owed, p.Origin, p.Horizon}
		what := int64(0)
		if budget != c.budget || p.Windows != c.windows {
			what += withBudget
		}
		if p.Owe > 0 || p.Hold != 0 || p.Held > 0 || p.Holder != "" || len(p.Back) > 0 {
			what += withExtras
		}
		if p.Replace {
			what += replaces
		}
		if p.Whole {
			what += whole
		}
		if p.Queue {
			what += queues
		}
		if p.Queued > 0 {
			what += queued
		}
		c.number(what, p.Need, p.Due, p.Want, p.Ahead, p.Ticks, p.Since)
		if p.Queued > 0 {
			c.number(p.Queued)
		}
		if what&withBudget != 0 {
			c.budget, c.windows = budget, p.Windows
			c.number(budget[:]...)
			if p.Kind == store.Calendar {
				c.number(p.Windows[:]...)
			}
		}
		if what&withExtras == 0 {
			continue
		}
		c.number(p.Owe, p.Hold, p.Held, int64(len(p.Holder)), int64(len(p.Back)))
		c.args = append(c.args, p.Holder...)
		for _, r := range p.Back {
			c.number(r.Tokens, r.Lease)
			c.backs = true
		}
	}
}

func (c *call) number(all ...int64) {
	for _, n := range all {
		c.args = binary.LittleEndian.AppendUint64(c.args, math.Float64bits(float64(n)))
	}
}

// finish names the keys and writes the header. If the call gives tokens back it adds a nonce, so that they count once.
func (c *call) finish(s *Store) {
	c.keys = make([]string, 0, len(c.ends)+1)
	names, from := string(c.names), 0
	for _, end := range c.ends {
		c.keys = append(c.keys, names[from:end])
		from = end
	}
	nonce := 0.0
	if c.backs {
		nonce = 1
		c.keys = append(c.keys, s.nonceKey(c.tag, hex.EncodeToString(binary.BigEndian.AppendUint64(nil, rand.Uint64()))))
	}
	binary.LittleEndian.PutUint64(c.args[8:], math.Float64bits(nonce))
	binary.LittleEndian.PutUint64(c.args[16:], math.Float64bits(float64(len(c.asks))))
}

// notAfter sets the instant of Redis's clock, in µs, after which the script does nothing; 0: none.
func (c *call) notAfter(at int64) {
	binary.LittleEndian.PutUint64(c.args, math.Float64bits(float64(at)))
}

// now returns the instant of the response, in µs, or 0 if there is none, and whether the call was late.
func (c *call) now() (at int64, late bool) {
	if len(c.reply) < 8 {
		return 0, false
	}
	return int64(number(c.reply)), len(c.reply) == 8 && len(c.asks) > 0
}

func number(s string) float64 {
	return math.Float64frombits(binary.LittleEndian.Uint64([]byte(s[:8])))
}

// read sets leases from the response.
func (c *call) read(leases []store.Lease) error {
	n := 0
	for _, parts := range c.parts {
		n += parts
	}
	all := make([]store.LeasedPart, n)
	rest := c.reply[min(8, len(c.reply)):]
	for i, ask := range c.asks {
		parts := all[:c.parts[i]:c.parts[i]]
		all = all[c.parts[i]:]
		if text, size, ok := readError(rest); ok {
			leases[ask] = store.Lease{Err: scriptError(text)}
			rest = rest[size:]
			continue
		}
		for k := range parts {
			size, ok := readPart(rest, &parts[k])
			if !ok {
				return fmt.Errorf("throttleredis: a response of %d bytes to %d parts", len(c.reply), n)
			}
			parts[k].Next = max(0, parts[k].Next-micros(c.early)) // by Redis's clock, however long the response took
			rest = rest[size:]
		}
		leases[ask] = store.Lease{Parts: parts}
	}
	if rest != "" {
		return fmt.Errorf("throttleredis: a response of %d bytes to %d parts", len(c.reply), n)
	}
	return nil
}

const (
	shortReply = 6 * 8 // of a part
	longReply  = 10 * 8
	ruleReply  = 3 * 8 // what follows if another rule counts
	overReply  = 8     // what follows if slots are over
	turnReply  = 8     // what follows if an ask waits for its turn
)

// readPart reads a part from the begin of a response, as respond in head.lua writes it. It returns its size in bytes.
func readPart(s string, p *store.LeasedPart) (size int, ok bool) {
	if len(s) < shortReply {
		return 0, false
	}
	at := func(i int) int64 { return int64(number(s[8*i:])) }
	flags := at(0)
	p.Differs, p.Processes, p.ID, p.Tokens, p.AtOnce, p.Left = flags&2 != 0, int(at(1)), at(2), at(3), at(4), number(s[8*5:])
	size = shortReply
	if flags&1 != 0 {
		if size = longReply; len(s) < size {
			return 0, false
		}
		p.Next, p.Until, p.Wait, p.Hold = micros(at(6)), micros(at(7)), micros(at(8)), micros(at(9))
	}
	if p.Differs {
		if len(s) < size+ruleReply {
			return 0, false
		}
		rule := store.Units{Tick: at(size / 8), N: at(size/8 + 1), Per: at(size/8 + 2)}
		if min(rule.Tick, rule.N, rule.Per) <= 0 {
			return 0, false
		}
		p.N, p.Per = rule.Rate()
		size += ruleReply
	}
	if flags&4 != 0 {
		if len(s) < size+overReply {
			return 0, false
		}
		p.Over = at(size / 8)
		size += overReply
	}
	if flags&8 != 0 {
		if len(s) < size+turnReply {
			return 0, false
		}
		p.Turn = micros(at(size / 8))
		size += turnReply
	}
	return size, true
}

// readError reads the error of an ask, which is sent instead of its parts.
func readError(s string) (text string, size int, ok bool) {
	if len(s) < 16 || number(s) != -1 {
		return "", 0, false
	}
	n := int(number(s[8:]))
	if n < 0 || n > len(s)-16 {
		return "", 0, false
	}
	return s[16 : 16+n], 16 + n, true
}

// micros returns n µs.
func micros(n int64) time.Duration {
	if n > math.MaxInt64/1000 {
		return math.MaxInt64
	}
	return time.Duration(n) * time.Microsecond
}
