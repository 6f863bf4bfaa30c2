//go:build !race

package worlds

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Whatever happens to a fleet, its limits hold and are used, its processes get their shares, and no request is rejected that could have
// been sent.
func TestWorlds(t *testing.T) { // slow: 150 worlds
	if *seed > 0 {
		w := draw(*seed)
		t.Logf("\n%v", w)
		examine(t, w)
		return
	}
	first, n := *after+1, uint64(150)
	if *seeds > 0 {
		n = *seeds
	} else if !testing.Short() {
		first += n // -short plays those before
	}
	percent := debug.SetGCPercent(400) // it saves a tenth of the time, and a world is small
	t.Cleanup(func() { debug.SetGCPercent(percent) })
	var next atomic.Uint64
	next.Store(first)
	for range runtime.GOMAXPROCS(0) {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			for seed := next.Add(1) - 1; seed < first+n; seed = next.Add(1) - 1 {
				fmt.Fprint(os.Stderr, seed, " ") // a panic in a goroutine of the library ends the test, and the last ones here were played then
				examine(t, draw(seed))
			}
		})
	}
}

// examine plays a world. If it fails, so does the test, with the smallest world that fails in the same way.
func examine(t *testing.T, w *world) {
	faults := play(t, w).check()
	if len(faults) == 0 {
		return
	}
	if !*shrinks {
		t.Errorf("seed %d: %s", w.seed, strings.Join(faults, "\n"))
		return
	}
	least, fault := shrink(t, w, faults[0])
	t.Errorf("seed %d: %s\n%v\nthe smallest world found that fails in this way: %s\n%v", w.seed, strings.Join(faults, "\n"), w, fault, least)
}

// The smallest forms of worlds that failed.
func TestWorldsThatFailed(t *testing.T) {
	long := 30 * time.Second
	for _, w := range []*world{
		{ // three processes got no tokens from 10 s to 20 s
			lasts: long, keys: 1, limits: []limit{{kind: "sliding", n: 90, per: 5 * time.Second, shared: true}},
			crews: []crew{{size: 15, callers: 8, costs: 1, maxWait: -1, away: time.Millisecond, percent: 100, to: long}},
		},
		{ // the process that is left used .85 of the window
			seed: 1338, lasts: long, keys: 1, jitter: 20 * time.Millisecond, limits: []limit{{kind: "sliding", n: 17, per: 2 * time.Second, shared: true}},
			crews:  []crew{{size: 2, callers: 17, costs: 1, maxWait: -1, away: 80 * time.Millisecond, percent: 100, to: long}},
			twists: []twist{kill{at: 10516476187, process: 1}},
		},
		// A bucket and a pace of nearly the same rate were asked for when both had run out, so a process that asked soon after another one got
		// least.
		draw(4293), draw(7788),
		draw(5479), // the process gave a slot back that its next request was to use, and used .92 of a pace
		draw(8689), // one token a second, and one in 50 lost on its way to any of three processes: the check saw those of one only
		draw(8968), // after a kill, two processes share three slots, one of which goes around: the check divided them by three
		draw(1054), // no request got both a slot and a token of the window: the process had the one whenever it was granted the other
	} {
		examine(t, w)
	}
}

// A spoiler is a twist that does not say that it happens.
type spoiler func(f *fleet, me actor)

func (s spoiler) play(f *fleet, me actor)             { s(f, me) }
func (s spoiler) unrest() (from, until time.Duration) { return 0, 0 }
func (s spoiler) String() string                      { return "spoiler" }

