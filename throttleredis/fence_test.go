package throttleredis

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/httpthrottle/throttle/store"
)

const second = time.Second

// replicated returns what a master with these replicas reports.
func replicated(id, before string, replicas ...string) replication {
	return replication{isMaster: true, id: id, before: before, replicas: replicas}
}

func TestFenceStandsWhileAReplicaServesInPlaceOfItsMaster(t *testing.T) {
	const a, b = "10.0.0.1:6379", "10.0.0.2:6379"
	var f fence
	if s := f.saw(0, replicated("old", "", a, b)); s.ask != nil || s.promoted || s.by != "" {
		t.Fatalf("a master with its replicas: %+v", s)
	}
	s := f.saw(second, replicated("old", "", b))
	if len(s.ask) != 1 || s.ask[0] != a || s.by != "" {
		t.Fatalf("a replica is gone: %+v", s)
	}
	if s := f.saw(second+lookEach, replicated("old", "", b)); s.ask != nil {
		t.Errorf("it is asked twice: %+v", s)
	}
	at := second + 2*lookEach
	for _, c := range []struct {
		says   string
		r      *replication
		marked string
		serves bool
	}{
		{says: "nothing"},
		{says: "that it is a replica", r: &replication{before: "other"}},
		{"that it is a master that no process came to", &replication{isMaster: true, id: "new", before: "old"}, "", false},
		{"that it is a master of another history", &replication{isMaster: true, id: "new", before: "other"}, "new", false},
		{"that it was marked when it was another master", &replication{isMaster: true, id: "new", before: "old"}, "earlier", false},
		{"that it serves", &replication{isMaster: true, id: "new", before: "old"}, "new", true},
	} {
		if _, again := f.answered(at, "old", a, c.r, c.marked); !again {
			t.Errorf("it says %s, and is not asked again", c.says)
		}
		if s := f.saw(at, replicated("old", "", b)); (s.by == a) != c.serves {
			t.Errorf("it says %s: %+v", c.says, s)
		}
	}
	if !f.looks(at) {
		t.Error("not every call looks where it leads to")
	}
	if s := f.saw(at, replicated("new", "old")); s.by != "" || !s.promoted {
		t.Errorf("the new master: %+v", s)
	}
	if s := f.saw(at+fencedFor-1, replicated("old", "", b)); s.by != a {
		t.Errorf("just before the fence falls: %+v", s)
	}
	if s := f.saw(at+fencedFor, replicated("old", "", b)); s.by != "" {
		t.Errorf("it did not say so for long: %+v", s)
	}
	if s := f.saw(at+fencedFor, replicated("old", "", a, b)); s.by != "" || s.ask != nil {
		t.Errorf("it is a replica again: %+v", s)
	}
	if _, again := f.answered(at+fencedFor, "old", a, nil, ""); again {
		t.Error("a replica that is back is still asked")
	}
}

func TestFenceAsksNoLongerThanItMust(t *testing.T) {
	const a = "10.0.0.1:6379"
	var f fence
	f.saw(0, replicated("m", "", a))
	f.saw(second, replicated("m", ""))
	if wait, again := f.answered(second, "m", a, nil, ""); !again || wait != askEach {
		t.Errorf("soon after it went: %v, %v", wait, again)
	}
	f.saw(askSoon, replicated("m", ""))
	if wait, again := f.answered(askSoon, "m", a, nil, ""); !again || wait != askAgain {
		t.Errorf("later, without an answer: %v, %v", wait, again)
	}
	if wait, again := f.answered(askSoon, "m", a, &replication{}, ""); !again || wait != askLater {
		t.Errorf("later: %v, %v", wait, again)
	}
	if _, again := f.answered(askSoon+askAgain, "m", a, nil, ""); again {
		t.Error("it is asked although there are no calls")
	}
	if s := f.saw(goneFor, replicated("m", "")); len(s.ask) != 1 {
		t.Errorf("calls again: %+v", s)
	}
	if _, again := f.answered(goneFor, "m", a, nil, ""); again {
		t.Error("it is asked after a minute")
	}
	if s := f.saw(goneFor+1, replicated("m", "")); s.ask != nil || f.looks(goneFor+lookEach) {
		t.Errorf("after a minute: %+v", s)
	}
	for _, id := range []string{"1", "2", "3", "4", "5", "6", "7", "8", "9"} {
		f.saw(2*goneFor, replicated(id, ""))
	}
	if len(f.masters) != mostSeen {
		t.Errorf("%d masters", len(f.masters))
	}
}

