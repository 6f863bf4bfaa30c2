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

	"github.com/httpthrottle/throttle/internal/bucket"
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
	l.core.LookAtBuckets(func(b *bucket.Bucket, now meter.Instant) {
		if of, ok := saved.BucketOf(b, l.policyOf(b.Limit).kind.name, now, began); ok {
			read = append(read, of)
		}
	}, func() bool {
		pieces, read = append(pieces, slices.Clone(read)), read[:0]
		return true
	})
	s.Buckets = slices.Concat(pieces...)
	var servers []saved.Server
	l.core.LookAtServers(func(a *quota.Account, now meter.Instant) {
		if of, ok := saved.ServerOf(a, l.core.Limits, now, began); ok {
			servers = append(servers, of)
		}
	}, func() {
		s.Servers, servers = append(s.Servers, servers...), servers[:0]
	})
	return Snapshot{s}
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

func (l *Limiter) restoreBucket(s *saved.Bucket, since int64) error {
	i := slices.IndexFunc(l.core.Limits, func(li *bucket.Limit) bool { return li.Name == s.Limit })
	if i < 0 {
		return errors.New("there is no such limit")
	}
	li := l.core.Limits[i]
	if err := s.Check(li, l.policies[i].kind.name); err != nil {
		return err
	}
	return l.core.Restore(li, string(s.Key), int64(s.HeldFor())-since, func(b *bucket.Bucket, now meter.Instant) error {
		return s.Restore(b, since, now)
	})
}

func (l *Limiter) restoreServer(s *saved.Server, since int64) error {
	account, err := s.Account(l.core.Limits)
	if err != nil {
		return err
	}
	return l.core.RestoreAccount(&account, func(a *quota.Account, now meter.Instant) error { return s.Restore(a, since, now) })
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
