package limiter

import (
	"maps"
	"sync/atomic"

	"github.com/httpthrottle/throttle/internal/quota"
)

const maxModelHosts = 64

// models has the hosts that count requests by their model, or may do so. The model is in the body, which is read only where it matters, and
// without the lock.
type models struct {
	hosts atomic.Pointer[map[string]quota.Models] // the map is replaced, and never changed; nil: there are none
}

// noteLocked notes what the last response of a host shows.
func (m *models) noteLocked(g *quota.Gate) {
	host, now := g.Account.Key.Host, g.Models()
	old := m.hosts.Load()
	if old == nil && now == quota.NoModels || old != nil && (*old)[host] == now {
		return
	}
	hosts := make(map[string]quota.Models)
	if old != nil {
		maps.Copy(hosts, *old)
	}
	if delete(hosts, host); now != quota.NoModels && len(hosts) < maxModelHosts {
		hosts[host] = now
	}
	m.hosts.Store(&hosts)
}

// Models returns whether a host counts requests by their model. If it may do so, responses are to be reported with the model, and
// requests that wait are to have it.
func (l *Core) Models(host string) quota.Models {
	if hosts := l.models.hosts.Load(); hosts != nil {
		return (*hosts)[host]
	}
	return quota.NoModels
}
