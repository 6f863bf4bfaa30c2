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
	if now, old := g.Models(), m.hosts.Load(); now != quota.NoModels || old != nil { // as for few
		m.setLocked(g.Account.Key.Host, now, old)
	}
}

// setLocked notes what a host shows; old is what is known of all hosts.
func (m *models) setLocked(host string, now quota.Models, old *map[string]quota.Models) {
	if old != nil && (*old)[host] == now {
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
