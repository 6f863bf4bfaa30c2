package pool

import (
	"net/http"
	"sync/atomic"
	"time"
)

// A latency is how long a member takes to respond, as far as is known. Times are those since the Pool was made. Its fields are read and
// written one by one: of two responses at one instant, the mean may forget one.
type latency struct {
	mean    atomic.Int64 // of the last responses; if there was none, the longest time in which a request got none
	with    atomic.Int64 // thousandths of how many requests were in flight then, in the mean; 0: there was no response
	at      atomic.Int64 // when the mean changed
	flying  atomic.Int64 // how many requests have no response yet
	quiet   atomic.Int64 // since when there was no response to those
	checked atomic.Int64 // when a request was last sent to find out whether the member is quick again, or failed
}

const (
	thousand     = 1000
	leastLatency = time.Millisecond // shorter ones count as that
	meanOf       = 10 * time.Second // the mean is one of the responses of about that time, and
	meanOfAtMost = 16               // of about this number of responses at most
	slower       = 2                // how many times slower than the quickest a member is that gets what the quicker ones cannot send
)

// expected returns how long the member will take to respond to a request: as long as it does in the mean, and no less than it has been
// silent.
func (l *latency) expected(now time.Duration) time.Duration {
	return max(time.Duration(l.mean.Load()), l.silent(now))
}

// silent returns for how long requests have been in flight without any response.
func (l *latency) silent(now time.Duration) time.Duration {
	if l.flying.Load() == 0 {
		return 0
	}
	return now - time.Duration(l.quiet.Load())
}

// extra returns how much longer than the quickest, which takes least, the member will take to respond; 0: about as long. Where requests wait
// for each other, they take the longer the more there are. So where fewer are in flight than in the mean, it takes that much less.
func (l *latency) extra(now, least time.Duration) time.Duration {
	d := l.expected(now)
	if d/slower <= least {
		return 0
	}
	mean, with := float64(l.mean.Load()), float64(l.with.Load())/thousand
	d = max(time.Duration(min(1, float64(l.flying.Load()+1)/with)*mean), l.silent(now))
	if d/slower <= least {
		return 0
	}
	return d - least
}

// toCheck reports whether a request should find out whether the member is quick again. Of one caller, that takes no more than half of the
// time. At a member that does not respond at all, one does whenever it has been silent for twice as long.
func (l *latency) toCheck(now time.Duration) bool {
	last := l.checked.Load()
	every := max(meanOf, time.Duration(l.mean.Load())+l.silent(now)/2)
	return now-time.Duration(max(last, l.at.Load())) >= every && l.checked.CompareAndSwap(last, int64(now))
}

// sends counts a request that is sent now.
func (l *latency) sends(now time.Duration) {
	if l.flying.Load() == 0 {
		l.quiet.Store(int64(now))
	}
	l.flying.Add(1)
}

// known reports whether there was a response.
func (l *latency) known() bool { return l.with.Load() > 0 }

// took notes how long a request took that has ended now. A failure may be quicker than the work is, and one without a response would have
// taken even longer, so both count only if they were slow. Before the first response, they are a lower bound.
func (l *latency) took(resp *http.Response, err error, took, now time.Duration) {
	if err == nil {
		l.quiet.Store(int64(now))
	}
	mean := time.Duration(l.mean.Load())
	took = max(took, leastLatency)
	failed, known := err != nil || resp.StatusCode >= 400, l.known()
	if failed && took <= mean {
		l.checked.Store(int64(now))
		return
	}
	weight := 1.0
	if known {
		weight = min(1, max(1./meanOfAtMost, float64(now-time.Duration(l.at.Load()))/float64(meanOf)))
	}
	l.mean.Store(int64(mean + time.Duration(weight*float64(took-mean))))
	if with := l.with.Load(); known || !failed {
		l.with.Store(with + int64(weight*float64(l.flying.Load()*thousand-with)))
	}
	l.at.Store(int64(now))
}

// tryBy sends a request by a member if that can send it now.
func (p *Pool) tryBy(m *member, req *http.Request, now time.Duration) (resp *http.Response, sent, unsent bool, err error) {
	m.sends(now)
	defer m.flying.Add(-1)
	if resp, sent, unsent, err = m.by.Try(req); sent {
		end := p.now()
		m.sent.Add(1)
		p.ended(m.state, req, resp, unsent, err, end-now, end)
	}
	return resp, sent, unsent, err
}

// redeem sends a request by the member that has granted it.
func (p *Pool) redeem(at *place, req *http.Request) (resp *http.Response, unsent bool, err error) {
	start := p.now()
	at.sends(start)
	defer at.flying.Add(-1)
	resp, unsent, err = at.by.Send(req, at.waiter, at.waits)
	end := p.now()
	at.sent.Add(1)
	p.ended(at.state, req, resp, unsent, err, end-start, end)
	return resp, unsent, err
}
