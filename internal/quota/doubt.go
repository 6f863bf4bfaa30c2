package quota

import "github.com/httpthrottle/throttle/internal/meter"

const (
	patience      = 4 * second  // with a server of which nothing is known
	mostPatience  = 30 * second // to which it grows while no claim stops requests
	earned        = 32          // seconds of that for each second of patience
	confirmed     = 8           // after a confirmed claim, the next ones are believed for this many times its length
	mostConfirmed = 3600 * second
)

// A doubt bounds what claims cost a client with a rate of its own. A server that reports that nothing is left may be wrong about
// that, or about the reset, and only a request shows whether it is. So such claims stop requests only while there is patience.
// Then requests are sent evenly at the client's own rate. If one of them is refused, the claim is confirmed: it stops requests
// until its end, and the next ones are believed for longer.
type doubt struct {
	spent meter.Instant // of patience; negative: more was earned
	until meter.Instant // the end of the latest claim that was confirmed
}

// left takes a request that is sent at due, after one that was sent at last. The client's own rate would have allowed it at own,
// and the server's claims at claimed.
func (d *doubt) left(last, own, claimed, due meter.Instant) {
	stopped := max(0, min(claimed, due)-max(own, d.until))
	d.spent += stopped
	if d.spent > patience-mostPatience {
		d.spent = max(patience-mostPatience, d.spent-max(0, due-last-stopped)/earned)
	}
}

// refused takes a refusal while the server claims that requests are stopped until end.
func (d *doubt) refused(now, end meter.Instant) {
	if end > now && end < meter.Never {
		d.until = max(d.until, end)
		d.spent = min(d.spent, patience-min(confirmed*min(end-now, mostConfirmed), mostConfirmed))
	}
}

// unclaimed returns when the client's own rate allows the next request.
func (a *Account) unclaimed() meter.Instant {
	return meter.AddInstant(a.pace.last, int64(min(1e9/a.own, float64(mostConfirmed))))
}

// believed returns until when claims stop requests, and whether there is such an end.
func (a *Account) believed() (by meter.Instant, doubted bool) {
	if !a.trusted() { // refusals teach an adaptive limit what claims are worth
		return 0, false
	}
	return meter.AddInstant(max(a.unclaimed(), a.doubt.until), max(0, patience-a.doubt.spent)), true
}
