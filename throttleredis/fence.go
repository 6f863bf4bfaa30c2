package throttleredis

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// A fence finds out that the master that a client uses was replaced. In a failover during which the old master lives, clients learn of
// the new one at different times, and until Sentinel makes the old one a replica, both serve: twice the budget. An old master does not
// know that it was replaced; the only sign is that a replica has disappeared. So every process looks at the replicas of its master
// now and then, with a call that it makes anyway, and asks a replica that has disappeared what it is.
//
// A promoted replica may also be a copy that was detached for another purpose. So the old master is given up only if another process uses
// the new one: the first process that moves from the old master to the new one marks it.
//
// A fence has no clock and does no I/O: instants are those of the process from the start of [Store] on.
type fence struct {
	mu      sync.Mutex
	next    time.Duration      // nothing is looked at before
	masters map[string]*master // by replication id
}

// A master is one that this process used.
type master struct {
	used     time.Duration
	unmarked bool                // this process came to it from the master that it was a replica of, and has yet to mark it
	replicas map[string]*replica // by address
}

type replica struct {
	listed time.Duration // when the master had it last
	asking bool          // a goroutine is asking it
	serves time.Duration // when it last reported that it serves instead of the master; 0: never
}

const (
	lookEach   = 20 * time.Millisecond // at a master that has or had replicas
	lookAgain  = time.Second           // at another one
	lookNever  = time.Minute           // where INFO is not permitted
	askEach    = 20 * time.Millisecond // a replica that disappeared less than askSoon ago
	askSoon    = 5 * time.Second
	askLater   = 200 * time.Millisecond
	askAgain   = time.Second      // one that does not respond, or serves
	goneFor    = time.Minute      // a replica that the master has not had for so long is forgotten
	fencedFor  = 10 * time.Second // after a replica last reported that it serves
	mostSeen   = 8                // masters that are remembered
	servedMark = time.Hour        // how long a mark is kept
)

// A replication is what INFO reports about a server's replication.
type replication struct {
	isMaster   bool
	id, before string // of the server's history, and of that of the master whose replica it was
	replicas   []string
}

func parseReplication(info string) (r replication) {
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "role":
			r.isMaster = value == "master"
		case "master_replid":
			r.id = value
		case "master_replid2":
			r.before = value
		default:
			fields := make(map[string]string)
			for field := range strings.SplitSeq(value, ",") {
				key, value, _ := strings.Cut(field, "=")
				fields[key] = value
			}
			if strings.HasPrefix(name, "slave") && fields["state"] == "online" {
				r.replicas = append(r.replicas, net.JoinHostPort(fields["ip"], fields["port"]))
			}
		}
	}
	return r
}

// looks reports whether the call of now is to look at its master.
func (f *fence) looks(now time.Duration) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now < f.next {
		return false
	}
	f.next = now + lookEach
	return true
}

// blind records that INFO is not permitted.
func (f *fence) blind(now time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next = now + lookNever
}

// A sighting is what follows from a look at a master.
type sighting struct {
	id       string
	promoted bool     // it was a replica of a master that this process used: it is to be marked
	ask      []string // replicas that have disappeared
	by       string   // the replica that serves instead; empty: none
}

