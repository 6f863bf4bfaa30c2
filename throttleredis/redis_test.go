package throttleredis

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/httpthrottle/throttle/store"
)

// leastACL is the smallest set of permissions that a Store needs, as docs/shared-limits-operate.md has it.
var leastACL = []string{"~throttle:1:*", "-@all", "+evalsha", "+eval", "+get", "+set", "+time"}

// slotsACL are those that limits of requests in flight need in addition.
var slotsACL = []string{"+hmget", "+hset", "+hdel", "+hgetall", "+pexpire"}

func withACL(t *testing.T, s *server, rules ...string) *redis.Client {
	t.Helper()
	admin := s.client(t)
	must(t, admin.ACLSetUser(t.Context(), "limiter", append([]string{"reset", "on", ">secret"}, rules...)...).Err())
	c := redis.NewClient(&redis.Options{Addr: s.addr(), Username: "limiter", Password: "secret"})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestLeastPermissionsSuffice(t *testing.T) {
	s := start(t)
	st := newStore(t, withACL(t, s, leastACL...))
	must(t, st.Check(t.Context()))
	for _, kind := range []store.Kind{store.Bucket, store.Pace, store.Sliding, store.Fixed, store.Slots} {
		b := bucket("k")
		if b.Kind = kind; kind == store.Slots {
			st = newStore(t, withACL(t, s, append(leastACL, slotsACL...)...))
		}
		lease1(t, st, store.Part{Budget: b, Want: 1, Holder: "h", Back: []store.Return{{Tokens: 1, Lease: 1}}})
	}
}

func TestEachMissingPermissionIsASetupError(t *testing.T) {
	s := start(t)
	p := store.Part{Budget: bucket("k"), Want: 1, Back: []store.Return{{Tokens: 1, Lease: 1}}}
	for i, missing := range leastACL {
		if missing == "-@all" {
			continue
		}
		must(t, s.client(t).ScriptFlush(t.Context()).Err())
		rules := append(append([]string{}, leastACL[:i]...), leastACL[i+1:]...)
		st := newStore(t, withACL(t, s, rules...))
		_, err := try(t.Context(), st, p)
		checked := st.Check(t.Context())
		for _, err := range []error{err, checked} {
			if !errors.Is(err, store.ErrSetup) || !strings.Contains(err.Error(), "ermission") && !strings.Contains(err.Error(), "can't") && !strings.Contains(err.Error(), "NOPERM") && !strings.Contains(err.Error(), "ACL") {
				t.Errorf("without %s: %v", missing, err)
			}
		}
		t.Logf("without %s: %v", missing, err)
	}
}

func TestCheckFindsThatTheSourceCannotBeSent(t *testing.T) {
	s := start(t)
	lease1(t, newStore(t, s.client(t)), store.Part{Budget: bucket("k")}) // Redis has the script
	st := newStore(t, withACL(t, s, "~throttle:1:*", "-@all", "+evalsha", "+get", "+set", "+time"))
	lease1(t, st, store.Part{Budget: bucket("k")})
	if err := st.Check(t.Context()); !errors.Is(err, store.ErrSetup) {
		t.Errorf("the error is %v", err)
	}
}

func TestWrongSetupIsAnErrorWithItsText(t *testing.T) {
	s := start(t, "--requirepass", "secret")
	p := store.Part{Budget: bucket("k"), Want: 1}
	for text, options := range map[string]*redis.Options{
		"NOAUTH":    {Addr: s.addr()},
		"WRONGPASS": {Addr: s.addr(), Password: "wrong"},
	} {
		c := redis.NewClient(options)
		defer c.Close()
		st := newStore(t, c)
		if _, err := try(t.Context(), st, p); !errors.Is(err, store.ErrSetup) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
		if err := st.Check(t.Context()); !errors.Is(err, store.ErrSetup) {
			t.Errorf("%s: Check: %v", text, err)
		}
	}
}

func TestUnreadableStateConcernsItsOwnBudgetAlone(t *testing.T) {
	s := start(t)
	c := s.client(t)
	var asks []store.Ask
	for _, key := range []string{"list", "rubbish", "later", "healthy"} {
		for _, kind := range []store.Kind{store.Bucket, store.Pace, store.Sliding, store.Fixed, store.Slots} {
			b := bucket(key)
			b.Kind = kind
			asks = append(asks, store.Ask{Parts: []store.Part{{Budget: b, Need: 1, Want: 1, Holder: "h"}}})
		}
	}
	st := newStore(t, c)
	for i := range asks {
		key := st.key(&asks[i].Parts[0].Budget)
		slots := asks[i].Parts[0].Budget.Kind == store.Slots
		switch asks[i].Parts[0].Budget.Key {
		case "list":
			must(t, c.LPush(t.Context(), key, "x").Err())
		case "rubbish":
			must(t, c.Set(t.Context(), key, "rubbish", 0).Err())
		case "later":
			state := "\x03" + strings.Repeat("\x00", 200)
			if slots {
				must(t, c.HSet(t.Context(), key, "", state).Err())
			} else {
				must(t, c.Set(t.Context(), key, state, 0).Err())
			}
		}
	}
	leases, err := st.Lease(t.Context(), asks)
	must(t, err)
	for i, l := range leases {
		b := asks[i].Parts[0].Budget
		if bad := b.Key != "healthy"; bad != (l.Err != nil) || bad != isUnreadable(l.Err) || errors.Is(l.Err, store.ErrSetup) {
			t.Errorf("%s of %s: %v", b.Kind, b.Key, l.Err)
		}
	}
	leases, err = st.Lease(t.Context(), asks[:1])
	must(t, err)
	if leases[0].Err == nil {
		t.Error("alone: no error")
	}
	together := ask(asks[0].Parts[0], asks[len(asks)-1].Parts[0])
	if leases, err = st.Lease(t.Context(), together); err != nil || leases[0].Err == nil {
		t.Errorf("together: %v, %+v", err, leases)
	}
}

func TestFaultsThatPassAreNoWrongSetUp(t *testing.T) {
	t.Parallel()
	s := start(t)
	c, admin := s.client(t), s.client(t)
	st := newStore(t, c)
	p := store.Part{Budget: bucket("k"), Want: 1}
	lease1(t, st, p)
	set := func(name, value string) { must(t, admin.ConfigSet(t.Context(), name, value).Err()) }
	fails := func(code string) {
		t.Helper()
		if _, err := try(t.Context(), st, p); err == nil || errors.Is(err, store.ErrSetup) || !strings.Contains(err.Error(), code) {
			t.Errorf("%s: %v", code, err)
		}
	}
	if major(t, admin) >= 7 { // earlier ones let scripts write
		set("min-replicas-to-write", "1")
		fails("NOREPLICAS")
		set("min-replicas-to-write", "0")
	}
	must(t, admin.Do(t.Context(), "REPLICAOF", "127.0.0.1", freePort(t)).Err())
	fails("READONLY")
	must(t, admin.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err())
	set("maxmemory", "1")
	fails("OOM")
	set("maxmemory", "0")
	set("requirepass", "rotated")
	must(t, admin.Do(t.Context(), "AUTH", "rotated").Err())
	must(t, admin.ClientKillByFilter(t.Context(), "TYPE", "normal", "SKIPME", "yes").Err())
	fails("NOAUTH")
	must(t, admin.Do(t.Context(), "CONFIG", "SET", "requirepass", "").Err())
	lease1(t, st, p)
}

func TestReplicaIsASetupError(t *testing.T) { // slow: it takes seconds of real time
	t.Parallel()
	s := start(t)
	replica := start(t, "--replicaof", "127.0.0.1", s.port)
	c := replica.client(t)
	eventually(t, "the replica is in sync", func() bool {
		return strings.Contains(c.Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
	st := newStore(t, c)
	if _, err := try(t.Context(), st, store.Part{Budget: bucket("k"), Want: 1}); !errors.Is(err, store.ErrSetup) || !strings.Contains(err.Error(), "READONLY") {
		t.Errorf("the error is %v", err)
	}
	if err := st.Check(t.Context()); !errors.Is(err, store.ErrSetup) {
		t.Errorf("Check: %v", err)
	}
}

func TestLostScriptIsSentAgain(t *testing.T) {
	s := start(t)
	c := s.client(t)
	st := newStore(t, c)
	for i := range int64(5) {
		if got := lease1(t, st, store.Part{Budget: bucket("k"), Want: 1}); got.Tokens != 1 {
			t.Fatalf("lease %d: %+v", i, got)
		}
		must(t, c.ScriptFlush(t.Context()).Err())
	}
	many := make([]store.Ask, 200) // four scripts in a pipeline
	for i := range many {
		many[i] = ask(store.Part{Budget: bucket(strings.Repeat("x", i+1)), Want: 2})[0]
	}
	leases, err := st.Lease(t.Context(), many)
	must(t, err)
	for i, l := range leases {
		if l.Err != nil || l.Parts[0].Tokens != 2 {
			t.Errorf("ask %d: %+v", i, l)
		}
	}
}

// under runs eight goroutines that lease tokens one by one while f runs, and returns how many they got.
func under(t *testing.T, st *Store, b store.Budget, f func()) int64 {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var tokens atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if got, err := try(ctx, st, store.Part{Budget: b, Need: 1, Want: 1}); err == nil {
					tokens.Add(got.Tokens)
				}
			}
		})
	}
	f()
	stop()
	wg.Wait()
	return tokens.Load()
}

