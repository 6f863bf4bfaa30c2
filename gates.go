package throttle

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/quota"
)

// This file keeps what servers say about limits. A gate is a bucket for each host, each set of keys there, and each family of
// requests. A request passes its gate in addition to its limits. Until a server first sends rate-limit information, only
// waiters have gates, so that the first response reaches them, and other requests pay nothing for it.

// gateLimit is the name of the limit of gates in rejections and statistics.
const gateLimit = "server"

// A gateKey is what a server probably counts a request by.
type gateKey struct {
	host   string
	party  string // the keys by which it is counted
	family uint64 // a hash, because paths may contain secrets
}

// keySeparator stands between the keys of a party.
const keySeparator = "\x00"

// name is the key of a party in rejections and statistics.
func (g *gateKey) name() string {
	return strings.TrimSpace(g.host + " " + g.partyName())
}

// A gateBucket is the meter of a gate.
type gateBucket struct {
	*quota.Gate
	key   gateKey
	party *party
	at    [2]int // in the lists of its party, counted from 1; 0: it is not there
}

// The lists of a party.
const (
	linedGates   = iota // with waiters
	stoppedGates        // where waiters are stopped
)

// list puts the gate, whose bucket is b, into a list of its party, or takes it out.
func (g *gateBucket) list(which int, b *bucket, in bool) {
	all := &g.party.lists[which]
	switch i := g.at[which]; {
	case in && i == 0:
		*all = append(*all, b)
		g.at[which] = len(*all)
	case !in && i > 0:
		n := len(*all) - 1
		last := (*all)[n]
		(*all)[i-1], last.meter.(*gateBucket).at[which] = last, i
		(*all)[n], *all = nil, (*all)[:n]
		g.at[which] = 0
	}
}

// heed notes that a server has told the party something.
func (p *party) heed() {
	if p.vocal || p.account.Silent() {
		return
	}
	p.vocal = true
	for _, b := range p.lists[linedGates] {
		for _, s := range b.lines {
			s.line.vocal = true
			s.line.queue.vocal++
		}
	}
}

// A party is an account at a server, with all its gates.
type party struct {
	account *quota.Account
	host    *host
	gates   map[*bucket]bool
	peak    int          // the most gates since the map was made
	lists   [2][]*bucket // linedGates and stoppedGates
	vocal   bool         // the server has told it something: its gates may be closed
	refused uint64       // responses by which the server refused
}

// A host is a server with all its parties.
type host struct {
	server  *quota.Server
	parties map[string]*party
	peak    int // the most parties since the map was made
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

// passing appends the charge of the gate.
func (l *core) passing(charges []charge) []charge { return charged(charges, l.gate, "", 1) }

// passLocked appends the charge of the gate of p, unless there is no room for another gate.
func (l *core) passLocked(p *pending, now instant) {
	if l.gates[*p.gate] == nil && !l.roomForGateLocked(now) {
		return
	}
	p.charges = l.passing(slices.Grow(p.charges, 1))
	c := &p.charges[len(p.charges)-1]
	c.bucket = l.gateLocked(*p.gate, now)
	c.key = c.bucket.key
}

// gateLocked returns the bucket of a gate, and makes it if there is none.
func (l *core) gateLocked(key gateKey, now instant) *bucket {
	if b := l.gates[key]; b != nil {
		return b
	}
	p := l.partyLocked(key, now)
	b := &bucket{limit: l.gate, key: key.name(), place: -1, extra: &extra{armed: never}}
	b.meter = &gateBucket{Gate: quota.NewGate(p.account), key: key, party: p}
	p.gates[b] = true
	p.peak = max(p.peak, len(p.gates))
	if p.account.Knows(anyQuota) {
		b.meter.(*gateBucket).Under(now, anyQuota)
	}
	l.gates[key] = b
	l.gatesPeak = max(l.gatesPeak, len(l.gates))
	l.gateKeys.add(b, now)
	l.sweepLaterLocked(now, sweepEvery)
	return b
}

func (l *core) partyLocked(key gateKey, now instant) *party {
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
		p.heed() // the server may hold all of its parties
		h.parties[key.party] = p
		h.peak = max(h.peak, len(h.parties))
	}
	return p
}