// The checks find what is wrong: otherwise they would find nothing in TestWorlds either.
func TestChecksFindFaults(t *testing.T) {
	for want, spoil := range map[string]spoiler{
		"bound: limit 0 of process -1": func(f *fleet, me actor) { // its store forgets what it granted
			for f.now() < f.lasts {
				loss{f.now()}.play(f, me)
				me.sleep(f, 100*time.Millisecond)
			}
		},
		"shares: process 1 has 0": func(f *fleet, me actor) { // it cannot run
			me.sleep(f, time.Second)
			f.processes[1].stop(f.lasts)
		},
		"use: from 3.15s": func(f *fleet, me actor) { // its store cannot be reached
			outage{at: time.Second, lasts: f.lasts}.play(f, me)
		},
		"missed: throttle: limit \"bucket0\": the store": func(f *fleet, me actor) { // callers do not wait for it
			for _, c := range f.processes[0].all {
				c.deadline = time.Second
			}
			outage{at: time.Second, lasts: f.lasts}.play(f, me)
		},
	} {
		w := &world{
			seed: 1, lasts: 20 * time.Second, keys: 1, limits: []limit{{kind: "bucket", n: 20, per: time.Second, burst: 10, shared: true}},
			crews:  []crew{{size: 3, callers: 4, costs: 1, maxWait: -1, away: time.Millisecond, percent: 100, to: 20 * time.Second}},
			twists: []twist{spoil},
		}
		faults := play(t, w).check()
		require.NotEmpty(t, faults, want)
		require.Contains(t, strings.Join(faults, "\n"), want)
	}
}

// A token that is left while a request for it is rejected is found, and one that is not there is not.
func TestCheckOfMissedRequests(t *testing.T) {
	f := &fleet{world: &world{lasts: 30 * time.Second, keys: 1, limits: []limit{{kind: "bucket", n: 10, per: time.Second, burst: 1}}}}
	p := &process{fleet: f, crew: crew{size: 1, costs: 1, maxWait: -1, percent: 100, to: f.lasts}, gone: f.lasts}
	f.crews, f.processes = []crew{p.crew}, []*process{p}
	f.missed = []missed{{process: p, cost: 1, asked: 10 * time.Second, at: 10 * time.Second, until: 11 * time.Second, err: os.ErrDeadlineExceeded}}
	require.Len(t, f.check(), 1)
	for at := 10 * time.Second; at < 11*time.Second; at += 100 * time.Millisecond {
		f.sent = append(f.sent, sent{process: p, cost: 1, asked: at, at: at, ends: at})
	}
	require.Empty(t, f.check())
}

// A process that sends a request although the server asked it to wait is found, and so is a server that accepts nothing.
func TestChecksOfServers(t *testing.T) {
	f := &fleet{world: &world{lasts: 30 * time.Second, keys: 1, server: &server{n: 1, burst: 1, per: time.Second}}}
	p := &process{fleet: f, crew: crew{size: 1, callers: 1, costs: 1, maxWait: -1, percent: 100, to: f.lasts}, gone: f.lasts}
	f.crews, f.processes = []crew{p.crew}, []*process{p}
	for at := 10 * time.Second; at < 30*time.Second; at += 2 * time.Second {
		f.sent = append(f.sent, sent{process: p, cost: 1, at: at, ends: at, refused: at == 10*time.Second, wait: 0})
	}
	require.Empty(t, f.check())
	f.sent[0].wait = 3 * time.Second
	require.Empty(t, f.check(), "the server may have rounded up")
	f.sent[0].wait = 4 * time.Second
	require.Len(t, f.check(), 1)
	f.sent[0].wait = 0
	for i := range f.sent[1:6] {
		f.sent[1+i].refused = true
	}
	require.Len(t, f.check(), 1)
}

// While streams have all slots, a server can accept nothing.
func TestChecksOfServersLeaveOutStreams(t *testing.T) {
	for slots, faults := range map[int64]int{1: 0, 2: 1} {
		f := &fleet{world: &world{lasts: 30 * time.Second, keys: 1, server: &server{n: 1, burst: 1, per: time.Second}, limits: []limit{{kind: "slots", n: slots, shared: true}}}}
		p := &process{fleet: f, crew: crew{size: 1, callers: 1, costs: 1, maxWait: -1, percent: 100, to: f.lasts}, gone: f.lasts}
		f.crews, f.processes = []crew{p.crew}, []*process{p}
		f.sent = []sent{{process: p, cost: 1, at: 10 * time.Second, ends: 10 * time.Second, refused: true}}
		for at := 11 * time.Second; at < 30*time.Second; at += 13 * time.Second {
			f.sent = append(f.sent, sent{process: p, cost: 1, at: at, ends: at + 12*time.Second})
		}
		require.Len(t, f.check(), faults, "%d slots", slots)
	}
}
