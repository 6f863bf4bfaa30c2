package pool

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/httpthrottle/throttle"
)

// Forecast returns when n requests like ask would be sent if they came now, behind those that wait, and no other request came. With n = 0, it
// returns when the last of those will be sent that wait where such a request would. It takes no token and no place in a queue.
//
// The times are those after which the members that are in have together been able to pay for all of them, and for all that wait before them:
// the wait that a rejection reports, and [throttle.Waiting], are the same number. It is exact if each member has one limit with a rate, and all requests cost the same. Otherwise, and in general where responses decide,
// it is a lower bound; Least is always true. The Limit and the Key are empty.
//
// The error joins those of all members, if none can send such a request.
func (p *Pool) Forecast(ask throttle.Ask, n int) (throttle.Forecast, error) {
	if n < 0 {
		return throttle.Forecast{}, fmt.Errorf("pool: Forecast of %d requests: the number is negative", n)
	}
	f := throttle.Forecast{Least: true}
	set := p.set.Load()
	usable, _, _ := set.usable(nil)
	var places []place
	var faults []error
	for i, m := range set.members {
		if !usable.has(i) {
			continue
		}
		w, err := m.by.PrepareAsk(ask)
		if err == nil {
			err = m.by.Core().Stand(w, m.door)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("pool: member %q: %w", m.Name, err))
			continue
		}
		places = append(places, place{member: m, waiter: w})
	}
	if len(places) == 0 {
		return f, cmp.Or(errors.Join(faults...), errors.New("pool: bug: no member"))
	}
	for i := range f.Tenths {
		if f.Tenths[i] = time.Duration(math.MaxInt64); !p.shut.Load() {
			f.Tenths[i] = leastOf(places, int64(n/10*(i+1)+(n%10*(i+1)+9)/10))
		}
	}
	return f, nil
}
