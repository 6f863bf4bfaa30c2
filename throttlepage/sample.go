package throttlepage

import (
	"bytes"
	"html/template"
	"iter"
	"slices"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/pool"
)

const (
	fresh    = time.Second     // between two readings while a client looks
	span     = 2 * time.Minute // samples of this time are kept whole
	most     = 50              // keys and servers that are shown of a Limiter
	many     = 10_000          // keys: with more, they are read less often
	seldom   = 5 * time.Second // between two readings of many keys
	copied   = 100_000         // keys: more are not copied, but read again for each query
	views    = 16              // queries whose frames are kept for a second
	readings = int(span/fresh) + 1
)

// A source is what the page reads of a Limiter.
type source interface {
	Stats() throttle.Stats
	Limits() []throttle.LimitStats
	Servers() []throttle.ServerStats
	Stores() []throttle.StoreStats
	Bucket(limit, key string) (throttle.BucketStats, bool)
	Buckets() iter.Seq[throttle.BucketStats]
	Forecast(ask throttle.Ask, n int) (throttle.Forecast, error)
}

// watched is a Limiter, and what the page remembers of it.
type watched struct {
	id, name string
	source   source
	history  []sample // oldest first; never empty once it was read
	memory   memory
	diary    diary
	all      walk
	found    map[query]*selection            // in all
	single   map[string]throttle.BucketStats // by limit, of those without keys
}

// A sample is what a Limiter said at one instant.
type sample struct {
	at     time.Time
	stats  throttle.Stats
	limits []throttle.LimitStats
	stores []throttle.StoreStats
	queue  throttle.Forecast // of the requests that wait; zero: there are none, or they have keys
	pool   *pool.Stats       // nil: it is of a Limiter
}

// A walk is a look at all keys and servers, for all queries. They have the names that are shown.
type walk struct {
	at      time.Time
	keys    []throttle.BucketStats // nil: there are too many
	servers []throttle.ServerStats
}

// A selection is what a query finds in a walk.
type selection struct {
	keys    []throttle.BucketStats
	matched int // keys, of which keys are some
	servers []throttle.ServerStats
	served  int // servers, of which servers are some
}

// A frame is what all viewers of a query see until the next one.
type frame struct {
	at      time.Time // when it was complete
	points  int       // taken so far: charts change only with them
	view    view
	content template.HTML
	brief   template.HTML // content without charts
	state   []state
}

// A state is what state.json says of a Limiter.
type state struct {
	Name    string                 `json:"name"`
	Stats   throttle.Stats         `json:"stats"`
	Limits  []throttle.LimitStats  `json:"limits"`
	Servers []throttle.ServerStats `json:"servers"`
	Keys    []throttle.BucketStats `json:"keys"`
	Events  []eventState           `json:"events"`
	Pool    *pool.Stats            `json:"pool,omitempty"`
}

// frame returns the latest frame of a query, or a new one if that is a second old.
func (p *Page) frame(q query) *frame {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.read.IsZero() || now.Sub(p.read) >= fresh {
		p.readLocked(now)
	}
	if f := p.frames[q]; f != nil {
		return f
	}
	f := &frame{points: p.took, state: make([]state, 0, len(p.views))}
	f.view = view{At: p.read.UTC().Format("15:04:05 UTC"), Filter: q.Filter}
	for _, l := range p.views {
		w := l.find(now, q, p.names)
		f.view.Limiters = append(f.view.Limiters, l.view(now, w))
		last := l.last()
		f.state = append(f.state, state{l.name, last.stats, last.limits, w.servers, w.keys, l.diary.state(), last.pool})
	}
	slices.SortStableFunc(f.view.Limiters, bySeverity)
	f.view.fold()
	f.content = p.render(f.view)
	f.view.Brief = true
	f.brief = p.render(f.view)
	f.view.Brief = false
	f.at = time.Now()
	if len(p.frames) == views {
		clear(p.frames)
	}
	p.frames[q] = f
	return f
}

func (p *Page) render(v view) template.HTML {
	var b bytes.Buffer
	if err := p.document.ExecuteTemplate(&b, "content", v); err != nil {
		panic("throttlepage: bug: " + err.Error())
	}
	return template.HTML(b.String())
}

// readLocked reads all Limiters. Frames before that are old.
func (p *Page) readLocked(now time.Time) {
	p.read = now
	clear(p.frames)
	due := len(p.views) > 0 && p.views[0].memory.due(now, p.every)
	for _, l := range p.views {
		l.read(now, p.names)
		if due {
			l.memory.take(l.last(), p.every)
		}
	}
	if due {
		p.took++
	}
}

