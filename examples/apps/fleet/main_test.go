package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/httpthrottle/throttle/examples/internal/example"
	"github.com/httpthrottle/throttle/examples/internal/exampletest"
	"github.com/httpthrottle/throttle/store"
)

// TestMain lets the test binary be a process of the fleet.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "-process" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestFleetInMemory(t *testing.T) { // slow: the program in real time
	t.Parallel()
	testFleet(t, "-memory")
}

func TestFleetOverRedis(t *testing.T) { // slow: the program in real time
	t.Parallel()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("THROTTLE_REAL_SERVERS") != "" {
			t.Fatal("THROTTLE_REAL_SERVERS is set, and there is no redis-server")
		}
		fmt.Println("There is no redis-server here: the fleet runs in memory only.")
		return
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
		t.Errorf("it mentions the store in memory: %v", got)
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

func TestBadArguments(t *testing.T) {
	t.Parallel()
	exampletest.Program(run).RejectsArguments(t, "-memory", map[string]string{
		"-process 3":                           `-process 3 -redis "" -api "": want none of them, or all`,
		"-process 9 -redis a:1 -api b":         "a process from 1 to 8",
		"-process -1 -redis a:1 -api b":        "a process from 1 to 8",
		"-redis a:1":                           "want none of them, or all",
		"-memory -process 1 -redis a:1 -api b": "want none of them, or all",
		"-what":                                "-what",
		"now":                                  `unexpected argument "now"`,
	})
}

func TestAProcessEndsWhereRedisOrTheAPICannotBeReached(t *testing.T) {
	t.Parallel()
	err := run(t.Context(), []string{"-process", "1", "-redis", "127.0.0.1:1", "-api", "http://127.0.0.1:1"}, io.Discard)
	if err == nil || example.Status(err) != 1 {
		t.Errorf("the error is %v", err)
	}
	if err := work(t.Context(), 1, store.NewMemory(), "http://127.0.0.1:1"); err == nil {
		t.Error("work continues without the API")
	}
}
