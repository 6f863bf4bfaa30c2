package throttlepage

import (
	"bytes"
	"cmp"
	"html/template"
	"iter"
	"slices"
	"time"

	"github.com/httpthrottle/throttle"
)

const (
	every    = time.Second     // between two readings
	span     = 2 * time.Minute // that the page remembers
	most     = 50              // keys and servers that are shown of a Limiter
	many     = 10_000          // keys: with more, they are read less often
	seldom   = 5 * time.Second // between two readings of many keys
	readings = int(span/every) + 1
)

// A source is what the page reads of a Limiter.
type source interface {
	Stats() throttle.Stats
	Limits() []throttle.LimitStats
	Servers() []throttle.ServerStats
	Bucket(limit, key string) (throttle.BucketStats, bool)
	Buckets() iter.Seq[throttle.BucketStats]
}

// watched is a Limiter, and what the page remembers of it.
type watched struct {
	name    string
	source  source
	history []sample                        // oldest first; never empty once it was read
	single  map[string]throttle.BucketStats // by limit, of those without keys
	keys    []throttle.BucketStats
	servers []throttle.ServerStats
	served  int       // servers, of which servers are some
	walked  time.Time // when keys and servers were read
}

// A sample is what a Limiter said at one instant.
type sample struct {
	at     time.Time
	stats  throttle.Stats
	limits []throttle.LimitStats
}

// A frame is what all viewers see until the next one.
type frame struct {
	at      time.Time // when it was complete
	content template.HTML
	state   []state
}

// A state is what state.json says of a Limiter.
type state struct {
	Name    string                 `json:"name"`
	Stats   throttle.Stats         `json:"stats"`
	Limits  []throttle.LimitStats  `json:"limits"`
	Servers []throttle.ServerStats `json:"servers"`
	Keys    []throttle.BucketStats `json:"keys"`
}

// frame returns the latest frame, or a new one if that is a second old.
func (p *page) frame() frame {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if len(p.latest.content) > 0 && now.Sub(p.latest.at) < every {
		return p.latest
	}
	v := view{At: now.UTC().Format("15:04:05 UTC")}
	f := frame{state: make([]state, 0, len(p.views))}
	for _, l := range p.views {
		l.read(now, p.names)
		v.Limiters = append(v.Limiters, l.view(now))
		last := l.last()
		f.state = append(f.state, state{l.name, last.stats, last.limits, l.servers, l.keys})
	}
	var b bytes.Buffer
	if err := p.document.ExecuteTemplate(&b, "content", v); err != nil {
		panic("throttlepage: bug: " + err.Error())
	}
	f.content, f.at = template.HTML(b.String()), time.Now()
	p.latest = f
	return f
}

func (l *watched) last() *sample { return &l.history[len(l.history)-1] }

// read asks the Limiter for its figures, and forgets those that are too old.
func (l *watched) read(now time.Time, names naming) {
	s := sample{now, l.source.Stats(), l.source.Limits()}
	old := max(0, len(l.history)-readings+1)
	for old < len(l.history) && now.Sub(l.history[old].at) > span {
		old++
	}
	l.history = append(slices.Delete(l.history, 0, old), s)
	l.single = make(map[string]throttle.BucketStats)
	for i := range s.limits {
		if li := &s.limits[i]; !li.Keyed {
			if b, ok := l.source.Bucket(li.Name, ""); ok {
				l.single[li.Name] = b
			}
		}
	}
	if s.stats.Buckets > many && now.Sub(l.walked) < seldom {
		return
	}
	l.walked = now
	l.keys = top(keyed(l.source.Buckets()), byQueue)
	for i := range l.keys {
		l.keys[i].Key = names(l.keys[i].Key)
	}
	servers := l.source.Servers()
	l.servers, l.served = top(slices.Values(servers), bySilence), len(servers)
	for i := range l.servers {
		v := &l.servers[i]
		v.Host, v.Party = names(v.Host), names(v.Party)
		for j := range v.Quotas {
			v.Quotas[j].Name, v.Quotas[j].Unit = printable(v.Quotas[j].Name), printable(v.Quotas[j].Unit)
		}
	}
}

// keyed yields the buckets that have a key, except those of servers.
func keyed(all iter.Seq[throttle.BucketStats]) iter.Seq[throttle.BucketStats] {
	return func(yield func(throttle.BucketStats) bool) {
		for b := range all {
			if b.Key != "" && b.Limit != serverLimit && !yield(b) {
				return
			}
		}
	}
}

// top returns the first of all in that order, at most most of them. It does not sort all.
func top[T any](all iter.Seq[T], order func(a, b T) int) []T {
	first := make([]T, 0, most+1)
	for x := range all {
		if len(first) == most && order(x, first[most-1]) >= 0 {
			continue
		}
		i, _ := slices.BinarySearchFunc(first, x, order)
		first = slices.Insert(first, i, x)
		first = first[:min(len(first), most)]
	}
	return first
}

// byQueue puts the keys first that have the longest queue, then those that are held the longest, then those that have the
// least left.
func byQueue(a, b throttle.BucketStats) int {
	return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), b.HeldUntil.Compare(a.HeldUntil), cmp.Compare(a.Tokens, b.Tokens),
		cmp.Compare(a.Limit, b.Limit), cmp.Compare(a.Key, b.Key))
}

// bySilence puts the servers first that are held the longest, then those that refused the most.
func bySilence(a, b throttle.ServerStats) int {
	return cmp.Or(b.HeldUntil.Compare(a.HeldUntil), cmp.Compare(b.Refused, a.Refused),
		cmp.Compare(a.Host, b.Host), cmp.Compare(a.Party, b.Party))
}
