package tests

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/meter/metertest"
	"github.com/httpthrottle/throttle/store"
)

// A player plays a world. It is the callers and the servers, and notes in the books what it saw.
type player struct {
	*testing.T
	w     world
	drawn []worldLimit // its limits, as they began
	tr    *throttle.Transport
	books *books
	start time.Time
	now   int64 // until when all is in the books

	mu      sync.Mutex
	seen    []sight
	granted map[int]bool
	reached map[int]bool // the server
	cancels map[int]context.CancelFunc
	hooks   counts          // as hooks saw them
	story   strings.Builder // all that was seen
}

// A sight is something that was seen of a request.
type sight struct {
	what      string
	id        int // the act
	limit     int // that was settled
	at        int64
	rejection *throttle.Rejection
}

// Sights are what may be seen, in the order in which books can take them in if they were seen at one instant: what ends is there for the
// others.
var sights = []string{"unsent", "headers", "settled", "read", "ended", "canceled", "rejected", "granted"}

type idKey struct{}

func newPlayer(t *testing.T, w world) *player {
	drawn := w.limits
	w.limits = slices.Clone(drawn) // their numbers change
	p := &player{T: t, w: w, drawn: drawn, start: time.Now(), cancels: map[int]context.CancelFunc{}, granted: map[int]bool{}, reached: map[int]bool{}}
	p.tr, p.books = p.transport(), newBooks(&p.w)
	for i, li := range p.w.limits {
		for _, key := range keys {
			p.books.account(i, key).log = []entry{{rate: metertest.Rate{N: li.n, Per: li.per}, size: li.burst}}
		}
	}
	return p
}

func (p *player) transport() *throttle.Transport {
	var limits []throttle.Limit
	for _, li := range p.w.limits {
		limits = append(limits, p.limit(li))
	}
	switch p.w.beside {
	case "":
	case "shared":
		limits = append(limits, throttle.TokenBucket(5, time.Second, throttle.Name("beside"), throttle.Shared(store.NewMemory())))
	default:
		limits = append(limits, kindsOfLimits[p.w.beside](throttle.Name("beside")))
	}
	count := func(counter *uint64, n uint64) {
		p.mu.Lock()
		defer p.mu.Unlock()
		*counter += n
	}
	return transportTo(p.T, p, throttle.WithLimit(limits...), throttle.WithHooks(throttle.Hooks{
		OnGrant: func(e throttle.GrantEvent) {
			id := e.Context.Value(idKey{}).(int)
			p.see(sight{what: "granted", id: id})
			count(&p.hooks.granted, 1)
			if p.w.acts[id].fate == fateHook {
				panic(fateHook)
			}
		},
		OnReject: func(throttle.RejectEvent) { count(&p.hooks.rejected, 1) },
		OnCancel: func(throttle.CancelEvent) { count(&p.hooks.canceled, 1) },
		OnSettle: func(e throttle.SettleEvent) {
			count(&p.hooks.estimated, uint64(e.Charged))
			count(&p.hooks.settled, uint64(e.Cost))
		},
	}))
}

// limit returns a limit as a user would set it.
func (p *player) limit(li worldLimit) throttle.Limit {
	opts := []throttle.LimitOption{throttle.Name(li.name)}
	if li.keyed {
		opts = append(opts, throttle.Key(caller))
	}
	if li.clamps {
		opts = append(opts, throttle.ClampCost())
	}
	switch li.paid {
	case "header":
		opts = append(opts, throttle.Settle(func(req *http.Request, _ *http.Response) (int64, bool) {
			a := p.w.acts[req.Context().Value(idKey{}).(int)]
			return a.costsInTheEnd(li), a.host != badHost
		}))
	case "body":
		opts = append(opts, throttle.SettleJSON(li.name))
	}
	switch li.kind {
	case throttle.KindTokenBucket:
		return throttle.TokenBucket(li.n, li.per, append(opts, throttle.Burst(li.burst))...)
	case throttle.KindPace:
		return throttle.Pace(li.n, li.per, opts...)
	case throttle.KindQuota:
		return throttle.Quota(li.n, li.per, append(opts, throttle.FromGrant())...)
	case throttle.KindSlidingWindow:
		return throttle.SlidingWindow(li.n, li.per, append(opts, throttle.FromGrant())...)
	case throttle.KindFixedWindow:
		return throttle.FixedWindow(li.n, li.per, opts...)
	case throttle.KindCalendarWindow:
		return throttle.CalendarWindow(li.n, throttle.CalendarDay, time.UTC, opts...)
	}
	if li.until {
		opts = append(opts, throttle.UntilHeaders())
	}
	return throttle.InFlight(li.n, opts...)
}

