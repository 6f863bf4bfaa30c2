package queue

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/keep"
	"github.com/httpthrottle/throttle/internal/quota"
)

// This file keeps what servers report about limits. A gate is a bucket for each host, each set of keys there, and each family of
// requests. A request passes its gate in addition to its limits. Until a server first sends rate-limit information, only
// waiters have gates, so that the first response reaches them, and other requests pay nothing for it.

// gateLimit is the name of the limit of gates in rejections and statistics.
const gateLimit = "server"

// A GateBucket is the meter of a gate.
type GateBucket struct {
	quota.Gate
	Party  *party
	family uint64
	nth    int32 // of the party's gates
	at     int32 // in the list of its party, counted from 1; 0: it is not there
}

// A gateID is what a gate is found by.
type gateID struct {
	party  *party
	family uint64
}

// Key returns what the requests have that pass the gate.
func (g *GateBucket) Key() *GateKey { return &g.Party.Key }

// list puts the gate of bucket b into the list of its party, or takes it out.
func (g *GateBucket) list(b *Bucket, in bool) {
	all := &g.Party.lined
	switch {
	case in:
		*all = append(*all, b)
		g.at = int32(len(*all))
	default:
		n := len(*all) - 1
		last := (*all)[n]
		(*all)[g.at-1], last.Meter.(*GateBucket).at = last, g.at
		(*all)[n], *all = nil, (*all)[:n]
		g.at = 0
	}
}

// A party is an account at a server, with all its gates.
type party struct {
	Key     GateKey // without a family
	account *quota.Account
	Host    *host
	gates   []*Bucket
	lined   []*Bucket // its gates with waiters
	used    Instant   // when a request or a response came last
	nth     int32     // of the host's parties
	size    int32     // as it is counted in Core.said
	Refused uint32    // responses by which the server refused
	refusal bool      // what stops requests may be due to a refusal
}

// A host is a server with all its parties.
type host struct {
	quota.Server
	parties []*party
	byKey   map[GateKey]*party // nil: there are few
	peak    int                // the most parties since that map was made
}

const fewParties = 8 // of a host, among which one is found without a map

// find returns the party of a key without a family; nil: there is none.
func (h *host) find(key GateKey) *party {
	if h.byKey != nil {
		return h.byKey[key]
	}
	for _, p := range h.parties {
		if p.Key == key {
			return p
		}
	}
	return nil
}

func (h *host) add(p *party) {
	p.nth = int32(len(h.parties))
	h.parties = append(h.parties, p)
	if h.byKey == nil && len(h.parties) > fewParties {
		h.byKey = make(map[GateKey]*party)
		for _, p := range h.parties {
			h.byKey[p.Key] = p
		}
	}
	if h.byKey != nil {
		h.byKey[p.Key] = p
		h.peak = max(h.peak, len(h.byKey))
	}
}

func (h *host) remove(p *party) {
	n := len(h.parties) - 1
	last := h.parties[n]
	h.parties[p.nth], last.nth = last, p.nth
	h.parties[n], h.parties = nil, h.parties[:n]
	if h.byKey != nil {
		delete(h.byKey, p.Key)
		h.byKey = keep.Shrunk(h.byKey, &h.peak)
	}
	if n < cap(h.parties)/4 && cap(h.parties) > keep.ShrinkAbove {
		h.parties = slices.Clone(h.parties)
	}
}

// pass adds the charge of a gate, for which there must be room.
func (p *Paid) pass(gate *Bucket) {
	p.Add(gate.Limit, gate.Key, 1)
	p.Charges[len(p.Charges)-1].bucket = gate
}

// passLocked appends the charge of the gate of p, unless there is no room for another gate.
func (l *Core) passLocked(p *Pending, now Instant) {
	if l.findGateLocked(p.Gate, now) != nil || l.roomForGateLocked(now) {
		p.Charges = slices.Grow(p.Charges, 1)
		p.pass(l.GateLocked(*p.Gate, now))
	}
}

// findGateLocked returns the bucket of a gate; nil: none is kept.
func (l *Core) findGateLocked(key *GateKey, now Instant) *Bucket {
	h := l.hosts[key.Host]
	if h == nil {
		return nil
	}
	b := l.Gates[gateID{h.find(key.account()), key.Family}]
	if b != nil {
		b.Meter.(*GateBucket).Party.used = now
	}
	return b
}

// GateLocked returns the bucket of a gate, and makes it if there is none.
func (l *Core) GateLocked(key GateKey, now Instant) *Bucket {
	if b := l.findGateLocked(&key, now); b != nil {
		return b
	}
	p := l.partyLocked(key, now)
	l.roomForFamilyLocked(p)
	b := &Bucket{Limit: l.Gate, Key: p.Key.Name()}
	g := &GateBucket{Party: p, family: key.Family, nth: int32(len(p.gates))}
	g.Join(p.account)
	b.Meter = g
	p.gates = append(p.gates, b)
	if p.account.Knows(AnyQuota) {
		g.Under(now, AnyQuota)
	}
	l.Gates[gateID{p, key.Family}] = b
	l.gatesPeak = max(l.gatesPeak, len(l.Gates))
	l.gateKeys.Add(b, now)
	l.sweepLaterLocked(now, sweepEvery)
	l.countLocked(p)
	return b
}

