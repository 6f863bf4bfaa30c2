package file

import (
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/store"
)

// Budgets are listed, held, released and reset by name, for all processes.
func TestBudgetsAreListedHeldAndReset(t *testing.T) {
	file := filepath.Join(t.TempDir(), "limits")
	synctest.Test(t, func(t *testing.T) {
		s, other := open(t, file), open(t, file)
		take(t, s, day, 1000)
		bucket := store.Budget{Kind: store.Bucket, Limit: "calls \"x\"", Key: "a\n", N: 10, Per: time.Hour, Burst: 10, Initial: 10}
		take(t, s, bucket, 4)
		slots := store.Budget{Kind: store.Slots, Limit: "slots", N: 5}
		take(t, s, slots, 2)
		all, err := other.Budgets(t.Context(), "")
		require.NoError(t, err)
		require.Len(t, all, 3)
		require.Equal(t, `bucket "calls \"x\"" "a\n"`, all[0].Name)
		require.Equal(t, "a\n", all[0].Key)
		require.InDelta(t, 10.0/3600, all[0].PerSecond, 1e-9)
		require.Equal(t, []float64{10, 6}, []float64{all[0].Most, all[0].Left})
		require.Equal(t, []float64{8000, 7000}, []float64{all[1].Most, all[1].Left})
		require.Equal(t, []store.Holder{{Name: "h", Slots: 2, Expires: store.SlotLease}}, all[2].Holders)
		some, err := other.Budgets(t.Context(), "calls")
		require.NoError(t, err)
		require.Len(t, some, 1)

		for _, b := range []store.Budget{bucket, day} {
			name := string(appendName(nil, &b))
			require.NoError(t, other.Hold(t.Context(), name, time.Minute))
			part := store.Part{Budget: b, Need: 1, Want: 1}
			leases, err := s.Lease(t.Context(), []store.Ask{{Parts: []store.Part{part}}})
			require.NoError(t, err)
			require.Zero(t, leases[0].Parts[0].Tokens)
			require.Equal(t, time.Minute, leases[0].Parts[0].Hold)
			require.NoError(t, other.Hold(t.Context(), name, 0))
			require.EqualValues(t, 1, take(t, s, b, 1).Tokens)
			require.NoError(t, other.Reset(t.Context(), name))
			require.EqualValues(t, b.Most()-1, take(t, s, b, 1).Left)
		}
		require.ErrorContains(t, s.Reset(t.Context(), "x"), "there is no such budget")
		require.ErrorContains(t, s.Hold(t.Context(), "x", time.Second), "there is no such budget")
	})
}
