package throttlepage

import (
	"cmp"
	"net/http"
	"strings"

	"github.com/httpthrottle/throttle"
)

// A query is which keys and servers a client wants to see, and in which order.
type query struct {
	Filter string // in lower case: a part of the name of a key, a limit, a host or an account; "": all
	Sort   string // an order's name; "": the first one
}

// queryOf returns the query of a request. No name that is shown is longer than what is kept of it.
func queryOf(r *http.Request) query {
	values := r.URL.Query()
	q := query{Filter: strings.ToLower(cut(strings.TrimSpace(values.Get("q"))))}
	for _, o := range orders[1:] {
		if o.Name == values.Get("sort") {
			q.Sort = o.Name
		}
	}
	return q
}

// matches reports whether one of the names, as they are shown, contains the filter.
func (q query) matches(names ...string) bool {
	if q.Filter == "" {
		return true
	}
	for _, name := range names {
		if strings.Contains(strings.ToLower(name), q.Filter) {
			return true
		}
	}
	return false
}

// An order is how keys may be sorted.
type order struct {
	Name, Title string
	compare     func(a, b *throttle.BucketStats) int
}

var orders = []order{
	{"queue", "longest queue", func(a, b *throttle.BucketStats) int {
		return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), b.HeldUntil.Compare(a.HeldUntil), cmp.Compare(a.Tokens, b.Tokens))
	}},
	{"left", "least left", func(a, b *throttle.BucketStats) int { return cmp.Compare(leftOf(a), leftOf(b)) }},
	{"next", "longest wait", func(a, b *throttle.BucketStats) int { return cmp.Compare(b.Wait, a.Wait) }},
	{"rate", "highest rate", func(a, b *throttle.BucketStats) int { return cmp.Compare(b.Rate, a.Rate) }},
	{"key", "name", func(a, b *throttle.BucketStats) int { return cmp.Compare(a.Key, b.Key) }},
}

// leftOf returns which part of a bucket is left.
func leftOf(b *throttle.BucketStats) float64 {
	if b.Capacity <= 0 {
		return b.Tokens
	}
	return b.Tokens / b.Capacity
}

// compare compares two buckets in the order that the query asks for.
func (q query) compare(a, b throttle.BucketStats) int {
	by := orders[0]
	for _, o := range orders {
		if o.Name == q.Sort {
			by = o
		}
	}
	return cmp.Or(by.compare(&a, &b), cmp.Compare(a.Limit, b.Limit), cmp.Compare(a.Key, b.Key))
}

// bySilence puts the servers first that refuse finally, then those that are held the longest, then those that refused the most.
func bySilence(a, b throttle.ServerStats) int {
	if (a.Final != nil) != (b.Final != nil) {
		if a.Final != nil {
			return -1
		}
		return 1
	}
	return cmp.Or(b.HeldUntil.Compare(a.HeldUntil), cmp.Compare(b.Refused, a.Refused),
		cmp.Compare(a.Host, b.Host), cmp.Compare(a.Account, b.Account))
}
