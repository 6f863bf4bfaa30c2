package throttleredis

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/httpthrottle/throttle/internal/lease"
)

// mostAsks bounds the asks of one script, and so the time for which it blocks Redis.
const mostAsks = 64

// A call is one run of the script, which decides several asks with keys on the same server.
type call struct {
	clock int // the index of that server's clock in Store.offsets
	tag   string
	asks  []int // indexes of the asks
	parts []int // the number of parts of each
	keys  []string
	backs bool // a part gives tokens back
	args  []byte

	reply string
	err   error
}

const (
	headerSize = 3 * 8
	replySize  = 9 * 8 // of a part
)

// calls returns the calls that decide asks. It sets the leases of asks that are invalid.
func (s *Store) calls(asks []lease.Ask, leases []lease.Lease) []*call {
	var calls []*call
	open := make(map[int]*call) // by clock
	for i := range asks {
		a := &asks[i]
		clock, err := s.clockOf(a)
		numbers := make([]lease.Call, len(a.Parts))
		for k := range a.Parts {
			if err == nil {
				numbers[k], err = lease.NewCall(&a.Parts[k])
			}
		}
		if err != nil || len(a.Parts) == 0 {
			leases[i] = lease.Lease{Err: err}
			continue
		}
		c := open[clock]
		if c == nil || len(c.asks) == mostAsks {
			c = &call{clock: clock, tag: s.tag(&a.Parts[0].Budget), args: make([]byte, headerSize, 512)}
			open[clock] = c
			calls = append(calls, c)
		}
		c.add(i, numbers)
		for k := range a.Parts {
			c.keys = append(c.keys, s.key(&a.Parts[k].Budget))
		}
	}
	for _, c := range calls {
		c.finish(s)
	}
	return calls
}

// clockOf returns the index of the clock for an ask. In a Cluster that is the slot of all its keys.
func (s *Store) clockOf(a *lease.Ask) (clock int, err error) {
	if !s.cluster {
		return 0, nil
	}
	for i := range a.Parts {
		slot := slotOf(s.tag(&a.Parts[i].Budget))
		if i > 0 && slot != clock {
			return 0, lease.ErrApart
		}
		clock = slot
	}
	return clock, nil
}

var kinds = map[lease.Kind]int64{lease.Bucket: 1, lease.Pace: 1, lease.Sliding: 2, lease.Fixed: 3, lease.Slots: 4}

// add appends an ask, in the format that lease.lua reads.
func (c *call) add(ask int, parts []lease.Call) {
	c.asks = append(c.asks, ask)
	c.parts = append(c.parts, len(parts))
	c.number(int64(len(parts)))
	for i := range parts {
		p := &parts[i]
		for _, n := range [...]int64{
			kinds[p.Kind], p.Tick, p.N, p.Per, p.Full, p.Initial, p.Owed, p.Origin, p.Need, p.Due, p.Want, p.Ahead, p.Horizon,
			p.Ticks, p.Owe, p.Hold, p.Since, p.Held, int64(len(p.Holder)), int64(len(p.Back)),
		} {
			c.number(n)
		}
		c.args = append(c.args, p.Holder...)
		for _, r := range p.Back {
			c.number(r.Tokens)
			c.number(r.Lease)
			c.backs = true
		}
	}
}

func (c *call) number(n int64) {
	c.args = binary.LittleEndian.AppendUint64(c.args, math.Float64bits(float64(n)))
}

// finish writes the header. If the call gives tokens back it adds a nonce, so that they count once.
func (c *call) finish(s *Store) {
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
func (c *call) read(leases []lease.Lease) error {
	parts := 0
	for _, n := range c.parts {
		parts += n
	}
	if len(c.reply) != 8+parts*replySize {
		return fmt.Errorf("throttleredis: a response of %d bytes to %d parts", len(c.reply), parts)
	}
	rest := c.reply[8:]
	for i, ask := range c.asks {
		l := lease.Lease{Parts: slices.Grow([]lease.LeasedPart(nil), c.parts[i])}
		for range c.parts[i] {
			l.Parts = append(l.Parts, readPart(rest))
			rest = rest[replySize:]
		}
		leases[ask] = l
	}
	return nil
}

func readPart(s string) lease.LeasedPart {
	at := func(i int) float64 { return number(s[8*i:]) }
	span := func(i int) time.Duration { return lease.Micros(int64(at(i))) }
	return lease.LeasedPart{
		ID: int64(at(0)), Tokens: int64(at(1)), AtOnce: int64(at(2)), Next: span(3), Until: span(4), Wait: span(5),
		Left: at(6), Hold: span(7), Processes: int(at(8)),
	}
}
