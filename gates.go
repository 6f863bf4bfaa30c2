package throttle

import (
	"container/heap"
	"hash/maphash"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"
)

// This file is where the words of servers are kept in a Limiter: a bucket for each host, each of those whom requests
// are counted for there, and each family of requests, which a request must pass beside the limits that it was given.
// Before any server has said anything, nobody pays for that: there are gates only for those who wait in line, so that
// the first word reaches them.

// gateLimit is what buckets of gates are called in refusals and statistics.
const gateLimit = "server"

// A gateKey says what a request is in the eyes of a server, as far as can be told from here.
type gateKey struct {
	host   string
	party  string // the keys by which it is counted
	family uint64 // a hash, since paths may hold secrets
}

// A gateBucket is the meter of a gate.
type gateBucket struct {
	*gate
	key   gateKey
	party *party
}

// A party is an account at a server, with all its gates.
type party struct {
	account *account
	host    *host
	gates   []*bucket
}

// A host is a server with all its parties.
type host struct {
	server  *server
	parties map[string]*party
}

// gateOf returns the gate that a request is to pass.
func (t *Transport) gateOf(req *http.Request) *gateKey {
	o := overridesOf(req.Context())
	g := &gateKey{host: ByHost(req), family: t.limiter.family(req)}
	for i := range t.prices {
		g.join(t.prices[i].keyOf(o, req))
	}
	return g
}

func (l *Limiter) family(req *http.Request) uint64 {
	if req.URL == nil {
		return 0
	}
	return maphash.String(l.seed, familyOf(req.URL.Path))
}

// join adds the key of a limit to the party.
func (g *gateKey) join(key string) {
	switch {
	case key == "" || key == g.host || key == g.party:
	case g.party == "":
		g.party = key
	case !slices.Contains(strings.Split(g.party, " "), key):
		g.party += " " + key
	}
}

// familyOf returns the first segment of a path that says what is asked for, as servers count different resources
// apart; "api" and versions don't.
func familyOf(path string) string {
	for {
		segment, rest, more := strings.Cut(strings.TrimPrefix(path, "/"), "/")
		if !more || !isPrefix(segment) {
			return segment
		}
		path = rest
	}
}

func isPrefix(segment string) bool {
	switch segment {
	case "", "api", "rest":
		return true
	}
	version := strings.TrimPrefix(segment, "v")
	return strings.IndexFunc(version, func(r rune) bool { return (r < '0' || r > '9') && r != '.' && r != '-' }) < 0
}

// passing adds to charges that of the gate.
func (l *Limiter) passing(charges []charge) []charge { return charged(charges, l.gate, "", 1) }

// gateLocked returns the bucket of a gate, made if there is none.
func (l *Limiter) gateLocked(key gateKey, now instant) *bucket {
	if b := l.gates[key]; b != nil {
		return b
	}
	p := l.partyLocked(key, now)
	l.serial++
	b := &bucket{limit: l.gate, key: strings.TrimSpace(key.host + " " + key.party), serial: l.serial, armed: never, idle: -1, idleAt: now}
	b.meter = &gateBucket{newGate(p.account), key, p}
	p.gates = append(p.gates, b)
	if p.account.knows(anyQuota) {
		b.meter.(*gateBucket).under(now, anyQuota)
	}
	l.gates[key] = b
	heap.Push(&l.idle, b)
	l.sweepLaterLocked(now)
	return b
}

func (l *Limiter) partyLocked(key gateKey, now instant) *party {
	h := l.hosts[key.host]
	if h == nil {
		h = &host{newServer(rand.Uint64()), make(map[string]*party)}
		l.hosts[key.host] = h
	}
	p := h.parties[key.party]
	if p == nil {
		soFar := float64(l.counts.granted) / max(1, seconds(now))
		p = &party{account: newAccount(now, h.server, rand.Uint64(), soFar), host: h}
		h.parties[key.party] = p
	}
	return p
}

// forgetGateLocked forgets a gate, and with the last of its party that, and so on.
func (l *Limiter) forgetGateLocked(b *bucket, g *gateBucket) {
	delete(l.gates, g.key)
	p := g.party
	p.gates = slices.DeleteFunc(p.gates, func(other *bucket) bool { return other == b })
	if len(p.gates) > 0 {
		return
	}
	delete(p.host.parties, g.key.party)
	if len(p.host.parties) == 0 {
		delete(l.hosts, g.key.host)
	}
}