func (l *watched) last() *sample { return &l.history[len(l.history)-1] }

// read asks the Limiter for its figures, and forgets those that are too old.
func (l *watched) read(now time.Time, names naming) {
	s := sample{at: now, stats: l.source.Stats(), limits: l.source.Limits(), stores: l.source.Stores()}
	if m, ok := l.source.(members); ok {
		pool := m.Pool()
		s.pool = &pool
	}
	if s.stats.Waiting > 0 && !slices.ContainsFunc(s.limits, isByKey) {
		s.queue, _ = l.source.Forecast(throttle.Ask{}, 0) // the Ask names nothing that could be wrong
	}
	if len(l.history) > 0 {
		l.diary.note(l.last(), &s, l.source, names)
	}
	old := max(0, len(l.history)-readings+1)
	for old < len(l.history) && now.Sub(l.history[old].at) > span {
		old++
	}
	l.history = append(slices.Delete(l.history, 0, old), s)
	if now.Sub(l.all.at) >= seldom { // no client is connected, or the keys are due
		l.all, l.found = walk{}, nil
	}
	l.single = make(map[string]throttle.BucketStats)
	for i := range s.limits {
		if li := &s.limits[i]; !li.Keyed {
			if b, ok := l.source.Bucket(li.Name, ""); ok {
				l.single[li.Name] = b
			}
		}
	}
}

// isByKey reports whether requests of different keys wait separately for a limit.
func isByKey(li throttle.LimitStats) bool { return li.Keyed && li.Kind != throttle.KindServer }

// find returns the keys and servers that a query asks for. All queries share what was read of them.
func (l *watched) find(now time.Time, q query, names naming) *selection {
	age := fresh
	if l.last().stats.Buckets > many {
		age = seldom
	}
	if now.Sub(l.all.at) >= age {
		l.walk(now, names)
	}
	if s := l.found[q]; s != nil {
		return s
	}
	keys := slices.Values(l.all.keys)
	if l.all.keys == nil {
		keys = keyed(l.source.Buckets(), names)
	}
	s := &selection{}
	s.keys, s.matched = top(matching(keys, func(b throttle.BucketStats) bool { return q.matches(b.Key, b.Limit) }), q.compare)
	servers := slices.Values(l.all.servers)
	s.servers, s.served = top(matching(servers, func(s throttle.ServerStats) bool { return q.matches(s.Host, s.Account) }), bySilence)
	if len(l.found) == views {
		clear(l.found)
	}
	l.found[q] = s
	return s
}

// walk reads the servers, and all keys unless there are too many.
func (l *watched) walk(now time.Time, names naming) {
	l.all = walk{at: now, servers: named(l.source.Servers(), names)}
	if n := l.last().stats.Buckets; n <= copied {
		l.all.keys = slices.AppendSeq(make([]throttle.BucketStats, 0, n), keyed(l.source.Buckets(), names))
	}
	l.found = make(map[query]*selection)
}

// keyed yields the buckets that have a key, except those of servers, by the names that are shown.
func keyed(all iter.Seq[throttle.BucketStats], names naming) iter.Seq[throttle.BucketStats] {
	return func(yield func(throttle.BucketStats) bool) {
		for b := range all {
			if b.Key == "" || b.Limit == serverLimit {
				continue
			}
			if b.Key = names(b.Key); !yield(b) {
				return
			}
		}
	}
}

// named returns servers by the names that are shown.
func named(all []throttle.ServerStats, names naming) []throttle.ServerStats {
	for i := range all {
		s := &all[i]
		s.Host, s.Account, s.For, s.Quotas = names(s.Host), names(s.Account), names(s.For), slices.Clone(s.Quotas)
		for j := range s.Quotas {
			s.Quotas[j].Name, s.Quotas[j].Unit = printable(s.Quotas[j].Name), printable(s.Quotas[j].Unit)
		}
	}
	return all
}

// matching yields those of all that match.
func matching[T any](all iter.Seq[T], matches func(T) bool) iter.Seq[T] {
	return func(yield func(T) bool) {
		for x := range all {
			if matches(x) && !yield(x) {
				return
			}
		}
	}
}

// top returns the first of all in that order, at most most of them, and how many there are. It does not sort all.
func top[T any](all iter.Seq[T], order func(a, b T) int) (first []T, n int) {
	first = make([]T, 0, most+1)
	for x := range all {
		n++
		if len(first) == most && order(x, first[most-1]) >= 0 {
			continue
		}
		i, _ := slices.BinarySearchFunc(first, x, order)
		first = slices.Insert(first, i, x)
		first = first[:min(len(first), most)]
	}
	return first, n
}
