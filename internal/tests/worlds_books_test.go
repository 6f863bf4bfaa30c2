package tests

import (
	"cmp"
	"fmt"
	"math"
	"math/big"
	"slices"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/meter/metertest"
)

const noTime = int64(math.MaxInt64)

// Books are what is known of the limits of a world, by brute force: what each bucket has left, which requests wait, in their order, and
// what counters must say. Times are in nanoseconds since the start.
type books struct {
	w        *world
	unix     int64 // of the start
	accounts map[accountKey]*account
	requests map[int]*asked // all, by their act
	waiting  []*asked
	left     []*asked         // those rejected at this instant, of which it is not known between which of several corrections
	stricter []*account       // those that may have made requests too late at this instant
	spared   map[string]int64 // until when the bad host asked that no request is sent, by key
	counts   []counts         // of each limit
	total    counts
}

// Counts are what statistics say of a limit, or of all.
type counts struct{ granted, undone, delayed, charged, returned, estimated, settled, rejected, canceled uint64 }

type accountKey struct {
	limit int
	key   string
}

// An account is the bucket of a limit for a key.
type account struct {
	limit *worldLimit
	meter metertest.Meter
	held  int64
	log   []entry // of a TokenBucket or Pace, in order
	doubt int64   // by how many ns it may be ready earlier or later; see giveBack
}

// An entry is what was done with a bucket: a charge, a debt, or a new rate or size.
type entry struct {
	at, cost int64
	waited   bool
	debt     *big.Rat
	rate     metertest.Rate
	size     int64
	by       *asked // of a charge
}

// An asked request waits, or was sent.
type asked struct {
	act
	id                              int
	rank, arrived, expiry, deadline int64
	costs                           []int64    // by limit
	accounts                        []*account // by limit; nil where it costs nothing
	state                           string     // "waits", "was sent", "has ended"
	sent                            int64
	answered                        bool
	free, corrected                 []bool // by limit
}

func newBooks(w *world) *books {
	return &books{w: w, unix: time.Now().UnixNano(), accounts: map[accountKey]*account{}, requests: map[int]*asked{},
		spared: map[string]int64{}, counts: make([]counts, len(w.limits))}
}

func (b *books) account(limit int, key string) *account {
	k := accountKey{limit, key}
	if !b.w.limits[limit].keyed {
		k.key = ""
	}
	if b.accounts[k] == nil {
		b.accounts[k] = &account{limit: &b.w.limits[limit], meter: b.w.limits[limit].meter(b.unix)}
	}
	return b.accounts[k]
}

func (li *worldLimit) meter(unix int64) metertest.Meter {
	rate := metertest.Rate{N: li.n, Per: li.per}
	switch li.kind {
	case throttle.KindTokenBucket:
		return metertest.NewBucket(0, rate, li.burst, li.burst)
	case throttle.KindPace:
		return metertest.NewPace(0, rate)
	case throttle.KindQuota:
		return &metertest.Quota{N: li.n, Per: int64(li.per)}
	case throttle.KindSlidingWindow:
		return &metertest.SlidingWindow{N: li.n, Per: int64(li.per)}
	case throttle.KindInFlight:
		return &metertest.Slots{N: li.n}
	}
	return &metertest.FixedWindow{N: li.n, Per: int64(li.per), Unix: unix, Used: map[int64]int64{}}
}

// size returns the most that a request can cost.
func (li *worldLimit) size() int64 {
	switch li.kind {
	case throttle.KindTokenBucket:
		return li.burst
	case throttle.KindPace:
		return noTime
	}
	return li.n
}

// left returns the balance.
func (a *account) left(now int64) float64 {
	switch m := a.meter.(type) {
	case *metertest.Bucket:
		f, _ := m.At(now, nil).Float64()
		return f
	case *metertest.Quota:
		m.Advance(now)
		return float64(m.Left())
	case *metertest.SlidingWindow:
		return float64(m.Left(now))
	case *metertest.FixedWindow:
		return float64(m.Left(now))
	}
	slots := a.meter.(*metertest.Slots)
	return float64(slots.N - slots.Used)
}

