// Package limits has a Transport whose limits are those in a file.
package limits

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/httpthrottle/throttle"
)

// A Config is the content of the file.
type Config struct {
	Rate     int64            `json:"rate"`      // requests per second of a tenant
	Tenants  map[string]int64 `json:"tenants"`   // the same of tenants with another rate
	InFlight int64            `json:"in_flight"` // requests at a time; 0: the limit is gone
	Daily    int64            `json:"daily"`     // requests per day; 0: the limit is gone
}

// A Transport is a [throttle.Transport] whose limits follow a Config.
type Transport struct {
	base    http.RoundTripper
	current atomic.Pointer[throttle.Transport]
	tenants atomic.Pointer[map[string]int64] // for RateFor

	mu     sync.Mutex // held during a change
	config Config     // guarded by mu
}

// New returns a Transport with the limits of a Config.
func New(base http.RoundTripper, c Config) (*Transport, error) {
	t := &Transport{base: base}
	return t, t.Set(c)
}

// RoundTrip sends a request under the limits of now.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	return t.current.Load().RoundTrip(req)
}

// Follow reads the file every so often until the context ends. What cannot be used is logged, and changes nothing.
func (t *Transport) Follow(ctx context.Context, file string, every time.Duration, log *slog.Logger) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	before := ""
	for {
		text, err := os.ReadFile(file)
		if found := fmt.Sprint(string(text), err); found != before {
			before = found
			if err == nil {
				err = t.parse(text)
			}
			if err != nil {
				log.Error("the limits stay as they are", "file", file, "error", err)
			} else {
				log.Info("the limits are those of the file", "file", file)
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func (t *Transport) parse(text []byte) error {
	var c Config
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&c); err != nil {
		return err
	}
	return t.Set(c)
}

// Set changes the limits to those of a Config. After an error they are as before.
func (t *Transport) Set(c Config) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	next, err := t.check(c)
	if err != nil {
		return err
	}
	return t.apply(next, c)
}

// check returns a Transport with the limits of a Config: New names everything that is wrong with them.
func (t *Transport) check(c Config) (*throttle.Transport, error) {
	tenant := func(req *http.Request) string { return req.Header.Get("X-Tenant") }
	rateOf := func(tenant string) (int64, time.Duration) {
		if n, ok := (*t.tenants.Load())[tenant]; ok {
			return n, time.Second
		}
		return 0, 0
	}
	limits := []throttle.Limit{throttle.SlidingWindow(c.Rate, time.Second, throttle.Name("tenant"), throttle.Key(tenant), throttle.RateFor(rateOf))}
	if c.InFlight != 0 {
		limits = append(limits, throttle.InFlight(c.InFlight))
	}
	if c.Daily != 0 {
		limits = append(limits, throttle.FixedWindow(c.Daily, 24*time.Hour, throttle.Name("daily")))
	}
	next, err := throttle.New(t.base, throttle.WithLimit(limits...))
	for tenant, n := range c.Tenants {
		if n <= 0 {
			err = errors.Join(err, fmt.Errorf("tenant %q: a rate of %d is not positive", tenant, n))
		}
	}
	return next, err
}

func names(t *throttle.Transport) (all []string) {
	for _, limit := range t.Limiter().Limits() {
		all = append(all, limit.Name)
	}
	return all
}

// apply changes the limits in place if they have the same names, so that it reaches requests that wait.
func (t *Transport) apply(next *throttle.Transport, c Config) (err error) {
	before := t.config
	t.tenants.Store(&c.Tenants)
	if old := t.current.Load(); old != nil && slices.Equal(names(old), names(next)) {
		if err = change(old.Limiter(), c); err != nil {
			t.tenants.Store(&before.Tenants)
			return errors.Join(err, change(old.Limiter(), before))
		}
	} else if err = t.replace(old, next); err != nil {
		t.tenants.Store(&before.Tenants)
		return err
	}
	t.config = c
	return nil
}

func change(l *throttle.Limiter, c Config) error {
	err := errors.Join(l.SetRate("tenant", c.Rate, time.Second), l.Refresh("tenant"))
	if c.InFlight != 0 {
		err = errors.Join(err, l.SetInFlight("in-flight", c.InFlight))
	}
	if c.Daily != 0 {
		err = errors.Join(err, l.SetRate("daily", c.Daily, 24*time.Hour))
	}
	return err
}

// replace has new requests take another Transport. It knows what was spent of the limits that stay. Requests that wait or are
// in flight end in the old one.
func (t *Transport) replace(old, next *throttle.Transport) error {
	if old != nil {
		if err := next.Limiter().Restore(old.Limiter().Snapshot().Only(names(next)...)); err != nil {
			return err
		}
	}
	t.current.Store(next)
	return nil
}
