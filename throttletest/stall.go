package throttletest

import (
	"slices"
	"time"
)

// A stall is a stretch of time in which the server does nothing, in nanoseconds since the Unix epoch, half-open.
type stall struct{ from, to int64 }

// Stall stops the whole server for d from now, as SIGSTOP, a long garbage collection or a busy host stops a process. Requests
// that arrive and responses that are ready wait until the end, and then all continue at the same time. Time does not stop: limits
// refill, and windows, bans and service times end. A Stall within another one does not shorten it; a d that is not positive has
// no effect. Stall returns immediately.
//
// A test can stop the server at any time, again and again:
//
//	go func() {
//		for range 6 {
//			time.Sleep(9 * time.Second)
//			h.Stall(500 * time.Millisecond)
//		}
//	}()
func (h *Handler) Stall(d time.Duration) {
	if d <= 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var stalls []stall
	if old := h.stalls.Load(); old != nil {
		stalls = slices.Clone(*old)
	}
	now := h.now()
	end := satAdd(now, int64(d))
	if last := len(stalls) - 1; last >= 0 && now <= stalls[last].to {
		stalls[last].to = max(stalls[last].to, end)
	} else {
		stalls = append(stalls, stall{now, end})
	}
	h.stalls.Store(&stalls)
}

// resumes returns the instant at which a server that has something to do at an instant does it.
func (h *Handler) resumes(at int64) int64 {
	stalls := h.stalls.Load()
	if stalls == nil {
		return at
	}
	for _, s := range slices.Backward(*stalls) {
		if at >= s.to {
			break
		}
		if at >= s.from {
			return s.to
		}
	}
	return at
}

// after returns the instant that is d from now.
func (h *Handler) after(d time.Duration) int64 { return satAdd(h.now(), int64(d)) }

// work waits until the server has done what is due at an instant, and the result has traveled back.
func (h *Handler) work(at int64, back time.Duration) {
	for {
		h.pause(time.Duration(at-h.now()) + back)
		resumed := h.resumes(at)
		if resumed == at {
			return
		}
		at = resumed
	}
}