// size returns the balance if it is as good as new.
func (a *account) size() float64 {
	if a.limit.kind == throttle.KindPace {
		return 0
	}
	return float64(a.limit.size())
}

// ready returns when a cost can surely be paid, not before now.
func (a *account) ready(now, cost int64) int64 {
	if a == nil {
		return now
	}
	if at := a.meter.Ready(max(now-a.doubt, a.held), cost); at < noTime {
		return max(now, at+a.doubt)
	}
	return noTime
}

// mayPay reports whether a cost may be paid now.
func (a *account) mayPay(now, cost int64) bool {
	return a == nil || a.held <= now && a.meter.Ready(now+a.doubt, cost) <= now+a.doubt
}

// do does what an entry says.
func (a *account) do(e entry) {
	b, _ := a.meter.(*metertest.Bucket)
	switch {
	case e.debt != nil:
		b.Settle(e.at)
		b.Level = new(big.Rat).Sub(b.Level, e.debt)
	case e.rate.N > 0:
		a.meter.Retune(e.at, e.rate)
	case e.size > 0 && b != nil:
		b.Resize(e.at, e.size)
	case e.size > 0:
		a.meter.(*metertest.Slots).N = e.size
	default:
		a.meter.Pay(e.at, e.at, e.cost, e.waited)
	}
}

// note does what an entry says, and keeps it.
func (a *account) note(e entry) {
	if a.do(e); e.rate.N > 0 && a.doubt > 0 {
		a.doubt = 1000
	}
	a.log = append(a.log, e)
}

// hold holds the buckets of a key until an instant; 0: not at all.
func (b *books) hold(key string, until int64) {
	for i, li := range b.w.limits {
		if li.keyed {
			a := b.account(i, key)
			if a.held = max(a.held, until) * min(1, until); until > 0 {
				b.stricter = append(b.stricter, a)
			}
		}
	}
}

// change changes a limit, with the waiting requests that it clamps.
func (b *books) change(limit int, e entry) {
	for k, a := range b.accounts {
		if k.limit == limit {
			a.note(e)
			b.stricter = append(b.stricter, a)
		}
	}
	for _, r := range b.waiting {
		b.clamp(r)
	}
}

// giveBack is as if a request had cost so much less. A bucket shows that by its log without it.
func (a *account) giveBack(r *asked, now, back int64) {
	switch m := a.meter.(type) {
	case *metertest.Bucket:
		a.doubt++ // the part of a ns by which a request waited too long is kept, and may be that of another one now
		if slices.ContainsFunc(a.log[1:], func(e entry) bool { return e.rate.N > 0 }) {
			a.doubt = 1000 // which takes longer at a lower rate
		}
		first := a.log[0] // the rate and the size at the start
		a.meter = (&worldLimit{kind: a.limit.kind, n: first.rate.N, per: first.rate.Per, burst: first.size}).meter(0)
		for i := range a.log[1:] {
			e := &a.log[i+1]
			if e.by == r {
				e.cost -= back
			}
			a.do(*e)
		}
	case *metertest.Quota:
		m.Advance(now)
		m.GiveBack(r.sent, back)
	case *metertest.SlidingWindow:
		m.Advance(now)
		for i := range m.Events { // of that instant, perhaps for several requests
			if e := &m.Events[i]; e.At == r.sent && now-e.At < m.Per {
				n := min(back, e.Cost)
				e.Cost, back = e.Cost-n, back-n
			}
		}
		m.Advance(now)
	case *metertest.FixedWindow:
		if r.sent >= m.Opened(now) {
			m.GiveBack(now, back)
		}
	case *metertest.Slots:
		m.Used -= back
	}
}

// owe charges more.
func (a *account) owe(now, more int64) {
	switch m := a.meter.(type) {
	case *metertest.Bucket:
		before := m.At(now, nil)
		m.Owe(now, more)
		a.log = append(a.log, entry{at: now, debt: new(big.Rat).Sub(before, m.Level)})
	case *metertest.Quota:
		m.Owe(now, more)
	case *metertest.SlidingWindow:
		m.Owe(now, more)
	case *metertest.FixedWindow:
		m.Owe(now, more)
	}
}

