package main

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestMain lets the test binary be a process of the fleet.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-process" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestFleetInMemory(t *testing.T) {
	t.Parallel()
	testFleet(t, "-memory")
}

func TestFleetOverRedis(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("THROTTLE_REAL_SERVERS") != "" {
			t.Fatal("THROTTLE_REAL_SERVERS is set, and there is no redis-server")
		}
		t.Skip("no redis-server on this machine")
	}
	testFleet(t)
}

func testFleet(t *testing.T, args ...string) {
	var out bytes.Buffer
	if err := run(t.Context(), args, &out); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", out.String())
	if got := strings.Contains(out.String(), "stand for eight processes"); got != (len(args) > 0) {
		t.Errorf("it tells of the store in memory: %v", got)
	}
	if !strings.Contains(out.String(), "and refused 0.") && !testing.Short() {
		t.Error("the API refused requests")
	}
	for i := range processes {
		m := regexp.MustCompile(`(?m)^process ` + strconv.Itoa(i+1) + `.* ([\d.]+)$`).FindStringSubmatch(out.String())
		if m == nil {
			t.Fatalf("no line of process %d", i+1)
		}
		if got, err := strconv.ParseFloat(m[1], 64); err != nil || (got < 1 || got > 25) && !testing.Short() {
			t.Errorf("process %d made %s requests per second", i+1, m[1])
		}
	}
	for line := range strings.Lines(out.String()) {
		if utf8.RuneCountInString(line) > 110 {
			t.Errorf("%d characters: %s", utf8.RuneCountInString(line), line)
		}
	}
}