func (p *player) see(s sight) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.at = int64(time.Since(p.start))
	p.seen = append(p.seen, s)
	fmt.Fprintf(&p.story, "at %v, act %d: %s %v\n", time.Duration(s.at), s.id, s.what, s.rejection)
	p.granted[s.id] = p.granted[s.id] || s.what == "granted"
}

// RoundTrip is the servers: what becomes of a request is its fate.
func (p *player) RoundTrip(req *http.Request) (*http.Response, error) {
	a := p.w.acts[req.Context().Value(idKey{}).(int)]
	if a.fate != fateUnsent { // else a dial fails
		p.mu.Lock()
		p.reached[req.Context().Value(idKey{}).(int)] = true
		p.mu.Unlock()
	}
	select {
	case <-time.After(a.takes):
	case <-req.Context().Done():
		if a.fate != fateUnsent {
			return nil, context.Cause(req.Context())
		}
	}
	resp, used := says(http.StatusOK, "Content-Type", "application/json"), map[string]int64{}
	switch a.fate {
	case fateUnsent:
		return nil, errDial
	case fateBroken:
		return nil, io.ErrUnexpectedEOF
	case fatePanics:
		panic(http.ErrAbortHandler)
	case fateRefused:
		resp = says(http.StatusTooManyRequests, "Retry-After", "2")
	case fateRefused503:
		resp = says(http.StatusServiceUnavailable, "Retry-After", "2")
	case fateFinal:
		resp = says(http.StatusTooManyRequests, "X-Should-Retry", "false")
	}
	if a.host != badHost {
		for _, li := range p.drawn {
			used[li.name] = a.costsInTheEnd(li)
		}
	}
	body, err := json.Marshal(used)
	resp.Request, resp.Body = req, io.NopCloser(strings.NewReader(string(body)))
	return resp, err
}

// call sends the request of an act, as a caller does.
func (p *player) call(ctx context.Context, id int) {
	a, end := p.w.acts[id], sight{id: id}
	defer func() {
		_ = recover() // of a panic that is its fate
		if end.what == "" {
			end.what = p.became(id)
		}
		p.see(end)
	}()
	ctx, receipt := throttle.ContextWithReceipt(ctx)
	req := get(p.T, ctx, "http://"+a.host+"/")
	req.Header.Set("Caller", a.key)
	resp, err := p.tr.RoundTrip(req)
	if r, ok := rejectionOf(resp, err); ok {
		end.what, end.rejection = "rejected", r
	}
	if err != nil || end.rejection != nil {
		return
	}
	p.see(sight{what: "headers", id: id})
	if a.fate == fateReceipt {
		for i, li := range p.drawn { // an error if a header has said it, or the limit has slots
			time.Sleep(time.Microsecond)
			_ = receipt.Settle(li.name, a.costsInTheEnd(li))
			p.see(sight{what: "settled", id: id, limit: i})
		}
	}
	select {
	case <-time.After(a.reads):
	case <-ctx.Done():
	}
	if a.fate != fateClosed && ctx.Err() == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		p.see(sight{what: "read", id: id})
	}
	_ = resp.Body.Close()
}

// became says what has become of a request without a rejection.
func (p *player) became(id int) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.reached[id]:
		return "ended"
	case p.granted[id]:
		return "unsent"
	}
	return "canceled"
}

func rejectionOf(resp *http.Response, err error) (r *throttle.Rejection, ok bool) {
	if err != nil {
		return r, errors.As(err, &r)
	}
	return throttle.RejectionOf(resp)
}

