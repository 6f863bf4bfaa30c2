package throttleprom

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/internal/metrics"
)

const (
	maxKeys   = 100 // of one Collector
	maxQuotas = 16  // of one host, for as long as the Collector is used
	maxLabel  = 80  // bytes of a name that a server made up
)

type key struct{ limit, key string }

// WithKeys adds the metrics throttle_key_… of some keys of a limit, at most 100 keys in all. A key that has no bucket has no
// series: one that is full is forgotten after a second. For keys that are hosts, the quotas that the server has reported are
// exported as well; if the server counts several accounts, those of the account with the least left. Because a server chooses the
// names of its quotas, only the first 16 names of each host are exported.
func WithKeys(limit string, keys ...string) Option {
	return option(func(c *Collector) {
		for _, k := range keys {
			if !utf8.ValidString(k) {
				c.fault("WithKeys(%q): key %q is not valid UTF-8", limit, k)
			}
			c.keys = append(c.keys, key{limit, k})
		}
		if len(c.keys) > maxKeys {
			c.fault("WithKeys: %d keys are more than %d", len(c.keys), maxKeys)
		}
		if !c.has(limit) {
			c.fault("WithKeys: there is no limit %q", limit)
		}
	})
}

func (c *Collector) has(limit string) bool {
	if c.limiter == nil {
		return true // which is a fault of its own
	}
	for _, s := range c.limiter.Limits() {
		if s.Name == limit && s.Kind != throttle.KindServer && s.Kind != throttle.KindNone {
			return true
		}
	}
	return false
}

func (c *Collector) collectKeys(to func(metrics.Sample)) {
	seen, hosts := make(map[key]bool), make(map[string]bool)
	for _, k := range c.keys {
		if seen[k] {
			continue
		}
		seen[k] = true
		if b, ok := c.limiter.Bucket(k.limit, k.key); ok {
			metrics.ReadBucket(&b, to)
		}
		if !hosts[k.key] {
			hosts[k.key] = true
			c.collectQuotas(to, k.key, c.limiter.Server(k.key))
		}
	}
}

// collectQuotas collects what is left of the quotas of a host.
func (c *Collector) collectQuotas(to func(metrics.Sample), host string, accounts []throttle.ServerStats) {
	least := make(map[string]throttle.QuotaStats)
	for _, a := range accounts {
		for _, q := range a.Quotas {
			name := clean(q.Name)
			if known, ok := least[name]; q.Left >= 0 && (!ok || q.Left < known.Left) {
				least[name] = q
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(least)) {
		if c.names.admit(host, name) {
			q := least[name]
			q.Name = name
			metrics.ReadQuota(host, &q, to)
		}
	}
}

// quotaNames are the names of quotas that are exported, by host.
type quotaNames struct {
	mu     sync.Mutex
	byHost map[string][]string
}

// admit reports whether a quota of that name is exported: it was before, or there is room for another name.
func (n *quotaNames) admit(host, name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	known := n.byHost[host]
	if slices.Contains(known, name) {
		return true
	}
	if len(known) == maxQuotas {
		return false
	}
	if n.byHost == nil {
		n.byHost = make(map[string][]string)
	}
	n.byHost[host] = append(known, strings.Clone(name))
	return true
}

// clean returns a valid value of a label, of bounded length.
func clean(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) > maxLabel {
		s = strings.ToValidUTF8(s[:maxLabel], "")
	}
	return s
}
