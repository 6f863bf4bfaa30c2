package throttle

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/queue"
)

// ServerStats is what one server has said about its limits, to requests that it counts under the same keys. It prints as one line.
type ServerStats struct {
	Host      string       `json:"host"`
	Party     string       `json:"party,omitzero"`      // the keys by which requests are counted there, with spaces between; "" if there are none
	HeldUntil time.Time    `json:"held_until,omitzero"` // end of a hold; zero: not held
	Pace      float64      `json:"pace"`                // requests per second that leave one by one after a refusal; 0: they need not
	Refused   uint64       `json:"refused"`             // responses by which it refused, while it is remembered
	Quotas    []QuotaStats `json:"quotas,omitzero"`     // by name
}

// QuotaStats is what is known of a quota of a server.
type QuotaStats struct {
	Name     string    `json:"name"` // "default" if the server does not name it
	Unit     string    `json:"unit"` // such as requests or tokens
	Limit    int64     `json:"limit"`
	Left     int64     `json:"left"`           // -1, as for Limit: not known; requests in flight are not taken off
	InFlight int64     `json:"in_flight"`      // requests whose responses may tell that less is left
	Reset    time.Time `json:"reset,omitzero"` // zero: not known
}

// Servers returns what servers have said that is still remembered, ordered by host. It takes the lock for at most 64 servers at
// once.
func (l *Limiter) Servers() []ServerStats {
	l.mustBeMade()
	var all []ServerStats
	for some := range l.parties() {
		all = l.appendServers(all, some)
	}
	slices.SortFunc(all, func(x, y ServerStats) int {
		return cmp.Or(cmp.Compare(x.Host, y.Host), cmp.Compare(x.Party, y.Party))
	})
	return all
}

// Server returns what one server has said, as [Limiter.Servers] does: an entry for each set of keys by which it counts requests.
// The host is as [ByHost] returns it.
func (l *Limiter) Server(host string) []ServerStats {
	l.mustBeMade()
	var all []ServerStats
	for some := range slices.Chunk(l.core.PartiesAt(host), queue.PieceSize) {
		all = l.appendServers(all, some)
	}
	slices.SortFunc(all, func(x, y ServerStats) int { return cmp.Compare(x.Party, y.Party) })
	return all
}

// parties yields a gate of each party, a few at a time.
func (l *Limiter) parties() iter.Seq[[]*queue.Bucket] {
	return slices.Chunk(l.core.PartiesOf(func(queue.GateKey) bool { return true }), queue.PieceSize)
}

func (l *Limiter) appendServers(all []ServerStats, gates []*queue.Bucket) []ServerStats {
	l.core.LookAtGates(gates, func(g *queue.GateBucket, now meter.Instant) {
		if s := l.serverStatsLocked(g, now); s.Pace > 0 || s.Refused > 0 || s.Quotas != nil || !s.HeldUntil.IsZero() {
			all = append(all, s)
		}
	})
	return all
}

func (l *Limiter) serverStatsLocked(g *queue.GateBucket, now meter.Instant) ServerStats {
	s := ServerStats{Host: g.Key.Host, Party: g.Key.PartyName(), Refused: g.Party.Refused}
	if held := g.HeldUntil(); held > now {
		s.HeldUntil = l.core.Start.Add(time.Duration(held))
	}
	pace, quotas := g.Account.State(now)
	s.Pace = pace
	for _, q := range quotas {
		stats := QuotaStats{Name: q.Name, Unit: cmp.Or(q.Unit, "requests"), Limit: q.Limit, Left: q.Left, InFlight: q.InFlight}
		if q.Reset < meter.Never {
			stats.Reset = l.core.Start.Add(time.Duration(q.Reset))
		}
		s.Quotas = append(s.Quotas, stats)
	}
	return s
}

// ReleaseServer forgets what a server said that stops requests: holds, the pace after a refusal, and quotas. key is a host, or a
// host and a party as the keys of the limit "server" have them. The pauses of [Adaptive] limits for that key end, too. What the
// server says next counts again.
func (l *Limiter) ReleaseServer(key string) {
	l.mustBeMade()
	gates := l.core.PartiesOf(func(g queue.GateKey) bool { return g.Host == key || g.Name() == key })
	l.core.ForgetSaid(gates, key)
	l.core.RecountHolds(l.core.Gate)
	for _, li := range l.core.Limits {
		if l.policyOf(li).kind == kindAIMD {
			l.core.RecountHolds(li)
		}
	}
}
