package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// A test is one of a package's, by its full name.
type test struct{ pkg, name string }

// results are what a run of the tests came to.
type results struct {
	mode   string
	passed map[test]bool
	output map[test]string // of the package itself under the name ""
	sent   map[string]bool // packages that sent something through a Transport
}

// goTest runs the tests of some packages. That tests fail is not an error.
func goTest(mode string, args []string, packages []string) (*results, error) {
	begin := time.Now()
	cmd := exec.Command("go", slices.Concat([]string{"test", "-short", "-count=1", "-json"}, args, packages)...)
	cmd.Env = append(os.Environ(), "NETHTTPTEST_MODE="+mode)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if _, failed := errors.AsType[*exec.ExitError](err); err != nil && !failed {
		return nil, err
	}
	r := &results{mode: mode, passed: map[test]bool{}, output: map[test]string{}, sent: map[string]bool{}}
	failed := map[test]bool{}
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var event struct{ Action, ImportPath, Package, Test, Output string }
		if err := d.Decode(&event); err != nil {
			return nil, fmt.Errorf("go test -json: %w", err)
		}
		t := test{event.Package, event.Test}
		switch event.Action {
		case "pass":
			r.passed[t] = true
		case "fail":
			failed[t] = true
		case "output":
			r.output[t] += event.Output
			r.note(event.Package, event.Output)
		case "build-output":
			fmt.Print(event.Output)
		}
	}
	maps.DeleteFunc(r.passed, func(t test, _ bool) bool { return failed[t] })
	fmt.Printf("%s: %d tests passed, %d failed, in %v\n", mode, len(r.passed), len(failed), time.Since(begin).Round(time.Second/10))
	return r, nil
}

// note reads what the hook prints at the end.
func (r *results) note(pkg, line string) {
	said, ok := strings.CutPrefix(line, "nethttptest: ")
	if !ok {
		return
	}
	fmt.Printf("%s: %s: %s", r.mode, pkg, said)
	var granted int
	if _, err := fmt.Sscanf(said, "granted %d", &granted); err == nil && granted > 0 {
		r.sent[pkg] = true
	}
}

// faults returns an error if a test of pkg doesn't pass that passed plainly, not even when it is run again.
func (r *results) faults(plain *results, pkg string, args []string, verbose bool) error {
	var faults []error
	if !r.sent[pkg] {
		faults = append(faults, fmt.Errorf("%s: %s: nothing went through a Transport", r.mode, pkg))
	}
	var lost []test
	for t := range plain.passed {
		if t.pkg == pkg && t.name != "" && !r.passed[t] && !isSkipped(r.mode, t.name) {
			lost = append(lost, t)
		}
	}
	if len(lost) == 0 {
		return errors.Join(faults...)
	}
	slices.SortFunc(lost, func(a, b test) int { return strings.Compare(a.name, b.name) })
	again, err := goTest(r.mode, append(slices.Clip(args), "-run="+anyOf(lost)), []string{pkg})
	if err != nil {
		return err
	}
	for _, t := range lost {
		if again.passed[t] {
			fmt.Printf("%s: %s: %s passed when it was run again\n", r.mode, pkg, t.name)
			continue
		}
		faults = append(faults, fmt.Errorf("%s: %s: %s does not pass", r.mode, pkg, t.name))
		if verbose {
			fmt.Print(r.output[t])
		}
	}
	if len(faults) > 0 && verbose {
		fmt.Print(r.output[test{pkg, ""}])
	}
	return errors.Join(faults...)
}

// anyOf returns the pattern for go test -run that matches the tests with all their siblings.
func anyOf(tests []test) string {
	var names []string
	for _, t := range tests {
		top, _, _ := strings.Cut(t.name, "/")
		names = append(names, "^"+top+"$")
	}
	return strings.Join(slices.Compact(names), "|")
}
