package limiter

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/allowance"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/order"
	"github.com/httpthrottle/throttle/internal/quota"
	"github.com/httpthrottle/throttle/internal/server"
)

// This file is how requests pass gates, and how reports of servers reach these. A gate is the limit that a server imposes on requests of
// one host, one set of keys, and one family; it has a bucket in Core.Gate. A request passes its gate in addition to its limits. Until a
// server first sends hints, only waiters pass gates, so that the first response reaches them, and other requests pay nothing for it.

// gateLimit is the name of the limit of gates in rejections and statistics.
const gateLimit = "server"

// passLocked appends the charge of the gate of w, unless there is no room for another gate.
func (l *Core) passLocked(w *Waiter, now meter.Instant) {
	if g := l.servers.Gate(w.Gate, now); g != nil {
		b := ownerOf(g)
		w.charges = append(w.charges, Charge{Bucket: b, Key: b.Key, Cost: 1})
	}
}

// knownGateLocked returns the bucket of a gate; nil: there is none yet.
func (l *Core) knownGateLocked(key *quota.Key, now meter.Instant) *bucket.Bucket {
	if g := l.servers.Find(key, now); g != nil {
		return ownerOf(g)
	}
	return nil
}

// makeOwnerLocked makes the bucket of a new gate.
func (l *Core) makeOwnerLocked(g *quota.Gate, now meter.Instant) any {
	l.sweepLaterLocked(now, sweepEvery)
	return &bucket.Bucket{Limit: l.Gate, Key: g.Account.Key.Name(), Meter: g}
}

// ReportUngated takes a response with hints to a request that passed no gate, because no server had sent hints when it left.
func (l *Core) ReportUngated(r *Request, gate *quota.Key, a *Answer) {
	n := l.reportUngated(r, gate, a)
	r.User.tell(r.Context, &n)
}

// reportUngated is ReportUngated, and returns what has changed.
func (l *Core) reportUngated(r *Request, key *quota.Key, a *Answer) (n news) {
	now := l.begin()
	defer l.end()
	if a.Hints.After != nil {
		l.endDoubtsLocked(a.Doubts, now, &n)
		l.refusedUnitsLocked(a, now)
		l.reportUnitsLocked(a, now)
		if !a.Hints.Limited && len(a.Hints.Quotas) == 0 {
			return n
		}
	} else {
		findingOf(r.Charges(), a)
		reportsFrom(r.Charges(), key.Host)
	}
	var rep quota.Report
	fillReport(&rep, a, r.At, r.Charges())
	belied := a.Hints.After != nil && a.Hints.Limited && !a.Hints.After.Limited && a.Hints.Final == nil // the headers said that it was accepted
	if belied {
		rep.Own = ownOf(a.Charges)
	}
	if a.Hints.Bare != quota.NotBare && rep.Own.Learns() {
		return n // a limit that learns decides what it means
	}
	var unseen quota.Unseen
	if r.Nth > 0 {
		unseen.Since = int64(l.counts.Sent()) - int64(r.Nth)
	}
	if !l.HasHints.Swap(true) { // accounts are counted from now on
		unseen.Before = l.sent
	}
	rep.Reading = l.readLocked(a.Hints, now)
	g, change := l.servers.ApplyUngated(key, &rep, unseen, now)
	n.forgot, a.verdict, a.ofPart = change.Forgot, change.Verdict, rep.OfPart()
	if belied && (!a.verdict.Explained() || a.verdict == server.Exhausted && a.Hints.Guessed) {
		l.beliedLocked(r, a, rep.Wait, now, &n)
	}
	if g == nil {
		return n
	}
	b := ownerOf(g)
	l.movedLocked(g, change.Moved, now)
	l.changedLocked(g, &change, now)
	if change.Doubt != nil {
		a.Doubts.add(b, change.Doubt)
	}
	n.holds = append(n.holds, l.heldByLocked(b, &change, r.User, now)...)
	l.models.noteLocked(g)
	return n
}