func TestFlushCostsAtMostABurst(t *testing.T) {
	s := start(t)
	c := s.client(t)
	st := newStore(t, c)
	b := store.Budget{Kind: store.Bucket, Limit: "l", Key: "k", N: 100, Per: time.Second, Burst: 50, Initial: 50}
	began := time.Now()
	const flushes = 3
	got := under(t, st, b, func() {
		for range flushes {
			time.Sleep(100 * time.Millisecond)
			must(t, c.ScriptFlush(t.Context()).Err())
			time.Sleep(100 * time.Millisecond)
			must(t, c.FlushAll(t.Context()).Err())
		}
	})
	if most := int64((flushes+1)*50 + 100*time.Since(began).Seconds() + 1); got > most || got == 0 {
		t.Errorf("%d tokens, at most %d", got, most)
	}
}

func TestFullMemoryIsAnOutage(t *testing.T) {
	s := start(t, "--maxmemory-policy", "noeviction")
	st := newStore(t, s.client(t))
	must(t, s.client(t).ConfigSet(t.Context(), "maxmemory", "1").Err())
	_, err := try(t.Context(), st, store.Part{Budget: bucket("k"), Want: 1})
	if err == nil || errors.Is(err, store.ErrSetup) || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("the error is %v", err)
	}
}

