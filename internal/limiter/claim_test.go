package limiter_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/meter"
)

// claim enqueues a request of cost 1 in each Core, as one that may be granted by any of them.
func claim(t *testing.T, maxWait time.Duration, cores ...*driven) (c *limiter.Claim, all []*limiter.Waiter) {
	c = limiter.NewClaim(time.Time{})
	for _, l := range cores {
		w := l.waiter(ask{})
		w.Claim, w.MaxWait = c, maxWait
		_, err := l.EnqueueClaimed(t.Context(), w, nil)
		require.NoError(t, err)
		all = append(all, w)
	}
	c.Seal()
	return c, all
}

// leaveOthers takes back the waiters that did not win, as the owner of a Claim does.
func leaveOthers(c *limiter.Claim, cores []*driven, all []*limiter.Waiter) {
	for i, w := range all {
		if w != c.Winner() {
			cores[i].Leave(w)
		}
	}
}

// Among Cores of any speed and with any queues, a claimed request is granted by the first that can, and the others never charge it, whether
// its waiters there leave or not.
func TestTheFirstCoreThatCanGrantsAClaimAndTheOthersDoNotChargeIt(t *testing.T) {
	for seed := range seeds(100) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 2))
			var cores []*driven
			for _, more := range []time.Duration{0, 10, 100} { // so that no two of them can grant it at one instant, unless now
				l := drive(t, tokenBucket(1, time.Duration(1+random.IntN(5))*time.Second+more))
				l.sendMany(random.IntN(4), ask{}) // the first takes the token, and the others wait
				cores = append(cores, l)
			}
			first, at := 0, time.Duration(1<<62)
			for i, l := range cores {
				f, _, err := l.Forecast(l.request(ask{}), l.waiter(ask{}), 1)
				require.NoError(t, err)
				if due := time.Duration(f.Tenths[9]); due < at {
					first, at = i, due
				}
			}
			start, before := time.Now(), cores[first].counts()
			c, all := claim(t, -1, cores...)
			<-c.Done()
			require.Equal(t, at, time.Since(start))
			require.Same(t, all[first], c.Winner())
			if seed%2 == 0 {
				leaveOthers(c, cores, all)
			}
			sleep(time.Minute)
			leaveOthers(c, cores, all)
			for i, l := range cores {
				require.Zero(t, l.counts().Canceled, "another Core was first, which is no news")
				require.Zero(t, l.counts().Waiting)
				if i == first {
					require.Equal(t, before.Granted+uint64(before.Waiting)+1, l.counts().Granted)
				}
				require.Equal(t, l.counts().Granted, l.Limits[0].Counts.Charged)
				l.check()
			}
		})
	}
}

// A rejection is counted and reported only if no Core grants the request.
func TestARefusalOfAClaimIsReportedOnceNoCoreGrantsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow, fast := drive(t, pace(1, time.Hour)), drive(t, pace(1, time.Second))
		cores := []*driven{slow, fast}
		requireGranted(t, slow.send(ask{}), 0)
		requireGranted(t, fast.send(ask{}), 0)

		c, all := claim(t, time.Second, cores...)
		require.True(t, all[0].Rejected())
		require.Equal(t, time.Hour, slow.RejectionOf(all[0]).Wait)
		<-c.Done()
		require.Same(t, all[1], c.Winner())
		require.Zero(t, slow.counts().rejected())

		c, all = claim(t, time.Second-1, cores...)
		<-c.Done()
		require.Nil(t, c.Winner())
		require.Zero(t, slow.counts().rejected()+fast.counts().rejected())
		err := fast.Reject(t.Context(), all[1])
		require.Equal(t, bucket.ReasonMaxWait, requireRejection(t, err).Reason)
		require.EqualValues(t, 1, fast.counts().rejected())
		require.Zero(t, slow.counts().rejected())
		slow.check()
		fast.check()
	})
}

// A Claim whose waiters have all left is done, without a winner.
func TestAClaimThatIsLeftIsDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, pace(1, time.Hour))
		requireGranted(t, l.send(ask{}), 0)
		c, all := claim(t, -1, l)
		waiting := make(chan bool, 1)
		go func() {
			<-c.Done()
			waiting <- false
		}()
		sleep(time.Second)
		require.Empty(t, waiting)
		l.Leave(all[0])
		require.False(t, <-waiting)
		require.Nil(t, c.Winner())
		require.Zero(t, l.counts().Waiting)
		l.check()

		late := l.waiter(ask{})
		late.Claim, late.MaxWait = c, -1
		waits, err := l.EnqueueClaimed(t.Context(), late, nil)
		require.NoError(t, err)
		require.False(t, waits, "it comes too late")
		require.False(t, late.Rejected())
		require.Equal(t, meter.Never, dueOf(l, late))
		sleep(2 * time.Hour)
		require.Nil(t, c.Winner())
		l.check()
	})
}

// If a function of the user's panics while a Claim is enqueued, its caller gets the panic, and other goroutines do not wait for Done forever.
func TestAClaimIsDoneAfterAPanic(t *testing.T) {
	rated := withRates(func(string) (int64, time.Duration) { panic("rate") })
	free := ask{Costs: map[string]int64{"bucket": 0}}
	for name, c := range map[string]struct {
		rule  rule
		ask   ask
		panic string
		won   bool
	}{
		"a grant without charges": {tokenBucket(1, time.Second), free, "grant", true},
		"a grant":                 {tokenBucket(1, time.Second), ask{}, "grant", true},
		"a wait":                  {empty(1), ask{}, "wait", false},
		"a rate":                  {tokenBucket(1, time.Second, rated), ask{Key: "a"}, "rate", false},
	} {
		within(t, name, func(t *testing.T) {
			l := drive(t, c.rule)
			l.onGrant = func(limiter.Place, time.Duration) { panic("grant") }
			l.onWait = func(limiter.Place, int64, time.Duration) { panic("wait") }
			claimed, w := limiter.NewClaim(time.Time{}), l.waiter(c.ask)
			w.Claim = claimed
			require.PanicsWithValue(t, c.panic, func() { _, _ = l.EnqueueClaimed(t.Context(), w, nil) })
			if !c.won { // another Core may grant it
				select {
				case <-claimed.Done():
					require.Fail(t, "done before Seal")
				default:
				}
				claimed.Seal()
			}
			<-claimed.Done()
			require.Equal(t, c.won, claimed.Winner() == w)
			require.Zero(t, l.counts().Waiting)
			l.check()
		})
	}
}

// A granted Claim becomes a request, which Await delivers.
func TestAClaimThatWasGrantedIsARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := drive(t, pace(1, time.Second))
		requireGranted(t, l.send(ask{}), 0)
		_, all := claim(t, -1, l)
		require.NoError(t, l.Await(context.Background(), nil, all[0]))
		var r limiter.Request
		all[0].Take(&r)
		require.EqualValues(t, time.Second, r.Waited)
		l.Cancel(&r)
		require.EqualValues(t, 1, l.counts().Undone)
		l.check()
	})
}