// beliedLocked has limits that learn take that a request was refused after all: they took it for accepted, and its body says otherwise.
func (l *Core) beliedLocked(r *Request, a *Answer, wait time.Duration, now meter.Instant, n *news) {
	s := sides{asked: wait > 0, ofPart: a.ofPart}
	for i := range a.Charges {
		if c := &a.Charges[i]; c.Limit().Learns {
			s.learned |= sideOf(c)
		}
	}
	for i := range a.Charges {
		c := &a.Charges[i]
		if !c.Limit().Learns || c.Outcome != 0 || s.seen(sideOf(c), aimd.Throttled) != aimd.Throttled || l.keptLocked(c.Bucket, now) != c.Bucket {
			continue // of another bucket of the key, which has replaced this one, the request is none
		}
		m := c.Bucket.Meter.(learner)
		m.Stand()
		before := heldUntil(m)
		c.Paid = m.Belied(now, c.Paid, r.At, c.Cost, wait)
		n.noteRetune(c.Bucket, m)
		if pause := l.pausedLocked(c.Bucket, m, before, a, now); pause > 0 {
			l.heldLocked(c.Bucket, r.User)
			n.holds = append(n.holds, paused(c.Bucket, pause, true))
		}
	}
}

// judgeLocked decides what a response means. It reports whether the response has shown that the server counts the requests of its gate
// separately.
func (l *Core) judgeLocked(g *quota.Gate, rep *quota.Report, now meter.Instant) (moved bool) {
	m := l.servers.Judge(g, rep, now)
	if moved = m.From != nil; moved || m.Parts != nil {
		l.movedLocked(g, m, now)
	}
	l.models.noteLocked(g)
	return moved
}

// movedLocked takes what a response has moved. Requests that wait in the account that its gate has left may be sent earlier, and those of
// a family that is divided wait at the gates of their parts from now on.
func (l *Core) movedLocked(g *quota.Gate, m quota.Moved, now meter.Instant) {
	if m.From != nil {
		l.markGatesLocked(m.From)
	}
	if m.Parts == nil {
		return
	}
	for _, a := range g.Account.Server().Accounts() {
		for _, g := range a.Waiting() {
			if g.IsDivided() && !slices.Contains(l.divided, g) {
				l.divided = append(l.divided, g)
			}
		}
	}
	l.divideLocked(now)
}

// divideLocked has requests that wait at divided gates wait at those of their parts, in the order of before: as many as are moved in about
// 0.5 ms. If there are more, end continues. Where none of so many can be moved, because there is no room for another gate, the others stay.
func (l *Core) divideLocked(now meter.Instant) {
	for work := max(1, l.atOnce/moveTakes); len(l.divided) > 0 && work > 0; {
		g := l.divided[0]
		visited, moved := l.moveToPartsLocked(g, work, now)
		if visited == work && moved > 0 {
			return
		}
		work -= visited
		l.divided = slices.Delete(l.divided, 0, 1)
		server := g.Account.Server()
		if slices.ContainsFunc(l.divided, func(g *quota.Gate) bool { return g.Account.Server() == server }) {
			continue
		}
		for _, a := range server.Accounts() { // once, and not for each request, because there may be many lines
			l.replanGatesLocked(a)
		}
	}
}

// moveToPartsLocked has some of the requests that wait at a divided gate wait at those of their parts. Ghosts stay, because their requests
// have passed the gate.
func (l *Core) moveToPartsLocked(g *quota.Gate, most int, now meter.Instant) (visited, moved int) {
	from, some := ownerOf(g), make([]*order.Waiter, 0, most)
	for in := range bucket.PointOf(from).Waiters {
		if len(some) == most {
			break
		}
		some = append(some, in)
	}
	for _, in := range some {
		w := in.Owner.(*Waiter)
		if w.ghost != nil {
			continue
		}
		if part := l.servers.Part(g, w.traits, now); part != g {
			to := ownerOf(part)
			l.order.Move(in, bucket.PointOf(from), bucket.PointOf(to))
			l.enteredLocked(to)
			l.emptiedLocked(from, now)
			moved++
		}
	}
	return len(some), moved
}

// applyLocked takes a response to a request that passed a gate.
func (l *Core) applyLocked(g *quota.Gate, rep *quota.Report, charges []Charge, d *Doubts, now meter.Instant) quota.Change {
	if rep.Hints != nil && !l.HasHints.Load() { // only waiters passed a gate until now
		l.HasHints.Store(true)
	}
	change := l.servers.Apply(g, rep, now)
	l.changedLocked(g, &change, now)
	if change.Until > 0 && rep.Wait > 0 { // a backoff is this client's guess, which other processes may know to be wrong
		l.holdLeasesLocked(charges, change.Until, g.Account.LastRefusal(now), d, now)
	}
	if change.Doubt != nil {
		d.add(ownerOf(g), change.Doubt)
	}
	return change
}

