package throttle

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/httpthrottle/throttle/internal/jsonfinder"
	"github.com/httpthrottle/throttle/internal/meter"
)

// A SettleFunc returns the true cost of a request from its response. If ok is false, the cost is unknown and the charge stays.
// A negative cost is ignored. It must not read the body, and must be safe for concurrent use.
type SettleFunc func(*http.Request, *http.Response) (cost int64, ok bool)

// Settle corrects the charge of each request in this limit when the headers of its response arrive, as [Grant.Settle] does. It is
// for APIs that report the cost of a request in the headers. It does not fit an [InFlight] limit.
func Settle(f SettleFunc) LimitOption {
	return limitOption(func(l *Limit) {
		l.settles = f
		if f == nil {
			l.fault("Settle(nil): a function is needed")
		} else if l.rule.Frees {
			l.fault("Settle does not fit a limit of kind %s", l.kind)
		}
	})
}

// SettleJSON corrects the charge of each request in this limit when the body of its response was read or closed, as
// [Grant.Settle] does. The cost is the number at a path of names in the JSON body, such as "usage.total_tokens". It is found
// while the caller reads the body: nothing is delayed, and less than 1 KiB is kept. Over TLS on a loopback socket, reading
// becomes slower by a twentieth. It becomes slower by a fifth for JSON with many quotes, such as JSON within a string, and by two
// fifths for small objects within objects.
//
// The numbers at several paths are added up. A path may have alternatives, separated by bars: for
// "usage.input_tokens|message.usage.input_tokens", the last number in the body counts. There may be 16 alternatives in all, of at
// most 16 names each. If the body has several values, as lines or server-sent events, the last one with a number counts. A number
// is rounded up; a negative number or one above the range of int64 is ignored, and -0 is 0. Numbers within arrays are not found.
//
// The charge stays if no number is found, or if the body is closed before each path had a number. So if a figure grows during a
// stream, do not name the place where it appears first. It also stays if the Content-Type is neither JSON nor text/event-stream
// nor missing, or if the body is compressed; net/http decompresses unless the caller asked for compression. If the limit also has
// [Settle], that is applied first.
func SettleJSON(paths ...string) LimitOption {
	return limitOption(func(l *Limit) {
		compiled, err := jsonfinder.Compile(paths)
		if l.costAt = compiled; err != nil {
			for _, fault := range split(err) {
				l.fault("SettleJSON: %w", fault)
			}
		} else if l.rule.Frees {
			l.fault("SettleJSON does not fit a limit of kind %s", l.kind)
		}
	})
}

var (
	errUncharged = errors.New("nothing was charged there")
	errNegative  = errors.New("the cost is negative")
	errSlots     = errors.New("a limit of kind " + string(kindInFlight) + " has no cost to settle")
)

// A SettleEvent says that a charge was corrected.
type SettleEvent struct {
	Context       context.Context // of the request; nil: none is known
	Limit, Key    string
	Charged, Cost int64 // what was charged first, and what it really cost
}

// settle corrects the i-th charge of a Grant.
func (l *Limiter) settle(g *Grant, i int, cost int64) error {
	e, err := l.correct(g, i, cost)
	if err == nil {
		g.by.observer.settled(e)
	}
	return err
}

// correct is settle without a hook.
func (l *Limiter) correct(g *Grant, i int, cost int64) (e SettleEvent, err error) {
	c := &g.grant.Charges()[i]
	switch {
	case cost < 0:
		return e, errNegative
	case c.Limit.Frees:
		return e, errSlots
	}
	charged, err := l.core.Correct(&g.grant, c, min(cost, meter.MaxCount))
	return SettleEvent{g.ctx, c.Limit.Name, c.Key, charged, cost}, err
}

// A Receipt records how long a request waited and what it was charged, and settles the charge. It is for SDKs that do not return
// the response. After several attempts it has the last one that a Transport or [Limiter.Wait] granted. It is safe for concurrent
// use. Each request that is in flight at the same time needs a Receipt of its own.
type Receipt struct {
	mu     sync.Mutex
	grants []*Grant // the last one of each Limiter, the latest first
}

// ContextWithReceipt returns a context under which requests are recorded in the Receipt.
func ContextWithReceipt(ctx context.Context) (context.Context, *Receipt) {
	r := new(Receipt)
	return with(ctx, func(o *overrides) { o.receipt = r }), r
}

// filed returns a copy of the Grant on the heap, recorded in its Receipt.
func (g *Grant) filed() *Grant {
	k, r := new(*g), g.receipt
	r.mu.Lock()
	defer r.mu.Unlock()
	// Grants after the last one of this Limiter belong to inner Transports, and so to the attempt before.
	before := slices.IndexFunc(r.grants, func(other *Grant) bool { return other.limiter == k.limiter })
	r.grants = append([]*Grant{k}, r.grants[before+1:]...)
	return k
}

// Waited returns how long the request waited, in all Limiters together.
func (r *Receipt) Waited() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	var waited time.Duration
	for _, g := range r.grants {
		waited += g.waited
	}
	return waited
}

// Cost returns the charge in the limit of that name: the true cost once it is settled. ok is false if nothing was charged
// there, or if it was refunded.
func (r *Receipt) Cost(limit string) (cost int64, ok bool) {
	g, i := r.find(limit)
	if g == nil {
		return 0, false
	}
	return g.limiter.core.Charged(&g.grant, i)
}

// Settle settles the charge in the limit of that name, as [Grant.Settle] does, with the same errors.
func (r *Receipt) Settle(limit string, cost int64) error {
	err := errUncharged
	if g, i := r.find(limit); g != nil {
		err = g.limiter.settle(g, i, cost)
	}
	if err != nil {
		return fmt.Errorf("throttle: Settle(%q, %d): %w", limit, cost, err)
	}
	return nil
}

// find returns the latest Grant with a charge in the limit of that name, and the index of the charge.
func (r *Receipt) find(limit string) (*Grant, int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, g := range r.grants {
		if i := g.chargeOf(limit); i >= 0 {
			return g, i
		}
	}
	return nil, 0
}
