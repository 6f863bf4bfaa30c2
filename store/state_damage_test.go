package store

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter/metertest"
)

// used returns a Book in which all of some budgets have been in use for a while.
func used(t *testing.T, r *rand.Rand) *lessor {
	l := newLessor(t)
	var ids []int64
	for range 60 {
		l.now += r.Int64N(300_000)
		for _, b := range someBudgets() {
			p := Part{Budget: b, Want: r.Int64N(4), Owe: r.Int64N(2), Horizon: time.Second, Holder: string(rune('a' + r.IntN(3))), Held: r.Int64N(2), Since: time.Second}
			if len(ids) > 0 {
				p.Back = []Return{{1, ids[r.IntN(len(ids))]}}
			}
			ids = append(ids, l.ask(p).ID)
		}
	}
	return l
}

// States that are moved to another Book, in any order and by way of a third, decide as those that stay.
func TestStatesAreMovedInAnyOrder(t *testing.T) {
	for seed := range uint64(10) {
		r := metertest.Seeded(t, seed)
		l := used(t, r)
		moved := NewBook()
		for _, by := range []*Book{NewBook(), moved} {
			from := l.book
			if by == moved {
				from = NewBook()
				for _, i := range r.Perm(len(someBudgets())) {
					b := someBudgets()[i]
					require.NoError(t, from.SetState(&b, l.book.State(&b)))
				}
			}
			for _, i := range r.Perm(len(someBudgets())) {
				b := someBudgets()[i]
				require.NoError(t, by.SetState(&b, from.State(&b)))
			}
		}
		for range 50 {
			l.now += r.Int64N(500_000)
			for _, i := range r.Perm(len(someBudgets())) {
				p := Part{Budget: someBudgets()[i], Need: r.Int64N(2), Want: 1 + r.Int64N(3), Holder: string(rune('a' + r.IntN(3)))}
				asks := []Ask{{[]Part{p}}}
				require.Equal(t, l.book.decide(l.now, 0, asks), moved.decide(l.now, 0, asks))
			}
		}
	}
}

// damage returns a state in which one number, in whatever depth, is another one, or has another type.
func damage(r *rand.Rand, v any) any {
	switch v := v.(type) {
	case map[string]any:
		if len(v) == 0 {
			return v
		}
		n := r.IntN(len(v))
		for name := range v {
			if n--; n < 0 {
				v[name] = damage(r, v[name])
				break
			}
		}
		return v
	case []any:
		if len(v) > 0 {
			i := r.IntN(len(v))
			v[i] = damage(r, v[i])
		}
		return v
	}
	return []any{
		int64(-1), int64(0), int64(1), int64(math.MaxInt64), int64(math.MinInt64), int64(mostUnits), -int64(mostUnits), r.Int64(), -r.Int64(), .5, "1", nil, true, []any{},
	}[r.IntN(14)]
}

// A state that was damaged is an error and changes nothing, or it is one that a Book may have come to: then no ask gets more than n, its
// burst or all slots, or finds tokens that never were.
func TestADamagedStateGrantsNoMoreThanABudgetHas(t *testing.T) {
	refused := 0
	for seed := range uint64(8) {
		r := metertest.Seeded(t, seed)
		l := used(t, r)
		for _, b := range someBudgets() {
			before := l.book.State(&b)
			for range 100 {
				var v any
				require.NoError(t, json.Unmarshal(before, &v))
				text, err := json.Marshal(damage(r, v))
				require.NoError(t, err)
				if r.IntN(10) == 0 {
					text = text[:r.IntN(len(text)-1)+1]
				}
				if err := l.book.SetState(&b, text); err != nil {
					refused++
					require.ErrorIs(t, err, ErrSetup, "%s", text)
					require.Equal(t, before, l.book.State(&b), "%s", text)
					continue
				}
				most := max(b.N, b.Burst)
				for range 3 {
					got := l.book.decide(l.now, 0, []Ask{{[]Part{{Budget: b, Want: 2 * most, Holder: "z"}}}})[0]
					require.NoError(t, got.Err)
					p := got.Parts[0]
					require.LessOrEqual(t, p.Tokens, most, "%s %s", b.Kind, text)
					require.LessOrEqual(t, p.Left, float64(most), "%s %s", b.Kind, text)
					require.GreaterOrEqual(t, p.Tokens, p.AtOnce, "%s %s", b.Kind, text)
					require.GreaterOrEqual(t, min(p.Tokens, p.AtOnce), int64(0), "%s %s", b.Kind, text)
					require.GreaterOrEqual(t, min(p.Wait, p.Hold, p.Next), time.Duration(0), "%s %s", b.Kind, text)
					require.Positive(t, p.Processes, "%s %s", b.Kind, text)
				}
				require.NoError(t, l.book.SetState(&b, before))
			}
		}
	}
	require.Greater(t, refused, 500)
}

