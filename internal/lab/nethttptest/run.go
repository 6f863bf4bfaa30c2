package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// A test is one of a package's, by its full name.
type test struct{ pkg, name string }

// top returns the name of the test function.
func (t test) top() string {
	top, _, _ := strings.Cut(t.name, "/")
	return top
}

// results are what a run of the tests came to.
type results struct {
	mode   string
	passed map[test]int // how often
	failed map[test]int
	output map[test]string
	sent   map[string]int // requests that went through a Transport, by package
	faults []error        // that the hook found
}

func newResults(mode string) *results {
	return &results{mode: mode, passed: map[test]int{}, failed: map[test]int{}, output: map[test]string{}, sent: map[string]int{}}
}

// goTest runs the tests of some packages. That tests fail is not an error.
func goTest(mode string, args, packages []string) (*results, error) {
	begin := time.Now()
	cmd := exec.Command("go", slices.Concat([]string{"test", "-short", "-vet=off", "-count=1", "-json"}, args, packages)...)
	cmd.Env = append(os.Environ(), "NETHTTPTEST_MODE="+mode)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if _, failed := errors.AsType[*exec.ExitError](err); err != nil && !failed {
		return nil, err
	}
	r := newResults(mode)
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var e event
		if err := d.Decode(&e); err != nil {
			return nil, fmt.Errorf("go test -json: %w", err)
		}
		r.add(e)
	}
	fmt.Printf("%s: %d tests passed, %d failed, in %v\n", mode, len(r.passed), len(r.failed), time.Since(begin).Round(time.Second/10))
	return r, nil
}

// An event is a line of go test -json.
type event struct{ Action, Package, Test, Output string }

func (r *results) add(e event) {
	t := test{e.Package, e.Test}
	switch {
	case e.Action == "build-output":
		fmt.Print(e.Output)
	case e.Action == "output":
		r.output[t] += e.Output
		said, ok := strings.CutPrefix(e.Output, "nethttptest: ")
		if fault, bad := strings.CutPrefix(said, "fault: "); ok && bad {
			r.faults = append(r.faults, fmt.Errorf("%s: %s: %s", r.mode, e.Package, fault))
		} else if ok {
			fmt.Printf("%s: %s: %s", r.mode, e.Package, said)
			var n int
			_, _ = fmt.Sscanf(said, "sent %d", &n) // or it stays 0, which is reported
			r.sent[e.Package] = n
		}
	case e.Test == "" && e.Action == "fail" && r.sent[e.Package] == 0: // it did not get to its end
		for t, output := range r.output {
			if t.pkg == e.Package && r.passed[t]+r.failed[t] == 0 {
				fmt.Print(output)
			}
		}
	case e.Test == "":
	case e.Action == "pass":
		r.passed[t]++
	case e.Action == "fail":
		r.failed[t]++
	}
}

// ran returns how many tests of a package were run.
func (r *results) ran(pkg string) (n int) {
	for _, tests := range []map[test]int{r.passed, r.failed} {
		for t := range tests {
			if t.pkg == pkg {
				n++
			}
		}
	}
	return n
}

// isMissing returns an error if no test of a package ran, or none sent anything through the hook.
func (r *results) isMissing(plain *results, pkg string) error {
	switch {
	case plain.ran(pkg) == 0:
		return fmt.Errorf("%s: %s: no test ran", plain.mode, pkg)
	case r.ran(pkg) == 0:
		return fmt.Errorf("%s: %s: no test ran", r.mode, pkg)
	case r.sent[pkg] == 0:
		return fmt.Errorf("%s: %s: nothing went through a Transport", r.mode, pkg)
	}
	return nil
}

// lost returns the tests of a package that ran as they are, and did not pass in r.
func (r *results) lost(plain *results, pkg string) []test {
	var lost []test
	for _, tests := range []map[test]int{plain.passed, plain.failed} {
		for t := range tests {
			if t.pkg == pkg && r.passed[t] == 0 && !isSkipped(r.mode, t) && !slices.Contains(lost, t) {
				lost = append(lost, t)
			}
		}
	}
	slices.SortFunc(lost, func(a, b test) int { return strings.Compare(a.name, b.name) })
	return lost
}

// isWorse reports whether a test that passed in n of so many runs does worse than one that passed in m of as many: by more than three
// standard deviations of the difference that chance makes.
func isWorse(n, m, times int) bool {
	return m > n && (m-n)*(m-n)*2*times > 9*(n+m)*(2*times-n-m)
}

// again runs the lost tests of a package many times, and returns an error for those that do better with the control.
func (r *results) again(lost []test, args []string) error {
	if len(lost) == 0 {
		return nil
	}
	var names []string
	for _, t := range lost {
		names = append(names, "^"+t.top()+"$")
	}
	const times, rounds = 100, 10
	args = slices.Concat(args, []string{fmt.Sprintf("-count=%d", times/rounds), "-run=" + strings.Join(slices.Compact(names), "|")})
	passed := map[string]map[test]int{r.mode: {}, "control": {}}
	for range rounds { // in turns, because the machine has other work now and then
		for mode, sum := range passed {
			round, err := goTest(mode, args, []string{lost[0].pkg})
			if err != nil {
				return err
			}
			for t, n := range round.passed {
				sum[t] += n
			}
		}
	}
	var faults []error
	for _, t := range lost {
		n, m := passed[r.mode][t], passed["control"][t]
		verdict := fmt.Sprintf("%s: %s: %s failed; again, it passed %d times of %d, with the control %d times", r.mode, t.pkg, t.name, n, times, m)
		fmt.Println(verdict)
		if isWorse(n, m, times) {
			faults = append(faults, fmt.Errorf("%s\n%s", verdict, r.output[t]))
		}
	}
	return errors.Join(faults...)
}
