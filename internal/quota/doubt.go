package quota

import "github.com/httpthrottle/throttle/internal/meter"

const (
	patience      = 4 * second  // with a server of which nothing is known
	mostPatience  = 30 * second // that grows while requests leave
	earned        = 32          // it grows by a second in so many
	confirmed     = 8           // times as long as a claim that was confirmed, the next ones are believed without a refusal
	mostConfirmed = 3600 * second
)

// A doubt bounds what claims cost a client with a rate of its own. A server that says that nothing is left looks like one
// that lies, or that tells the reset wrongly, until a request shows which it is. So such claims stop requests only while
// there is patience. Then requests leave evenly at the client's own rate. One that is refused confirms the claim: it stops
// requests until its end, and the next ones are believed for longer.
type doubt struct {
	spent meter.Instant // of patience; negative: more was earned
	until meter.Instant // the end of the latest claim that was confirmed
}

// left takes a request that leaves at due. The last one left at last. By the client's own rate it might have left at own,
// and by the server's claims at claimed.
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

// unclaimed returns when the next request may leave by the client's own rate.
func (a *Account) unclaimed() meter.Instant {
	return meter.AddInstant(a.pace.last, int64(min(1e9/a.own, float64(mostConfirmed))))
}

// believed returns until when claims stop requests, and whether there is such an end.
func (a *Account) believed() (by meter.Instant, doubted bool) {
	if a.own <= 0 || a.adaptive { // refusals teach an adaptive limit what claims are worth
		return 0, false
	}
	return meter.AddInstant(max(a.unclaimed(), a.doubt.until), max(0, patience-a.doubt.spent)), true
}
