package storetest

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/httpthrottle/throttle/store"
)

func processes(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	for _, b := range []store.Budget{
		s.bucket(10, time.Hour, 5), s.budget(store.Pace, 10, time.Hour), s.budget(store.Sliding, 5, time.Hour), s.budget(store.Fixed, 5, time.Hour),
	} {
		var got store.LeasedPart
		for range 7 {
			got = s.one(store.Part{Budget: b, Since: store.MaxSince})
		}
		if got.Processes < 6 || got.Processes > 7 { // 6 if an epoch of ten seconds has begun meanwhile
			t.Errorf("%s: %d processes, want 7", b.Kind, got.Processes)
		}
	}
}

func apart(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	type name struct{ limit, key string }
	names := []name{{"a", "b:c"}, {"a:b", "c"}, {"", "abc"}, {"abc", ""}, {"", ""}, {"a", "}b{"}, {"a", "b{}"}, {"a", "#"},
		{"a", "\x00"}, {"a", "\xff\xfe"}, {"a", "\xff\xfd"}, {"{", "a"}, {"a", "b:c "}, {"a", "B:c"}}
	long := strings.Repeat("x", 10_000)
	names = append(names, name{"a", long}, name{"a", long + "y"}, name{long, "a"}, name{long + "y", "a"})
	var asks []store.Ask
	for _, n := range names {
		for _, b := range []store.Budget{s.bucket(10, time.Hour, 5), s.budget(store.Pace, 10, time.Hour),
			s.budget(store.Sliding, 5, time.Hour), s.budget(store.Fixed, 5, time.Hour), s.budget(store.Slots, 5, 0)} {
			b.Limit, b.Key = n.limit, s.key+n.key
			asks = append(asks, store.Ask{Parts: []store.Part{{Budget: b, Need: 1, Want: 5, Holder: "a"}}})
		}
	}
	for i, l := range s.asks(asks...) {
		want := int64(5)
		if asks[i].Parts[0].Budget.Kind == store.Pace {
			want = 1
		}
		if got := l.Parts[0].Tokens; got != want {
			t.Fatalf("%+v: %d tokens, want %d", asks[i].Parts[0].Budget, got, want)
		}
	}
}

func manyAsks(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	b := s.bucket(10, time.Hour, 100)
	asks := make([]store.Ask, 128)
	for i := range asks {
		asks[i].Parts = []store.Part{{Budget: b, Need: 1, Want: 1}}
	}
	granted := 0
	for i, l := range s.asks(asks...) {
		if l.Parts[0].Tokens == 1 {
			granted++
		} else if i < 100 {
			t.Errorf("ask %d was granted nothing", i)
		}
	}
	if granted != 100 {
		t.Errorf("%d were granted, want 100", granted)
	}
	if leases := s.asks(); len(leases) != 0 {
		t.Errorf("%d leases for no ask", len(leases))
	}
}

// processesBySince has one process ask often, and so counts as one.
func processesBySince(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	b := s.bucket(1000, time.Second, 1000)
	var got store.LeasedPart
	for range 20 {
		got = s.one(store.Part{Budget: b, Since: time.Millisecond})
	}
	if got.Processes != 1 {
		t.Errorf("20 asks of one process count as %d processes", got.Processes)
	}
	for range 3 {
		got = s.one(store.Part{Budget: b, Since: store.MaxSince})
	}
	if got.Processes < 2 || got.Processes > 3 { // 2 if an epoch of ten seconds has begun meanwhile
		t.Errorf("3 processes, each of which asks for the first time, count as %d", got.Processes)
	}
}

// atOneTime asks from many goroutines that begin at one time. A store that reads a state, decides, and writes it without a lock would grant
// the same tokens to several. Each round has a new budget.
func atOneTime(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	const goroutines, rounds, burst = 16, 20, 8
	for round := range rounds {
		b := s.bucket(1, time.Hour, burst)
		b.Limit = fmt.Sprint("round ", round)
		var ready, all sync.WaitGroup
		var granted atomic.Int64
		begin := make(chan struct{})
		ready.Add(goroutines)
		for range goroutines {
			all.Go(func() {
				ready.Done()
				<-begin
				leases, err := st.Lease(t.Context(), []store.Ask{{Parts: []store.Part{{Budget: b, Need: 1, Want: 1}}}})
				if err != nil || len(leases) != 1 || leases[0].Err != nil || len(leases[0].Parts) != 1 {
					t.Errorf("Lease: %v, %v", leases, err)
					return
				}
				granted.Add(leases[0].Parts[0].Tokens)
			})
		}
		ready.Wait()
		close(begin)
		all.Wait()
		if n := granted.Load(); n != burst {
			t.Fatalf("%d goroutines that asked at one time for a token each were granted %d of %d", goroutines, n, burst)
		}
	}
}

// neverMore asks at random from several goroutines, and counts what may be used by when.
func neverMore(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	const burst, n, each, over = 50, 2000, 300, 400 * time.Millisecond
	b := s.bucket(n, time.Second, burst)
	began := time.Now()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var net int64
	var last time.Duration // by when all that was granted is due
	for seed := range uint64(4) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, 0))
			var back []store.Return
			for range each {
				if time.Since(began) > over {
					return
				}
				got := s.one(store.Part{
					Budget: b, Need: r.Int64N(3), Want: r.Int64N(20), Ahead: r.Int64N(20), Horizon: 20 * time.Millisecond, Back: back,
				})
				due := time.Since(began) + got.Next + time.Duration(max(0, got.Tokens-got.AtOnce-1))*time.Second/n
				returned := int64(0)
				for _, r := range back {
					returned += r.Tokens
				}
				if back = nil; r.IntN(3) == 0 && got.Tokens > 0 {
					back = []store.Return{{Tokens: r.Int64N(got.Tokens + 1), Lease: got.ID}}
				}
				mu.Lock()
				net += got.Tokens - returned
				last = max(last, due)
				mu.Unlock()
				time.Sleep(time.Duration(r.Int64N(int64(3 * time.Millisecond))))
			}
		})
	}
	wg.Wait()
	if most := burst + n*last.Seconds() + 4*40; float64(net) > most {
		t.Errorf("%d tokens were granted by %v, at most %.0f should have been", net, last, most)
	}
}