// anyQuota is what the quota is called that a server does not name, which all requests of a party fall under.
const anyQuota = "default"

// adoptLocked lets all gates of a party fall under the quota that is everybody's.
func (l *Limiter) adoptLocked(p *party, now instant) {
	for _, b := range p.gates {
		b.meter.(*gateBucket).under(now, anyQuota)
	}
}

// A mark is when a request was let go, and how many had been by then.
type mark struct {
	at  instant
	nth uint64 // 0: it is not known, or the request is none of the Limiter's
}

// hear takes in what a server said in answer to a request that passed no gate, since no server had said anything yet.
func (l *Limiter) hear(key *gateKey, m mark, a *answer, adaptive bool, o *observer) {
	held := l.hearAndServe(key, m, a, adaptive)
	if held > 0 {
		o.held(strings.TrimSpace(key.host+" "+key.party), held)
	}
}

func (l *Limiter) hearAndServe(key *gateKey, m mark, a *answer, adaptive bool) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard.Store(true)
	now := l.nowLocked()
	if l.gates[*key] == nil && !l.roomForGateLocked(now) {
		return 0
	}
	b := l.gateLocked(*key, now)
	g := b.meter.(*gateBucket)
	l.markPartyLocked(g.party)
	l.serveLocked(now)
	first := len(g.account.quotas) == 0
	g.take(now, now, 1, false)
	held := l.heardLocked(g, m.at, a, adaptive, now)
	if first && m.nth > 0 {
		l.waitForOthersLocked(g, m, now)
	}
	l.serveLocked(now)
	return held
}

// waitForOthersLocked lets nobody go for the time that the first answer of all took, if so many are on the way that
// nobody has counted that they might use up what is left: by then they have told so.
func (l *Limiter) waitForOthersLocked(g *gateBucket, m mark, now instant) {
	others := int64(min(l.counts.granted-m.nth, 1<<32))
	if others > 0 && slices.ContainsFunc(g.account.quotas, func(q *quota) bool { return q.counted && !q.pays(4*others) }) {
		g.account.hold(now, now-m.at, false)
	}
}

// roomForGateLocked reports whether one more gate may be kept, for which another is forgotten if need be.
func (l *Limiter) roomForGateLocked(now instant) bool {
	return len(l.gates) < l.maxKeys || l.evictLocked(now, nil, true)
}

// heardLocked takes in what a server said in answer to a request that passed a gate, and returns for how long that
// holds requests. Where an Adaptive limit is told as well, what is said to the one who asked is its business.
func (l *Limiter) heardLocked(g *gateBucket, sent instant, a *answer, adaptive bool, now instant) (held time.Duration) {
	w := a.word
	if w == nil {
		w = new(word)
	}
	d := w.wait.Value
	tells, named := w.tells(now)
	news := !g.account.knows(anyQuota)
	g.answered(now, sent, a.outcome == OutcomeOK || a.outcome == OutcomeClientError, tells)
	if news && g.account.knows(anyQuota) {
		l.adoptLocked(g.party, now)
	}
	l.markPartyLocked(g.party)
	if !w.limited {
		return 0
	}
	switch {
	case w.host && d > 0:
		g.party.host.server.hold(now, int64(d), !adaptive)
		for _, p := range g.party.host.parties {
			l.replanPartyLocked(p, now)
		}
		return d
	case adaptive || named && d > 0 && !w.global:
		d = 0
	case d > 0:
		g.account.hold(now, int64(d), true)
	default:
		g.account.backoff(now, sent, true)
		d = time.Duration(max(0, g.account.held-now))
	}
	l.replanPartyLocked(g.party, now)
	return d
}

func (l *Limiter) markPartyLocked(p *party) {
	for _, b := range p.gates {
		l.markLocked(b)
	}
}

func (l *Limiter) replanPartyLocked(p *party, now instant) {
	for _, b := range p.gates {
		l.replanLocked(b, now)
	}
}

// knows reports whether an account has a quota of that name.
func (a *account) knows(name string) bool {
	return slices.ContainsFunc(a.quotas, func(q *quota) bool { return q.name == name })
}
