package realserver_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/lab/realserver"
)

// nginx reloads a limit of 10/s instead of 50/s, and 20 s later that of 50/s again.
func TestAChangedLimitIsFoundOnNginx(t *testing.T) { // slow: it takes seconds of real time
	if testing.Short() {
		return
	}
	t.Parallel()
	for _, c := range []struct {
		spec  string
		share float64       // of the limit: less where a client gets less of one that does not change
		back  time.Duration // until that share of the limit that returned, with a margin for a busy machine
	}{
		{"nginx, burst 20 nodelay", 0.9, 24 * time.Second},
		{"nginx, burst 20 nodelay, Retry-After 1", 0.9, 28 * time.Second},
		{"nginx, no burst", 0.5, 26 * time.Second},
		{"nginx, burst 50 delay", 0.9, 40 * time.Second},
	} {
		spec := realserver.Named(c.spec)
		if !installed(t, spec) {
			continue
		}
		t.Run(c.spec, func(t *testing.T) {
			inThree(t, func() string { return changedLimit(t, spec, c.share, c.back) })
		})
	}
}

func changedLimit(t *testing.T, spec realserver.Spec, share float64, most time.Duration) (missed string) {
	const falls, rises = 20 * time.Second, 40 * time.Second
	srv, err := spec.Start()
	require.NoError(t, err)
	defer srv.Close()
	load := realserver.Load{Client: realserver.ClientNamed("adaptive"), Length: rises + most + 4*time.Second}
	recorders, err := load.Run(srv, func(start time.Time) error {
		time.Sleep(time.Until(start.Add(falls)))
		if err := srv.Reconfigure(10); err != nil {
			return err
		}
		time.Sleep(time.Until(start.Add(rises)))
		return srv.Reconfigure(50)
	})
	require.NoError(t, err)
	r := recorders[0]
	all, low := r.Between(0, load.Length), r.Between(falls, rises)
	back := r.Reaches(share*50, rises)
	t.Logf("%d refused on the way down, %.2f %% in all; %.1f/s at 10/s; %s until %.0f %% of 50/s",
		low.Refused, 100*all.RefusedShare(), low.PerSecond(), rounded(back), 100*share)
	if back > most {
		return "the limit that returned"
	}
	return ""
}