func (l *Core) partyLocked(key GateKey, now Instant) *party {
	h := l.hosts[key.Host]
	if h == nil {
		h = &host{Server: *quota.NewServer(rand.Uint64())}
		l.hosts[strings.Clone(key.Host)] = h // which may be a part of a long URL
		l.hostsPeak = max(l.hostsPeak, len(l.hosts))
	}
	p := h.find(key.account())
	if p != nil {
		return p
	}
	p = &party{Key: key.account().clone(), account: quota.NewAccount(&h.Server, rand.Uint64()), Host: h, used: now}
	p.account.Off = l.quotaOff
	h.add(p)
	return p
}

// forgetGateLocked forgets a gate, its party with the last gate, and its host with the last party.
func (l *Core) forgetGateLocked(g *GateBucket) {
	delete(l.Gates, gateID{g.Party, g.family})
	l.Gates = keep.Shrunk(l.Gates, &l.gatesPeak)
	p, h := g.Party, g.Party.Host
	n := len(p.gates) - 1
	p.gates[g.nth] = p.gates[n]
	p.gates[g.nth].Meter.(*GateBucket).nth = g.nth
	if p.gates[n], p.gates = nil, p.gates[:n]; n < cap(p.gates)/4 && cap(p.gates) > keep.ShrinkAbove {
		p.gates = slices.Clone(p.gates)
	}
	g.Leave()
	if n > 0 {
		l.countLocked(p)
		return
	}
	l.said -= int(p.size)
	if h.remove(p); len(h.parties) == 0 {
		delete(l.hosts, p.Key.Host)
		l.hosts = keep.Shrunk(l.hosts, &l.hostsPeak)
	}
}

// AnyQuota is the name of the quota that a server does not name. All requests of a party fall under it.
const AnyQuota = quota.Unnamed

// A Mark is when a request was granted, and how many had been granted by then.
type Mark struct {
	At  Instant
	Nth uint64 // 0: it is unknown, or the Limiter did not grant the request
}

// HearAndServe takes a response to a request that passed no gate, because no server had sent rate-limit information when it left.
func (l *Core) HearAndServe(key *GateKey, m Mark, a *Answer, charges []Charge, by *Counts) (e HeldEvent) {
	now := l.begin()
	defer l.end()
	first := !l.Heard.Swap(true)
	if l.findGateLocked(key, now) == nil && !l.roomForGateLocked(now) {
		said := stopsNothing
		if a.Word.Limited {
			said = stopsByRefusal
		}
		if e.Forgot = l.forgetPartyLocked(nil, said, now); e.Forgot == "" && !a.Word.Limited {
			return e
		}
	}
	b := l.GateLocked(*key, now)
	g := b.Meter.(*GateBucket)
	known := g.Account.Quotas()
	if a.Word.After == nil {
		g.Sent()
	}
	if first && m.Nth > 0 && now < int64(10*time.Second) { // there is no count by party yet
		g.Account.Sofar(max(int64(m.Nth)-1, int64(l.Counts.sent())*3/4)) // refusals are faster than other responses
	}
	said := l.tellLocked(a.Word, now)
	held := l.heardLocked(g, m.At, a, &said, charges, now)
	if g.Account.Quotas() > known && m.Nth > 0 {
		l.WaitForOthersLocked(g, m, now)
	}
	if held > 0 {
		l.heldLocked(b, by)
		e.Bucket, e.By = b, held
	}
	e.Forgot = cmp.Or(l.boundLocked(g.Party, now), e.Forgot)
	return e
}

// WaitForOthersLocked holds requests for as long as the first response took, if so many uncounted requests are on their way
// that they might use up the quota. Their responses have come by then.
func (l *Core) WaitForOthersLocked(g *GateBucket, m Mark, now Instant) {
	others := min(int64(l.Counts.sent())-int64(m.Nth), 1<<32)
	if others > 0 && g.Account.Bounds(4*others) {
		g.Account.Hold(now, min(now-m.At, int64(time.Second)))
		l.Gate.HeldMost = max(l.Gate.HeldMost, g.HeldUntil())
	}
}