// play does one act after the other, and compares after each. An error has all that was seen.
func (p *player) play() (err error) {
	defer func() {
		for _, cancel := range p.cancels {
			cancel()
		}
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, &p.story)
		}
	}()
	for id, a := range p.w.acts {
		time.Sleep(a.after)
		synctest.Wait()
		if err := p.note(); err != nil {
			return err
		}
		if err := p.act(id, a); err != nil {
			return err
		}
		synctest.Wait()
		if err := cmp.Or(p.note(), p.compare()); err != nil {
			return fmt.Errorf("after act %d: %w", id, err)
		}
	}
	time.Sleep(time.Hour)
	synctest.Wait()
	if n := inFlight(p.tr.Limiter()); n > 0 {
		return fmt.Errorf("%d stay in flight", n)
	}
	return cmp.Or(p.note(), p.compare())
}

func (p *player) act(id int, a act) error {
	now, l := int64(time.Since(p.start)), p.tr.Limiter()
	switch a.what {
	case "request":
		ctx := context.WithValue(p.Context(), idKey{}, id)
		if a.deadline > 0 {
			ctx, p.cancels[id] = context.WithTimeout(ctx, a.deadline)
		} else {
			ctx, p.cancels[id] = context.WithCancel(ctx)
		}
		ctx = throttle.ContextWithPriority(throttle.ContextWithMaxWait(ctx, a.maxWait), a.priority)
		p.books.arrive(id, now)
		ctx = throttle.ContextWithCost(ctx, a.cost)
		if a.free >= 0 {
			ctx = throttle.ContextWithCost(ctx, 0, p.w.limits[a.free].name)
		}
		go p.call(ctx, id)
	case "cancel":
		if cancel := p.cancels[a.nth]; cancel != nil {
			cancel()
		}
	case "hold":
		l.Hold(a.key, a.d)
		p.books.hold(a.key, now+int64(a.d))
	case "release":
		l.Release(a.key)
		p.books.hold(a.key, 0)
	case "forget":
		l.ForgetServer(badHost)
		clear(p.books.spared)
	case "rate", "size":
		return p.change(a, now)
	case "restart":
		return p.restart()
	}
	return nil
}

// change changes a limit.
func (p *player) change(a act, now int64) (err error) {
	li, l := &p.w.limits[a.limit], p.tr.Limiter()
	e := entry{at: now}
	switch slots := li.kind == throttle.KindInFlight; {
	case a.what == "rate" && !slots:
		li.n, li.per, e.rate = a.n, a.d, metertest.Rate{N: a.n, Per: a.d}
		err = l.SetRate(li.name, a.n, a.d)
	case a.what == "size" && slots:
		li.n, e.size = a.n, a.n
		err = l.SetInFlight(li.name, a.n)
	case a.what == "size" && li.kind == throttle.KindTokenBucket && !li.keyed: // one with a key may be forgotten, and is full then
		li.burst, e.size = a.n, a.n
		err = l.SetBurst(li.name, a.n)
	default:
		return nil
	}
	p.books.change(a.limit, e)
	return err
}

// restart has another process go on with a snapshot. Its balances are the same.
func (p *player) restart() error {
	var from throttle.Snapshot
	text, err := json.Marshal(p.tr.Limiter().Snapshot())
	err = errors.Join(err, json.Unmarshal(text, &from))
	other := p.transport().Limiter()                                                                  // with the numbers of now
	if is := other.Restore(from); is != nil && !strings.Contains(is.Error(), "more than the burst") { // a debt of before it shrank
		err = errors.Join(err, is)
	}
	for k, a := range p.books.accounts {
		if a.left(p.now) < -a.size() && a.limit.kind == throttle.KindTokenBucket {
			continue
		}
		if _, is := p.compareBalance(other, k, a); is != nil && a.limit.kind != throttle.KindInFlight {
			err = fmt.Errorf("restored: %w", is)
		}
	}
	return err
}

// note notes in the books what was seen since it was called last, instant by instant.
func (p *player) note() error {
	p.mu.Lock()
	seen := p.seen
	p.seen = nil
	p.mu.Unlock()
	for now := int64(time.Since(p.start)); ; {
		at := now
		for _, s := range seen {
			at = min(at, s.at)
		}
		if err := p.books.until(p.now, at); err != nil {
			return err
		}
		p.now = at
		var here []sight
		seen = slices.DeleteFunc(seen, func(s sight) bool {
			if s.at == at {
				here = append(here, s)
			}
			return s.at == at
		})
		if err := p.noteAt(here); err != nil {
			return fmt.Errorf("at %v: %w", time.Duration(at), err)
		}
		if at == now {
			return p.books.late(now)
		}
	}
}

