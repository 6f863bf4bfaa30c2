package throttlepage

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/pool"
)

// Pools adds Pools by their names, each of which is shown as one thing: a request that waits at several members counts once. The limits,
// servers and keys of a Pool are those of its members, by the name of the member. New panics if a Pool is nil, or has the name of another.
func Pools(pools map[string]*pool.Pool) Option {
	return option(func(p *Page) {
		for _, name := range slices.Sorted(maps.Keys(pools)) {
			if pools[name] == nil {
				panic(fmt.Sprintf("throttlepage: Pools: the Pool %q is nil", name))
			}
			if slices.ContainsFunc(p.views, func(l *watched) bool { return l.name == name }) {
				panic(fmt.Sprintf("throttlepage: Pools: two are named %q", name))
			}
			p.views = append(p.views, &watched{id: fmt.Sprintf("l%d", len(p.views)), name: name, source: &pooled{pool: pools[name]}})
		}
	})
}

// A members is a source that says what is known of the members of a Pool.
type members interface{ Pool() pool.Stats }

// A pooled is a Pool as a source: what its members have, by their names, and what they do together.
type pooled struct{ pool *pool.Pool }

func (p *pooled) Pool() pool.Stats { return p.pool.Stats() }

func (p *pooled) Stats() throttle.Stats {
	s := p.pool.Stats()
	all := throttle.Stats{Waiting: s.Waiting, Granted: s.Sent, Delayed: s.Delayed, Waited: s.Waited, Rejected: s.Rejected, Canceled: s.Canceled}
	for i := range s.Members {
		of := &s.Members[i].Stats
		all.Buckets += of.Buckets
		all.ServerRefused += of.ServerRefused
		all.Holds.Caller += of.Holds.Caller
		all.Holds.Server += of.Holds.Server
		all.Holds.Adaptive += of.Holds.Adaptive
	}
	return all
}

// of returns the name of something of a member.
func of(member, name string) string { return member + ": " + name }

func (p *pooled) Limits() (all []throttle.LimitStats) {
	for _, m := range p.pool.Members() {
		for _, li := range m.Transport.Limiter().Limits() {
			li.Name = of(m.Name, li.Name)
			all = append(all, li)
		}
	}
	return all
}

func (p *pooled) Servers() (all []throttle.ServerStats) {
	for _, m := range p.pool.Members() {
		for _, s := range m.Transport.Limiter().Servers() {
			s.Host = of(m.Name, s.Host)
			all = append(all, s)
		}
	}
	return all
}

func (p *pooled) Stores() (all []throttle.StoreStats) {
	for _, m := range p.pool.Members() {
		for _, s := range m.Transport.Limiter().Stores() {
			for i := range s.Limits {
				s.Limits[i] = of(m.Name, s.Limits[i])
			}
			all = append(all, s)
		}
	}
	return all
}

func (p *pooled) Bucket(limit, key string) (b throttle.BucketStats, ok bool) {
	for _, m := range p.pool.Members() {
		if name, is := strings.CutPrefix(limit, of(m.Name, "")); is {
			if b, ok = m.Transport.Limiter().Bucket(name, key); ok {
				b.Limit = limit
				return b, true
			}
		}
	}
	return b, false
}

func (p *pooled) Buckets() iter.Seq[throttle.BucketStats] {
	return func(yield func(throttle.BucketStats) bool) {
		for _, m := range p.pool.Members() {
			for b := range m.Transport.Limiter().Buckets() {
				if b.Limit == serverLimit {
					continue
				}
				if b.Limit = of(m.Name, b.Limit); !yield(b) {
					return
				}
			}
		}
	}
}

func (p *pooled) Forecast(ask throttle.Ask, n int) (throttle.Forecast, error) {
	return p.pool.Forecast(ask, n)
}

// A memberView is what is shown of a member of a Pool, or of all together.
type memberView struct {
	Name, State, Why  string
	Level             string
	After, Latency    string
	Sent, Waiting     string
	InFlight, Refused string
}

// viewOfMembers returns the members, and all of them together as the last one.
func viewOfMembers(c change, now time.Time) (all []memberView) {
	last, first := c.last.pool, c.first.pool
	sum := memberView{Name: "together", Waiting: number(float64(last.Waiting)), InFlight: number(float64(last.InFlight)), After: none, Latency: none}
	var sent, refused uint64
	in := 0
	for i := range last.Members {
		m, before := &last.Members[i], pool.MemberStats{}
		if first != nil {
			for _, of := range first.Members {
				if of.Name == m.Name {
					before = of
				}
			}
		}
		more, no := grown(m.Sent, before.Sent), grown(m.Stats.ServerRefused, before.Stats.ServerRefused)
		sent, refused = sent+more, refused+no
		v := memberView{
			Name: printable(m.Name), State: "in", Level: "ok", Why: printable(m.Why), After: none, Latency: none,
			Sent: count(more), Waiting: number(float64(m.Waiting)), InFlight: number(float64(m.InFlight)), Refused: count(no),
		}
		if m.After > 0 {
			v.After = duration(m.After)
		}
		if m.Latency > 0 {
			v.Latency = duration(m.Latency)
		}
		switch {
		case m.Out:
			v.State, v.Level = "out", "bad"
			v.Why = joined(v.Why, triedAgain(m.Until, now))
		case m.Why != "":
			v.State, v.Level = "held", "busy"
			if d := held(m.Until, now); d != "" {
				v.State += " " + d
			}
		default:
			in++
		}
		all = append(all, v)
	}
	sum.Sent, sum.Refused = count(sent), count(refused)
	sum.State = inOf(in, len(last.Members))
	return append(all, sum)
}

// inOf returns how many of all members are in, that is, neither out nor held.
func inOf(in, all int) string { return fmt.Sprintf("%d of %d in", in, all) }

// triedAgain returns when a request tries a member that is out.
func triedAgain(at, now time.Time) string {
	if !at.After(now) {
		return "the next request tries it again"
	}
	return "tried again in " + duration(at.Sub(now))
}

// out says which members of a Pool send nothing, and how bad that is; "": all do.
func (c change) out(now time.Time) (level, word, says string) {
	if c.last.pool == nil {
		return "", "", ""
	}
	all := c.last.pool.Members
	var names []string
	for i := range all {
		m := &all[i]
		switch {
		case m.Out:
			names = append(names, "“"+printable(m.Name)+"” is out ("+joined(printable(m.Why), triedAgain(m.Until, now))+")")
		case m.Why != "":
			text := "“" + printable(m.Name) + "” is held"
			if d := held(m.Until, now); d != "" {
				text += " for " + d
			}
			names = append(names, text+" ("+printable(m.Why)+")")
		}
	}
	switch {
	case len(names) == 0:
		return "", "", ""
	case len(names) == len(all):
		level = "bad"
	default:
		level = "busy"
	}
	word = inOf(len(all)-len(names), len(all))
	if more := len(names) - 2; more > 0 {
		names = append(names[:2], fmt.Sprintf("%d more", more))
	}
	return level, word, strings.Join(names, ", ") + "."
}

// noteMembers adds which members went out, and which came back.
func (d *diary) noteMembers(e event, first, last *sample) {
	if first.pool == nil || last.pool == nil {
		return
	}
	e.n = 1
	for _, m := range last.pool.Members {
		for _, before := range first.pool.Members {
			if before.Name != m.Name || before.Out == m.Out {
				continue
			}
			e.limit, e.detail, e.kind = printable(m.Name), "", kindBack
			if m.Out {
				e.detail, e.kind = printable(m.Why), kindOut
			}
			d.add(e)
		}
	}
}
