package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/store"
	"github.com/httpthrottle/throttle/store/file"
)

// The test of kills runs this program again, with the file and the URLs in the arguments.
func TestMain(m *testing.M) {
	if os.Getenv("QUOTA_TASK") == "" {
		os.Exit(m.Run())
	}
	if err := run(context.Background(), os.Args[1], os.Args[2:]); err != nil {
		os.Exit(1)
	}
}

// At 5 requests a second, a kill costs the request whose turn is next, and no request is sent that is not charged.
func TestAKillCostsARequest(t *testing.T) {
	var sent atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { sent.Add(1) }))
	defer server.Close()
	path := filepath.Join(t.TempDir(), "quota")
	urls := slices.Repeat([]string{server.URL}, 100)
	const kills = 4
	for i := range kills {
		before := sent.Load()
		c := exec.CommandContext(t.Context(), os.Args[0], append([]string{path}, urls...)...)
		c.Env = append(os.Environ(), "QUOTA_TASK=send")
		require.NoError(t, c.Start())
		for sent.Load() < before+6 { // of which five are sent immediately
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Duration(i) * 50 * time.Millisecond)
		require.NoError(t, c.Process.Kill())
		require.Error(t, c.Wait())
	}
	server.CloseClientConnections()
	quota, err := file.Open(path)
	require.NoError(t, err)
	leases, err := quota.Lease(t.Context(), []store.Ask{{Parts: []store.Part{{
		Budget: store.Budget{Kind: store.Fixed, Limit: "daily", N: 8000, Per: 24 * time.Hour}, Since: store.MaxSince,
	}}}})
	require.NoError(t, err)
	require.NoError(t, leases[0].Err)
	charged := 8000 - int64(leases[0].Parts[0].Left)
	require.GreaterOrEqual(t, charged, sent.Load(), "each request was charged before it was sent")
	require.LessOrEqual(t, charged, sent.Load()+2*kills, "the next request, and one that was charged and not sent yet")
}