func TestFenceMarksANewMasterUntilThatSucceeds(t *testing.T) {
	var f fence
	f.saw(0, replicated("old", ""))
	for range 2 {
		if s := f.saw(second, replicated("new", "old")); !s.promoted {
			t.Errorf("%+v", s)
		}
	}
	f.marked("new")
	if s := f.saw(second, replicated("new", "old")); s.promoted {
		t.Errorf("%+v", s)
	}
	if s := f.saw(second, replicated("other", "unknown")); s.promoted {
		t.Errorf("a process that starts: %+v", s)
	}
}

func TestReplicationIsRead(t *testing.T) {
	r := parseReplication("# Replication\r\nrole:master\r\nconnected_slaves:3\r\n" +
		"slave0:ip=10.0.0.1,port=6380,state=online,offset=14,lag=1\r\nslave1:ip=fd00::1,port=6379,state=online,offset=14,lag=0\r\n" +
		"slave2:ip=10.0.0.3,port=6379,state=wait_bgsave,offset=0,lag=0\r\nmaster_replid:abc\r\nmaster_replid2:000\r\nslave_read_only:1\r\n")
	if !r.isMaster || r.id != "abc" || r.before != "000" || strings.Join(r.replicas, " ") != "10.0.0.1:6380 [fd00::1]:6379" {
		t.Errorf("%+v", r)
	}
	if r := parseReplication("role:slave\r\nmaster_host:1.2.3.4\r\nmaster_replid:abc\r\n"); r.isMaster || len(r.replicas) > 0 {
		t.Errorf("%+v", r)
	}
}

// TestProcessThatStaysWithAReplacedMasterGetsNothing promotes a replica by hand, as Sentinel does.
func TestProcessThatStaysWithAReplacedMasterGetsNothing(t *testing.T) { // slow: it takes seconds of real time
	t.Parallel()
	master, replica := startReplicated(t)
	stays := newStore(t, master.client(t))
	goes := newStore(t, master.client(t))
	p := store.Part{Budget: bucket("k")}
	lease1(t, stays, p)
	lease1(t, goes, p)
	must(t, replica.client(t).ReplicaOf(t.Context(), "NO", "ONE").Err())
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		lease1(t, stays, p) // no process uses the copy
	}
	goes.client = replica.client(t)
	time.Sleep(lookEach)
	lease1(t, goes, p)
	eventually(t, "the master that was replaced is not used", func() bool {
		_, err := try(t.Context(), stays, p)
		return err != nil && strings.Contains(err.Error(), replica.addr())
	})
	must(t, replica.client(t).ReplicaOf(t.Context(), "127.0.0.1", master.port).Err())
	eventually(t, "the failover is undone", func() bool {
		_, err := try(t.Context(), stays, p)
		return err == nil
	})
}

func TestProcessWithoutPermissionForINFOWorks(t *testing.T) {
	t.Parallel()
	s := start(t)
	st := newStore(t, withACL(t, s, leastACL...))
	for range 3 {
		lease1(t, st, store.Part{Budget: bucket("k")})
	}
	if st.fence.looks(time.Since(st.began) + lookNever/2) {
		t.Error("INFO is asked for again soon")
	}
}

// TestReplicaIsLeft has a client with a connection to a master that becomes a replica. A proxy or a DNS name leads new connections to
// the new master.
func TestReplicaIsLeft(t *testing.T) { // slow: it takes seconds of real time
	t.Parallel()
	master, replica := startReplicated(t)
	var dials atomic.Int64
	c := redis.NewClient(&redis.Options{Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
		dials.Add(1)
		return new(net.Dialer).DialContext(ctx, network, master.addr())
	}})
	t.Cleanup(func() { _ = c.Close() })
	st := newStore(t, c)
	lease1(t, st, store.Part{Budget: bucket("k")})
	must(t, replica.client(t).ReplicaOf(t.Context(), "NO", "ONE").Err())
	must(t, master.client(t).ReplicaOf(t.Context(), "127.0.0.1", replica.port).Err())
	for range 3 {
		before := dials.Load()
		_, err := try(t.Context(), st, store.Part{Budget: bucket("k")})
		if err == nil || !strings.Contains(err.Error(), "READONLY") {
			t.Errorf("a replica responded: %v", err)
		}
		st.fence.next = 0 // the next call looks where it leads to
		if _, err = try(t.Context(), st, store.Part{Budget: bucket("k")}); err == nil || dials.Load() == before {
			t.Errorf("the connection to the replica is kept: %v", err)
		}
	}
}
