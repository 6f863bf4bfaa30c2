// Command nethttptest runs the tests of net/http, net/http/httptest and net/http/httputil with the RoundTripper of
// every client wrapped in a throttle.Transport: go run ./internal/nethttptest, in the root of this module.
//
// Nothing in GOROOT is changed: go test -overlay shows this module's own packages as net/http/internal/throttle, and a
// net/http with a hook in http.Client and httputil.ReverseProxy. The tests run as they are, then with limits that are
// never reached, and then with every request waiting in line. The exit code is 1 if a test that passes as it is doesn't
// pass with the hook, not even when it is run again, or if a package sent nothing through a Transport.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
)

// A skip is a test that can't pass under a throttle.Transport.
type skip struct{ mode, test, reason string }

var skips []skip

var packages = []string{"net/http", "net/http/httptest", "net/http/httputil"}

func main() {
	race := flag.Bool("race", false, "use the race detector")
	run := flag.String("run", "", "run only the tests that match, as go test -run does")
	verbose := flag.Bool("v", false, "print the output of the tests that fail")
	flag.Parse()
	var args []string
	if *race {
		args = append(args, "-race")
	}
	if *run != "" {
		args = append(args, "-run="+*run)
	}
	if err := compare(args, *verbose); err != nil {
		fmt.Fprintln(os.Stderr, "nethttptest:", err)
		os.Exit(1)
	}
}

// compare runs the tests with and without the hook, and returns an error if the hook makes one fail.
func compare(args []string, verbose bool) error {
	dir, err := os.MkdirTemp("", "nethttptest")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	overlay, err := writeOverlay(dir)
	if err != nil {
		return err
	}
	plain, err := goTest("plain", args, packages)
	if err != nil {
		return err
	}
	hooked := append(args, "-overlay="+overlay)
	var faults []error
	for _, mode := range []string{"generous", "waiting"} {
		with, err := goTest(mode, slices.Concat(hooked, skipping(mode)), packages)
		if err != nil {
			return err
		}
		for _, pkg := range packages {
			faults = append(faults, with.faults(plain, pkg, hooked, verbose))
		}
	}
	return errors.Join(faults...)
}

// skipping returns the flag that leaves out the tests that can't pass in a mode, and prints why.
func skipping(mode string) []string {
	var names []string
	for _, s := range skips {
		if s.mode == mode {
			fmt.Printf("%s: left out: %s: %s\n", mode, s.test, s.reason)
			names = append(names, "^"+strings.ReplaceAll(s.test, "/", "$/^")+"$")
		}
	}
	if names == nil {
		return nil
	}
	return []string{"-skip=" + strings.Join(names, "|")}
}

func isSkipped(mode, test string) bool {
	return slices.ContainsFunc(skips, func(s skip) bool {
		return s.mode == mode && (s.test == test || strings.HasPrefix(test, s.test+"/"))
	})
}
