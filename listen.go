package throttle

import (
	"net/http"
	"slices"
	"time"

	"github.com/httpthrottle/throttle/headers"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
)

// A word is what a server said of its limits, as far as it says for how long to stay away.
type word struct {
	limited  bool
	host     bool // for reasons of the server's own, and so to everybody who asks that host
	global   bool // not only by the limits that it tells of
	wait     headers.Maybe[time.Duration]
	quotas   []headers.Bucket
	violated []string // the names of those that the request was too much for
	limiter  *Limiter // whose limits may leave a share of quotas to others; its mu is held where tells is called
	after    *word    // what the headers of the same response told; nil: these are the headers
	from, to instant  // what the hold of the account was before, and is because of this
}

// tells returns what is news for a gate, whether the limit that a refusal is for is named there, and whether a quota that is
// empty explains the refusal.
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
		t := quota.Tell{Name: q.Name, Left: left, Limit: q.Limit.Or(-1), Counted: q.Unit == "" || q.Unit == "requests"}
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

// listen returns what the headers of a response tell of limits, nil if nothing, and what listens to its body where that may
// tell more.
func (t *Transport) listen(req *http.Request, resp *http.Response) (*word, *listener) {
	if t.deaf || resp == nil {
		return nil, nil
	}
	host := hostOf(req)
	if t.hints.Silent(host, resp.StatusCode, resp.Header) {
		return nil, nil
	}
	now := time.Now()
	signal := t.hints.Parse(host, resp.StatusCode, resp.Header, nil, now)
	w := t.wordOf(resp.StatusCode, &signal)
	var more *listener
	if hasContent(req, resp) && t.hints.WantsBody(host, resp.StatusCode, resp.Header) {
		more = &listener{
			transport: t, gate: t.gateOf(req), at: now, host: host, status: resp.StatusCode, header: resp.Header.Clone(), told: signal, word: w,
		}
	}
	return w, more
}

// hasContent reports whether there may be something in the body of a response.
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

// A listener keeps the beginning of a body as the caller reads it, and reports what it tells of limits beyond the headers.
type listener struct {
	transport *Transport
	gate      *gateKey
	sent      instant   // when the request was let go
	at        time.Time // when the headers came
	host      string
	status    int
	header    http.Header // a copy, since the caller may change its own
	told      headers.Signal
	word      *word // what was made of that
	begin     []byte
}

// observe takes in what was read, and reports whether that is enough.
func (m *listener) observe(p []byte) bool {
	m.begin = append(m.begin, p[:min(len(p), headers.BodyBytes-len(m.begin))]...)
	return len(m.begin) == headers.BodyBytes
}

// tell reports what the body tells beyond the headers. A body that names the policies which were violated makes the hold
// that its headers asked for one of these alone.
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
		t.limiter.hear(m.gate, mark{at: m.sent}, &answer{word: w}, nil, t.asker.observer)
	}
}
