package throttlepage

import (
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/httpthrottle/throttle"
)

// A fake is a source with fixed figures, which counts how often it is read.
type fake struct {
	mu      sync.Mutex // of all below, while a Page reads them
	stats   throttle.Stats
	limits  []throttle.LimitStats
	servers []throttle.ServerStats
	single  throttle.BucketStats
	buckets []throttle.BucketStats
	stores  []throttle.StoreStats
	each    func() // called for each reading

	forecast throttle.Forecast

	read, walked atomic.Int32
}

func (f *fake) Stats() throttle.Stats {
	f.read.Add(1)
	if f.each != nil {
		f.each()
	}
	return read(f, &f.stats)
}

func (f *fake) Limits() []throttle.LimitStats   { return slices.Clone(read(f, &f.limits)) }
func (f *fake) Servers() []throttle.ServerStats { return slices.Clone(read(f, &f.servers)) }
func (f *fake) Stores() []throttle.StoreStats   { return slices.Clone(read(f, &f.stores)) }

func (f *fake) Bucket(limit, _ string) (throttle.BucketStats, bool) {
	single := read(f, &f.single)
	return single, single.Limit == limit
}

func (f *fake) Buckets() iter.Seq[throttle.BucketStats] {
	f.walked.Add(1)
	return slices.Values(read(f, &f.buckets))
}

func (f *fake) Forecast(throttle.Ask, int) (throttle.Forecast, error) {
	return read(f, &f.forecast), nil
}

// change changes the figures while a Page may read them.
func (f *fake) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

func read[T any](f *fake, figure *T) T {
	f.mu.Lock()
	defer f.mu.Unlock()
	return *figure
}

// busy returns a source with something in every part of the page.
func busy(now time.Time) *fake {
	f := &fake{
		stats: throttle.Stats{Waiting: 41, Buckets: 1204, Granted: 18_204, Delayed: 218, Rejected: throttle.Counts[throttle.Reason]{throttle.ReasonDeadline: 3}, ServerRefused: 2},
		limits: []throttle.LimitStats{
			{Name: "requests", Kind: "sliding-window", Rate: 25.0 / 3, Capacity: 500, Tokens: 212, Waiting: 41, Granted: 18_204, Delayed: 218},
			{Name: "learned", Kind: "adaptive", Rate: 23.4, Tokens: 0.8, Waiting: 12, InFlight: 9, Granted: 18_204},
			{Name: "tenants", Kind: "bucket", Keyed: true, Rate: 10, Capacity: 20, Keys: 1204, Granted: 18_204, HeldUntil: now.Add(5 * time.Second)},
			{Name: "server", Kind: "server", Keys: 2, Granted: 18_204},
		},
		servers: []throttle.ServerStats{
			{Host: "uploads.example.com", Refused: 1},
			{
				Host: "api.example.com", Account: "team-7", HeldUntil: now.Add(34 * time.Second), Pace: 3.2, Refused: 1,
				Quotas: []throttle.QuotaStats{
					{Name: "core", Unit: "requests", Limit: 5000, Left: 4231, Reset: now.Add(12 * time.Minute)},
					{Name: "search", Unit: "requests", Limit: 30, Left: 2, Reset: now.Add(34 * time.Second)},
					{Name: "other", Unit: "points", Limit: -1, Left: -1},
				},
			},
		},
		stores: []throttle.StoreStats{
			{Limits: []string{"requests", "tenants"}, Up: true, OK: 230, Failed: 2, Leased: 18_400, Returned: 31, Alone: 7, Outages: 1, Faulty: 1, Differs: 3},
			{Limits: []string{"learned"}, Up: true},
		},
		single: throttle.BucketStats{Limit: "learned", Learned: &throttle.LearnedStats{Ceiling: 26, Mode: "below"}},
		buckets: []throttle.BucketStats{
			{Limit: "learned", Key: "", Waiting: 99},
			{Limit: "server", Key: "api.example.com team-7", Waiting: 98},
			{Limit: "tenants", Key: "acme", Rate: 10, Capacity: 20, Tokens: 7},
			{Limit: "tenants", Key: "zenith", Rate: 10, Capacity: 20, Tokens: -4, Waiting: 29, Wait: 2900 * time.Millisecond, HeldUntil: now.Add(5 * time.Second)},
		},
	}
	f.limits[0].Waits.Counts[5], f.limits[0].Waits.Counts[10] = 118, 100
	f.stores[0].Latency.Counts[1], f.stores[0].Latency.Counts[4] = 210, 20
	return f
}
