// Package pool sends each request by the first of several Transports that can send it: with several credentials, deployments or regions of
// one API, each of which has limits of its own.
//
// A member is a [throttle.Transport] whose base sets its key or its host. A request is sent immediately by a member that can send it now,
// by all of its limits, what its server reported, and its queue. Otherwise it waits at all members, and is sent by the first that grants
// it, in its own cost there. The others never charge it.
//
// A member that is held, refuses finally, has no tokens or rejects is left out as long as that lasts. One to which no connection can be made
// is left out for a second at a time, and its request is sent by another member. What a server has refused is not sent again: that is for
// package retry, whose next attempt goes to whichever member can send it then.
package pool

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/bits"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/httpthrottle/throttle"
)

// A Member sends requests of a Pool.
type Member struct {
	Name      string              // for errors and Sticky; another one for each member
	Transport *throttle.Transport // with limits of its own, and a base that sets its key or host
	Weight    int                 // its share of the requests that several members could send immediately; 0 stands for 1

	// After is for members that are dearer than others: this one gets only requests that no member with a shorter After can send within
	// that time. The default is 0.
	After time.Duration
}

// A Pool is an [http.RoundTripper] that sends each request by the first member that can. It is safe for concurrent use. Make it with New.
type Pool struct {
	sticky func(*http.Request) string // nil: none
	within time.Duration

	mu  sync.Mutex // guards changes of set
	set atomic.Pointer[set]
}

// An Option configures a Pool. Its error names the option and what is wrong with it; New joins those of all.
type Option func(*Pool) error

// Sticky sends requests for which key returns the same text by the same member, if that can send them within the time: for a cache of the
// server, such as that of prompts. A request for which key returns "" goes by any member. If members come and go, most keys keep theirs.
func Sticky(key func(*http.Request) string, within time.Duration) Option {
	return func(p *Pool) error {
		if key == nil {
			return errors.New("pool: Sticky: the function is nil")
		}
		if within < 0 {
			return fmt.Errorf("pool: Sticky: the time %v is negative", within)
		}
		p.sticky, p.within = key, within
		return nil
	}
}

// mostMembers is how many members a Pool has at most: a bit for each fits a word.
const mostMembers = 64

// New returns a Pool of some members. The error names everything that is wrong with them and with the options.
func New(members []Member, opts ...Option) (*Pool, error) {
	p := new(Pool)
	var faults []error
	for _, o := range opts {
		if o == nil {
			faults = append(faults, errors.New("pool: an Option is nil"))
			continue
		}
		faults = append(faults, o(p))
	}
	if err := errors.Join(append(faults, p.Set(members...))...); err != nil {
		return nil, err
	}
	return p, nil
}

// Set replaces the members. Requests that wait lose their places at members that are removed, and get places at new ones; those in flight
// are not disturbed. The error names everything that is wrong, and then nothing is changed.
func (p *Pool) Set(members ...Member) error {
	if err := check(members); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.set.Load()
	next := &set{changed: make(chan struct{})}
	for _, m := range members {
		m.Weight = max(1, m.Weight)
		state := new(state)
		if old != nil {
			for i := range old.members {
				if old.members[i].Transport == m.Transport {
					state = old.members[i].state
				}
			}
		}
		next.members = append(next.members, member{m, state})
	}
	slices.SortStableFunc(next.members, func(a, b member) int { return int(max(-1, min(1, a.After-b.After))) })
	next.all = ^uint64(0) >> (mostMembers - len(members))
	for i := range next.members {
		if i == len(members)-1 || next.members[i+1].After > next.members[i].After {
			next.tiers = append(next.tiers, tier{next.all >> (len(members) - 1 - i), next.members[i].After, -1})
			if n := len(next.tiers); n > 1 {
				next.tiers[n-2].within = next.members[i].After
			}
		}
	}
	p.set.Store(next)
	if old != nil {
		close(old.changed)
	}
	return nil
}

func check(members []Member) error {
	var faults []error
	if n := len(members); n < 1 || n > mostMembers {
		faults = append(faults, fmt.Errorf("pool: %d members: there must be 1 to %d", n, mostMembers))
	}
	names, transports := map[string]bool{}, map[*throttle.Transport]bool{}
	for i, m := range members {
		switch {
		case m.Transport == nil:
			faults = append(faults, fmt.Errorf("pool: member %d (%q): the Transport is nil", i, m.Name))
		case transports[m.Transport]:
			faults = append(faults, fmt.Errorf("pool: member %d (%q): another member has this Transport", i, m.Name))
		}
		if names[m.Name] {
			faults = append(faults, fmt.Errorf("pool: member %d: another member has the name %q", i, m.Name))
		}
		if m.Weight < 0 {
			faults = append(faults, fmt.Errorf("pool: member %q: Weight %d is negative", m.Name, m.Weight))
		}
		if m.After < 0 {
			faults = append(faults, fmt.Errorf("pool: member %q: After %v is negative", m.Name, m.After))
		}
		names[m.Name], transports[m.Transport] = true, true
	}
	return errors.Join(faults...)
}

// A set is the members at some time, in the order of After. It never changes.
type set struct {
	members []member
	all     uint64 // a bit for each
	tiers   []tier
	changed chan struct{} // closed when there is another set
}

// A tier is members that may send a request which no member of the tier before could send in time.
type tier struct {
	mask   uint64
	after  time.Duration // the longest After of its members
	within time.Duration // from the arrival of the request; negative: there is no next tier
}

type member struct {
	Member
	*state
}