// noteAt notes what was seen at one instant. Goroutines may see it in any order, so what is possible next is next, in the order of the
// queue.
func (p *player) noteAt(seen []sight) (err error) {
	slices.SortStableFunc(seen, func(a, b sight) int {
		ra, rb := p.books.requests[a.id].rank, p.books.requests[b.id].rank
		return cmp.Or(cmp.Compare(slices.Index(sights, a.what), slices.Index(sights, b.what)), cmp.Compare(ra, rb))
	})
	p.books.left = nil
	for len(seen) > 0 {
		err = nil
		i := slices.IndexFunc(seen, func(s sight) bool {
			why := p.books.see(s)
			if why != nil { // the last one, as what ends has no error of its own
				err = fmt.Errorf("the request of act %d %s: %w", s.id, s.what, why)
			}
			return why == nil
		})
		if i < 0 {
			return err
		}
		seen = slices.Delete(seen, i, i+1)
	}
	return p.books.inTime(p.now)
}

// compare compares the Transport with the books.
func (p *player) compare() error {
	l := p.tr.Limiter()
	for k, a := range p.books.accounts {
		b, err := p.compareBalance(l, k, a)
		waiting := 0
		for _, r := range p.books.waiting {
			if slices.Contains(r.accounts, a) {
				waiting++
			}
		}
		if err == nil && b.Waiting != waiting {
			err = fmt.Errorf("%s %q: %d wait, and in the books %d", a.limit.name, k.key, b.Waiting, waiting)
		}
		if err != nil {
			return err
		}
	}
	for i, li := range p.w.limits {
		s := l.Limits()[i]
		got := counts{granted: s.Granted, undone: s.Undone, charged: s.Charged, returned: s.Returned, estimated: s.Estimated, settled: s.Settled}
		if got != p.books.counts[i] {
			return fmt.Errorf("%s counts %+v, and the books %+v", li.name, got, p.books.counts[i])
		}
	}
	hooks := counts{granted: p.books.total.granted, rejected: p.books.total.rejected, canceled: p.books.total.canceled}
	for _, c := range p.books.counts {
		hooks.estimated, hooks.settled = hooks.estimated+c.estimated, hooks.settled+c.settled
	}
	if p.hooks != hooks {
		return fmt.Errorf("hooks saw %+v, and the books %+v", p.hooks, hooks)
	}
	s := p.tr.Stats()
	got := counts{granted: s.Granted, undone: s.Undone, delayed: s.Delayed, rejected: s.Rejected.Total(), canceled: s.Canceled}
	if p.w.beside == "shared" {
		got.delayed = p.books.total.delayed // a request may wait for the store, for no time at all
	}
	if got != p.books.total || s.Waiting != len(p.books.waiting) {
		return fmt.Errorf("counts are %+v with %d waiting, and in the books %+v with %d", got, s.Waiting, p.books.total, len(p.books.waiting))
	}
	return nil
}

// compareBalance compares one bucket with its account. A bucket that is as good as new may be forgotten.
func (p *player) compareBalance(l *throttle.Limiter, k accountKey, a *account) (b throttle.BucketStats, err error) {
	now := int64(time.Since(p.start))
	b, ok := l.Bucket(a.limit.name, k.key)
	if !ok {
		b.Tokens = a.size()
	}
	held := int64(0)
	if !b.HeldUntil.IsZero() {
		held = int64(b.HeldUntil.Sub(p.start))
	}
	want := a.held
	if want <= now {
		want = 0
	}
	switch left := a.left(now); {
	case math.Abs(b.Tokens-left) > 1e-6*max(1, math.Abs(left)):
		err = fmt.Errorf("%s %q: %v left, and in the books %v", a.limit.name, k.key, b.Tokens, left)
	case held != want:
		err = fmt.Errorf("%s %q: held until %v, and in the books %v", a.limit.name, k.key, time.Duration(held), time.Duration(want))
	}
	return b, err
}