// endDoubtsLocked ends the doubts about a response whose body has been read, and notes the rates that change because of that.
func (l *Core) endDoubtsLocked(d *Doubts, now meter.Instant, n *news) {
	for _, x := range d.take() {
		if !x.end(now, d.As) {
			continue
		}
		b := x.bucket
		switch m := b.Meter.(type) {
		case *quota.Gate:
			l.changedLocked(m, &quota.Change{Lifted: true}, now)
		case learner:
			n.noteRetune(b, m)
		}
		l.markLocked(b)
	}
}

// changedLocked marks what a report has changed: the gates of an account share what their responses report.
func (l *Core) changedLocked(g *quota.Gate, c *quota.Change, now meter.Instant) {
	l.markGatesLocked(g.Account)
	if c.Lifted || c.Opened {
		l.recountServersLocked()
	}
	if c.Opened {
		for _, a := range g.Account.Server().Accounts() {
			l.markGatesLocked(a)
		}
	}
	if c.Until > 0 {
		ownerOf(g).NoteHold()
	}
	switch c.Late {
	case quota.OfHost:
		for _, a := range g.Account.Server().Accounts() {
			l.replanGatesLocked(a)
		}
	case quota.OfAccount:
		l.replanGatesLocked(g.Account)
	}
}

// fillReport sets in a report what an answer to a request that was granted at sent says, without a reading of its hints.
func fillReport(rep *quota.Report, a *Answer, sent meter.Instant, charges []Charge) {
	rep.Sent, rep.Done = sent, a.Outcome == aimd.OK
	rep.Accepted = rep.Done || a.Outcome == aimd.ClientError
	rep.Doubtful = a.Doubts != nil && a.Hints.After == nil
	if rep.Own = ownOf(charges); rep.Own.Slots && rep.Own.Adaptive && a.Hints != nil && a.Hints.Limited {
		var f finding
		rep.Own.Number = sidesOf(charges, &f).owner(aimd.Throttled) == ofNumber
	}
}

// readLocked reads hints, and sets how much of their quotas is left to other clients.
func (l *Core) readLocked(h *quota.Hints, now meter.Instant) quota.Reading {
	for i := range h.Quotas {
		h.Quotas[i].Reserve = l.reserveLocked(h.Quotas[i].Limit)
	}
	return h.Read(now)
}

// ownOf returns how the client itself limits requests with these charges.
func ownOf(charges []Charge) (own quota.Own) {
	for i := range charges {
		c := &charges[i]
		if c.Limit().Learns {
			own.Slots, own.Adaptive = own.Slots || c.Limit().Frees, own.Adaptive || !c.Limit().Frees
		}
		noteOwn(&own, c.Bucket, c.settledCost())
	}
	own.Number = own.Slots && !own.Adaptive
	return own
}

// noteOwn notes how a bucket limits requests of that cost.
func noteOwn(own *quota.Own, b *bucket.Bucket, cost float64) {
	if !b.Limit.Rated {
		return
	}
	r := b.PerSecondAsSet()
	if cost > 1 {
		r /= cost
	}
	if own.Rate == 0 || r < own.Rate {
		own.Rate = r
	}
	if r > own.Fastest {
		own.Fastest = r
	}
}

// reserveLocked returns how much of a quota of that size is left to other clients because limits have a throttle.Fraction. It is 0 if the
// server reports the very number that such a limit was given: that limit keeps to its share already.
func (l *Core) reserveLocked(limit int64) int64 {
	share := 1.0
	for _, li := range l.Limits {
		if li.Share < 1 && li.Rate.N == limit {
			return 0
		}
		share = min(share, li.Share)
	}
	return int64(math.Ceil((1 - share) * float64(max(0, limit))))
}

// LookAtServers calls look under the lock for the accounts at all servers, a few at a time, and between without it.
func (l *Core) LookAtServers(look func(a *quota.Account, now meter.Instant), between func()) {
	l.lookAtAccounts(l.accounts(func(*quota.Key) bool { return true }), look, between)
}

