package meter

// NewQuota returns an unused window whose tokens come back evenly: each no sooner than one period after it was spent, as in a sliding
// window, and no sooner than a gap after the one before. n gaps are a period and one gap in n-1, or a period and a nineteenth if that
// is less. So an unused window allows a burst of n, and what waits after it is sent evenly.
//
// A server that counts n per period may keep a log, count by the clock, weight the count of its last window, or fill a bucket of n. None
// of them refuses such a client: a log and a clock because no stretch of a period has more than n; a bucket and a GCRA because it
// was full before the burst, and fills at least as fast as tokens come back; and a sliding counter, which takes the requests of its last
// window to be spread evenly, because they are. That counter needs the one in n that is left out: spread over two windows, n+1 requests
// may fall into one period and a gap.
func NewQuota(r Rate) *SlidingWindow {
	w := NewSlidingWindow(r)
	w.even, w.back = true, returns{start: -MaxPer}
	return w
}

// Returns are tokens that came back one gap after the other, the first of them at start.
type returns struct {
	start Instant
	n     int64
}

// round returns how long n gaps are.
func (w *SlidingWindow) round() int64 { return w.per + (w.per-1)/max(w.n-1, 19) + 1 }

// after returns when the k-th token after r, counted from 0, comes back if it need not be older.
func (w *SlidingWindow) after(r returns, k int64) Instant {
	return AddInstant(r.start, mul128(uint64(r.n+k), uint64(w.round())).ceilDiv(uint64(w.n)))
}

// notBefore returns r for a next token that may come back at that instant at the earliest.
func (w *SlidingWindow) notBefore(at Instant, r returns) returns {
	if w.after(r, 0) < at {
		return returns{start: at}
	}
	return r
}

// comesBack returns when the k-th of the spent tokens comes back, counted from 1. Those beyond them are spent from that instant on, as
// soon as they can be.
func (w *SlidingWindow) comesBack(k int64, from Instant) Instant {
	r := w.back
	for i := w.head; i < len(w.log); i++ {
		spent := w.cost(i)
		if spent <= 0 {
			continue
		}
		r = w.notBefore(AddInstant(w.log[i].counted, w.per), r)
		if k <= spent {
			return w.after(r, k-1)
		}
		r.n += spent
		k -= spent
	}
	if w.used() < w.n {
		r = w.notBefore(AddInstant(from, w.per), r)
	}
	return w.after(r, k-1) // n gaps are longer than a period, so a token that is spent when it comes back delays nothing
}

// cameBack returns how many of the spent tokens have come back by now, and w.back after them.
func (w *SlidingWindow) cameBack(now Instant) (tokens int64, back returns) {
	back = w.back
	for i := w.head; i < len(w.log); i++ {
		spent := w.cost(i)
		if spent <= 0 {
			continue
		}
		next := w.notBefore(AddInstant(w.log[i].counted, w.per), back)
		if w.after(next, 0) > now {
			break
		}
		due, _ := mul128(uint64(now-next.start), uint64(w.n)).floorDiv(uint64(w.round()))
		came := min(spent, due+1-next.n)
		tokens, back = tokens+came, returns{next.start, next.n + came}
		if came < spent {
			break
		}
	}
	return tokens, back
}
