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
	"github.com/httpthrottle/throttle/internal/allowance"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/concurrency"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
	"github.com/httpthrottle/throttle/internal/saved"
)

// A Snapshot is what a Limiter has learned and what has been spent of its budgets, for the next process. [Limiter.SaveFile] and
// [Limiter.LoadFile] keep it in a file. To keep it elsewhere, marshal it as JSON, which has a version and is readable, but whose
// members are no part of this API.
//
// It contains keys as the KeyFuncs returned them, so KeyFuncs should hash secrets. Of what servers reported it contains holds, what was
// learned by a [ServerQuota], and quotas without a name: a quota with a name is reported again by the first response that names it.
//
// Every request that was granted before [Snapshot.Taken] counts, in every limit. The buckets are read one after the other, so a
// request that was granted a little later counts in some limits and not in others. Requests that are granted after their bucket
// was read are missing. To miss none, stop sending requests first.
type Snapshot struct{ state saved.State }

// Taken returns when the Snapshot was taken, by the wall clock.
func (s Snapshot) Taken() time.Time { return s.state.Taken }

// Only returns the Snapshot with only the limits of these names. Use it to restore into a Limiter that has lost some limits, for
// which [Limiter.Restore] would return an error.
func (s Snapshot) Only(limits ...string) Snapshot {
	other := func(name string) bool { return !slices.Contains(limits, name) }
	s.state.Buckets = slices.DeleteFunc(slices.Clone(s.state.Buckets), func(b saved.Bucket) bool { return other(b.Limit) })
	s.state.Servers = slices.DeleteFunc(slices.Clone(s.state.Servers), func(v saved.Server) bool {
		for name := range v.Keys {
			if other(name) {
				return true
			}
		}
		return false
	})
	return s
}

// MarshalJSON returns an object. Its version determines which programs can read it.
func (s Snapshot) MarshalJSON() ([]byte, error) { return s.state.Encode() }

// UnmarshalJSON reads what MarshalJSON returned. It returns an error, and leaves s unchanged, if the text is not a Snapshot, or
// is one of a version that this program cannot read.
func (s *Snapshot) UnmarshalJSON(text []byte) error {
	state, err := saved.Decode(text)
	if err != nil {
		return fmt.Errorf("throttle: Snapshot: %w", err)
	}
	s.state = state
	return nil
}

// Snapshot returns the state to keep over a restart. It contains the charges of requests in flight, but not waiting requests. It
// takes the lock repeatedly, each time for about 0.3 ms, so that requests are not delayed for longer.
func (l *Limiter) Snapshot() Snapshot {
	l.mustBeMade()
	var held time.Duration
	var began meter.Instant
	l.core.LookAtLimits(func(li *bucket.Limit, _, _ int, now meter.Instant) {
		held, began = max(held, time.Duration(li.AllHeldUntil()-now)), now
	})
	now := time.Now()
	s := saved.State{Taken: now.Add(l.core.Start.Add(time.Duration(began)).Sub(now)), Held: held}
	var read []saved.Bucket
	var pieces [][]saved.Bucket // joined without the lock
	l.core.LookAtBuckets(func(b *bucket.Bucket, now meter.Instant) { read = l.appendSaved(read, b, now, began) }, func() bool {
		pieces, read = append(pieces, slices.Clone(read)), read[:0]
		return true
	})
	s.Buckets = slices.Concat(pieces...)
	var servers []saved.Server
	l.core.LookAtServers(func(a *quota.Account, now meter.Instant) { servers = l.appendSavedServer(servers, a, now, began) }, func() {
		s.Servers, servers = append(s.Servers, servers...), servers[:0]
	})
	return Snapshot{s}
}

// appendSaved appends the state of a bucket, unless it is as good as new.
func (l *Limiter) appendSaved(all []saved.Bucket, b *bucket.Bucket, now, began meter.Instant) []saved.Bucket {
	if b.Leased() != nil {
		return all // the store keeps it
	}
	s := saved.Bucket{Limit: b.Limit.Name, Kind: l.policyOf(b.Limit).kind.name, Key: saved.Key(b.Key), After: time.Duration(now - began)}
	s.Held = time.Duration(max(0, b.HeldByCaller()-now))
	switch m := b.Meter.(type) {
	case meter.Saver:
		state := m.Save(now)
		s.Tokens = state.Tokens
		for _, g := range state.Grants {
			s.Spent = append(s.Spent, saved.Spent{Ago: g.Ago, Cost: g.Cost})
		}
	case *aimd.Meter:
		x := m.Snapshot(now)
		s.Learned = &saved.Learned{Rate: x.Rate, Ceiling: x.Ceiling, Failures: x.Failures, Latency: x.Latency, DearHold: x.DearHold}
	case *concurrency.Meter:
		x := m.Snapshot()
		s.Learned = &saved.Learned{InFlight: x.N, Ceiling: x.Ceiling, Latency: x.Latency}
		s.Held = time.Duration(max(0, b.HeldAlone()-now))
	case *allowance.Meter:
		s.Quota = savedQuota(m.Save(now))
	default:
		if s.Held == 0 {
			return all
		}
	}
	s.Share = b.Share().Part()
	if _, full := b.Meter.Matters(now); s.Held > 0 || s.Learned != nil || s.Share > 0 || full > now {
		all = append(all, s)
	}
	return all
}

