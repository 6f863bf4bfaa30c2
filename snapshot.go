package throttle

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/concurrency"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/queue"
	"github.com/httpthrottle/throttle/internal/quota"
)

// A Snapshot is what a Limiter has learned and what has been spent of its budgets. It is meant for the next process, as JSON
// for example. It contains keys as the KeyFuncs returned them, so KeyFuncs should hash secrets; JSON keeps only keys that are
// valid UTF-8. Of what servers reported it contains holds, and quotas without a name: a quota with a name is told again by the first
// response that names it.
//
// Everything that was granted before Taken counts, in every limit. The buckets are read one after the other, so what was granted
// a little later counts in some limits and not in others. A request that is granted after its bucket was read is lost, as is
// every request after the Snapshot; to lose none, stop sending requests first.
type Snapshot struct {
	Taken   time.Time        `json:"taken"`
	Buckets []BucketSnapshot `json:"buckets,omitzero"`
	Servers []ServerSnapshot `json:"servers,omitzero"`
	Held    time.Duration    `json:"held,omitzero"` // for how long yet all keys, by HoldAll
}

// A BucketSnapshot is the state of one bucket that is not as good as new, exact as of the instant at which it was read.
type BucketSnapshot struct {
	Limit   string        `json:"limit"`
	Kind    string        `json:"kind,omitzero"` // of the limit, such as "bucket"
	Key     string        `json:"key,omitzero"`
	Tokens  float64       `json:"tokens"`           // what was left of a TokenBucket or a Pace
	Spent   []Spent       `json:"spent,omitzero"`   // of a window
	Learned *Learned      `json:"learned,omitzero"` // by an Adaptive limit
	Held    time.Duration `json:"held,omitzero"`    // for how long yet
	After   time.Duration `json:"after,omitzero"`   // it was read that long after Taken
}

// Spent is what a window has granted.
type Spent struct {
	Ago  time.Duration `json:"ago"` // before the bucket was read
	Cost int64         `json:"cost"`
}

// A ServerSnapshot is what a server has reported of its limits.
type ServerSnapshot struct {
	Host   string            `json:"host"`
	Keys   map[string]string `json:"keys,omitzero"` // by which requests are counted there, by the limit that they are keys of
	Held   time.Duration     `json:"held,omitzero"` // for how long yet
	Quotas []QuotaSnapshot   `json:"quotas,omitzero"`

	HostHeld time.Duration `json:"host_held,omitzero"` // for how long yet all requests to the host
	After    time.Duration `json:"after,omitzero"`     // it was read that long after Taken
}

// A QuotaSnapshot is what is left of a quota.
type QuotaSnapshot struct {
	Name    string        `json:"name"`
	Limit   int64         `json:"limit"` // -1: not known
	Left    int64         `json:"left"`  // less the requests in flight
	Reset   time.Duration `json:"reset"` // how long until more is left
	Counted bool          `json:"counted"`
	Reserve int64         `json:"reserve,omitzero"`
}

// Snapshot returns the state to keep over a restart. Waiting requests are not part of it; of requests in flight, their charges
// are. It takes the lock for about 0.3 ms at once, so that requests go on meanwhile.
func (l *Limiter) Snapshot() Snapshot {
	l.mustBeMade()
	held, began := l.core.HeldFor()
	now := time.Now()
	s := Snapshot{Taken: now.Add(l.core.Start.Add(time.Duration(began)).Sub(now)), Held: held}
	var read []BucketSnapshot
	var pieces [][]BucketSnapshot // joined without the lock
	l.core.Look(func(b *queue.Bucket, now meter.Instant) { read = l.appendSaved(read, b, now, began) }, func() bool {
		pieces, read = append(pieces, slices.Clone(read)), read[:0]
		return true
	})
	s.Buckets = slices.Concat(pieces...)
	for some := range l.parties() {
		s.Servers = append(s.Servers, l.saveServers(some, began)...)
	}
	return s
}

