package throttle

import (
	"cmp"
	"net/http"

	"github.com/httpthrottle/throttle/headers"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/quota"
	"github.com/httpthrottle/throttle/internal/traits"
)

// A call is a request on its way through a Transport, and what is known of it. It is on the stack while the request waits, where 16 bytes more
// cost each waiter 2 KiB (see TestMemoryOfAWaiter), so what can be derived is a method.
type call struct {
	req *http.Request
	*overrides
	at    stage
	tries bool // it is left to the caller if it cannot go immediately
}

// A stage says how far a request has come when its RoundTrip returns or panics. It decides who ends the flight.
type stage uint8

const (
	unsent    stage = iota // it was not sent, so its body is to be closed
	inFlight               // its flight ends now
	elsewhere              // nothing is left to do: its report or its body ends the flight, or it was left to the caller
)

// callOf returns the call of a request that has arrived.
func callOf(req *http.Request) call { return call{req: req, overrides: overridesOf(req.Context())} }

// ended returns why the request has ended; nil: it has not.
func (c *call) ended() error {
	//lint:ignore SA1019 http.Client sets Cancel with its Timeout
	return limiter.Ended(c.req.Context(), c.req.Cancel)
}

// A tariff is what a Transport charges requests by. It depends on the options alone.
type tariff struct {
	limiter *Limiter
	key     KeyFunc  // for limits without a key of their own; nil: one key for all
	cost    CostFunc // for limits without a cost of their own; nil: 1
	hints   *headers.Reader
	price   *limiter.Price // of each request without overrides in its context; nil: its limits differ in keys or costs
	orders  bool           // such a request has a key or a cost of its own, the same in all limits
	units   bool           // some limit is in a unit of servers
	byHost  bool           // some limit counts requests without a key by host
}

// passBy sets the key of the gate of a request, except the keys of limits. It looks for the model of the request if its server is known to
// count by models as surely as that.
func (t *tariff) passBy(c *call, gate *quota.Key, surely quota.Models) {
	gate.Host = traits.Name(c.req)
	if c.req.URL == nil {
		return
	}
	traits.Describe(gate, c.req, t.limiter.seed, t.limiter.core.Models(gate.Host) >= surely)
	if parts := t.hints.Parts(gate.Host); len(parts) > 0 {
		gate.Parts = traits.Parts(c.req, parts)
	}
}

// gateOf returns the gate of a request that waits, or has been sent.
func (t *tariff) gateOf(c *call) *quota.Key {
	g := new(quota.Key)
	t.passBy(c, g, quota.TriesModels) // the server may be found to count by model meanwhile
	key := t.keyOf(c)
	policies := t.limiter.own()
	for i := range policies {
		g.Join(i, policies[i].keyOf(c.req, key))
	}
	return g
}

// passAfter sets by what else the server may count a request whose response has hints, with its model if that is being tried. It returns the
// gate of the request, if that is needed.
func (t *tariff) passAfter(c *call, a *limiter.Answer, gated, needed bool) (gate *quota.Key) {
	if needed {
		gate = t.gateOf(c)
	}
	if gated {
		a.Traits = traits.Of(c.req, len(a.Hints.Quotas) > 0 && t.limiter.core.Models(traits.Name(c.req)) == quota.TriesModels)
	}
	return gate
}

// charge adds the charge of a request in each limit, and sets the key of its gate, if it passes one.
func (t *tariff) charge(c *call, r *limiter.Request, gate *quota.Key) {
	host, parts := "", ""
	switch {
	case gate != nil:
		t.passBy(c, gate, quota.CountsModels)
		host, parts = gate.Host, gate.Parts
	case t.byHost:
		host = traits.Name(c.req)
		if t.units && c.req.URL != nil {
			parts = traits.Parts(c.req, t.hints.Parts(host))
		}
	}
	if t.price != nil && !t.orders && c.overrides == noOverrides {
		r.AddPrice(t.price)
		return
	}
	t.chargeEach(c, r, gate, cmp.Or(host, NoKey), parts)
}

// chargeEach is charge where functions return keys or costs, or the context has some. A request without a key is counted by host. In a limit in
// a unit of the server, it is counted by host and by the parts that the API counts separately.
func (t *tariff) chargeEach(c *call, r *limiter.Request, gate *quota.Key, host, parts string) {
	key, shared := t.keyOf(c), t.costOf(c)
	account := host
	if t.units && parts != "" {
		account += " " + parts
	}
	policies := t.limiter.own()
	for i := range policies {
		by, cost := &policies[i], shared
		if by.priced || c.costs != nil {
			cost = by.costOf(c, shared)
		}
		if cost == 0 && gate == nil {
			continue
		}
		key := by.keyOf(c.req, key)
		if cost != 0 {
			unkeyed := host
			if by.rule.Unit != "" {
				unkeyed = account
			}
			by.chargeTo(r, key, unkeyed, cost)
		}
		if gate != nil {
			gate.Join(i, key)
		}
	}
}

// costOf returns the cost of a request in limits without a cost of their own.
func (t *tariff) costOf(c *call) int64 {
	switch {
	case c.hasCost:
		return c.cost
	case t.cost != nil:
		return t.cost(c.req)
	}
	return 1
}

// costOf returns the cost of a request in a limit.
func (p *policy) costOf(c *call, shared int64) int64 {
	if cost, ok := c.costFor(p.rule.Name); ok {
		return cost
	}
	switch {
	case p.cost != nil:
		return p.cost(c.req)
	case p.priced:
		return 1 // slot
	}
	return shared
}

// chargeTo adds a charge of the limit. Without a key, limits that learn count requests by host or account, because no host shows
// anything of another one; others count them together.
func (p *policy) chargeTo(r *limiter.Request, key, unkeyed string, cost int64) {
	if key == "" && p.rule.Hosted {
		r.AddByHost(p.at, unkeyed, cost)
	} else {
		r.Add(p.at, key, cost)
	}
}

// keyOf returns the key of a request in limits without a key of their own; "": it has none.
func (t *tariff) keyOf(c *call) string {
	switch {
	case c.hasKey:
		return c.key
	case t.key == nil:
		return ""
	}
	return keyBy(t.key, c.req)
}

// keyOf returns the key of a request in a limit.
func (p *policy) keyOf(req *http.Request, shared string) string {
	if p.key != nil {
		return keyBy(p.key, req)
	}
	return shared
}

// keyBy returns the key of a request.
func keyBy(f KeyFunc, req *http.Request) string {
	if key := f(req); key != "" {
		return key
	}
	return NoKey
}
