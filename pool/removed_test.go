package pool_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/pool"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A member that is removed before it grants a request never sends it, and one that is removed later does. If both come at the same instant,
// one of them holds; in no case is the request lost, sent twice or charged by two.
func TestAMemberIsRemovedAtTheInstantOfAGrant(t *testing.T) {
	for late, by := range map[time.Duration]string{-1: "b", 0: "either", 1: "a"} {
		t.Run(fmt.Sprint(late), func(t *testing.T) {
			for range 20 {
				synctest.Test(t, func(t *testing.T) {
					a := member(t, "a", &server{}, limit(throttle.TokenBucket(1, time.Minute)))
					b := member(t, "b", &server{}, limit(throttle.TokenBucket(1, 90*time.Second)))
					p := of(t, []pool.Member{a, b})
					codes(t, p, 2)
					start := time.Now()
					time.AfterFunc(time.Minute+late, func() { assert.NoError(t, p.Set(b)) })
					codes(t, p, 1)
					took := time.Since(start)
					if by == "a" || by == "either" && took == time.Minute {
						require.Equal(t, time.Minute, took)
						require.EqualValues(t, 2, a.Transport.Limiter().Limits()[0].Charged)
						require.EqualValues(t, 1, b.Transport.Limiter().Limits()[0].Charged)
					} else {
						require.Equal(t, 90*time.Second, took)
						require.EqualValues(t, 2, b.Transport.Limiter().Limits()[0].Charged)
						_, ok := a.Transport.Limiter().Try(throttle.Ask{})
						require.True(t, ok, "what a granted it has back")
					}
					synctest.Wait()
					require.Zero(t, a.Transport.Stats().Waiting+b.Transport.Stats().Waiting)
				})
			}
		})
	}
}

// Members come and go all the time, under load and on real processors: each request is sent once, by one member, and charged there only.
func TestMembersComeAndGoUnderLoad(t *testing.T) {
	s := &server{}
	var members []pool.Member
	for i := range 5 {
		members = append(members, member(t, fmt.Sprint(i), s, throttle.WithLimit(throttle.TokenBucket(300, time.Second, throttle.Burst(1)), throttle.InFlight(2, throttle.Name("slots")))))
		members[i].After = time.Duration(i%3) * 2 * time.Millisecond // so that some waits end without a grant
	}
	p := of(t, members)
	var done atomic.Bool
	var changes sync.WaitGroup
	changes.Go(func() {
		for !done.Load() {
			rand.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
			assert.NoError(t, p.Set(members[:1+rand.IntN(len(members)-1)]...))
			time.Sleep(time.Duration(rand.IntN(int(2 * time.Millisecond))))
		}
	})
	const n = 300
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			status, err := get(t.Context(), p)
			assert.NoError(t, err)
			assert.Equal(t, http.StatusOK, status)
		})
	}
	all.Wait()
	done.Store(true)
	changes.Wait()
	require.EqualValues(t, n, s.sent.Load())
	granted, undone := 0, 0
	for _, m := range members {
		st := m.Transport.Stats()
		require.Zero(t, st.Waiting)
		require.Zero(t, m.Transport.Limiter().Limits()[1].InFlight)
		granted, undone = granted+int(st.Granted), undone+int(st.Undone)
	}
	require.Equal(t, n, granted-undone)
}
