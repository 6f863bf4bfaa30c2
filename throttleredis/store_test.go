package throttleredis

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/httpthrottle/throttle/store"
	"github.com/httpthrottle/throttle/store/storetest"
)

func bucket(key string) store.Budget {
	return store.Budget{Kind: store.Bucket, Limit: "l", Key: key, N: 1, Per: time.Hour, Burst: 5, Initial: 5}
}

func ask(parts ...store.Part) []store.Ask { return []store.Ask{{Parts: parts}} }

// lease1 asks for one part and fails the test on an error.
func lease1(t *testing.T, s *Store, p store.Part) store.LeasedPart {
	t.Helper()
	got, err := try(t.Context(), s, p)
	must(t, err)
	return got
}

func try(ctx context.Context, s *Store, p store.Part) (store.LeasedPart, error) {
	leases, err := s.Lease(ctx, ask(p))
	if err == nil {
		err = leases[0].Err
	}
	if err != nil {
		return store.LeasedPart{}, err
	}
	return leases[0].Parts[0], nil
}

func TestSingleServerConforms(t *testing.T) {
	t.Parallel()
	s := start(t)
	storetest.Run(t, func(t *testing.T) store.Store { return newStore(t, s.client(t)) })
}

func TestWrongOptionsAreErrors(t *testing.T) {
	c := redis.NewClient(&redis.Options{})
	defer c.Close()
	ring := redis.NewRing(&redis.RingOptions{})
	defer ring.Close()
	for name, f := range map[string]func() (*Store, error){
		"nil client":  func() (*Store, error) { return New(nil) },
		"nil Client":  func() (*Store, error) { return New((*redis.Client)(nil)) },
		"nil cluster": func() (*Store, error) { return New((*redis.ClusterClient)(nil)) },
		"ring":        func() (*Store, error) { return New(ring) },
		"nil option":  func() (*Store, error) { return New(c, nil) },
		"both slots":  func() (*Store, error) { return New(c, OneSlot(), SlotPerLimit()) },
		"nil logger":  func() (*Store, error) { return New(c, WithLogger(nil)) },
		"empty":       func() (*Store, error) { return New(c, Prefix("")) },
		"braces":      func() (*Store, error) { return New(c, Prefix("a{b}")) },
		"long":        func() (*Store, error) { return New(c, Prefix(strings.Repeat("x", 65))) },
		"space":       func() (*Store, error) { return New(c, Prefix("a b")) },
	} {
		if s, err := f(); err == nil || s != nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestKeysAreBoundedAndEscaped(t *testing.T) {
	s, err := New(redis.NewClient(&redis.Options{}), Prefix("mine"))
	must(t, err)
	one, err := New(redis.NewClient(&redis.Options{}), OneSlot())
	must(t, err)
	for _, c := range []struct{ key, limit, want, oneSlot string }{
		{"api.example.com", "requests", "mine:1:{api.example.com}requests:b", "throttle:1:{#}api.example.com}requests:b"},
		{"", "requests", "mine:1:{#}requests:b", "throttle:1:{#}#}requests:b"},
		{"ключ", "l", "mine:1:{ключ}l:b", "throttle:1:{#}ключ}l:b"},
		{"#", "l", "mine:1:{#M0EN6z_TMNmtPHcYhwGDgg}l:b", "throttle:1:{#}#M0EN6z_TMNmtPHcYhwGDgg}l:b"},
	} {
		b := store.Budget{Kind: store.Bucket, Limit: c.limit, Key: c.key}
		if got := s.key(&b); got != c.want && c.key != "#" {
			t.Errorf("%q: %q, want %q", c.key, got, c.want)
		}
		if got := one.key(&b); got != c.oneSlot && c.key != "#" {
			t.Errorf("%q in one slot: %q, want %q", c.key, got, c.oneSlot)
		}
	}
	apart, err := New(redis.NewClient(&redis.Options{}), SlotPerLimit())
	must(t, err)
	for _, c := range []struct{ key, limit, want string }{
		{"", "requests", "throttle:1:{#requests}requests:b"},
		{"", "", "throttle:1:{##}#:b"},
		{"", "{", "throttle:1:{##Ah-1ltuB5tAr89JYbuOYHw}#Ah-1ltuB5tAr89JYbuOYHw:b"},
		{"a", "requests", "throttle:1:{a}requests:b"},
	} {
		if got := apart.key(&store.Budget{Kind: store.Bucket, Limit: c.limit, Key: c.key}); got != c.want {
			t.Errorf("%q of %q with a slot for each limit: %q, want %q", c.limit, c.key, got, c.want)
		}
	}
	for _, key := range []string{"a{b", "a}b", "#a", "a\nb", "a\x00b", "\xff", strings.Repeat("x", 65), strings.Repeat("x", 1<<20)} {
		b := store.Budget{Kind: store.Fixed, Limit: key, Key: key}
		got := s.key(&b)
		if len(got) > 64 || strings.Count(got, "{") != 1 || strings.Contains(got, key) {
			t.Errorf("%.20q: %q", key, got)
		}
		if b.Key += "y"; s.key(&b) == got {
			t.Errorf("%.20q has the key of another", key)
		}
	}
}

func TestSlotsAreThoseOfRedisCluster(t *testing.T) {
	s := start(t, "--cluster-enabled", "yes")
	c := s.client(t)
	r := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		tag := make([]byte, 1+r.IntN(20))
		for i := range tag {
			tag[i] = byte('a' + r.IntN(26))
		}
		want, err := c.ClusterKeySlot(t.Context(), "throttle:1:{"+string(tag)+"}l:b").Result()
		must(t, err)
		if got := slotOf(string(tag)); int64(got) != want {
			t.Fatalf("%s is in slot %d, not %d", tag, want, got)
		}
	}
}

func TestStatesAreSmallAndExpire(t *testing.T) {
	s := start(t)
	c, st := s.client(t), newStore(t, s.client(t))
	r := rand.New(rand.NewPCG(1, 1))
	for _, x := range []struct {
		b    store.Budget
		most int64 // bytes, by MEMORY USAGE
	}{
		{store.Budget{Kind: store.Bucket, Limit: "requests", Key: "api.example.com", N: 1000, Per: time.Second, Burst: 1000, Initial: 1000}, 480},
		{store.Budget{Kind: store.Pace, Limit: "requests", Key: "api.example.com", N: 1000, Per: time.Second}, 480},
		{store.Budget{Kind: store.Sliding, Limit: "requests", Key: "api.example.com", N: 100_000, Per: time.Second}, 2700},
		{store.Budget{Kind: store.Fixed, Limit: "requests", Key: "api.example.com", N: 1000, Per: time.Second}, 210},
		{store.Budget{Kind: store.Slots, Limit: "requests", Key: "api.example.com", N: 1000}, 420},
	} {
		first, largest := int64(0), int64(0)
		for i := range 500 {
			p := store.Part{Budget: x.b, Want: 1 + r.Int64N(3), Horizon: time.Millisecond, Holder: "host-1234-5678-0123456789abcdef"[:16+i%4]}
			lease1(t, st, p)
			n, err := c.MemoryUsage(t.Context(), st.key(&x.b)).Result()
			must(t, err)
			if first == 0 {
				first = n
			}
			largest = max(largest, n)
		}
		t.Logf("%s: %d bytes at first, %d at most", x.b.Kind, first, largest)
		if largest > x.most {
			t.Errorf("%s: %d bytes", x.b.Kind, largest)
		}
		ttl, err := c.PTTL(t.Context(), st.key(&x.b)).Result()
		must(t, err)
		if ttl <= 0 || ttl > 11*time.Second {
			t.Errorf("%s: expires in %v", x.b.Kind, ttl)
		}
	}
	p := store.Part{Budget: bucket("held"), Want: 1, Hold: 3 * time.Hour}
	lease1(t, st, p)
	ttl, err := c.PTTL(t.Context(), st.key(&p.Budget)).Result()
	must(t, err)
	if ttl < 3*time.Hour || ttl > 3*time.Hour+6*time.Second {
		t.Errorf("held for 3 h: expires in %v", ttl)
	}
}

func TestDeadlineIsCarriedToRedis(t *testing.T) {
	s := start(t)
	c := s.client(t)
	st := newStore(t, c)
	p := store.Part{Budget: bucket(""), Want: 1}
	lease1(t, st, p) // from here on, Redis's clock is known
	must(t, c.Do(t.Context(), "CLIENT", "PAUSE", "300").Err())
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	late := make(chan error)
	go func() { // does not heed the context, as a go-redis client without ContextTimeoutEnabled
		_, err := st.Lease(withoutDone{ctx}, ask(p))
		late <- err
	}()
	if err := <-late; !errors.Is(err, store.ErrLate) {
		t.Errorf("the error is %v", err)
	}
	if got := lease1(t, st, store.Part{Budget: p.Budget, Want: 9}); got.Tokens != 4 {
		t.Errorf("%d tokens are left, want 4", got.Tokens)
	}
	st.clocks[0].latest.Add(-int64(time.Hour / time.Microsecond)) // as if Redis's clock had jumped ahead since
	ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := st.Lease(ctx, ask(p)); err != nil {
		t.Errorf("after a jump of the clock: %v", err)
	}
}

// withoutDone is a context that has a deadline and is never done.
type withoutDone struct{ context.Context }

func (withoutDone) Done() <-chan struct{} { return nil }
func (withoutDone) Err() error            { return nil }

func FuzzResponse(f *testing.F) {
	f.Add([]byte{}, 1, 1)
	f.Add(make([]byte, 8+2*shortReply), 1, 1)
	f.Add(make([]byte, 8+3*shortReply), 1, 2)
	f.Fuzz(func(t *testing.T, reply []byte, one, two int) {
		c := call{asks: []int{0, 1}, parts: []int{max(1, one%8), max(1, two%8)}, reply: string(reply)}
		leases := make([]store.Lease, 2)
		c.now()
		err, n := c.read(leases), c.parts[0]+c.parts[1]
		if err == nil && (len(reply) < 8+n*shortReply || len(reply) > 8+n*longReply || len(leases[0].Parts)+len(leases[1].Parts) != n) {
			t.Errorf("%d bytes are a response", len(reply))
		}
	})
}

func FuzzNumbersArePackedExactly(f *testing.F) {
	f.Add(int64(0), int64(1), "holder")
	f.Add(int64(1)<<53-1, int64(-1), "")
	f.Fuzz(func(t *testing.T, tokens, id int64, holder string) {
		if max(tokens, -tokens, id, -id) >= 1<<53 || tokens == math.MinInt64 || id == math.MinInt64 {
			return
		}
		var c call
		c.add(0, []store.Call{{Kind: store.Slots, Units: store.Units{N: tokens}, Held: id, Holder: holder, Back: []store.Return{{Tokens: tokens, Lease: id}}}})
		args := string(c.args)
		if number(args) != 1 || number(args[8*8:]) != 4 || int64(number(args[8*10:])) != tokens || int64(number(args[8*19:])) != id {
			t.Fatal("a number differs")
		}
		if rest := args[8*22:]; rest[:len(holder)] != holder || int64(number(rest[len(holder):])) != tokens || int64(number(rest[len(holder)+8:])) != id {
			t.Fatal("the holder or a return differs")
		}
	})
}
