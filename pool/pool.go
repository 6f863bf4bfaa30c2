// Package pool sends each request by the first of several Transports that can send it: with several credentials, deployments or regions of
// one API, each of which has limits of its own.
//
// A member is a [throttle.Transport] whose base sets its key or its host. A request is sent immediately by a member that can send it now,
// by all of its limits, what its server reported, and its queue. Otherwise it waits at all members, and is sent by the first that grants
// it, which charges what the request costs there. The others never charge it.
//
// A member that is held, has no tokens, rejects, or whose server says that no waiting helps is left out as long as that lasts. One to which
// no connection can be made, or that failed three times in a row (no response, a 401 or 402, or a 5xx other than 501), is left out until a request to it succeeds,
// also for requests that wait already. One request a second tries, if the member could get it otherwise: one that is slow or dear, too, is
// tried as rarely as it gets others. Once one succeeds, those that wait use the member again. If all members are out, none is left out.
//
// Whether a request can be sent in time depends on all members together. It is rejected on arrival if they certainly cannot send it, and
// all that wait before it, within its maximum wait; otherwise it is at the end of that. The wait that a rejection reports is a lower bound, and
// so are those of [throttle.Receipt.Waiting] and [Pool.Forecast]. What members can do of requests with different costs is added up in limits
// that all of them have, by their names: one with another name, or that only some members have, makes the bound lower, and not wrong.
//
// Of members with the same After, a request is sent where its response is expected first: one that takes more than twice as long as the
// quickest gets only requests that no quicker one can send within the time that it takes longer. What counts is the time to the headers of
// the last responses, and for how long there was none; failures and canceled requests count only if they are slow. After ten seconds without
// a response, or after the time that it takes if that is longer, one request finds out whether the member is quick again. A member that hangs
// is known as such only once it is silent, so give each member a limit of requests in flight, too.
//
// A request that has certainly not reached the server is sent by another member. It keeps its place in the queues and its maximum wait, which
// are counted from its arrival at the Pool. One that has failed in another way is not: that is for package retry,
// whose NewClient takes a Pool.
package pool

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/httpthrottle/throttle"
)

// A Member sends requests of a Pool.
type Member struct {
	Name      string              // for errors and Sticky; another one for each member
	Transport *throttle.Transport // with limits of its own, and a base that sets its key or host
	Weight    int                 // its share of the requests that several members could send immediately, about as quickly; 0 stands for 1, and the most is 1,000,000

	// After is for members that are dearer than others: this one gets only requests that no member with a shorter After can send within
	// that time. The default is 0.
	After time.Duration
}

// A Pool is an [http.RoundTripper] that sends each request by the first member that can. It is safe for concurrent use. Make it with New.
type Pool struct {
	sticky func(*http.Request) string // nil: none
	within time.Duration
	began  time.Time

	mu     sync.Mutex // guards changes of set and of doors
	set    atomic.Pointer[set]
	turned atomic.Pointer[chan struct{}] // closed when a member goes out or comes back

	shut    atomic.Bool
	active  atomic.Int64  // requests whose RoundTrip has not returned
	drains  sync.Once     // closes drained
	drained chan struct{} // closed when the Pool is shut and no request is active

	waiting, waited          atomic.Int64 // waited is the sum of all waits
	moved, delayed, canceled atomic.Uint64
	rejected                 [len(throttle.Counts[throttle.Reason]{})]atomic.Uint64
	before                   atomic.Uint64 // requests that members have sent which were removed
}

// An Option configures a Pool. Its error names the option and what is wrong with it; New joins the errors of all.
type Option func(*Pool) error

// Sticky sends requests for which key returns the same text by the same member, if that can send them within the time, less by how much
// longer it takes to respond than the quickest with the same After. That is for a cache of the server, such as one of prompts. A request for
// which key returns "" goes by any member. If members come and go, most keys keep theirs.
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

// New returns a Pool of some members. The error names everything that is wrong with them and with the options; then there is no Pool.
func New(members []Member, opts ...Option) (*Pool, error) {
	p := &Pool{began: time.Now(), drained: make(chan struct{})}
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

// Set replaces the members. Requests that wait lose their places at members that are removed, and get places at new ones, which send nothing
// before, but for a second at most; those in flight are not disturbed. The error names everything that is wrong, and then nothing is changed.
func (p *Pool) Set(members ...Member) error {
	if err := check(members); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.set.Load()
	set, added := newSet(members, old)
	if old != nil {
		p.addLocked(added, old)
	}
	p.set.Store(set)
	p.turnLocked()
	if old != nil {
		for _, m := range old.members {
			if set.index(m.Transport) < 0 {
				p.before.Add(m.sent.Load())
			}
		}
		close(old.changed)
	}
	return nil
}

// Members returns the members, in the order of After.
func (p *Pool) Members() []Member {
	set := p.set.Load()
	all := make([]Member, len(set.members))
	for i := range set.members {
		all[i] = set.members[i].Member
	}
	return all
}

// now returns how long ago the Pool was made. Unlike the time of day, it never jumps.
func (p *Pool) now() time.Duration { return time.Since(p.began) }

func check(members []Member) error {
	var faults []error
	if n := len(members); n < 1 || n > mostMembers {
		faults = append(faults, fmt.Errorf("pool: %d members: there must be 1 to %d", n, mostMembers))
	}
	names, transports, limiters := map[string]bool{}, map[*throttle.Transport]bool{}, map[*throttle.Limiter]string{}
	for i, m := range members {
		switch {
		case m.Transport == nil:
			faults = append(faults, fmt.Errorf("pool: member %d (%q): the Transport is nil", i, m.Name))
		case transports[m.Transport]:
			faults = append(faults, fmt.Errorf("pool: member %d (%q): another member has this Transport", i, m.Name))
		default:
			l := m.Transport.Limiter()
			if other, ok := limiters[l]; ok {
				faults = append(faults, fmt.Errorf("pool: member %q: member %q has this Limiter, too: give each member limits of its own", m.Name, other))
			}
			if l.Stats().DryRun {
				faults = append(faults, fmt.Errorf("pool: member %q: its Transport has WithDryRun, under which no request waits: remove the option", m.Name))
			}
			limiters[l] = m.Name
		}
		if names[m.Name] {
			faults = append(faults, fmt.Errorf("pool: member %d: another member has the name %q", i, m.Name))
		}
		if m.Weight < 0 {
			faults = append(faults, fmt.Errorf("pool: member %q: Weight %d is negative", m.Name, m.Weight))
		}
		if m.Weight > mostWeight {
			faults = append(faults, fmt.Errorf("pool: member %q: Weight %d is more than %d", m.Name, m.Weight, mostWeight))
		}
		if m.After < 0 {
			faults = append(faults, fmt.Errorf("pool: member %q: After %v is negative", m.Name, m.After))
		}
		names[m.Name], transports[m.Transport] = true, true
	}
	return errors.Join(faults...)
}

// CloseIdleConnections calls the method of that name of each member.
func (p *Pool) CloseIdleConnections() {
	for _, m := range p.set.Load().members {
		m.Transport.CloseIdleConnections()
	}
}