// savedQuota returns the form of what was learned of a ServerQuota.
func savedQuota(x allowance.Learned) *saved.Reported {
	q := &saved.Reported{Took: x.Took, Held: x.Held}
	for i, h := range x.Hidden {
		q.Hidden[i] = saved.Hidden(h)
	}
	for _, p := range x.Parts {
		q.Parts = append(q.Parts, saved.Part(p))
	}
	return q
}

// learnedQuota undoes savedQuota.
func learnedQuota(q *saved.Reported) allowance.Learned {
	x := allowance.Learned{Took: q.Took, Held: q.Held}
	for i, h := range q.Hidden {
		x.Hidden[i] = allowance.Hidden(h)
	}
	for _, p := range q.Parts {
		x.Parts = append(x.Parts, allowance.Part(p))
	}
	return x
}

// appendSavedServer appends what a server reported about an account, if that is to be kept.
func (l *Limiter) appendSavedServer(all []saved.Server, a *quota.Account, now, began meter.Instant) []saved.Server {
	s := saved.Server{
		Host: a.Key.Host, Apart: a.Apart, Keys: l.keysOf(&a.Key), After: time.Duration(now - began),
		Held: time.Duration(max(0, a.Held()-now)), HostHeld: time.Duration(max(0, a.Server().Held()-now)),
	}
	if !a.Alone() {
		s.Held = 0
	} else if q, ok := a.Saved(now, quota.Unnamed); ok {
		s.Quotas = append(s.Quotas, saved.Quota{
			Name: q.Name, Limit: q.Limit, Left: q.Left, Reset: time.Duration(q.Reset - now), Counted: q.Counted, Reserve: q.Reserve,
		})
	}
	if s.Held > 0 || s.HostHeld > 0 || s.Quotas != nil {
		all = append(all, s)
	}
	return all
}

// keysOf returns the keys of an account by the names of their limits.
func (l *Limiter) keysOf(k *quota.Key) (keys map[string]saved.Key) {
	for limit, key := range k.Keys() {
		if keys == nil {
			keys = make(map[string]saved.Key)
		}
		keys[l.core.Limits[limit].Name] = saved.Key(key)
	}
	return keys
}

// Restore continues from a Snapshot, in a Limiter whose limits have the same names and kinds. The time since the Snapshot counts.
// Call it before the Limiter is used, because restored state replaces present state. The error names everything that does not
// fit; the rest is restored.
func (l *Limiter) Restore(from Snapshot) error {
	l.mustBeMade()
	s := &from.state
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
		faults = append(faults, fmt.Errorf("a hold of %v is impossible", s.Held))
	} else if d := int64(s.Held) - since(0); d > 0 {
		l.core.HoldAll(min(d, meter.MaxPer))
	}
	return join("throttle: Restore", faults...)
}

func errBefore(after time.Duration) error {
	return fmt.Errorf("it cannot have been read %v after the snapshot was taken", after)
}

var errNoFit = errors.New("the saved state does not fit this kind of limit")