// A state is what is known of a Transport while it is a member.
type state struct {
	down atomic.Int64 // when it may be tried again, in ns of Unix time; 0: the last connection could be made
}

// downFor is how long a member is left out to which no connection could be made.
const downFor = time.Second

// RoundTrip sends a request by the first member that can send it. If none can send it in time, the response or the error is that of the
// member that could have sent it first.
//
// If no connection to a member can be made, the request is sent by another one, for which its body must be empty or have a GetBody. The
// errors of all members are joined if none can be reached.
func (p *Pool) RoundTrip(req *http.Request) (*http.Response, error) {
	var failed []*state
	var faults []error
	start := time.Now()
	for {
		set := p.set.Load()
		usable := set.usable(failed, start)
		if usable == 0 {
			closeBody(req)
			return nil, errors.Join(faults...)
		}
		by, resp, err := p.send(req, set, usable, start)
		if by == nil || err == nil || !isUnsent(err) {
			if by != nil && by.down.Load() != 0 && err == nil {
				by.down.Store(0)
			}
			return resp, err
		}
		by.down.Store(time.Now().Add(downFor).UnixNano())
		failed, faults = append(failed, by.state), append(faults, fmt.Errorf("pool: member %q: %w", by.Name, err))
		if req, err = again(req); err != nil {
			return nil, errors.Join(append(faults, err)...)
		}
	}
}

// isUnsent reports whether a request has certainly not reached the server.
func isUnsent(err error) bool {
	e, ok := errors.AsType[*net.OpError](err)
	return ok && e.Op == "dial"
}

// again returns a request with a new body, as the first one was closed.
func again(req *http.Request) (*http.Request, error) {
	if req.Body == nil || req.Body == http.NoBody {
		return req, nil
	}
	if req.GetBody == nil {
		return nil, errors.New("pool: the request has a body and no GetBody, so it cannot be sent by another member")
	}
	body, err := req.GetBody()
	if err != nil {
		return nil, fmt.Errorf("pool: GetBody: %w", err)
	}
	other := *req
	other.Body = body
	return &other, nil
}

// send sends a request once, and returns the member that it was sent by; nil: none.
func (p *Pool) send(req *http.Request, set *set, usable uint64, start time.Time) (by *member, resp *http.Response, err error) {
	if p.sticky != nil {
		if key := p.sticky(req); key != "" {
			if by, resp, err, ok := p.step(req, set, tier{set.home(key, usable), -1, p.within}, start); ok {
				return by, resp, err
			}
		}
	}
	for n, t := range set.tiers {
		if t.mask &= usable; t.mask == 0 {
			continue
		}
		if usable&^t.mask == 0 {
			t.within = -1 // there is nothing to wait for beyond it
		}
		if by, resp, err, ok := p.step(req, set, t, start); ok || n == len(set.tiers)-1 {
			return by, resp, err
		}
	}
	panic("pool: bug: no tier has a member that is usable")
}

// usable returns the members that are not left out: those that failed for this request, and those that could not be reached lately, if
// there are others.
func (s *set) usable(failed []*state, now time.Time) uint64 {
	left, up := s.all, s.all
	for i := range s.members {
		m := &s.members[i]
		if slices.Contains(failed, m.state) {
			left &^= 1 << i
		}
		if down := m.down.Load(); down != 0 && down > now.UnixNano() {
			up &^= 1 << i
		}
	}
	if up &= left; up != 0 {
		return up
	}
	return left
}

// home returns the member of a key, as a mask: that with the highest hash of both (rendezvous hashing).
func (s *set) home(key string, usable uint64) (home uint64) {
	highest := uint64(0)
	for rest := usable; rest != 0; rest &= rest - 1 {
		h := fnv.New64a()
		_, _ = io.WriteString(h, s.members[bits.TrailingZeros64(rest)].Name)
		_, _ = io.WriteString(h, "\x00"+key)
		x := h.Sum64() // FNV mixes the last bytes little
		x = (x ^ x>>33) * 0xff51afd7ed558ccd
		if x ^= x >> 33; x >= highest {
			home, highest = rest&-rest, x
		}
	}
	return home
}

// step sends a request by a member of a tier. It reports false if none can in time, and there is another tier.
func (p *Pool) step(req *http.Request, set *set, t tier, start time.Time) (by *member, resp *http.Response, err error, ok bool) {
	for rest, sum := t.mask, set.weight(t.mask); rest != 0; {
		i := set.pick(rest, sum)
		if resp, ok, err = set.members[i].Transport.TryRoundTrip(req); ok {
			return &set.members[i], resp, err, true
		}
		rest, sum = rest&^(1<<i), sum-set.members[i].Weight
	}
	w := wait{pool: p, req: req, tier: t, start: start}
	return w.wait(set)
}

// weight returns the sum of the weights of some members.
func (s *set) weight(mask uint64) (sum int) {
	for rest := mask; rest != 0; rest &= rest - 1 {
		sum += s.members[bits.TrailingZeros64(rest)].Weight
	}
	return sum
}

// pick returns one of some members, by their weights.
func (s *set) pick(mask uint64, sum int) int {
	n := rand.IntN(sum)
	for rest := mask; ; rest &= rest - 1 {
		i := bits.TrailingZeros64(rest)
		if n -= s.members[i].Weight; n < 0 {
			return i
		}
	}
}

// CloseIdleConnections calls the method of that name of each member.
func (p *Pool) CloseIdleConnections() {
	for _, m := range p.set.Load().members {
		m.Transport.CloseIdleConnections()
	}
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		req.Body.Close()
	}
}
