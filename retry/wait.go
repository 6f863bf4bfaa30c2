package retry

import (
	"context"
	"io"
	"net/http"
	"time"
)

// pause returns the shortest and the longest that the backoff before retry n (from 0) may be: half of least·2ⁿ⁺¹ and all
// of it, both from least to most, and cut to p.maxWait. Nonsense is repaired: what is negative is 0, and most is at least
// least.
func (p *Policy) pause(least, most time.Duration, n int) (shortest, longest time.Duration) {
	least = max(least, 0)
	most = max(most, least)
	longest = least
	for i := 0; i <= n && 0 < longest && longest < most; i++ {
		longest += min(longest, most-longest)
	}
	return min(max(longest/2, least), p.maxWait), min(longest, p.maxWait)
}

// wait waits for d. The error is that of ctx, if it ends before.
func wait(ctx context.Context, d time.Duration) (bool, error) {
	if d <= 0 {
		return true, nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// A note is the body of a response that is going to be retried. CheckRetry notes in it when that may be,
// because Backoff sees nothing else of the request, and its response without its body.
type note struct {
	io.ReadCloser
	due time.Time
}

// remember notes in resp when the next attempt may be.
func remember(resp *http.Response, due time.Time) {
	forget(resp)
	resp.Body = &note{resp.Body, due}
}

func remembered(resp *http.Response) (due time.Time, known bool) {
	if n, ok := resp.Body.(*note); ok {
		return n.due, true
	}
	return time.Time{}, false
}

// forget takes the note out of resp, if there is one.
func forget(resp *http.Response) {
	if n, ok := resp.Body.(*note); ok {
		resp.Body = n.ReadCloser
	}
}
