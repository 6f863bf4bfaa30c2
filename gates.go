package throttle

import (
	"context"
	"hash/maphash"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/httpthrottle/throttle/internal/quota"
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

// keySeparator stands between the keys of a party.
const keySeparator = "\x00"

// name is what a party is called in refusals and statistics.
func (g *gateKey) name() string {
	return strings.TrimSpace(g.host + " " + g.partyName())
}

// A gateBucket is the meter of a gate.
type gateBucket struct {
	*quota.Gate
	key   gateKey
	party *party
}

// A party is an account at a server, with all its gates.
type party struct {
	account *quota.Account
	host    *host
	gates   map[*bucket]bool
	peak    int       // the most gates since the map was made
	lined   []*bucket // gates at which somebody waits
	refused uint64    // responses by which the server refused
}

// A host is a server with all its parties.
type host struct {
	server  *quota.Server
	parties map[string]*party
	peak    int // the most parties since the map was made
}

// gateOf returns the gate that a request is to pass.
func (t *Transport) gateOf(req *http.Request) *gateKey {
	g := &gateKey{host: ByHost(req), family: t.limiter.family(req)}
	key := t.keyOf(overridesOf(req.Context()), req)
	for _, li := range t.limiter.limits {
		g.join(li.keyOf(req, key))
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
	case !slices.Contains(strings.Split(g.party, keySeparator), key):
		g.party += keySeparator + key
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

// passLocked adds what the gate of p charges, unless there is no room for one more.
func (l *Limiter) passLocked(p *pending, now instant) {
	if l.gates[*p.gate] == nil && !l.roomForGateLocked(now) {
		return
	}
	p.charges = l.passing(slices.Grow(p.charges, 1))
	c := &p.charges[len(p.charges)-1]
	c.bucket = l.gateLocked(*p.gate, now)
	c.key = c.bucket.key
}

// gateLocked returns the bucket of a gate, made if there is none.
func (l *Limiter) gateLocked(key gateKey, now instant) *bucket {
	if b := l.gates[key]; b != nil {
		return b
	}
	p := l.partyLocked(key, now)
	l.serial++
	b := &bucket{limit: l.gate, key: key.name(), serial: l.serial, armed: never, place: -1}
	b.meter = &gateBucket{quota.NewGate(p.account), key, p}
	p.gates[b] = true
	p.peak = max(p.peak, len(p.gates))
	if p.account.Knows(anyQuota) {
		b.meter.(*gateBucket).Under(now, anyQuota)
	}
	l.gates[key] = b
	l.gatesPeak = max(l.gatesPeak, len(l.gates))
	l.gateKeys.add(b, now)
	l.sweepLaterLocked(now)
	return b
}

func (l *Limiter) partyLocked(key gateKey, now instant) *party {
	h := l.hosts[key.host]
	if h == nil {
		h = &host{server: quota.NewServer(rand.Uint64()), parties: make(map[string]*party)}
		l.hosts[key.host] = h
		l.hostsPeak = max(l.hostsPeak, len(l.hosts))
	}
	p := h.parties[key.party]
	if p == nil {
		p = &party{account: quota.NewAccount(h.server, rand.Uint64()), host: h, gates: make(map[*bucket]bool)}
		p.account.Off = l.quotaOff
		h.parties[key.party] = p
		h.peak = max(h.peak, len(h.parties))
	}
	return p
}

// forgetGateLocked forgets a gate, and with the last of its party that, and so on.
func (l *Limiter) forgetGateLocked(b *bucket, g *gateBucket) {
	delete(l.gates, g.key)
	l.gates = shrunk(l.gates, &l.gatesPeak)
	p, h := g.party, g.party.host
	delete(p.gates, b)
	p.gates = shrunk(p.gates, &p.peak)
	if len(p.gates) > 0 {
		return
	}
	delete(h.parties, g.key.party)
	h.parties = shrunk(h.parties, &h.peak)
	if len(h.parties) == 0 {
		delete(l.hosts, g.key.host)
		l.hosts = shrunk(l.hosts, &l.hostsPeak)
	}
}

// anyQuota is what the quota is called that a server does not name, which all requests of a party fall under.
const anyQuota = "default"

// adoptLocked lets all gates of a party fall under the quota that is everybody's.
func (l *Limiter) adoptLocked(p *party, now instant) {
	for b := range p.gates {
		b.meter.(*gateBucket).Under(now, anyQuota)
	}
}

// A mark is when a request was let go, and how many had been by then.
type mark struct {
	at  instant
	nth uint64 // 0: it is not known, or the request is none of the Limiter's
}

// hear takes in what a server said in answer to a request that passed no gate, since no server had said anything yet.
func (l *Limiter) hear(ctx context.Context, key *gateKey, m mark, a *answer, charges []charge, by *asker) {
	if e := l.hearAndServe(ctx, key, m, a, charges, by); e.For > 0 {
		by.observer.held(e)
	}
}

func (l *Limiter) hearAndServe(ctx context.Context, key *gateKey, m mark, a *answer, charges []charge, by *asker) (e HoldEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.nowLocked()
	if l.gates[*key] == nil && !l.roomForGateLocked(now) {
		l.heard.Store(true)
		return e
	}
	b := l.gateLocked(*key, now)
	first := !l.heard.Swap(true)
	g := b.meter.(*gateBucket)
	l.markPartyLocked(g.party)
	l.serveLocked(now)
	known := g.Account.Quotas()
	if a.word.after == nil {
		g.Sent()
	}
	if first && m.nth > 0 && now < int64(10*time.Second) { // nobody has counted by party
		g.Account.Sofar(max(int64(m.nth)-1, int64(l.counts.sent())*3/4)) // refusals are faster than other responses
	}
	held := l.heardLocked(g, m.at, a, charges, now)
	if g.Account.Quotas() > known && m.nth > 0 {
		l.waitForOthersLocked(g, m, now)
	}
	if held > 0 {
		e = l.heldLocked(ctx, b, held, by)
	}
	l.serveLocked(now)
	return e
}

// waitForOthersLocked lets nobody go for the time that the first answer of all took, if so many are on the way that
// nobody has counted that they might use up what is left: by then they have told so.
func (l *Limiter) waitForOthersLocked(g *gateBucket, m mark, now instant) {
	others := min(int64(l.counts.sent())-int64(m.nth), 1<<32)
	if others > 0 && g.Account.Bounds(4*others) {
		g.Account.Hold(now, min(now-m.at, int64(time.Second)))
		l.gate.heldMost = max(l.gate.heldMost, g.HeldUntil())
	}
}

// roomForGateLocked reports whether one more gate may be kept, for which another is forgotten if need be.
func (l *Limiter) roomForGateLocked(now instant) bool {
	return len(l.gates) < l.maxKeys || l.evictLocked(now, nil, &l.gateKeys)
}

// heardLocked takes in what a server said in answer to a request that passed a gate, and returns for how long requests are
// held that were not before. Where an Adaptive limit is told as well, what is said to the one who asked is its business.
func (l *Limiter) heardLocked(g *gateBucket, sent instant, a *answer, charges []charge, now instant) (held time.Duration) {
	w := a.word
	if w == nil {
		w = new(word)
	} else if !l.heard.Load() { // only those who stood in line passed a gate
		l.heard.Store(true)
	}
	account := g.Account
	if w.limited && (w.after == nil || !w.after.limited) {
		g.party.refused++
	}
	own, adaptive := ownRate(charges)
	if w.after == nil {
		account.Cover(own, adaptive)
	}
	until, open, news := account.Until(), g.Payable(now, 1), !account.Knows(anyQuota)
	tells, named, explained := w.tells(now)
	switch {
	case w.after != nil && named:
		g.Hear(now, never-1, tells) // it says otherwise than its headers, and was heard after them
	case w.after != nil:
		g.Hear(now, sent, tells)
	default:
		g.Answered(now, sent, a.outcome == OutcomeOK || a.outcome == OutcomeClientError, tells)
	}
	if news && account.Knows(anyQuota) {
		l.adoptLocked(g.party, now)
	}
	l.markPartyLocked(g.party)
	w.from = account.Held()
	switch d := int64(w.wait.Value); {
	case !w.limited:
	case w.host && d > 0 && adaptive:
		g.party.host.server.Hold(now, d)
	case adaptive && !explained: // decides about it
	case named && d > 0 && !w.global: // its quota stops them
		if first := w.after; first != nil {
			account.TakeBack(first.from, first.to)
			l.recountServersLocked()
		}
	case explained && d > 0:
		account.Hold(now, d)
	case d > 0:
		account.Refused(now, sent, d, w.host)
	case !explained:
		account.Backoff(now, sent, g.InFlight())
	}
	w.to = account.Held()
	moved := account.Until() > until
	switch {
	case moved && w.host:
		for _, p := range g.party.host.parties {
			l.replanPartyLocked(p, now)
		}
	case moved, open && !g.Payable(now, 1):
		l.replanPartyLocked(g.party, now)
	}
	if moved {
		held = time.Duration(account.Until() - now)
		if w.limited {
			l.holdLoansLocked(charges, account.Until(), now)
		}
	}
	return held
}

func (l *Limiter) markPartyLocked(p *party) {
	for _, b := range p.lined {
		l.markLocked(b)
	}
}

func (l *Limiter) replanPartyLocked(p *party, now instant) { l.replanLocked(now, p.lined...) }

// ownRate returns the least rate of the limits that a request was charged in, in such requests per second (0: none has one),
// and whether one is Adaptive.
func ownRate(charges []charge) (own float64, adaptive bool) {
	for i := range charges {
		c := &charges[i]
		switch c.limit.kind {
		case kindAIMD:
			adaptive = true
		case kindBucket, kindPace, kindSliding, kindFixed:
			if r := c.bucket.rate.PerSecond() / float64(max(1, c.cost)); own == 0 || r < own {
				own = r
			}
		}
	}
	return own, adaptive
}

// reserveLocked returns how much of a quota of that limit is left to others, since limits have a [Share]: nothing where the
// server tells the very number that such a limit was given, which then keeps to its share already.
func (l *Limiter) reserveLocked(limit int64) int64 {
	share := 1.0
	for _, li := range l.limits {
		if li.share < 1 && li.rate.N == limit {
			return 0
		}
		share = min(share, li.share)
	}
	return int64(math.Ceil((1 - share) * float64(limit)))
}