// forgetGateLocked forgets a gate, its party with the last gate, and its host with the last party.
func (l *core) forgetGateLocked(b *bucket, g *gateBucket) {
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

// anyQuota is the name of the quota that a server does not name. All requests of a party fall under it.
const anyQuota = "default"

// adoptLocked puts all gates of a party under the quota without a name.
func (l *core) adoptLocked(p *party, now instant) {
	for b := range p.gates {
		b.meter.(*gateBucket).Under(now, anyQuota)
	}
}

// A mark is when a request was granted, and how many had been granted by then.
type mark struct {
	at  instant
	nth uint64 // 0: it is unknown, or the Limiter did not grant the request
}

// hearAndServe takes a response to a request that passed no gate, because no server had sent rate-limit information when it left.
func (l *core) hearAndServe(key *gateKey, m mark, a *answer, charges []charge, by *counts) (e heldEvent) {
	l.mu.Lock()
	defer l.unlockJudged()
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
	if first && m.nth > 0 && now < int64(10*time.Second) { // there is no count by party yet
		g.Account.Sofar(max(int64(m.nth)-1, int64(l.counts.sent())*3/4)) // refusals are faster than other responses
	}
	said := l.tellLocked(a.word, now)
	held := l.heardLocked(g, m.at, a, &said, charges, now)
	if g.Account.Quotas() > known && m.nth > 0 {
		l.waitForOthersLocked(g, m, now)
	}
	if held > 0 {
		l.heldLocked(b, by)
		e = heldEvent{b, held}
	}
	l.serveLocked(now)
	return e
}

// waitForOthersLocked holds requests for as long as the first response took, if so many uncounted requests are on their way
// that they might use up the quota. Their responses have come by then.
func (l *core) waitForOthersLocked(g *gateBucket, m mark, now instant) {
	others := min(int64(l.counts.sent())-int64(m.nth), 1<<32)
	if others > 0 && g.Account.Bounds(4*others) {
		g.Account.Hold(now, min(now-m.at, int64(time.Second)))
		g.party.heed()
		l.gate.heldMost = max(l.gate.heldMost, g.HeldUntil())
	}
}

// roomForGateLocked reports whether there is room for another gate. It forgets a gate to make room if it must.
func (l *core) roomForGateLocked(now instant) bool {
	return len(l.gates) < l.maxKeys || l.evictLocked(now, nil, &l.gateKeys)
}

// heardLocked takes a response to a request that passed a gate, and returns how long a new hold lasts. If an Adaptive limit was
// charged too, that limit decides about a refusal of the request itself.
func (l *core) heardLocked(g *gateBucket, sent instant, a *answer, said *telling, charges []charge, now instant) (held time.Duration) {
	w := a.word
	if w == nil {
		w = new(word)
	} else if !l.heard.Load() { // only waiters passed a gate until now
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
	switch {
	case w.after != nil && said.named:
		g.Hear(now, never-1, said.tells) // the body contradicts the headers, and is later
	case w.after != nil:
		g.Hear(now, sent, said.tells)
	default:
		g.Answered(now, sent, a.outcome == aimd.OK || a.outcome == aimd.ClientError, said.tells)
	}
	if news && account.Knows(anyQuota) {
		l.adoptLocked(g.party, now)
	}
	l.markPartyLocked(g.party)
	w.from = account.Held()
	switch d := int64(w.wait); {
	case !w.limited:
	case w.host && d > 0 && adaptive:
		g.party.host.server.Hold(now, d)
	case adaptive && !said.explained: // decides about it
	case said.named && d > 0 && !w.global: // its quota stops them
		if first := w.after; first != nil {
			account.TakeBack(first.from, first.to)
			l.recountServersLocked()
		}
	case said.explained && d > 0:
		account.Hold(now, d)
	case d > 0:
		account.Refused(now, sent, d, w.host)
	case !said.explained:
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
	g.party.heed()
	return held
}

func (l *core) markPartyLocked(p *party) {
	p.heed()
	for _, b := range p.lists[stoppedGates] {
		l.markLocked(b)
	}
}

func (l *core) replanPartyLocked(p *party, now instant) {
	p.heed()
	l.replanLocked(now, p.lists[linedGates]...)
}

// ownRate returns the lowest rate of the limits that a request was charged in, in such requests per second, or 0 if none has a
// rate, and whether one of them learns its rate.
func ownRate(charges []charge) (own float64, adaptive bool) {
	for i := range charges {
		c := &charges[i]
		adaptive = adaptive || c.limit.learns
		if c.limit.rated {
			if r := c.bucket.rate().PerSecond() / float64(max(1, c.cost)); own == 0 || r < own {
				own = r
			}
		}
	}
	return own, adaptive
}

// reserveLocked returns how much of a quota of that size is left to other clients because limits have a [Share]. It is 0 if the
// server tells the very number that such a limit was given: that limit keeps to its share already.
func (l *core) reserveLocked(limit int64) int64 {
	share := 1.0
	for _, li := range l.limits {
		if li.share < 1 && li.rate.N == limit {
			return 0
		}
		share = min(share, li.share)
	}
	return int64(math.Ceil((1 - share) * float64(limit)))
}

// partiesAt returns a gate of each party of a host.
func (l *core) partiesAt(name string) (gates []*bucket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.hosts[name]
	if h == nil {
		return nil
	}
	for _, p := range h.parties {
		for b := range p.gates {
			gates = append(gates, b)
			break
		}
	}
	return gates
}

// partiesOf returns a gate of each party whose gates are wanted.
func (l *core) partiesOf(want func(gateKey) bool) (gates []*bucket) {
	seen := make(map[*party]bool)
	for _, b := range l.kept() {
		if g, ok := b.meter.(*gateBucket); ok && want(g.key) && !seen[g.party] {
			seen[g.party] = true
			gates = append(gates, b)
		}
	}
	return gates
}

func (l *core) forgetSaid(gates []*bucket, key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.nowLocked()
	for _, b := range gates {
		g := b.meter.(*gateBucket)
		g.Account.Forget(now)
		for _, p := range g.party.host.parties { // the host's hold was theirs, too
			l.markPartyLocked(p)
		}
	}
	for _, li := range l.limits {
		b := li.bucket(key)
		if b == nil {
			continue
		}
		if m, ok := b.meter.(resumer); ok {
			m.Resume(now)
			l.markLocked(b)
		}
	}
	l.serveLocked(now)
}

// A resumer is a meter that pauses because of what servers said.
type resumer interface{ Resume(now instant) }

// partyName is what a party is called at its host.
func (g *gateKey) partyName() string { return strings.ReplaceAll(g.party, keySeparator, " ") }