// heardLocked takes a response to a request that passed a gate, and returns how long a new hold lasts. If an Adaptive limit was
// charged too, that limit decides about a refusal of the request itself.
func (l *Core) heardLocked(g *GateBucket, sent Instant, a *Answer, said *telling, charges []Charge, now Instant) (held time.Duration) {
	w := a.Word
	if w == nil {
		w = new(Word)
	} else if !l.Heard.Load() { // only waiters passed a gate until now
		l.Heard.Store(true)
	}
	account := g.Account
	g.Party.used = now
	if w.Limited {
		g.Party.refusal = true
	}
	if w.Limited && (w.After == nil || !w.After.Limited) {
		g.Party.Refused++
	}
	own, adaptive := OwnRate(charges)
	if w.After == nil {
		account.Cover(own, adaptive)
	}
	waiting := len(g.Party.lined) > 0 // if not, there is nothing to plan again
	until, open, news := account.Until(), waiting && g.Payable(now, 1), !account.Knows(AnyQuota)
	switch {
	case w.After != nil && said.named:
		g.Hear(now, Never-1, said.tells) // the body contradicts the headers, and is later
	case w.After != nil:
		g.Hear(now, sent, said.tells)
	default:
		g.Answered(now, sent, a.Outcome == aimd.OK || a.Outcome == aimd.ClientError, said.tells)
	}
	if news && account.Knows(AnyQuota) {
		account.Adopt(now, AnyQuota)
	}
	l.markPartyLocked(g.Party)
	w.from = account.Held()
	switch d := int64(w.Wait); {
	case !w.Limited:
	case w.Host && d > 0 && adaptive:
		account.HoldHost(now, d)
	case adaptive && !said.explained: // decides about it
	case said.named && d > 0 && !w.Global: // its quota stops them
		if first := w.After; first != nil {
			account.TakeBack(first.from, first.to)
			l.recountServersLocked()
		}
	case said.explained && d > 0:
		account.Hold(now, d)
	case d > 0:
		account.Refused(now, sent, d, w.Host)
	case !said.explained && !slices.ContainsFunc(charges, learnsSlots): // which decides
		account.Backoff(now, sent, g.InFlight())
	}
	w.to = account.Held()
	moved := account.Until() > until
	switch {
	case moved && w.Host:
		for _, p := range g.Party.Host.parties {
			l.replanPartyLocked(p, now)
		}
	case moved, open && !g.Payable(now, 1):
		l.replanPartyLocked(g.Party, now)
	}
	if moved {
		held = time.Duration(account.Until() - now)
		if w.Limited {
			l.holdLoansLocked(charges, account.Until(), now)
		}
	}
	return held
}

func (l *Core) markPartyLocked(p *party) {
	for _, b := range p.lined {
		l.markLocked(b)
	}
}

func (l *Core) replanPartyLocked(p *party, now Instant) {
	l.replanLocked(now, p.lined...)
}

// learnsSlots reports whether the limit of a charge learns how many requests may be in flight. A refusal without Retry-After says
// that these were too many.
func learnsSlots(c Charge) bool { return c.Limit.Learns && c.Limit.Frees }

// OwnRate returns the lowest rate of the limits that a request was charged in, in such requests per second, or 0 if none has a
// rate, and whether one of them learns its rate.
func OwnRate(charges []Charge) (own float64, adaptive bool) {
	for i := range charges {
		c := &charges[i]
		adaptive = adaptive || c.Limit.Learns && !c.Limit.Frees
		if c.Limit.Rated {
			if r := c.bucket.setPerSecond() / float64(max(1, c.cost)); own == 0 || r < own {
				own = r
			}
		}
	}
	return own, adaptive
}

// reserveLocked returns how much of a quota of that size is left to other clients because limits have a [Fraction]. It is 0 if the
// server tells the very number that such a limit was given: that limit keeps to its share already.
func (l *Core) reserveLocked(limit int64) int64 {
	share := 1.0
	for _, li := range l.Limits {
		if li.Share < 1 && li.Rate.N == limit {
			return 0
		}
		share = min(share, li.Share)
	}
	return int64(math.Ceil((1 - share) * float64(limit)))
}

// PartiesAt returns a gate of each party of a host.
func (l *Core) PartiesAt(name string) (gates []*Bucket) {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	h := l.hosts[name]
	if h == nil {
		return nil
	}
	for _, p := range h.parties {
		gates = append(gates, p.gates[0])
	}
	return gates
}

// PartiesOf returns a gate of each party that want accepts.
func (l *Core) PartiesOf(want func(GateKey) bool) (gates []*Bucket) {
	seen := make(map[*party]bool)
	for piece := range l.Pieces(l.Gate) {
		for _, b := range piece {
			if g := b.Meter.(*GateBucket); want(*g.Key()) && !seen[g.Party] {
				seen[g.Party] = true
				gates = append(gates, b)
			}
		}
	}
	return gates
}

func (l *Core) ForgetSaid(gates []*Bucket, key string) {
	now := l.begin()
	defer l.end()
	for _, b := range gates {
		g := b.Meter.(*GateBucket)
		g.Account.Forget(now)
		for _, p := range g.Party.Host.parties { // the host's hold was theirs, too
			l.markPartyLocked(p)
		}
	}
	for _, li := range l.Limits {
		b := li.bucket(key)
		if b == nil {
			continue
		}
		if m, ok := b.Meter.(resumer); ok {
			m.Resume(now)
			l.markLocked(b)
		}
	}
}

// A resumer is a meter that pauses because of what servers reported.
type resumer interface{ Resume(now Instant) }