// arrive puts a request into the queue.
func (b *books) arrive(id int, now int64) *asked {
	a := b.w.acts[id]
	r := &asked{act: a, id: id, rank: now - int64(a.priority)*int64(10*time.Second), arrived: now, expiry: now + int64(a.maxWait), deadline: noTime,
		state: "waits", free: make([]bool, len(b.w.limits)), corrected: make([]bool, len(b.w.limits))}
	if a.deadline > 0 {
		r.deadline = now + int64(a.deadline)
	}
	for i := range b.w.limits {
		r.accounts = append(r.accounts, b.account(i, a.key))
		r.costs = append(r.costs, a.cost)
		if b.w.limits[i].kind == throttle.KindInFlight {
			r.costs[i] = 1
		}
		if i == a.free {
			r.accounts[i], r.costs[i] = nil, 0
		}
	}
	b.clamp(r)
	b.requests[id] = r
	at, _ := slices.BinarySearchFunc(b.waiting, r.rank+1, func(r *asked, rank int64) int { return int(r.rank - rank) })
	b.waiting = slices.Insert(b.waiting, at, r)
	return r
}

func (b *books) clamp(r *asked) {
	for i, li := range b.w.limits {
		if li.clamps {
			r.costs[i] = min(r.costs[i], li.size())
		}
	}
}

// isLoose reports whether a request may wait for reasons that the books do not know, and be rejected for them.
func (b *books) isLoose(r *asked) bool { return b.w.beside != "" || r.host == badHost }

// due returns which of the waiting requests must be sent now, as far as the limits are concerned: all their buckets can pay, and none of them
// could not pay one before.
func due(waiting []*asked, now int64) (all []*asked) {
	stops := map[*account]bool{}
	for _, r := range waiting {
		ok := true
		for i, a := range r.accounts {
			stops[a] = stops[a] || a.ready(now, r.costs[i]) > now
			ok = ok && !stops[a]
		}
		if ok {
			all = append(all, r)
		}
	}
	return all
}

// mayGo reports whether a request may be sent now. It may not overtake one that only one of its buckets stops, nor one of the same host
// with the same buckets.
func (b *books) mayGo(r *asked, now int64) bool {
	stops := map[*account]bool{}
	for n, other := range b.waiting {
		var missing []*account
		first := true
		for i, a := range other.accounts {
			if first = first && !stops[a]; !a.mayPay(now, other.costs[i]) {
				missing = append(missing, a)
			}
		}
		switch {
		case other == r:
			return first && len(missing) == 0
		case b.isLoose(other):
		case other.host == r.host && slices.Equal(other.accounts, r.accounts):
			return false
		case first && len(missing) == 1 && !slices.ContainsFunc(b.waiting[:n], func(r *asked) bool { return slices.Equal(r.accounts, other.accounts) }):
			stops[missing[0]] = true
		}
	}
	return false
}

// next returns the first instant after now at which time alone changes what is due; noTime: there is none.
func next(waiting []*asked, now int64) int64 {
	at := noTime
	for _, r := range waiting {
		for i, a := range r.accounts {
			if t := a.ready(now, r.costs[i]); t > now {
				at = min(at, t)
			}
		}
	}
	return at
}

// earliest returns when a request would be sent if no other came, none gave up and each slot were free.
func (b *books) earliest(r *asked, now int64) int64 {
	clones := map[*account]*account{}
	var ahead []*asked
	line := b.waiting
	if len(b.w.limits) > 1 {
		line = slices.Concat(line, b.left)
		slices.SortStableFunc(line, func(a, b *asked) int { return cmp.Compare(a.rank, b.rank) })
	}
	for _, other := range line[:slices.Index(line, r)+1] {
		c := *other
		c.accounts = slices.Clone(other.accounts)
		for i, a := range c.accounts {
			if clones[a] == nil && a != nil {
				clones[a] = &account{limit: a.limit, meter: a.meter.Clone(), held: a.held}
			}
			c.accounts[i] = clones[a]
		}
		ahead = append(ahead, &c)
	}
	for {
		for goes := due(ahead, now); len(goes) > 0; goes = due(ahead, now) {
			if goes[0].id == r.id {
				return now
			}
			for i, a := range goes[0].accounts {
				if a == nil {
					continue
				}
				a.do(entry{at: now, cost: goes[0].costs[i], waited: true})
			}
			ahead = slices.DeleteFunc(ahead, func(other *asked) bool { return other == goes[0] })
		}
		if now = next(ahead, now); now == noTime {
			return noTime
		}
	}
}