func (l *Limiter) restoreBucket(s *saved.Bucket, since int64) error {
	i := slices.IndexFunc(l.core.Limits, func(li *bucket.Limit) bool { return li.Name == s.Limit })
	if i < 0 {
		return errors.New("there is no such limit")
	}
	li, kind := l.core.Limits[i], l.policies[i].kind.name
	switch {
	case s.Kind != "" && s.Kind != kind:
		return fmt.Errorf("it was saved by a limit of kind %s, and this one is of kind %s", s.Kind, kind)
	case (s.Learned != nil) != li.Learns, (s.Quota != nil) != (li.Unit != ""):
		return errNoFit
	case li.Store != nil:
		return errors.New("the limit is Shared: its store keeps what was spent")
	case s.Held < 0:
		return fmt.Errorf("a hold of %v is impossible", s.Held)
	case !(s.Share >= 0 && s.Share <= 1):
		return fmt.Errorf("a share of %v of the estimates is impossible", s.Share)
	case s.Learned != nil && s.Learned.Paused < 0:
		return fmt.Errorf("a pause of %v is impossible", s.Learned.Paused)
	case s.After < 0:
		return errBefore(s.After)
	}
	held := s.Held
	if s.Learned != nil {
		held = max(held, s.Learned.Paused)
	}
	return l.core.Restore(li, string(s.Key), int64(held)-since, func(b *bucket.Bucket, now meter.Instant) error {
		b.RestoreShare(now, bucket.ShareOfPart(s.Share))
		return restoreMeter(b.Meter, s, since, now)
	})
}

func restoreMeter(m meter.Meter, s *saved.Bucket, since int64, now meter.Instant) error {
	switch m := m.(type) {
	case meter.Saver:
		state := meter.State{Tokens: s.Tokens}
		for _, g := range s.Spent {
			state.Grants = append(state.Grants, meter.Granted{Ago: g.Ago, Cost: g.Cost})
		}
		return m.Restore(now, since, state)
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
	case *allowance.Meter:
		if !m.Restore(now, since, learnedQuota(s.Quota)) {
			return errNoFit
		}
	}
	return nil
}

func (l *Limiter) restoreServer(s *saved.Server, since int64) error {
	account, joined := quota.Key{Host: s.Host, Apart: s.Apart}, 0
	for i, li := range l.core.Limits {
		if key, ok := s.Keys[li.Name]; ok {
			account.Join(i, string(key))
			joined++
		}
	}
	if joined < len(s.Keys) {
		return errors.New("it has keys of limits that do not exist")
	}
	return l.core.RestoreAccount(&account, func(a *quota.Account, now meter.Instant) error {
		return restoreAccount(a, s, since, now)
	})
}

func restoreAccount(a *quota.Account, s *saved.Server, since int64, now meter.Instant) error {
	var faults []error
	if s.After < 0 {
		faults, since = append(faults, errBefore(s.After)), 0
	}
	if s.Held < 0 || s.HostHeld < 0 {
		faults = append(faults, fmt.Errorf("holds of %v and %v are impossible", s.Held, s.HostHeld))
	}
	if d := max(0, int64(s.Held)) - since; d > 0 {
		a.Hold(now, min(d, meter.MaxPer))
	}
	if d := max(0, int64(s.HostHeld)) - since; d > 0 {
		a.Server().Hold(now, min(d, meter.MaxPer))
	}
	for _, q := range s.Quotas {
		reset := max(0, int64(q.Reset)) - since
		if q.Limit < -1 || q.Reserve < 0 || q.Reset < 0 || int64(q.Reset) > meter.MaxPer {
			faults = append(faults, fmt.Errorf("quota %q: a limit of %d, with %d in reserve, until %v is impossible", q.Name, q.Limit, q.Reserve, q.Reset))
		} else if reset > 0 {
			a.Restore(now, &quota.Claim{Name: q.Name, Limit: q.Limit, Left: q.Left, Reset: meter.AddInstant(now, reset), Counted: q.Counted, Reserve: q.Reserve})
		}
	}
	return errors.Join(faults...)
}

// SaveFile writes a [Limiter.Snapshot] to a file as JSON, readable only by its owner. Another process that reads the file, and
// one that is killed meanwhile, finds the old Snapshot or the new one, whole: the file is written beside the old one, under a
// name of its own, flushed to the disk and then renamed. So a save at intervals and one at the end of the program do not disturb
// each other; the save that ends last counts.
func (l *Limiter) SaveFile(name string) error {
	text, err := json.Marshal(l.Snapshot())
	if err == nil {
		err = replaceFile(name, text)
	}
	if err != nil {
		return fmt.Errorf("throttle: SaveFile: %w", err)
	}
	return nil
}

// replaceFile writes a file as SaveFile documents.
func replaceFile(name string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*.tmp")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// LoadFile restores what [Limiter.SaveFile] wrote, as [Limiter.Restore] does. A file that does not exist is not an error, because
// there is none at the first start. A file that is damaged, or has a version that this program cannot read, is an error, and the
// file stays as it is.
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
		return fmt.Errorf("throttle: LoadFile: %s cannot be read, and nothing was restored: %w", name, err)
	}
	return l.Restore(s)
}