// LookAtServer is LookAtServers for one host.
func (l *Core) LookAtServer(host string, look func(a *quota.Account, now meter.Instant), between func()) {
	l.mu.Lock()
	accounts := slices.Clone(l.servers.Host(host).Accounts())
	l.mu.Unlock()
	l.lookAtAccounts(accounts, look, between)
}

func (l *Core) lookAtAccounts(accounts []*quota.Account, look func(a *quota.Account, now meter.Instant), between func()) {
	for some := range slices.Chunk(accounts, pieceSize) {
		l.lookAtSome(some, look)
		between()
	}
}

func (l *Core) lookAtSome(some []*quota.Account, look func(a *quota.Account, now meter.Instant)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.nowLocked()
	for _, a := range some {
		look(a, now)
	}
}

// accounts returns the accounts whose keys want accepts.
func (l *Core) accounts(want func(*quota.Key) bool) (all []*quota.Account) {
	seen := make(map[*quota.Account]bool)
	l.visitAll([]*bucket.Limit{l.Gate}, func(b *bucket.Bucket, _ meter.Instant) { // under the lock, because gates move to other accounts
		if a := b.Meter.(*quota.Gate).Account; !seen[a] && want(&a.Key) {
			seen[a] = true
			all = append(all, a)
		}
	}, onward)
	return all
}

// RestoreAccount has f change an account, which it makes if there is none. The error is that of f, or that there is no room.
func (l *Core) RestoreAccount(key *quota.Key, f func(a *quota.Account, now meter.Instant) error) error {
	now := l.begin()
	defer l.end()
	g := l.servers.Gate(key, now)
	if g == nil {
		return errNoRoom
	}
	l.HasHints.Store(true)
	err := l.servers.Restore(g.Account, now, f)
	ownerOf(g).NoteHold()
	l.replanGatesLocked(g.Account)
	return err
}

// ForgetReports forgets what was reported about the accounts at a host, or about one account by its name: in the gates, and in each limit
// that takes reports.
func (l *Core) ForgetReports(key string) {
	accounts := l.forgetAccounts(key)
	var limits []*bucket.Limit
	for _, li := range l.Limits {
		if li.Learns || li.Unit != "" || li.Supply != nil {
			limits = append(limits, li)
		}
	}
	l.visitAll(limits, func(b *bucket.Bucket, now meter.Instant) {
		if isOf(b, key, accounts) && forgetIn(b, now) {
			l.markLocked(b)
			l.freeLocked(b, now)
		}
	}, onward)
	l.recountHolds(append(limits, l.Gate)...)
}

// forgetAccounts forgets what was reported about accounts, and returns their keys.
func (l *Core) forgetAccounts(key string) (of []quota.Key) {
	accounts := l.accounts(func(k *quota.Key) bool { return k.Host == key || k.Name() == key })
	now := l.begin()
	defer l.end()
	for _, a := range accounts {
		of = append(of, a.Key)
		l.servers.Forget(a, now)
		for _, a := range a.Server().Accounts() { // the host's hold was theirs, too
			l.markGatesLocked(a)
		}
	}
	return of
}

// isOf reports whether requests of one of the accounts are counted in a bucket, or whether it is called by their name. The accounts may
// have been forgotten themselves.
func isOf(b *bucket.Bucket, name string, accounts []quota.Key) bool {
	if hasParts(b, name) {
		return true
	}
	if m, ok := b.Meter.(*allowance.Meter); ok && m.Host == name {
		return true
	}
	return slices.ContainsFunc(accounts, func(k quota.Key) bool {
		for i, key := range k.Keys() {
			if i == b.Limit.Index {
				return key == b.Key
			}
		}
		if b.Limit.Hosted {
			return hasParts(b, k.Host)
		}
		return b.Key == ""
	})
}

// hasParts reports whether a bucket has that key, or is that of a part of it.
func hasParts(b *bucket.Bucket, key string) bool {
	part, ok := strings.CutPrefix(b.Key, key)
	return ok && (part == "" || b.Limit.Unit != "" && part[0] == ' ')
}

// forgetIn forgets what was reported to a bucket, and reports whether that may have been something.
func forgetIn(b *bucket.Bucket, now meter.Instant) bool {
	switch m := b.Meter.(type) {
	case *allowance.Meter:
		m.Forget(now)
	case resumer:
		m.Resume(now)
	default:
		return b.Forgive(now)
	}
	return true
}
