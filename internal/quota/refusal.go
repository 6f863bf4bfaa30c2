package quota

import "github.com/httpthrottle/throttle/internal/meter"

const (
	longestBack = 6               // doublings of a backoff of 1 s
	mostRow     = longestBack + 4 // refusals in a row that are counted
	othersMost  = 60 * second     // the longest hold of accounts because of a response to another one
	longestHold = 86_400 * second // a server that asks for a longer one is asked again after that time
)

// A barrier is a hold: no request leaves before held.
type barrier struct {
	held meter.Instant
	set  meter.Instant // when held was set last; refusals of requests sent earlier belong to that event
	dice meter.Dice
}

// Hold blocks all requests for d, a day at most, and for a random time longer: up to a tenth of d, at most a second.
func (b *barrier) Hold(now meter.Instant, d int64) {
	if d <= 0 {
		return
	}
	d = min(d, longestHold)
	b.set = now
	b.held = max(b.held, meter.AddInstant(meter.AddInstant(now, d), b.dice.Jitter(d)))
}

// Until returns when the last hold ends.
func (a *Account) Until() meter.Instant { return max(a.held, a.server.held) }

// Hold holds the account. After a day, requests ask one by one whether a longer hold has ended.
func (a *Account) Hold(now meter.Instant, d int64) {
	a.barrier.Hold(now, d)
	a.asking = a.asking || d > longestHold
}

// HoldHost holds the account for d. Because one account may have provoked the response, it holds the server's others for a minute at
// most.
func (a *Account) HoldHost(now meter.Instant, d int64) {
	a.Hold(now, d)
	a.server.Hold(now, min(d, othersMost))
}

// Refused takes a refusal that asks to stay away for d. With host it concerns the other accounts of the server, too. If a quota
// explains it, the rate was right; otherwise a pace begins.
func (a *Account) Refused(now, sentAt meter.Instant, d int64, host, explained bool) {
	news := sentAt > max(a.set, a.server.set)
	if news {
		a.row()
	}
	a.hold(now, sentAt, d, host, news, explained)
}

// row counts a refusal in a row. From the second on, requests ask one by one whether the server accepts one.
func (a *Account) row() {
	a.refusals = min(a.refusals+1, mostRow)
	a.asking = a.asking || a.refusals > 1
}

func (a *Account) hold(now, sentAt meter.Instant, d int64, host, news, explained bool) {
	if host {
		a.HoldHost(now, d)
	} else {
		a.Hold(now, d)
	}
	switch {
	case explained:
	case news:
		a.pace.refused(now, a.Until(), sentAt, d, a)
	default: // the other refusals of an event may ask for more
		a.pace.putOff(now, a.Until())
	}
}

// TakeBack undoes a hold that moved the end of the account's hold from from to to, and the pace after it, unless another hold
// has come since.
func (a *Account) TakeBack(from, to meter.Instant) {
	if a.held == to {
		a.held, a.pace.rate, a.pace.next = from, 0, from
	}
}

// Backoff takes a refusal without a known wait. It holds the account for as long as eight requests take at the rate that was accepted,
// from 1/8 s to 1 s, times two for each refusal before it in the row, at most 64 s. Bare refusals in a row set no hold: they mostly come
// from a server that is down, which shows nothing about its limit.
//
// The first refusal of a client with limits of its own sets no hold, but from then on requests are sent evenly, because some servers
// refuse requests that come too close together.
func (a *Account) Backoff(now, sentAt meter.Instant, bare Bare) {
	if sentAt <= a.set {
		return
	}
	n := int(a.refusals)
	if a.own > 0 {
		a.pace.space(now)
		n--
	}
	a.row()
	switch {
	case n < 0:
		a.set = now
	case bare != NotBare && a.asking:
		a.set, a.pace.next = now, meter.AddInstant(now, second)
	default:
		few := min(8e9/max(a.pace.rate, a.pace.lately.Rate(now)), float64(second))
		a.hold(now, sentAt, min(max(int64(few), second/8)<<n, second<<longestBack), false, true, false)
	}
}

// emptied takes a refusal because of quotas of which nothing is left. If it is not known until when, one request at a time asks. Requests
// resume evenly once something is left: all that wait would leave at that instant otherwise.
func (a *Account) emptied(now, sentAt meter.Instant, claims []Claim) {
	asks := now
	for i := range claims {
		if q := a.find(claims[i].Name); claims[i].Refused && q.reset == meter.Never {
			asks = max(asks, q.try)
		}
	}
	if asks > now && sentAt > a.set {
		a.set = now
		a.pace.refused(now, asks, sentAt, second, a)
	}
}

// answered takes the response to a request that was accepted, or was not.
func (a *Account) answered(now, sentAt meter.Instant, accepted bool) {
	a.pace.heard = now
	if !accepted {
		return
	}
	if sentAt > a.set {
		a.refusals = 0
		if a.asking {
			a.asking, a.pace.next = false, a.pace.last
		}
	}
	a.pace.accepted(sentAt)
}
