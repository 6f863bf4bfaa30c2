package throttle

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/httpthrottle/throttle/internal/pattern"
)

// A CostFunc returns how many tokens a request costs. It must not change the request or read its body, and must be safe
// for concurrent use. A cost of 0 means that the limit does not apply; a request with a negative cost is rejected.
type CostFunc func(*http.Request) int64

// A SettleFunc returns the true cost of a request from its response. If ok is false, the cost is unknown and the charge stays.
// A negative cost is ignored. It must not read the body, and must be safe for concurrent use.
type SettleFunc func(*http.Request, *http.Response) (cost int64, ok bool)

// A JSONCostFunc returns the true cost of a request from numbers in the body of its response, for [SettleJSONFunc]. A number that was
// not found is -1. If ok is false, or the cost is negative, the charge stays. It must not read the body, and must be safe for concurrent
// use.
type JSONCostFunc func(resp *http.Response, numbers []int64) (cost int64, ok bool)

// costByPattern returns a CostFunc that returns the cost of the pattern that matches a request, or 1 if none does.
func costByPattern(costs map[string]int64) (CostFunc, error) {
	var faults []error
	sorted := slices.Sorted(maps.Keys(costs)) // for errors that are the same each time
	for _, p := range sorted {
		if costs[p] < 0 {
			faults = append(faults, fmt.Errorf("cost %d of pattern %q is negative", costs[p], p))
		}
	}
	matcher, err := pattern.New(sorted, func(p string) int64 { return costs[p] })
	return func(r *http.Request) int64 {
		if cost, ok := matcher.Match(r); ok {
			return cost
		}
		return 1
	}, errors.Join(append(faults, err)...)
}