// appendSaved appends the state of a bucket, unless it is as good as new.
func (l *Limiter) appendSaved(saved []BucketSnapshot, b *queue.Bucket, now, began meter.Instant) []BucketSnapshot {
	if b.Lent() != nil {
		return saved // the store keeps it
	}
	s := BucketSnapshot{Limit: b.Limit.Name, Kind: string(l.policyOf(b.Limit).kind), Key: b.Key, After: time.Duration(now - began)}
	if b.Extra != nil {
		s.Held = time.Duration(max(0, b.Held-now))
	}
	switch m := b.Meter.(type) {
	case meter.Saver:
		state := m.Save(now)
		s.Tokens = state.Tokens
		for _, g := range state.Grants {
			s.Spent = append(s.Spent, Spent{g.Ago, g.Cost})
		}
	case *aimd.Meter:
		x := m.Snapshot(now)
		s.Learned = &Learned{Rate: x.Rate, Ceiling: x.Ceiling, Failures: x.Failures, Latency: x.Latency, DearHold: x.DearHold}
		s.Held = time.Duration(max(0, b.HeldAlone()-now))
	case *concurrency.Meter:
		x := m.Snapshot()
		s.Learned = &Learned{InFlight: x.N, Ceiling: x.Ceiling, Latency: x.Latency}
		s.Held = time.Duration(max(0, b.HeldAlone()-now))
	default:
		if s.Held == 0 {
			return saved
		}
	}
	if _, full := b.Meter.Matters(now); s.Held > 0 || s.Learned != nil || full > now {
		saved = append(saved, s)
	}
	return saved
}

// saveServers returns what servers reported, given a gate of each party.
func (l *Limiter) saveServers(gates []*queue.Bucket, began meter.Instant) (saved []ServerSnapshot) {
	l.core.LookAtGates(gates, func(g *queue.GateBucket, now meter.Instant) {
		s := ServerSnapshot{
			Host: g.Key().Host, Keys: l.keysOf(g.Key()), After: time.Duration(now - began),
			Held: time.Duration(max(0, g.Account.Held()-now)), HostHeld: time.Duration(max(0, g.Party.Host.Server.Held()-now)),
		}
		if q, ok := g.Account.Saved(now, queue.AnyQuota); ok {
			s.Quotas = append(s.Quotas, QuotaSnapshot{
				q.Name, q.Limit, q.Left, time.Duration(q.Reset - now), q.Counted, q.Reserve,
			})
		}
		if s.Held > 0 || s.HostHeld > 0 || s.Quotas != nil {
			saved = append(saved, s)
		}
	})
	return saved
}

// keysOf returns the keys of a gate by the names of their limits.
func (l *Limiter) keysOf(g *queue.GateKey) (keys map[string]string) {
	for limit, key := range g.Keys() {
		if keys == nil {
			keys = make(map[string]string)
		}
		keys[l.core.Limits[limit].Name] = key
	}
	return keys
}

// Restore continues from a Snapshot, in a Limiter whose limits have the same names and kinds. The time since the Snapshot counts.
// It is meant for a Limiter that has not been used yet: what it restores replaces what there is. The error names everything that
// does not fit, and the rest is restored.
func (l *Limiter) Restore(s Snapshot) error {
	l.mustBeMade()
	since := func(after time.Duration) int64 { return max(0, int64(time.Since(s.Taken)-after)) }
	var faults []error
	for i := range s.Buckets {
		if err := l.restoreBucket(&s.Buckets[i], since(s.Buckets[i].After)); err != nil {
			faults = append(faults, fmt.Errorf("limit %q, key %q: %w", s.Buckets[i].Limit, s.Buckets[i].Key, err))
		}
	}
	for i := range s.Servers {
		if err := l.restoreServer(&s.Servers[i], since(s.Servers[i].After)); err != nil {
			faults = append(faults, fmt.Errorf("server %q: %w", s.Servers[i].Host, err))
		}
	}
	if s.Held < 0 {
		faults = append(faults, fmt.Errorf("a hold of %v cannot be", s.Held))
	} else if d := int64(s.Held) - since(0); d > 0 {
		l.core.HoldAll(min(d, meter.MaxPer))
	}
	return join("throttle: Restore", faults...)
}

func errBefore(after time.Duration) error {
	return fmt.Errorf("it cannot have been read %v after the snapshot was taken", after)
}

var errNoFit = errors.New("what was saved does not fit this kind of limit")

func (l *Limiter) restoreBucket(s *BucketSnapshot, since int64) error {
	i := slices.IndexFunc(l.core.Limits, func(li *queue.Limit) bool { return li.Name == s.Limit })
	if i < 0 {
		return errors.New("there is no such limit")
	}
	li, kind := l.core.Limits[i], l.policies[i].kind
	switch {
	case s.Kind != "" && s.Kind != string(kind):
		return fmt.Errorf("it was saved by a limit of kind %s, and this one is of kind %s", s.Kind, kind)
	case (s.Learned != nil) != li.Learns:
		return errNoFit
	case li.Store != nil:
		return errors.New("the limit is Shared: its store keeps what was spent")
	case s.Held < 0:
		return fmt.Errorf("a hold of %v cannot be", s.Held)
	case s.After < 0:
		return errBefore(s.After)
	}
	p := queue.Pending{Paid: queue.Paid{Charges: make([]queue.Charge, 0, 1)}}
	p.Add(li, s.Key, 0)
	restore := func(b *queue.Bucket, now meter.Instant) error { return restoreMeter(b.Meter, s, since, now) }
	for {
		asked, err := l.core.Restore(&p, int64(s.Held)-since, restore)
		if asked {
			return err
		}
		if err := l.askRates(&p); err != nil {
			return err
		}
	}
}