func TestCheckReportsThatKeysMayBeEvicted(t *testing.T) {
	s := start(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	st := newStore(t, s.client(t))
	if err := st.Check(t.Context()); !errors.Is(err, ErrEvicts) || errors.Is(err, store.ErrSetup) {
		t.Errorf("the error is %v", err)
	}
	must(t, s.client(t).ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err())
	must(t, st.Check(t.Context()))
	must(t, newStore(t, withACL(t, s, leastACL...)).Check(t.Context())) // without INFO
}

func TestEvictedStatesStartAgain(t *testing.T) {
	s := start(t, "--maxmemory", "2500kb", "--maxmemory-policy", "allkeys-lru")
	c := s.client(t)
	st := newStore(t, c)
	b := bucket("k")
	b.Per = 24 * time.Hour
	if got := lease1(t, st, store.Part{Budget: b, Want: 9}); got.Tokens != 5 {
		t.Fatalf("%+v", got)
	}
	for i := 0; c.Exists(t.Context(), st.key(&b)).Val() == 1; i += 100 {
		if i == 500_000 {
			t.Fatal("nothing was evicted", c.Info(t.Context(), "memory").Val(), c.DBSize(t.Context()).Val())
		}
		many := make([]store.Ask, 100)
		for k := range many {
			other := bucket(strings.Repeat("x", 1+k%50) + time.Now().String()[:30])
			other.Limit = string(rune('a' + k%26))
			many[k] = ask(store.Part{Budget: other, Want: 1})[0]
		}
		if _, err := st.Lease(t.Context(), many); err != nil {
			t.Fatal(err)
		}
	}
	if got := lease1(t, st, store.Part{Budget: b, Want: 9}); got.Tokens != 5 {
		t.Errorf("evicted: %+v", got)
	}
}

func TestPausedServerIsNoFailure(t *testing.T) {
	s := start(t)
	c := s.client(t)
	st := newStore(t, c)
	began := time.Now()
	must(t, c.Do(t.Context(), "CLIENT", "PAUSE", "200").Err())
	if got := lease1(t, st, store.Part{Budget: bucket("k"), Want: 1}); got.Tokens != 1 {
		t.Errorf("%+v", got)
	}
	if took := time.Since(began); took < 190*time.Millisecond {
		t.Errorf("the server was not paused: %v", took)
	}
}

// It is not parallel: another test's server could get the port.
func TestServerThatIsGoneIsOutOfReach(t *testing.T) { // slow: it takes seconds of real time
	s := start(t)
	st := newStore(t, s.client(t))
	p := store.Part{Budget: bucket("k"), Want: 1}
	lease1(t, st, p)
	s.kill(t)
	if _, err := try(t.Context(), st, p); err == nil || errors.Is(err, store.ErrSetup) {
		t.Errorf("the error is %v", err)
	}
	if err := st.Check(t.Context()); err == nil || errors.Is(err, store.ErrSetup) {
		t.Errorf("Check: %v", err)
	}
}

func TestErrorsAreClassified(t *testing.T) {
	for text, setup := range map[string]bool{
		"LOADING Redis is loading the dataset in memory":  false,
		"CLUSTERDOWN The cluster is down":                 false,
		"MASTERDOWN Link with MASTER is down":             false,
		"TRYAGAIN Multiple keys request during rehashing": false,
		"BUSY Redis is busy running a script":             false,
		"OOM command not allowed":                         false,
		"NOREPLICAS Not enough good replicas to write":    false,
		"ERR max number of clients reached":               false,
		"NOAUTH Authentication required.":                 true,
		"NOPERM this user has no permissions":             true,
		"WRONGTYPE Operation against a key":               true,
		"CROSSSLOT Keys in request":                       true,
		"MISCONF Redis is configured to save":             true,
		"READONLY You can't write against a read only":    true,
		"ERR unknown command 'EVALSHA'":                   true,
		"ERR Error running script":                        true,
		// as Redis 6.0 sends it
		"ERR Error running script (call to f_4d5): @user_script:1: -OOM command not allowed when used memory > 'maxmemory'.": false,
		"ERR Error running script (call to f_4d5): @user_script: 1: -NOREPLICAS Not enough good replicas to write.":          false,
	} {
		if err := (&Store{}).classify(replied(text)); errors.Is(err, store.ErrSetup) != setup || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
	}
	var worked Store
	worked.worked.Store(true)
	for _, text := range []string{"NOAUTH a", "WRONGPASS b", "NOPERM c", "READONLY d", "MISCONF e", "ERR upstream connect error"} {
		if err := worked.classify(replied(text)); errors.Is(err, store.ErrSetup) {
			t.Errorf("after a script has run: %v", err)
		}
	}
	if err := worked.classify(replied("MOVED 1 127.0.0.1:1")); !errors.Is(err, store.ErrSetup) {
		t.Errorf("a client of one server in a Cluster: %v", err)
	}
	if err := (&Store{}).classify(redis.ErrClosed); !errors.Is(err, store.ErrSetup) || !errors.Is(err, redis.ErrClosed) {
		t.Errorf("%v", err)
	}
	if err := (&Store{}).classify(context.DeadlineExceeded); errors.Is(err, store.ErrSetup) {
		t.Errorf("%v", err)
	}
}

// replied is an error that Redis sent.
type replied string

func (e replied) Error() string { return string(e) }
func (replied) RedisError()     {}
