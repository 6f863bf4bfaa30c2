package main

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/http"
	"sync"
	"time"
)

const (
	maximumAvailable = 1000
	restoreRate      = 500 // a second; Shopify's least is 100
)

// A shop answers queries, and refuses them as https://shopify.dev/docs/api/usage/limits has it: with status 200 and an
// error in the body. A query takes from the bucket what it may cost at most, and what it did not need is given back when
// it is answered. It is safe for concurrent use.
type shop struct {
	mu        sync.Mutex
	available float64
	at        time.Time
}

func newShop() *shop { return &shop{available: maximumAvailable, at: time.Now()} }

type object map[string]any

func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var asked struct{ Query string }
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		http.Error(w, "not a query", http.StatusBadRequest)
		return
	}
	query := parse(asked.Query)
	requested := query.most()
	answer := object{}
	cost := object{"requestedQueryCost": requested, "actualQueryCost": nil}
	switch {
	case requested > maximumAvailable:
		answer["errors"] = fault("MAX_COST_EXCEEDED", fmt.Sprintf("Query cost is %d, which exceeds the single query max cost limit (%d).",
			requested, maximumAvailable))
	case !s.take(float64(requested), time.Now()):
		answer["errors"] = fault("THROTTLED", "Throttled")
	default:
		data, actual := find(query, "")
		time.Sleep(20*time.Millisecond + time.Duration(actual)*200*time.Microsecond) // the work
		s.giveBack(float64(requested - actual))
		answer["data"], cost["actualQueryCost"] = data, actual
	}
	cost["throttleStatus"] = object{
		"maximumAvailable": maximumAvailable, "currentlyAvailable": int64(s.left(time.Now())), "restoreRate": restoreRate,
	}
	answer["extensions"] = object{"cost": cost}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

func fault(code, text string) []object {
	return []object{{"message": text, "extensions": object{"code": code}}}
}

// find returns what there is of what is asked for inside of an object, and what all that costs, the object included.
func find(in *connection, path string) (found object, cost int64) {
	found, cost = object{"id": in.name + path}, 1
	for _, c := range in.inside {
		nodes := []object{}
		for i := range min(c.first, stock(c.name, path)) {
			node, more := find(c, fmt.Sprint(path, "/", i+1))
			nodes, cost = append(nodes, node), cost+more
		}
		found[c.name] = object{"nodes": nodes}
	}
	return found, cost
}

// stock is how many objects there are of a kind in another: some dozens in the shop, and few in each of those.
func stock(name, path string) int64 {
	if path == "" {
		return 40
	}
	hash := fnv.New32a()
	fmt.Fprint(hash, name, path)
	return int64(hash.Sum32() % 5)
}

// take takes that much if it is there.
func (s *shop) take(cost float64, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restore(now)
	if s.available+1e-6 < cost { // what a sum of fractions may be off
		return false
	}
	s.available -= cost
	return true
}

func (s *shop) giveBack(points float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.available = min(maximumAvailable, s.available+points)
}

func (s *shop) left(now time.Time) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restore(now)
	return s.available
}

func (s *shop) restore(now time.Time) {
	if d := now.Sub(s.at); d > 0 { // requests may get here in another order than they read the clock
		s.available, s.at = min(maximumAvailable, s.available+restoreRate*d.Seconds()), now
	}
}
