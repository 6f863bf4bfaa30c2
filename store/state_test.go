package store

import (
	"encoding/json"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// someBudgets are one or several of each kind.
func someBudgets() []Budget {
	return []Budget{
		{Kind: Bucket, Limit: "a", Key: "x", N: 10, Per: time.Second, Burst: 20, Initial: 5}, {Kind: Bucket, Limit: "a", Key: "y", N: 7, Per: time.Minute, Burst: 3},
		{Kind: Pace, Limit: "b", N: 30, Per: time.Second}, {Kind: Sliding, Limit: "c", Key: "\xff\"\n", N: 300, Per: 5 * time.Second},
		{Kind: Fixed, Limit: "d", N: 40, Per: 2 * time.Second, Start: time.UnixMicro(1234)}, {Kind: Slots, Limit: "e", N: 9},
	}
}

// A Book that gets each state from another one, as a store does that keeps them in a database, decides as one that keeps them itself.
func TestSavedStatesDecideAsKeptOnes(t *testing.T) { // slow: histories of every kind
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 9))
		now, kept, saved := someTime, NewBook(), make(map[account][]byte)
		var leases []int64
		for range 500 {
			switch r.IntN(20) {
			case 0:
				now -= r.Int64N(1_000_000)
			case 1:
				now += r.Int64N(10_000_000)
			default:
				now += r.Int64N(100_000)
			}
			for at := range saved { // a store may delete them
				if b := (Budget{Kind: at.kind, Limit: at.limit, Key: at.key}); now >= kept.Until(&b).UnixMicro() {
					delete(saved, at)
					require.NoError(t, kept.SetState(&b, nil))
				}
			}
			ask, fresh := Ask{}, NewBook()
			for _, b := range someBudgets() {
				if r.IntN(2) == 0 {
					continue
				}
				if r.IntN(30) == 0 {
					b.N++
				}
				p := Part{
					Budget: b, Need: r.Int64N(3), Want: r.Int64N(6), Ahead: r.Int64N(3), Horizon: time.Duration(r.IntN(2)) * time.Second, Replace: r.IntN(10) == 0,
					Holder: strconv.Itoa(r.IntN(4)), Held: r.Int64N(3), Since: time.Duration(r.Int64N(int64(MaxSince))),
				}
				if r.IntN(10) == 0 {
					p.Owe, p.Hold = r.Int64N(5), time.Duration(r.Int64N(int64(time.Second)))
				}
				if len(leases) > 0 {
					p.Back = []Return{{r.Int64N(3), leases[r.IntN(len(leases))]}}
				}
				ask.Parts = append(ask.Parts, p)
				require.NoError(t, fresh.SetState(&b, saved[b.account()]))
			}
			want := kept.Lease(time.UnixMicro(now), []Ask{ask})
			require.Equal(t, want, fresh.Lease(time.UnixMicro(now), []Ask{ask}), "seed %d", seed)
			for i := range ask.Parts {
				b := &ask.Parts[i].Budget
				saved[b.account()] = fresh.State(b)
				require.Equal(t, kept.State(b), saved[b.account()])
				require.Equal(t, kept.Until(b), fresh.Until(b))
				leases = append(leases, want[0].Parts[i].ID)
			}
		}
	}
}

func TestAllStatesAreThoseThatCount(t *testing.T) {
	b, now := NewBook(), time.UnixMicro(someTime)
	for _, of := range someBudgets() {
		b.Lease(now, []Ask{{[]Part{{Budget: of, Want: 1, Holder: "h"}}}})
	}
	count := func(now time.Time) (n int) {
		for range b.All(now) {
			n++
		}
		return n
	}
	assert.Equal(t, len(someBudgets()), count(now))
	for range b.All(now) {
		break
	}
	assert.Zero(t, count(now.Add(time.Hour)))
}

func TestDamagedStatesAreErrors(t *testing.T) {
	b, of := NewBook(), bucket(10, time.Second, 5)
	now := time.UnixMicro(someTime)
	b.Lease(now, []Ask{{[]Part{{Budget: of, Want: 3}}}})
	before := b.State(&of)
	for state, what := range map[string]string{
		"x":                            "damaged",
		string(before[:len(before)-1]): "damaged",
		`{"v":2,"rule":[1,1,1,1]}`:     "version 2",
		`{"rule":[1,1,1,1]}`:           "version 0",
		`{"v":1}`:                      "rule [0 0 0 0]",
		`{"v":1,"rule":[1,1,-1,1]}`:    "rule [1 1 -1 1]",
		`{"v":1,"rule":[1,1,1,0]}`:     "not the state of a bucket",
		`{"v":1,"rule":[1,1,1,4611686018427387904]}`: "rule",
	} {
		err := b.SetState(&of, []byte(state))
		assert.ErrorIs(t, err, ErrSetup, state)
		assert.ErrorContains(t, err, what, state)
		assert.ErrorContains(t, err, `limit "l" and key "k"`, state)
	}
	assert.Equal(t, before, b.State(&of), "an error changes nothing")
	unknown := Budget{Kind: "unknown"}
	assert.ErrorContains(t, b.SetState(&unknown, before), `the kind "unknown" is unknown`)
	assert.Nil(t, b.State(&unknown))
	assert.Zero(t, b.Until(&unknown))
	require.NoError(t, b.SetState(&of, nil))
	assert.Nil(t, b.State(&of), "it is new")
}

// A state with more peaks than the release before reads has fewer of them as well, which never give back more.
func TestTheReleaseBeforeReadsFewerPeaks(t *testing.T) {
	l := newLessor(t)
	b := bucket(1, time.Hour, 1000)
	var ids []int64
	for range 12 {
		ids = append(ids, l.ask(Part{Budget: b, Want: 10}).ID)
		l.later(time.Second)
	}
	text := l.book.State(&b)
	var v saved
	require.NoError(t, json.Unmarshal(text, &v))
	require.Len(t, v.Peaks, fewPeaks)
	require.Len(t, v.All, 11)
	v.All = nil // as that release writes it
	before, err := json.Marshal(v)
	require.NoError(t, err)
	left := make([]float64, 2)
	for i, text := range [][]byte{text, before} {
		require.NoError(t, l.book.SetState(&b, text))
		for _, id := range ids {
			left[i] = l.ask(Part{Budget: b, Back: []Return{{10, id}}}).Left
		}
	}
	require.InDelta(t, 1000, left[0], .01)
	require.Less(t, left[1], left[0])
	require.Greater(t, left[1], 880.)
}