// What no store can have counted is an error that names it.
func TestNumbersThatCannotBeAreNamed(t *testing.T) {
	for _, c := range []struct {
		kind        Kind
		state, what string
	}{
		{Bucket, `{"v":1,"rule":[1,1,10,50],"level":51}`, "a level of 51 of 50"},
		{Bucket, `{"v":1,"rule":[1,1,10,50],"level":-9223372036854775808}`, "a level of -9223372036854775808 of 50"},
		{Bucket, `{"v":1,"rule":[1,1,9223372036854775807,50]}`, "a level of 0 of 50"},
		{Pace, `{"v":1,"rule":[1,1,10,10],"level":11}`, "a level of 11 of 10"},
		{Pace, `{"v":1,"rule":[1,1,10,10],"peaks":[[1,1],[2,2],[3,3],[4,4],[5,5],[6,6],[7,7],[8,8]]}`, "not the state of a pace"},
		{Sliding, `{"v":1,"rule":[1,5,10,0],"log":[[1,2],[2,-1]]}`, "its log has -1 tokens at 2"},
		{Sliding, `{"v":1,"rule":[1,5,10,0],"log":[[2,2],[1,1]]}`, "its log has 1 tokens at 1"},
		{Sliding, `{"v":1,"rule":[1,5,10,0],"log":[[1,4503599627370496],[2,1]]}`, "its log has 1 tokens at 2"},
		{Fixed, `{"v":1,"rule":[1,5,10,0],"used":-1}`, "-1 tokens used"},
		{Fixed, `{"v":1,"rule":[1,5,10,0],"queue":[[1,-1,9]]}`, "-1 tokens are waited for at the place 1"},
		{Sliding, `{"v":1,"rule":[1,5,10,0],"queue":[[2,1,9],[1,3,9]]}`, "3 tokens are waited for at the place 1"},
		{Bucket, `{"v":1,"rule":[1,1,10,50],"queue":[[1,9223372036854775807,9]]}`, "9223372036854775807 tokens are waited for"},
		{Calendar, `{"v":1,"rule":[1,5,10,0],"used":9223372036854775807}`, "9223372036854775807 tokens used"},
		{Slots, `{"v":1,"rule":[1,5,1,0],"holders":{"me":[-1,0,9]}}`, `holder "me" has -1 slots and waits for 0`},
		{Slots, `{"v":1,"rule":[1,5,1,0],"holders":{"me":[1,-2,9]}}`, `holder "me" has 1 slots and waits for -2`},
	} {
		b := NewBook()
		of := Budget{Kind: c.kind, Limit: "calls", Key: "k"}
		err := b.SetState(&of, []byte(c.state))
		require.ErrorIs(t, err, ErrSetup, c.state)
		require.ErrorContains(t, err, `the state of limit "calls" and key "k" is damaged: `, c.state)
		require.ErrorContains(t, err, c.what, c.state)
		require.Nil(t, b.State(&of))
	}
}
