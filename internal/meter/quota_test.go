package meter

import (
	"fmt"
	"testing"
	"time"

	"github.com/httpthrottle/throttle/internal/meter/metertest"

	"github.com/stretchr/testify/require"
)

func TestQuotaAgreesWithAPlainList(t *testing.T) {
	for seed := range uint64(200) {
		r := metertest.Seeded(t, seed)
		n, per := 1+r.Int64N(40), 20+r.Int64N(1<<(5+r.IntN(45)))
		w, m, now := NewQuota(Rate{n, time.Duration(per)}), &metertest.Quota{N: n, Per: per}, r.Int64N(1<<40)
		for op := range 150 {
			what := fmt.Sprintf("seed %d, op %d, n %d, per %d, now %d", seed, op, w.n, w.per, now)
			cost := 1 + r.Int64N(w.n)
			m.Advance(now)
			switch r.IntN(9) {
			case 0, 1:
				now += r.Int64N(1 + m.Per/3)
				m.Advance(now)
			case 2, 3: // pay now
				ok := w.Payable(now, cost)
				require.Equal(t, cost <= m.Left(), ok, "%s: payable %d", what, cost)
				if _, spent := spendOrTake(w, r, now, cost); spent {
					m.Take(now, cost)
				}
			case 4, 5: // wait, then pay
				due := w.Ready(now, 0, cost)
				require.Equal(t, m.Ready(now, cost), due, "%s: ready for %d", what, cost)
				require.Equal(t, Never, w.Ready(now, 0, m.N+1), "%s: more than n", what)
				require.True(t, due == now || !w.Payable(due-1, cost), "%s: payable before it is ready", what)
				now = due
				w.Take(due, due, cost, true)
				m.Advance(now)
				m.Take(due, cost)
			case 6: // a token less, or more
				if len(m.Spent) == 0 {
					continue
				}
				at := m.Spent[r.IntN(len(m.Spent))].At
				if r.IntN(2) == 0 {
					w.GiveBack(at, now, 1)
					m.GiveBack(at, 1)
				} else {
					w.Settle(at, now, 1, 3)
					m.Owe(now, 2)
				}
			case 7: // a response
				if len(m.Spent) == 0 {
					continue
				}
				spent := m.Spent[r.IntN(len(m.Spent))]
				w.answered = min(w.answered, now)
				from := min(now, spent.At+w.lag(spent.At))
				w.Answered(spent.At, now)
				m.Count(spent.At, from)
			case 8:
				if r.IntN(4) == 0 {
					rate := Rate{1 + r.Int64N(40), time.Duration(1 + r.Int64N(2*per))}
					w.Retune(now, rate)
					m.Retune(now, metertest.Rate(rate))
				}
			}
			require.InDelta(t, float64(m.Left()), w.Tokens(now), 0, "%s: tokens", what)
			if full := m.Full(); full > 0 {
				require.Equal(t, full, fullAt(w), "%s: full", what)
			} else {
				require.LessOrEqual(t, fullAt(w), now, "%s: full", what)
			}
		}
	}
}

// TestQuotaPlansALine is about requests of cost 1: for others a plan is the earliest that can be.
func TestQuotaPlansALine(t *testing.T) {
	for seed := range uint64(100) {
		r := metertest.Seeded(t, seed)
		n, per := 1+r.Int64N(30), 20+r.Int64N(1<<(5+r.IntN(40)))
		w, m, now := NewQuota(Rate{n, time.Duration(per)}), &metertest.Quota{N: n, Per: per}, r.Int64N(1<<40)
		for range r.IntN(60) {
			if now += r.Int64N(1 + per/12); w.Payable(now, 1) {
				w.Take(now, now, 1, false)
				m.Advance(now)
				m.Take(now, 1)
			}
		}
		for ahead := range 3*n + 2 {
			due := m.Ready(now, 1)
			require.Equal(t, due, w.Ready(now, ahead, 1), "seed %d, n %d, per %d, %d ahead", seed, n, per, ahead)
			m.Advance(due)
			m.Take(due, 1)
		}
	}
}

// An unused quota of 20 per 19 s, whose gap is a second, allows a burst, and lets what waits go evenly from a period later on.
func TestQuotaSendsABurstAndThenEvenly(t *testing.T) {
	const s = int64(time.Second)
	w := NewQuota(Rate{20, 19 * time.Second})
	for range 20 {
		_, ok := w.Spend(0, 1)
		require.True(t, ok)
	}
	require.Zero(t, w.Tokens(0))
	for i := range int64(100) {
		due := w.Ready(0, i, 1)
		require.Equal(t, 19*s+i*s, due, i)
	}
}

// What was spent before a restart comes back evenly, too, the first of it a gap after the state was saved.
func TestARestoredQuotaGivesBackEvenly(t *testing.T) {
	for seed := range uint64(200) {
		r := metertest.Seeded(t, seed)
		rate := Rate{1 + r.Int64N(50), time.Duration(100 + r.Int64N(1<<r.IntN(50)))}
		w, now := NewQuota(rate), r.Int64N(1<<40)
		for range r.IntN(60) {
			now += r.Int64N(1 + int64(rate.Per)/12)
			w.Spend(now, 1+r.Int64N(rate.N))
		}
		saved, since := w.Save(now), r.Int64N(2*int64(rate.Per))
		at := now + since
		restored := NewQuota(rate)
		restored.Spend(at, 1) // is forgotten
		require.NoError(t, restored.Restore(at, since, saved))
		for _, later := range []int64{0, r.Int64N(int64(rate.Per)), 3 * int64(rate.Per)} {
			want, got := w.Tokens(at+later), restored.Tokens(at+later)
			require.LessOrEqual(t, got, want, "seed %d", seed)
			require.GreaterOrEqual(t, got, want-2, "seed %d", seed)
		}
		require.Equal(t, float64(rate.N), restored.Tokens(at+3*int64(rate.Per)))
	}
}
