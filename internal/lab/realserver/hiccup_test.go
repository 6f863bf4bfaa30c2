package realserver_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/lab/realserver"
)

// A server that stands still does not change what a client has learned.
func TestAStoppedServerIsUsedAsBeforeWhenItGoesOn(t *testing.T) { // slow: it takes seconds of real time
	if testing.Short() {
		return
	}
	t.Parallel()
	for _, c := range []struct {
		client string
		stop   time.Duration
	}{
		{client: "known", stop: 300 * time.Millisecond},
		{client: "known", stop: 4 * time.Second},
		{client: "adaptive", stop: 300 * time.Millisecond},
		{client: "adaptive", stop: time.Second},
		{client: "adaptive", stop: 4 * time.Second},
		{client: "adaptive", stop: 10 * time.Second},
	} {
		spec := realserver.Named("nginx, burst 20 nodelay")
		if !installed(t, spec) {
			continue
		}
		t.Run(fmt.Sprintf("%s, %v", c.client, c.stop), func(t *testing.T) {
			inThree(t, func() string { return stopped(t, spec, c.client, c.stop) })
		})
	}
}

func stopped(t *testing.T, spec realserver.Spec, client string, length time.Duration) (missed string) {
	const begins = 10 * time.Second
	ends := begins + length
	srv, err := spec.Start()
	require.NoError(t, err)
	defer srv.Close()
	load := realserver.Load{Client: realserver.ClientNamed(client), Callers: 64, Length: ends + 8*time.Second}
	recorders, err := load.Run(srv, func(start time.Time) error {
		time.Sleep(time.Until(start.Add(begins)))
		if err := srv.Pause(); err != nil {
			return err
		}
		time.Sleep(time.Until(start.Add(ends)))
		return srv.Resume()
	})
	require.NoError(t, err)
	r := recorders[0]
	back, after := r.Reaches(0.9*spec.Rate(), ends), r.Between(ends, ends+5*time.Second)
	t.Logf("%s, %v: %s until 90 %%, %d refused of what was sent in the 5 s after it, %.1f/s", client, length,
		rounded(back), after.Refused, after.PerSecond())
	switch {
	case back > 3*time.Second:
		return "the full rate within 2 s"
	case after.Refused > 5+3:
		return "at most 5 refused"
	}
	return ""
}

// A server that is down for 30 s is asked seldom, whatever it looks like, and used again when it returns.
func TestAServerThatIsDownIsLeftAlone(t *testing.T) { // slow: it takes seconds of real time
	if testing.Short() {
		return
	}
	t.Parallel()
	const plain = 0.95*50*30 + 64 // what a limit allows in 30 s
	for _, c := range []struct {
		name, client string
		fall, rise   func(*realserver.Server) error
		timeout      time.Duration
		most         int // requests or dials while it is down
	}{
		{name: "dials refused", client: "adaptive", fall: kill, rise: (*realserver.Server).Launch, most: 40},
		{name: "hanging", client: "adaptive", fall: (*realserver.Server).Pause, rise: (*realserver.Server).Resume,
			timeout: 5 * time.Second, most: 40},
		{name: "503", client: "adaptive", fall: unavailable, rise: available, most: 40},
		{name: "dials refused", client: "known", fall: kill, rise: (*realserver.Server).Launch, most: plain},
		{name: "503", client: "known", fall: unavailable, rise: available, most: plain},
	} {
		spec := realserver.Named("nginx, burst 20 nodelay")
		if !installed(t, spec) {
			continue
		}
		t.Run(c.client+", "+c.name, func(t *testing.T) {
			inThree(t, func() string {
				load := realserver.Load{Client: realserver.ClientNamed(c.client), Callers: 64, Length: 52 * time.Second, Timeout: c.timeout}
				return down(t, spec, load, c.fall, c.rise, c.most)
			})
		})
	}
}

func down(t *testing.T, spec realserver.Spec, load realserver.Load, fall, rise func(*realserver.Server) error, most int) (missed string) {
	const falls, rises = 10 * time.Second, 40 * time.Second
	srv, err := spec.Start()
	require.NoError(t, err)
	defer srv.Close()
	recorders, err := load.Run(srv, func(start time.Time) error {
		time.Sleep(time.Until(start.Add(falls)))
		if err := fall(srv); err != nil {
			return err
		}
		time.Sleep(time.Until(start.Add(rises)))
		return rise(srv)
	})
	require.NoError(t, err)
	r := recorders[0]
	while, dials := r.Between(falls, rises), r.Dials(falls, rises)
	sent := while.Refused + while.Failed // what a server accepts before its new configuration is in force is no attempt
	back, first := r.Reaches(0.9*spec.Rate(), rises), r.Between(rises, rises+time.Second)
	rush := first.Accepted + first.Refused + first.Failed
	t.Logf("while it is down %d requests, after %d that were accepted, %d dials; %s until 90 %%, %d requests in the first second",
		sent, while.Accepted, dials, rounded(back), rush)
	switch {
	case max(sent, dials) > most:
		return fmt.Sprintf("at most %d requests or dials", most)
	case back > 4*time.Second:
		return "the full rate within 3 s"
	case float64(rush) > 2*spec.Rate()+20:
		return "no stampede"
	}
	return ""
}

func kill(s *realserver.Server) error {
	s.Kill()
	return nil
}

func unavailable(s *realserver.Server) error { return s.Reconfigure(s.N, "Limit", "return 503;") }

func available(s *realserver.Server) error {
	return s.Reconfigure(s.N, "Limit", "limit_req zone=paths burst=20 nodelay;")
}
