package throttle

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/httpthrottle/throttle/headers"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
)

// A word is what a server said about its limits in one response.
type word struct {
	limited  bool
	host     bool // it concerns all requests to the host, whatever their keys
	global   bool // it concerns more than the quotas that it names
	wait     headers.Maybe[time.Duration]
	quotas   []headers.Bucket
	violated []string // names of quotas that the request exceeded
	limiter  *Limiter // whose limits may leave a share of quotas to others; its mu is held where tells is called
	after    *word    // what the headers of the same response said, if this is from its body
	from, to instant  // the end of the hold before and after it
}

// tells returns what it says about quotas, whether it names the one that was exceeded, and whether an empty quota explains
// the refusal.
func (w *word) tells(now instant) (tells []quota.Tell, named, explained bool) {
	for i := range w.quotas {
		q := &w.quotas[i]
		left, known := q.Remaining.Get()
		reset, ends := q.Reset.Get()
		if w.limited && w.wait.Value > 0 && (left > 0 || !known) && slices.Contains(w.violated, q.Name) {
			left, known, reset, ends = 0, true, w.wait.Value, true // not enough is nothing, for as long as the server says
		}
		empty := w.limited && left <= 0 && q.Name != anyQuota
		if !known || q.Advisory || !ends && !empty {
			continue // nothing to count, or nobody knows until when
		}
		t := quota.Tell{Name: q.Name, Unit: q.Unit, Left: left, Limit: q.Limit.Or(-1), Counted: q.Unit == "" || q.Unit == "requests"}
		if ends {
			t.Reset = meter.AddInstant(now, int64(reset))
		}
		if w.limiter != nil && t.Limit > 0 {
			t.Reserve = w.limiter.reserveLocked(t.Limit)
		}
		if w.limited && left <= 0 {
			explained, named = true, named || empty
			t.Refused, t.Reset = true, max(t.Reset, meter.AddInstant(now, int64(w.wait.Value)))
		}
		tells = append(tells, t)
	}
	return tells, named, explained
}

// listen returns what the headers of a response say about limits, nil if nothing, and a listener if its body may say more.
func (t *Transport) listen(req *http.Request, resp *http.Response) (*word, *listener) {
	if resp == nil || t.deaf && resp.StatusCode < 400 {
		return nil, nil
	}
	host := hostOf(req)
	if t.hints.Silent(host, resp.StatusCode, resp.Header) {
		return nil, nil
	}
	now := time.Now()
	signal := t.hints.Parse(host, resp.StatusCode, resp.Header, nil, now)
	if signal.Limited {
		t.refused(req.Context(), ByHost(req), resp.StatusCode, signal.Wait.Value)
	}
	if t.deaf {
		return nil, nil
	}
	w := t.wordOf(resp.StatusCode, &signal)
	var more *listener
	if hasContent(req, resp) && t.hints.WantsBody(host, resp.StatusCode, resp.Header) {
		more = &listener{
			transport: t, ctx: req.Context(), gate: t.gateOf(req), at: now, host: host, status: resp.StatusCode, header: resp.Header.Clone(), told: signal, word: w,
		}
	}
	return w, more
}

// refused counts and tells that a server refused a request because of a limit.
func (t *Transport) refused(ctx context.Context, host string, status int, wait time.Duration) {
	l := t.limiter
	l.mu.Lock()
	l.counts.serverRefused++
	t.asker.counts.serverRefused++
	l.mu.Unlock()
	if f := t.asker.observer.hooks.OnServerRefusal; f != nil {
		f(ServerRefusalEvent{Context: ctx, Host: host, Status: status, RetryAfter: wait})
	}
}

// hasContent reports whether the body of a response may have content to read.
func hasContent(req *http.Request, resp *http.Response) bool {
	return resp.Body != nil && resp.Body != http.NoBody && req.Method != http.MethodHead &&
		resp.StatusCode != http.StatusSwitchingProtocols
}

func (t *Transport) wordOf(status int, s *headers.Signal) *word {
	return &word{
		limiter: t.limiter,
		limited: s.Limited, wait: s.Wait, quotas: s.Buckets, violated: s.Violated,
		host:   status == http.StatusServiceUnavailable || status == 529,
		global: s.Scope == "global",
	}
}

// A listener keeps the beginning of a body as the caller reads it, and reports what it says about limits beyond the headers.
type listener struct {
	transport *Transport
	ctx       context.Context // of the request
	gate      *gateKey
	sent      instant   // when the request was granted
	at        time.Time // when the headers came
	host      string
	status    int
	header    http.Header // a copy, because the caller may change the original
	told      headers.Signal
	word      *word // the same, as it was reported
	begin     []byte
}

// observe keeps what was read, and reports whether that is enough.
func (m *listener) observe(p []byte) bool {
	m.begin = append(m.begin, p[:min(len(p), headers.BodyBytes-len(m.begin))]...)
	return len(m.begin) == headers.BodyBytes
}

// tell reports what the body says beyond the headers. If it names the policies that were violated, the hold that the
// headers asked for becomes one of these quotas alone.
func (m *listener) tell() {
	if m == nil || len(m.begin) == 0 {
		return
	}
	t := m.transport
	signal := t.hints.Parse(m.host, m.status, m.header, m.begin, m.at)
	passed := time.Since(m.at)
	again := m.told.Limited && signal.Wait == m.told.Wait && len(signal.Violated) == 0
	if wait := signal.Wait.Value; again || 0 < wait && wait <= passed {
		signal.Limited = false
	}
	signal.Wait.Value = max(0, signal.Wait.Value-passed)
	signal.Buckets = slices.DeleteFunc(signal.Buckets, func(b headers.Bucket) bool {
		return slices.Contains(m.told.Buckets, b) && !slices.Contains(signal.Violated, b.Name)
	})
	for i := range signal.Buckets {
		signal.Buckets[i].Reset.Value -= passed
	}
	if signal.Limited || len(signal.Buckets) > 0 {
		w := t.wordOf(m.status, &signal)
		w.after = m.word
		if w.limited && !m.told.Limited {
			t.refused(m.ctx, m.gate.host, m.status, w.wait.Value)
		}
		t.limiter.hear(m.ctx, m.gate, mark{at: m.sent}, &answer{word: w}, nil, t.asker)
	}
}