// until lets time pass. No request may wait that could have been sent meanwhile, or whose wait has ended.
func (b *books) until(from, to int64) error {
	for at := from; at < to; at = next(b.waiting, at) {
		for _, r := range due(b.waiting, at) {
			if !b.isLoose(r) {
				return fmt.Errorf("at %v: the request of act %d waits, and could be sent", time.Duration(at), r.id)
			}
		}
	}
	return b.late(to - 1)
}

// late is an error if a request waits whose wait has ended.
func (b *books) late(now int64) error {
	for _, r := range b.waiting {
		if min(r.expiry, r.deadline) <= now && b.w.beside != "shared" { // for a store, a request may wait for longer
			return fmt.Errorf("at %v: the request of act %d waits for longer than it may", time.Duration(now), r.id)
		}
	}
	return nil
}

// send charges a request, if it may be sent now.
func (b *books) send(r *asked, now int64) error {
	switch {
	case !b.mayGo(r, now):
		return fmt.Errorf("the request of act %d was sent too early, or out of order", r.id)
	case r.host == badHost && now < b.spared[r.key]:
		return fmt.Errorf("the request of act %d was sent before the wait that the server asked for was over", r.id)
	}
	b.leave(r, "was sent")
	r.sent = now
	for i, a := range r.accounts {
		if a == nil {
			continue
		}
		a.note(entry{at: now, cost: r.costs[i], waited: r.arrived < now, by: r})
		b.counts[i].granted++
		b.counts[i].charged += uint64(r.costs[i])
	}
	b.total.granted++
	if r.arrived < now {
		b.total.delayed++
	}
	return nil
}

func (b *books) leave(r *asked, state string) {
	r.state = state
	b.waiting = slices.DeleteFunc(b.waiting, func(other *asked) bool { return other == r })
}

// rejected checks a rejection, and takes the request out of the queue.
func (b *books) rejected(r *asked, now int64, j *throttle.Rejection) error {
	earliest := b.earliest(r, now)
	why, wait := false, time.Duration(earliest-now)
	switch j.Reason {
	case throttle.ReasonCost:
		why = earliest == noTime
	case throttle.ReasonNoTokens:
		why = r.maxWait == 0 && !slices.Contains(due(b.waiting, now), r)
	case throttle.ReasonMaxWait:
		why = r.maxWait > 0 && (earliest > r.expiry || now == r.expiry)
	case throttle.ReasonDeadline:
		why = r.maxWait > 0 && earliest >= r.deadline
	case throttle.ReasonHeld:
		why = slices.ContainsFunc(r.accounts, func(a *account) bool { return a != nil && a.held > r.expiry })
	}
	doubt := time.Duration(0)
	for _, a := range r.accounts {
		if a != nil {
			doubt += time.Duration(a.doubt)
		}
	}
	i := slices.IndexFunc(b.w.limits, func(li worldLimit) bool { return li.name == j.Limit })
	switch {
	case r.state != "waits":
		return fmt.Errorf("it %s", r.state)
	case b.isLoose(r):
	case !why:
		return fmt.Errorf("rejected: %v, and it could be sent after %v", j, wait)
	case i < 0 || j.Cost != r.costs[i]:
		return fmt.Errorf("rejected: %v, and it costs %v", j, r.costs)
	case earliest < noTime && now < r.expiry && !b.corrects() && (j.Wait > wait+doubt || b.isExact() && j.Wait < wait-doubt):
		return fmt.Errorf("rejected: %v, and it would wait for %v", j, wait)
	}
	b.leave(r, "has ended")
	b.left = append(b.left, r)
	b.total.rejected++
	return nil
}

// corrects reports whether costs are corrected: the wait that is reported takes into account what others cost in the end.
func (b *books) corrects() bool {
	return slices.ContainsFunc(b.w.limits, func(li worldLimit) bool { return li.paid != "" })
}

