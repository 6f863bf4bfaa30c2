package pool

import (
	"cmp"
	"hash/fnv"
	"io"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/httpthrottle/throttle"
)

// A set is the members at some time, in the order of After. It never changes.
type set struct {
	members []member
	all     mask
	waits   waits         // the requests that wait at its members
	changed chan struct{} // closed when there is another set
}

// A mask has a bit for each of some members of a set.
type mask uint64

// never is a time that does not come.
const never time.Duration = math.MaxInt64

const (
	mostMembers = 64        // of a Pool
	mostWeight  = 1_000_000 // the sum is an int on all platforms
)

// A tier is members that may send a request which no member of the tier before could send in time. It has all of those, too.
type tier struct {
	mask   mask
	slow   mask          // members of later tiers that would be of this one if they were as quick as others
	out    mask          // members that are out and would be of this one
	trials mask          // those of them that this request may try
	doors  bool          // its members may go out: requests stop at their doors
	after  time.Duration // the longest After of its members, and how much longer than others they take to respond
	within time.Duration // from the arrival of the request; negative: there is no next tier
}

type member struct {
	Member
	*state
}

// newSet returns a set of members that were checked, and the states of those that are new. Members that an old set has, too, keep their
// states; nil: there is none.
func newSet(members []Member, old *set) (s *set, added []*state) {
	s = &set{changed: make(chan struct{}), all: ^mask(0) >> (mostMembers - len(members))}
	for _, m := range members {
		m.Weight = max(1, m.Weight)
		i := -1
		if old != nil {
			i = old.index(m.Transport)
		}
		if i >= 0 {
			s.members = append(s.members, member{m, old.members[i].state})
		} else {
			added = append(added, newState(&m))
			s.members = append(s.members, member{m, added[len(added)-1]})
		}
	}
	slices.SortStableFunc(s.members, func(a, b member) int { return int(max(-1, min(1, a.After-b.After))) })
	return s, added
}

// next returns the tier after one with some members; 0: the first. Of members with one After, a slow one follows the quickest as much
// later as it takes longer to respond: until then, a request that waits for that one is responded to sooner.
func (s *set) next(before, usable mask, now time.Duration) tier {
	t := tier{mask: before, after: never, within: never}
	var slow mask
	for rest := usable; rest != 0; {
		alike, least := s.alike(rest, now)
		rest &^= alike
		for ; alike != 0; alike &= alike - 1 {
			i := alike.first()
			m := &s.members[i]
			extra := m.extra(now, least)
			after := min(m.After, never-extra) + extra
			if extra > 0 {
				slow |= 1 << i
			}
			switch {
			case before.has(i):
			case after < t.after:
				t = tier{mask: before | 1<<i, after: after, within: t.after}
			case after == t.after:
				t.mask |= 1 << i
			default:
				t.within = min(t.within, after)
			}
		}
	}
	for slow &^= t.mask; slow != 0; slow &= slow - 1 {
		if i := slow.first(); s.members[i].After <= t.after {
			t.slow |= 1 << i
		}
	}
	if t.mask == usable {
		t.within = -1
	}
	return t
}

// alike returns those members of some that have the After of the first of them, and how long the quickest takes to respond; never: that
// is not known.
func (s *set) alike(of mask, now time.Duration) (alike mask, least time.Duration) {
	first := of.first()
	least = never
	for ; of != 0 && s.members[of.first()].After == s.members[first].After; of &= of - 1 {
		m := &s.members[of.first()]
		alike |= of & -of
		if m.known() {
			least = min(least, m.expected(now))
		}
	}
	return alike, least
}

// extra returns how much longer than the quickest of the usable members with the same After one of these takes to respond.
func (s *set) extra(one, usable mask, now time.Duration) time.Duration {
	for rest := usable; ; {
		alike, least := s.alike(rest, now)
		if rest &^= alike; alike&one != 0 {
			return s.members[one.first()].extra(now, least)
		}
	}
}

// index returns where a Transport is in the set; -1: it is none of it.
func (s *set) index(t *throttle.Transport) int {
	return slices.IndexFunc(s.members, func(m member) bool { return m.Transport == t })
}

// untried returns the members that have not sent a request; tried are those that have.
func (s *set) untried(tried []*state) mask {
	rest := s.all
	for i := range s.members {
		if slices.Contains(tried, s.members[i].state) {
			rest &^= 1 << i
		}
	}
	return rest
}

// usable returns the members by which a request may be sent: of those that have not sent it yet, those that are in, and those that are out,
// of which only trials are sent. If none is in, all of them count as in, and requests do not stop at their doors.
func (s *set) usable(tried []*state) (usable, out mask, doors bool) {
	untried := cmp.Or(s.untried(tried), s.all)
	for rest := untried; rest != 0; rest &= rest - 1 {
		if s.members[rest.first()].isLeftOut() {
			out |= rest & -rest
		}
	}
	if out == untried {
		return untried, 0, false
	}
	return untried &^ out, out, true
}

// upTo returns those of some members that may send the requests of a tier, by their After and how long they take to respond.
func (s *set) upTo(t tier, some, usable mask, now time.Duration) (in mask) {
	for rest := some; rest != 0; rest &= rest - 1 {
		one := rest & -rest
		after := s.members[one.first()].After
		if extra := s.extra(one, usable|one, now); after <= t.after && extra <= t.after-after {
			in |= one
		}
	}
	return in
}

// home returns the member of a key: that with the highest hash of both (rendezvous hashing).
func (s *set) home(key string, usable mask) (home mask) {
	highest := uint64(0)
	for rest := usable; rest != 0; rest &= rest - 1 {
		h := fnv.New64a()
		_, _ = io.WriteString(h, s.members[rest.first()].Name)
		_, _ = io.WriteString(h, "\x00"+key)
		x := h.Sum64() // FNV mixes the last bytes little
		x = (x ^ x>>33) * 0xff51afd7ed558ccd
		if x ^= x >> 33; x >= highest {
			home, highest = rest&-rest, x
		}
	}
	return home
}

// weight returns the sum of the weights of some members.
func (s *set) weight(of mask) (sum int) {
	for rest := of; rest != 0; rest &= rest - 1 {
		sum += s.members[rest.first()].Weight
	}
	return sum
}

// pick returns one of some members by chance. The sum is that of their weights.
func (s *set) pick(of mask, sum int) int {
	n := rand.IntN(sum)
	for rest := of; ; rest &= rest - 1 {
		i := rest.first()
		if n -= s.members[i].Weight; n < 0 {
			return i
		}
	}
}

func (m mask) has(i int) bool { return m&(1<<i) != 0 }

// first returns the index of the first member of a mask that has any.
func (m mask) first() int { return bits.TrailingZeros64(uint64(m)) }