func restoreMeter(m meter.Meter, s *BucketSnapshot, since int64, now meter.Instant) error {
	switch m := m.(type) {
	case meter.Saver:
		saved := meter.State{Tokens: s.Tokens}
		for _, g := range s.Spent {
			saved.Grants = append(saved.Grants, meter.Granted{Ago: g.Ago, Cost: g.Cost})
		}
		return m.Restore(now, since, saved)
	case *aimd.Meter:
		x := s.Learned
		if !m.Learn(now, aimd.Learned{Rate: x.Rate, Ceiling: x.Ceiling, Failures: x.Failures, Latency: x.Latency, DearHold: x.DearHold}) {
			return errNoFit
		}
	case *concurrency.Meter:
		x := s.Learned
		if !m.Learn(now, concurrency.Learned{N: x.InFlight, Ceiling: x.Ceiling, Latency: x.Latency}) {
			return errNoFit
		}
	}
	return nil
}

func (l *Limiter) restoreServer(s *ServerSnapshot, since int64) error {
	gate, joined := queue.GateKey{Host: s.Host}, 0
	for i, li := range l.core.Limits {
		if key, ok := s.Keys[li.Name]; ok {
			gate.Join(i, key)
			joined++
		}
	}
	if joined < len(s.Keys) {
		return errors.New("it counts by the keys of limits that there are not")
	}
	return l.core.RestoreGate(gate, func(g *queue.GateBucket, now meter.Instant) error {
		return restoreGate(g, s, since, now)
	})
}

func restoreGate(g *queue.GateBucket, s *ServerSnapshot, since int64, now meter.Instant) error {
	var faults []error
	if s.After < 0 {
		faults, since = append(faults, errBefore(s.After)), 0
	}
	if s.Held < 0 || s.HostHeld < 0 {
		faults = append(faults, fmt.Errorf("holds of %v and %v cannot be", s.Held, s.HostHeld))
	}
	if d := max(0, int64(s.Held)) - since; d > 0 {
		g.Account.Hold(now, min(d, meter.MaxPer))
	}
	if d := max(0, int64(s.HostHeld)) - since; d > 0 {
		g.Party.Host.Server.Hold(now, min(d, meter.MaxPer))
	}
	for _, q := range s.Quotas {
		reset := max(0, int64(q.Reset)) - since
		if q.Limit < -1 || q.Reserve < 0 || q.Reset < 0 || int64(q.Reset) > meter.MaxPer {
			faults = append(faults, fmt.Errorf("quota %q: a limit of %d, with %d in reserve, until %v cannot be", q.Name, q.Limit, q.Reserve, q.Reset))
		} else if reset > 0 {
			g.Account.Restore(now, &quota.Tell{Name: q.Name, Limit: q.Limit, Left: q.Left, Reset: meter.AddInstant(now, reset), Counted: q.Counted, Reserve: q.Reserve})
		}
	}
	return errors.Join(faults...)
}

// SaveFile writes a [Limiter.Snapshot] to a file as JSON, readable only by its owner. Another process that reads the file, and one
// that is killed meanwhile, finds the old Snapshot or the new one, whole: the file is written beside the old one, under a name of
// its own, flushed to the disk and then renamed. So a save at intervals and one at the end of the program do not disturb each
// other; the last to end counts.
func (l *Limiter) SaveFile(name string) (err error) {
	text, err := json.Marshal(l.Snapshot())
	if err != nil {
		return fmt.Errorf("throttle: SaveFile: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*.tmp")
	if err != nil {
		return fmt.Errorf("throttle: SaveFile: %w", err)
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("throttle: SaveFile: %w", err)
	}
	return nil
}

// LoadFile restores what [Limiter.SaveFile] wrote, as [Limiter.Restore] does. A file that does not exist is no error: it is so at
// the first start.
func (l *Limiter) LoadFile(name string) error {
	text, err := os.ReadFile(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("throttle: LoadFile: %w", err)
	}
	var s Snapshot
	if err := json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf("throttle: LoadFile: %s: %w", name, err)
	}
	return l.Restore(s)
}
