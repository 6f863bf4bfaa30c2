package main

import (
	"flag"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/lab/realserver"
)

// The tests wait most of the time, so many run at the same time, however few processors there are.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// installed reports whether the server's middleware is there. With THROTTLE_REAL_SERVERS=1 in the environment, all must be.
func installed(t *testing.T, s setting) bool {
	if strings.HasPrefix(s.Name, "gofiber") || strings.HasPrefix(s.Name, "Echo") {
		return true
	}
	_, err := os.Stat("node_modules")
	if os.Getenv("THROTTLE_REAL_SERVERS") == "1" {
		require.NoError(t, err)
	}
	return err == nil
}

const callers = 16

// ofEach runs a test against a fresh server of each setting. ask returns the status of a response.
func ofEach(t *testing.T, test func(t *testing.T, s setting, ask func() int)) {
	for _, s := range settings() {
		if !installed(t, s) {
			t.Logf("not installed, so not tested: %s", s.Name)
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			srv, err := s.start(s.Spec)
			require.NoError(t, err)
			defer srv.close()
			client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: callers}}
			defer client.CloseIdleConnections()
			test(t, s, func() int {
				status, err := get(client, srv.url)
				assert.NoError(t, err)
				return status
			})
		})
	}
}

// length returns for how long a server is tested: beyond the end of a window.
func length(s setting) time.Duration { return s.Per + 5*time.Second }

// A client that exceeds the limit gets a burst and the limit, and no more. The others of its requests have the status that the setting says.
func TestMoreThanTheLimitIsRefused(t *testing.T) { // slow: it takes seconds of real time
	t.Parallel()
	ofEach(t, func(t *testing.T, s setting, ask func() int) {
		var (
			mu   sync.Mutex
			seen = make(map[int]int)
			all  sync.WaitGroup
		)
		start := time.Now()
		for range callers {
			all.Go(func() {
				for time.Since(start) < length(s) {
					status := ask()
					mu.Lock()
					seen[status]++
					mu.Unlock()
					if status != http.StatusOK {
						time.Sleep(20 * time.Millisecond)
					}
				}
			})
		}
		all.Wait()
		windows := 1 + int64(time.Since(start)/s.Per)
		if asked := seen[http.StatusOK] + seen[s.Refuses]; asked <= int(s.burst+windows*s.N) {
			t.Logf("not tested: this machine is too busy to exceed the limit: %d requests", asked)
			return
		}
		assert.Len(t, seen, 2, "%v", seen)
		assert.Positive(t, seen[s.Refuses], "%v", seen)
		assert.GreaterOrEqual(t, seen[http.StatusOK], int(s.burst), "%v", seen)
		assert.LessOrEqual(t, seen[http.StatusOK], int(s.burst+windows*s.N), "%v", seen)
	})
}

// A client that never exceeds 95 % of the limit is accepted. Requests are sent one by one, so that a slow machine does not bunch them. But it
// can stop the ticker from which Fiber takes the time, and the window becomes longer: so one in twenty may be refused, or one.
func TestLessThanTheLimitIsAccepted(t *testing.T) { // slow: it takes seconds of real time
	t.Parallel()
	ofEach(t, func(t *testing.T, s setting, ask func() int) {
		gap := time.Duration(float64(time.Second) / (0.95 * s.Rate()))
		var asked, refused int
		for start := time.Now(); time.Since(start) < length(s); {
			next := time.After(gap)
			asked++
			if ask() != http.StatusOK {
				refused++
			}
			<-next
		}
		assert.LessOrEqual(t, refused, max(1, asked/20), "of %d", asked)
	})
}

// The clients of realserver can be put before these servers.
func TestAClientThatKnowsTheLimitIsMeasured(t *testing.T) { // slow: it takes seconds of real time
	t.Parallel()
	s := settings()[1]
	s.Per, s.N, s.start = time.Second, 20, echoLimiter(0, nil)
	r, err := s.measure("known", 1./3)
	require.NoError(t, err)
	assert.Greater(t, r.Share, 40., "%+v", r) // 95 on an idle machine
	assert.Less(t, r.Share, 97., "%+v", r)
}

func TestCellsSayHowManyRunsMeetTheGoal(t *testing.T) {
	g := goal{90, 1}
	good, bad := realserver.Result{Share: 95}, realserver.Result{Share: 89, Refused: 4}
	assert.Equal(t, "95.0 / 0.0", g.summary([]realserver.Result{good, good}))
	assert.Equal(t, "92.0 / 2.0 (1)", g.summary([]realserver.Result{good, bad}))
	assert.True(t, goal{85, 5}.met(realserver.Result{Share: 85, Refused: 5}))
	assert.False(t, goal{85, 5}.met(realserver.Result{Share: 100, Refused: 5.1}))
}

func TestTablesHaveARowForEachServer(t *testing.T) {
	row, pauses := settings()[0], []time.Duration{0, 1, 2, 3, 201, 500}
	results := make(map[cell][]realserver.Result)
	for i, c := range columns {
		results[cell{row.Name, c.client}] = []realserver.Result{{Share: 100, Refused: float64(i), Stalled: pauses[i] * time.Millisecond}}
	}
	text := tables([]setting{row}, results)
	assert.Contains(t, text, "| "+row.Name+" | 100.0 / 0.0 | 100.0 / 1.0 | 100.0 / 2.0 | 100.0 / 3.0 | 100.0 / 4.0 | 100.0 / 5.0 |\n")
	assert.Contains(t, text, "| 1 of 1 | 1 of 1 | 1 of 1 | 1 of 1 | 1 of 1 | 1 of 1 |\n")
	assert.Contains(t, text, "| 1 of 1 | 1 of 1 | 1 of 1 | 1 of 1 | 0 of 0 | 0 of 0 |\n")
	assert.Contains(t, text, "3ms in the median of the runs, and 500ms at most")
}

func TestOnlyTheTablesOfThePageAreReplaced(t *testing.T) {
	assert.Equal(t, "text\n"+title+"new\n", replaceTables("text\n"+title+"old\n", "new\n"))
	assert.Equal(t, "text\n"+title+"new\n", replaceTables("text\n", "new\n"))
}
