// Command nethttptest runs the tests of net/http, net/http/httptest and net/http/httputil with the RoundTripper of
// every client wrapped in a throttle.Transport: go run ./internal/lab/nethttptest, in the root of this module.
//
// Nothing in GOROOT is changed: go test -overlay shows this module's own packages as net/http/internal/throttle, and a
// net/http with a hook in http.Client and httputil.ReverseProxy. The tests run as they are (mode plain), and then in each of
// these modes:
//
//   - generous: with limits that are never reached
//   - waiting: each request waits in a queue
//   - rejecting: of each request a copy is rejected first, by response and by error, and must have its body closed
//   - bodies: presets want the body of each response, and SettleJSON looks for its cost
//
// Two modes are played at a time. A test that does not pass with the hook is run again, many times, and as often with a wrapper
// that does nothing (mode control), because net/http itself treats its own Transport otherwise than any other RoundTripper. The
// exit code is 1 if it passes more often with the control, if a package ran no test, or if it sent nothing through the hook.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
)

// skips are the tests that can't pass under a throttle.Transport.
var skips = []struct {
	mode         string // "": all of them
	test, reason string
}{
	{"", "TestTransportCancelRequestBeforeDo", "wants an error that net/http does not export, but a closed Request.Cancel is honoured before net/http sees it"},
	{"", "TestAltProtoCancellation", "wants its RoundTripper's own error, but the timeout of 1 ms may end before that is called"},
}

var packages = []string{"net/http", "net/http/httptest", "net/http/httputil"}

func main() {
	race := flag.Bool("race", false, "use the race detector")
	run := flag.String("run", "", "run only the tests that match, as go test -run does")
	flag.Parse()
	var args []string
	if *race {
		args = append(args, "-race")
	}
	if *run != "" {
		args = append(args, "-run="+*run)
	}
	if err := compare(args); err != nil {
		fmt.Fprintf(os.Stderr, "nethttptest:\n%v\n", err)
		os.Exit(1)
	}
}

// compare runs the tests with and without the hook, and returns an error if the hook makes one fail.
func compare(args []string) error {
	dir, err := os.MkdirTemp("", "nethttptest")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	overlay, err := writeOverlay(dir)
	if err != nil {
		return err
	}
	hooked := append(args, "-overlay="+overlay)
	modes := []string{"plain", "generous", "waiting", "rejecting", "bodies"}
	all := make([]*results, len(modes))
	var together errgroup.Group
	together.SetLimit(2) // tests wait for most of the time, and some fail on a machine that is busy
	for i, mode := range modes {
		flags := args
		if mode != "plain" {
			flags = slices.Concat(hooked, skipping(mode))
		}
		together.Go(func() (err error) {
			all[i], err = goTest(mode, flags, packages)
			return err
		})
	}
	if err := together.Wait(); err != nil {
		return err
	}
	plain := all[0]
	var faults []error
	for _, r := range all[1:] {
		faults = append(faults, r.faults...)
		for _, pkg := range packages {
			if err := r.isMissing(plain, pkg); err != nil {
				faults = append(faults, err)
				continue
			}
			faults = append(faults, r.again(r.lost(plain, pkg), hooked))
		}
	}
	return errors.Join(faults...)
}

// skipping returns the flag that leaves out the tests that can't pass in a mode, and prints why.
func skipping(mode string) []string {
	var names []string
	for _, s := range skips {
		if s.mode == mode || s.mode == "" {
			fmt.Printf("%s: left out: %s: %s\n", mode, s.test, s.reason)
			names = append(names, "^"+s.test+"$")
		}
	}
	return []string{"-skip=" + strings.Join(append(names, "^$"), "|")}
}

func isSkipped(mode string, t test) bool {
	for _, s := range skips {
		if (s.mode == mode || s.mode == "") && s.test == t.top() {
			return true
		}
	}
	return false
}
