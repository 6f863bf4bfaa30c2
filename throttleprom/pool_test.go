package throttleprom_test

import (
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/metrics/metricstest"
	"github.com/httpthrottle/throttle/throttleprom"
)

// A Pool is exported as one thing: a request that waits at two members, and one that they reject, count once.
func TestAPoolIsOneThing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := metricstest.PlayPool(t)
		reg := prometheus.NewPedanticRegistry()
		require.NoError(t, reg.Register(throttleprom.NewPoolCollector(p, "models")))
		got := gather(t, reg)
		if os.Getenv("UPDATE_GOLDEN") != "" {
			require.NoError(t, os.WriteFile("testdata/pool.txt", []byte(got), 0o644))
		}
		want, err := os.ReadFile("testdata/pool.txt")
		require.NoError(t, err)
		require.Equal(t, strings.Split(string(want), "\n"), strings.Split(got, "\n"), "UPDATE_GOLDEN=1 writes the file")
		problems, err := testutil.GatherAndLint(reg)
		require.NoError(t, err)
		assert.Empty(t, problems)
	})
	assert.ErrorContains(t, prometheus.NewPedanticRegistry().Register(throttleprom.NewPoolCollector(nil, "models")), "throttleprom: the Pool is nil")
}
