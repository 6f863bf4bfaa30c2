package worlds

import (
	"reflect"
	"sync"
	"time"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/quota"
)

// A still is whether a process stands still, as by SIGSTOP, on a machine that is suspended or too busy, or for good. Its callers and the
// responses of the store wait then. So do its timers, which no test could keep from firing on time: they are reached by reflection.
type still struct {
	mu    sync.Mutex
	until time.Duration
	dead  bool
}

func (s *still) isDead() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dead
}

// wait returns when the process does not stand still. Of one that is dead it returns immediately.
func (s *still) wait(f *fleet, a actor) {
	for {
		s.mu.Lock()
		d, dead := s.until-f.now(), s.dead
		s.mu.Unlock()
		if d <= 0 || dead {
			return
		}
		a.sleep(f, d)
	}
}

// stop lets the process stand still for d.
func (p *process) stop(d time.Duration) {
	p.still.mu.Lock()
	p.still.until = max(p.still.until, p.now()+d)
	p.still.mu.Unlock()
	for i, t := range p.timers() {
		if t.Stop() {
			t.Reset(d + time.Duration(1+i)) // one after the other
		}
	}
}

// kill ends the process, as by SIGKILL.
func (p *process) kill() {
	p.still.mu.Lock()
	p.still.dead = true
	p.still.mu.Unlock()
	p.gone = min(p.gone, p.now())
	p.cancel()
	for _, t := range p.timers() {
		t.Stop()
	}
}

// roll has what the process does at random depend on the seed of the world.
func (p *process) roll() {
	r := random(p.seed, "process", int64(p.nth))
	core := *inside[*limiter.Core](p.limiter, "core")
	for _, s := range *inside[[]*bucket.Supply](core, "supplies") {
		s.Dice = meter.Dice(r.Uint64())
	}
	for _, l := range core.Limits { // those without a key have a bucket from the beginning
		if l.Single != nil && l.Single.Leased() != nil {
			if config := reflect.ValueOf(l.Single.Leased().Meter).Elem().FieldByName("config"); config.IsValid() {
				*fieldOf[uint64](config, "Seed") = r.Uint64()
			}
		}
	}
	*inside[meter.Dice](*inside[*quota.Registry](core, "servers"), "seeds") = meter.Dice(r.Uint64())
}

// timers returns the timers of the process's Limiter.
func (p *process) timers() (all []*time.Timer) {
	if p.limiter == nil {
		return nil
	}
	core := *inside[*limiter.Core](p.limiter, "core")
	mu := inside[sync.Mutex](core, "mu")
	mu.Lock()
	defer mu.Unlock()
	for _, name := range []string{"timer", "leaseTimer", "sweeper"} {
		if t := *inside[*time.Timer](core, name); t != nil {
			all = append(all, t)
		}
	}
	for probes := reflect.ValueOf(core).Elem().FieldByName("probes").MapRange(); probes.Next(); {
		all = append(all, *fieldOf[*time.Timer](probes.Value().Elem(), "timer"))
	}
	return all
}

// inside returns an unexported field of a struct.
func inside[T any](of any, name string) *T { return fieldOf[T](reflect.ValueOf(of).Elem(), name) }

func fieldOf[T any](of reflect.Value, name string) *T {
	return (*T)(of.FieldByName(name).Addr().UnsafePointer())
}