// saw takes what a master reported.
func (f *fence) saw(now time.Duration, r replication) (s sighting) {
	if !r.isMaster || r.id == "" {
		return s
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s.id = r.id
	m := f.masters[r.id]
	if m == nil {
		known := f.masters[r.before] != nil
		m = f.remember(r.id)
		m.unmarked = known
	}
	m.used, s.promoted = now, m.unmarked
	for _, addr := range r.replicas {
		m.replicas[addr] = &replica{listed: now}
	}
	for addr, p := range m.replicas {
		switch {
		case p.listed == now:
			continue
		case p.serves > 0 && now-p.serves < fencedFor:
			s.by = addr
		case now-p.listed > goneFor:
			delete(m.replicas, addr)
			continue
		}
		if !p.asking {
			p.asking = true
			s.ask = append(s.ask, addr)
		}
	}
	if f.next = now + lookEach; len(m.replicas) == 0 {
		f.next = now + lookAgain
	}
	if s.by != "" {
		f.next = now // the next response may be that of the new master
	}
	return s
}

func (f *fence) remember(id string) *master {
	if f.masters == nil {
		f.masters = make(map[string]*master)
	}
	if len(f.masters) == mostSeen {
		oldest := ""
		for id, m := range f.masters {
			if oldest == "" || m.used < f.masters[oldest].used {
				oldest = id
			}
		}
		delete(f.masters, oldest)
	}
	m := &master{replicas: make(map[string]*replica)}
	f.masters[id] = m
	return m
}

// marked records that the master with that id is marked.
func (f *fence) marked(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m := f.masters[id]; m != nil {
		m.unmarked = false
	}
}

// answered takes the report of a replica that the master with that id no longer has; nil: there was none. Marked is the id under
// which a process has marked it as the new master. Answered returns when to ask it again, or false: not again.
func (f *fence) answered(now time.Duration, id, addr string, r *replication, marked string) (wait time.Duration, again bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.masters[id]
	if m == nil || m.replicas[addr] == nil || !m.replicas[addr].asking {
		return 0, false
	}
	p := m.replicas[addr]
	switch {
	case r != nil && r.isMaster && r.before == id && marked == r.id:
		wait, p.serves, f.next = askAgain, now, now
	case now-p.listed < askSoon:
		wait = askEach
	case r == nil:
		wait = askAgain
	default:
		wait = askLater
	}
	if r != nil && p.serves < now {
		p.serves = 0
	}
	p.asking = now-m.used < askAgain && (now-p.listed < goneFor || p.serves > 0)
	return wait, p.asking
}

// markKey returns the key that a process sets on a master to which it came from the one that this master was a replica of.
func (s *Store) markKey() string { return s.prefix + ":" + version + ":#master" }

// look takes the response to INFO. It returns an error if another server has taken over from the one that responded, so that what this
// one granted must not be used.
func (s *Store) look(ctx context.Context, client *redis.Client, info *redis.StringCmd) error {
	switch err := info.Err(); {
	case redis.HasErrorPrefix(err, "NOPERM"), redis.HasErrorPrefix(err, "ERR"): // no permission, or a proxy
		s.fence.blind(time.Since(s.began))
		return nil
	case err != nil:
		return nil
	}
	seen := s.fence.saw(time.Since(s.began), parseReplication(info.Val()))
	if seen.promoted {
		s.logger.DebugContext(ctx, "throttleredis: there is a new master", "id", seen.id)
		if err := client.Set(ctx, s.markKey(), seen.id, servedMark).Err(); err != nil {
			return err
		}
		s.fence.marked(seen.id)
	}
	for _, addr := range seen.ask {
		go s.ask(client.Options(), seen.id, addr)
	}
	if seen.by != "" {
		return fmt.Errorf("throttleredis: the master was replaced by %s, which serves other processes", seen.by)
	}
	return nil
}

// ask asks a server that was a replica of the master with that id what it is now, until that is known or no calls are made.
func (s *Store) ask(like *redis.Options, id, addr string) {
	c := redis.NewClient(&redis.Options{
		Addr: addr, DB: like.DB, Protocol: like.Protocol, TLSConfig: like.TLSConfig, Username: like.Username, Password: like.Password,
		CredentialsProvider: like.CredentialsProvider, CredentialsProviderContext: like.CredentialsProviderContext,
		PoolSize: 1, MaxRetries: -1, DialerRetries: 1, DialTimeout: askAgain, ContextTimeoutEnabled: true, DisableIdentity: true,
	})
	defer c.Close()
	for {
		r, marked := s.replicationOf(c)
		wait, again := s.fence.answered(time.Since(s.began), id, addr, r, marked)
		if !again {
			return
		}
		time.Sleep(wait)
	}
}

func (s *Store) replicationOf(c *redis.Client) (r *replication, marked string) {
	ctx, cancel := context.WithTimeout(context.Background(), askAgain)
	defer cancel()
	p := c.Pipeline()
	info, mark := p.Info(ctx, "replication"), p.Get(ctx, s.markKey())
	_, _ = p.Exec(ctx) // what was not had is empty
	if info.Val() != "" {
		said := parseReplication(info.Val())
		r = &said
	}
	return r, mark.Val()
}