// inTime is an error if a request waits that a change has made too late, where the plan is exact.
func (b *books) inTime(now int64) error {
	stricter := b.stricter
	b.stricter = nil
	for _, r := range b.waiting {
		if !b.isExact() || !slices.Contains(stricter, r.accounts[0]) {
			continue
		}
		if at := b.earliest(r, now); at-r.accounts[0].doubt > min(r.expiry, r.deadline) {
			return fmt.Errorf("at %v: the request of act %d still waits, and cannot be sent before %v", time.Duration(now), r.id, time.Duration(at))
		}
	}
	return nil
}

// isExact reports whether the wait that is reported is exact.
func (b *books) isExact() bool {
	kind := b.w.limits[0].kind
	return len(b.w.limits) == 1 && (kind == throttle.KindTokenBucket || kind == throttle.KindPace) && !slices.ContainsFunc(b.waiting, b.isLoose)
}

// settle corrects the charge of a limit, once.
func (b *books) settle(r *asked, i int, now, cost int64) {
	if r.corrected[i] {
		return
	}
	r.corrected[i] = true
	b.counts[i].estimated += uint64(r.costs[i])
	b.counts[i].settled += uint64(cost)
	if more := cost - r.costs[i]; more > 0 {
		b.counts[i].charged += uint64(more)
		r.accounts[i].owe(now, more)
		b.stricter = append(b.stricter, r.accounts[i])
	} else {
		b.counts[i].returned += uint64(-more)
		r.accounts[i].giveBack(r, now, -more)
	}
}

// end gives back the charge of a limit: a slot, or tokens of a request that was never sent.
func (b *books) end(r *asked, i int, now int64) {
	if r.free[i] || r.corrected[i] {
		return
	}
	r.free[i] = true
	b.counts[i].returned += uint64(r.costs[i])
	r.accounts[i].giveBack(r, now, r.costs[i])
}

// see notes what was seen of a request, if it may be.
func (b *books) see(s sight) error {
	r := b.requests[s.id]
	switch s.what {
	case "granted":
		return b.send(r, s.at)
	case "rejected":
		return b.rejected(r, s.at, s.rejection)
	case "canceled":
		b.leave(r, "has ended")
		b.total.canceled++
		return nil
	}
	if r.state != "was sent" {
		return fmt.Errorf("it %s", r.state)
	}
	for i, li := range b.w.limits {
		switch {
		case r.accounts[i] == nil:
		case s.what == "headers" && li.until && li.kind == throttle.KindInFlight:
			b.end(r, i, s.at)
		case r.host != badHost && (s.what == "headers" && li.paid == "header" || s.what == "settled" && i == s.limit && li.kind != throttle.KindInFlight || s.what == "read" && li.paid == "body"):
			b.settle(r, i, s.at, r.costsInTheEnd(li))
		case s.what == "unsent":
			b.counts[i].undone++
			b.end(r, i, s.at)
		case s.what == "ended" && li.kind == throttle.KindInFlight:
			b.end(r, i, s.at)
		}
	}
	if s.what == "unsent" {
		b.total.undone++
	}
	if s.what == "unsent" || s.what == "ended" {
		r.state = "has ended"
	}
	b.spare(r, s)
	return nil
}

// spare notes for how long a server asks that no request of an account is sent. After a 503, others are spared as well, except by one that
// asks whether it concerns them.
func (b *books) spare(r *asked, s sight) {
	until := int64(0)
	r.answered = r.answered || s.what == "headers"
	switch {
	case b.w.beside == throttle.KindServerQuota: // the wait begins when the body has been read, which may say what was refused
	case s.what == "headers" && (r.fate == fateRefused || r.fate == fateRefused503):
		until = s.at + int64(refusedFor)
	case s.what == "ended" && r.answered && r.fate == fateFinal:
		until = s.at + int64(time.Minute)
	}
	keyed := slices.ContainsFunc(b.w.limits, func(li worldLimit) bool { return li.keyed })
	for _, key := range keys {
		if key == r.key || !keyed {
			b.spared[key] = max(b.spared[key], until)
		}
	}
}
