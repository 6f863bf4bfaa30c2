package saved

import (
	"errors"
	"fmt"
	"time"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
)

// ServerOf returns what a server has reported until now about an account of a Limiter with these limits, for a State that was begun
// then. It reports false if nothing of it is to be kept.
func ServerOf(a *quota.Account, limits []*bucket.Limit, now, began meter.Instant) (s Server, ok bool) {
	s = Server{
		Host: a.Key.Host, Parts: a.Key.Parts, Keys: keysOf(&a.Key, limits), After: time.Duration(now - began),
		Held: time.Duration(max(0, a.Held()-now)), HostHeld: time.Duration(max(0, a.Server().Held()-now)),
	}
	if s.Guessed = s.Held > 0 && a.Guessed(); !a.Alone() {
		s.Held, s.Guessed = 0, false
	} else if q, ok := a.Saved(now, quota.Unnamed); ok {
		s.Quotas = append(s.Quotas, Quota{
			Name: q.Name, Limit: q.Limit, Left: q.Left, Reset: time.Duration(q.Reset - now), Counted: q.Counted, Reserve: q.Reserve,
		})
	}
	return s, s.Held > 0 || s.HostHeld > 0 || s.Quotas != nil
}

// keysOf returns the keys of an account by the names of their limits.
func keysOf(k *quota.Key, limits []*bucket.Limit) (keys map[string]Key) {
	for limit, key := range k.Keys() {
		if keys == nil {
			keys = make(map[string]Key)
		}
		keys[limits[limit].Name] = Key(key)
	}
	return keys
}

// Account returns the key of the account, in a Limiter with these limits.
func (s *Server) Account(limits []*bucket.Limit) (quota.Key, error) {
	account, joined := quota.Key{Host: s.Host, Parts: s.Parts}, 0
	for i, li := range limits {
		if key, ok := s.Keys[li.Name]; ok {
			account.Join(i, string(key))
			joined++
		}
	}
	if joined < len(s.Keys) {
		return account, errors.New("it has keys of limits that do not exist")
	}
	return account, nil
}

// Restore adds what was saved since nanoseconds ago to an account. The error says what of it cannot be right; the rest is restored.
func (s *Server) Restore(a *quota.Account, since int64, now meter.Instant) error {
	var faults []error
	if s.After < 0 {
		faults, since = append(faults, errBefore(s.After)), 0
	}
	if s.Held < 0 || s.HostHeld < 0 {
		faults = append(faults, fmt.Errorf("holds of %v and %v are impossible", s.Held, s.HostHeld))
	}
	hold := a.Hold
	if s.Guessed {
		hold = a.Guess
	}
	if d := max(0, int64(s.Held)) - since; d > 0 {
		hold(now, min(d, meter.MaxPer))
	}
	if d := max(0, int64(s.HostHeld)) - since; d > 0 {
		a.Server().Hold(now, min(d, meter.MaxPer))
	}
	for _, q := range s.Quotas {
		reset := max(0, int64(q.Reset)) - since
		if q.Limit < -1 || q.Reserve < 0 || q.Reset < 0 || int64(q.Reset) > meter.MaxPer {
			faults = append(faults, fmt.Errorf("quota %q: a limit of %d, with %d in reserve, until %v is impossible", q.Name, q.Limit, q.Reserve, q.Reset))
		} else if reset > 0 {
			a.Restore(now, &quota.Figures{Name: q.Name, Limit: q.Limit, Left: q.Left, Reset: meter.AddInstant(now, reset), Counted: q.Counted, Reserve: q.Reserve})
		}
	}
	return errors.Join(faults...)
}
