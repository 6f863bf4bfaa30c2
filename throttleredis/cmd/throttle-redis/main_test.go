package main

import (
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/httpthrottle/throttle/store"
	"github.com/httpthrottle/throttle/store/file"
	"github.com/httpthrottle/throttle/throttleredis"
)

func TestBadUsageIsAnError(t *testing.T) {
	for _, args := range [][]string{{}, {"show"}, {"reset"}, {"list", "a", "b"}, {"drop", "x"}, {"-nope", "list"}, {"hold"}, {"hold", "x"}, {"hold", "-1s", "x"}, {"hold", "1s"}, {"release"}} {
		if err := run(t.Context(), args, &strings.Builder{}); !errors.Is(err, errUsage) {
			t.Errorf("%q: %v", args, err)
		}
	}
	for _, args := range [][]string{{"-url", "nope", "list"}, {"-cluster", "-url", "nope", "list"}, {"-prefix", "", "list"}} {
		if err := run(t.Context(), args, &strings.Builder{}); err == nil || errors.Is(err, errUsage) {
			t.Errorf("%q: %v", args, err)
		}
	}
}

func TestRatesAreWrittenAsPeopleWriteThem(t *testing.T) {
	for want, perSecond := range map[string]float64{
		"10/h": 10.0 / 3600, "1/s": 1, "100/s": 100, "90/min": 1.5, "8000/d": 8000.0 / 86400, "1/d": 1.0 / 86400, "0.1429/d": 1.0 / 7 / 86400, "3.142/s": math.Pi, "2000/min": 100.0 / 3,
	} {
		if got := rate(perSecond); got != want {
			t.Errorf("%v a second: %s, want %s", perSecond, got, want)
		}
	}
}

// The commands work with a file as with Redis.
func TestBudgetsOfAFileAreOperated(t *testing.T) {
	name := filepath.Join(t.TempDir(), "limits")
	s, err := file.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	lease := func(limit, key string) store.LeasedPart {
		t.Helper()
		b := store.Budget{Kind: store.Fixed, Limit: limit, Key: key, N: 10, Per: 24 * time.Hour}
		leases, err := s.Lease(t.Context(), []store.Ask{{Parts: []store.Part{{Budget: b, Want: 3}}}})
		if err != nil || leases[0].Err != nil {
			t.Fatal(err, leases)
		}
		return leases[0].Parts[0]
	}
	command := func(args ...string) string {
		t.Helper()
		var out strings.Builder
		if err := run(t.Context(), append([]string{"-file", name}, args...), &out); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	for _, tenant := range []string{"a", "b"} {
		lease("calls", tenant)
		lease("bytes", tenant)
	}
	if got := command("list"); strings.Count(got, "10/d") != 4 {
		t.Error(got)
	}
	var one line
	if err := json.Unmarshal([]byte(command("-json", "-tenant", "a", "-limit", "calls", "list")), &one); err != nil {
		t.Fatal(err)
	}
	if one.Limit != "calls" || one.Key != "a" || one.Rate != "10/d" || one.Most != 10 || one.Left != 7 {
		t.Errorf("%+v", one)
	}
	command("-tenant", "a", "hold", "1m")
	if p := lease("calls", "a"); p.Tokens != 0 || p.Hold < 50*time.Second {
		t.Errorf("%+v", p)
	}
	if p := lease("calls", "b"); p.Tokens != 3 {
		t.Errorf("%+v", p)
	}
	command("release", `fixed-window "calls" "a"`)
	if p := lease("calls", "a"); p.Left != 4 {
		t.Errorf("%+v", p)
	}
	command("-limit", "bytes", "release")
	command("-limit", "calls", "reset")
	for _, tenant := range []string{"a", "b"} {
		if p := lease("calls", tenant); p.Left != 7 {
			t.Errorf("%+v", p)
		}
		if p := lease("bytes", tenant); p.Left == 7 {
			t.Errorf("%+v", p)
		}
	}
	for _, args := range [][]string{{"-limit", "none", "reset"}, {"reset", "none"}} {
		if err := run(t.Context(), append([]string{"-file", name}, args...), io.Discard); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
	if err := run(t.Context(), []string{"-file", name + "-none", "list"}, io.Discard); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestTheURLIsThatOfAFlagAFileOrTheEnvironment(t *testing.T) {
	name := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(name, []byte("rediss://user:secret@file:1/2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	options := func(c config) *redis.Options {
		t.Helper()
		client, err := c.client()
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		return client.(*redis.Client).Options()
	}
	if o := options(config{}); o.Addr != "localhost:6379" || o.ClientName != "throttle-redis" {
		t.Errorf("%+v", o)
	}
	t.Setenv("THROTTLE_REDIS_URL", "redis://environment:1")
	for want, c := range map[string]config{"environment:1": {}, "flag:1": {url: "redis://flag:1"}, "file:1": {urlFile: name}} {
		if o := options(c); o.Addr != want {
			t.Errorf("%s, want %s", o.Addr, want)
		}
	}
	if o := options(config{urlFile: name}); o.Password != "secret" || o.DB != 2 || o.TLSConfig == nil {
		t.Errorf("%+v", o)
	}
	if o := options(config{url: "redis://sentinel:26379?addr=other:26379&master_name=main"}); o.Addr != "FailoverClient" || o.ClientName != "throttle-redis" {
		t.Errorf("%+v", o)
	}
	for _, c := range []config{{ca: name}, {url: "rediss://x:1", ca: name}, {url: "rediss://x:1", ca: name + "-none"}, {url: "rediss://x:1", cert: name, key: name}, {urlFile: name + "-none"}, {url: "redis://user:secret@%zz"}} {
		if _, err := c.client(); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestBudgetsAreShownWithTheirHolders(t *testing.T) {
	var out strings.Builder
	err := new(config).write(&out, []throttleredis.BudgetState{
		{Name: "throttle:1:{a\x1b}l:i", Kind: "in-flight", Most: 5, Left: 2, Processes: 1, Holders: []throttleredis.Holder{{Name: "web-1-4711-abc", Slots: 3}, {Name: "web-2-4711-abc", Slots: 1}}},
		{Name: "throttle:1:{b}l:b", Kind: "bucket", Err: errors.New("WRONGTYPE")},
	}, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"throttle:1:{a?}l:i", "web-1-4711-abc", "3 slots", "1 slot ", "unreadable: WRONGTYPE"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
