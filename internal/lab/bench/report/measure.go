package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A stage is some benchmarks that are run by a process of their own.
type stage struct {
	of        string // where they are, relative to the directory bench
	bench     string
	cpu       string
	benchtime string // "": as the user says
	rounds    int    // at most; 0: as many as the user says
	args      []string
}

// stages are run in turn, in each round.
func (c config) stages() []stage {
	if c.shared {
		return sharedStages
	}
	if c.inFlight || c.overload {
		return nil
	}
	if c.targets {
		return append(targetStages(c.keys), sharedStages...)
	}
	most := func(n int) []string { return []string{"-waiters", strconv.Itoa(n)} }
	// What one request costs is measured at three times of a round, because it is quick to measure, and the noise of a
	// machine lasts for seconds.
	request, limiter := stage{bench: "^BenchmarkRequest$", cpu: "1,2"}, stage{bench: "^BenchmarkLimiter$", cpu: "2"}
	s := []stage{
		request, limiter,
		{of: "../../../throttleprom", bench: "^Benchmark(GrantProm|Scrape)$", cpu: "1"},
		{of: "../../../throttleotel", bench: "^BenchmarkGrantOtel$", cpu: "1"},
		{bench: "^BenchmarkLoopback$", cpu: "1,2"},
		request, limiter,
		{bench: "^Benchmark(Lateness|Order|Hammer|Cancelled|Retuned)$", cpu: "2", benchtime: "1x"},
		{of: "../../jsonfinder", bench: "^BenchmarkCopyTCP$/load=(" + strings.Join(observedBodies, "|") + ")$", cpu: "2"},
		{bench: "^BenchmarkObserve$", cpu: "2"},
		request, limiter,
		{bench: "^BenchmarkScale$", cpu: "2", benchtime: "5x", rounds: 3, args: []string{"-scale", strconv.Itoa(c.keys)}},
		{bench: "^BenchmarkKeys$", cpu: "2", benchtime: "1x", rounds: 2, args: []string{"-keys", strconv.Itoa(c.keys)}},
	}
	for _, impl := range waiterImpls {
		// Each in a process of its own, and the many only once: they take 5 GB, and minutes.
		s = append(s,
			stage{bench: "^BenchmarkWaiters$/n=10*$/^impl=" + impl + "$", cpu: "2", benchtime: "1x", rounds: 3, args: most(min(c.waiters, 100_000))},
			stage{bench: "^BenchmarkWaiters$/n=1000000/^impl=" + impl + "$", cpu: "2", benchtime: "1x", rounds: 1, args: most(c.waiters)})
	}
	return append(s, sharedStages...)
}

// targetStages measure what targets are set for.
func targetStages(keys int) []stage {
	of := func(bench, cpu string) stage { return stage{bench: bench, cpu: cpu} }
	once := func(bench string, args ...string) stage {
		return stage{bench: bench, cpu: "2", benchtime: "1x", args: args}
	}
	waiters := func(impl string) stage {
		return once("^BenchmarkWaiters$/^n=100000$/^impl="+impl+"$", "-waiters", "100000")
	}
	return []stage{
		of("^BenchmarkRequest$/goroutines/^impl=(throttle|throttle-deaf|throttle-weights|throttle-everything|xtime)$", "1,2"),
		of("^BenchmarkLimiter$/^op=denied$/^goroutines=1$/^impl=(throttle|throttle-429|xtime)$", "2"),
		{of: "../../../throttleprom", bench: "^Benchmark(GrantProm|Scrape)$", cpu: "1"},
		{of: "../../../throttleotel", bench: "^BenchmarkGrantOtel$", cpu: "1"},
		of("^BenchmarkLoopback$/protocol/goroutines/^impl=(bare|throttle)$", "2"),
		once("^BenchmarkLateness$/^rate=50000$/^impl=(throttle|sleep)$"),
		once("^BenchmarkCancelled$/^impl=throttle$"),
		once("^BenchmarkRetuned$/from/to/^impl=throttle$"),
		{of: "../../jsonfinder", bench: "^BenchmarkCopyTCP$/load=(" + strings.Join(observedBodies, "|") + ")$", cpu: "2"},
		of("^BenchmarkObserve$/^read=Buckets$", "2"),
		{bench: "^BenchmarkScale$/^of=waiters$", cpu: "2", benchtime: "5x"},
		once("^BenchmarkKeys$/load/^impl=(throttle|xtime-map)$", "-keys", strconv.Itoa(keys)),
		waiters("channel"), waiters("throttle"),
	}
}

// observedBodies are the loads of BenchmarkCopyTCP in which costs are searched for the longest.
var observedBodies = []string{"nested", "graphql"}

// waiterImpls are those of BenchmarkWaiters.
var waiterImpls = []string{"channel", "throttle", "xtime", "failsafe", "resty"}

// measure runs everything, and leaves what was measured in c.from.
func measure(ctx context.Context, c config, log io.Writer) error {
	dir, err := os.MkdirTemp("", "throttle-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	programs := make(map[string]string)             // by the directory
	for i, s := range append(c.stages(), stage{}) { // the last is for scenes
		if programs[s.of] != "" {
			continue
		}
		programs[s.of] = filepath.Join(dir, fmt.Sprintf("bench-%d.test", i))
		if err := execute(ctx, log, log, "go", "-C", cmp.Or(s.of, "."), "test", "-c", "-o", programs[s.of], "."); err != nil {
			return err
		}
	}
	if err := os.MkdirAll("out", 0o755); err != nil {
		return err
	}
	raw, err := os.Create(c.from)
	if err != nil {
		return err
	}
	defer raw.Close()
	m, err := machine(ctx)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(raw, m.lines(c)); err != nil {
		return err
	}
	began := time.Now()
	for round := range c.count {
		for _, s := range c.stages() {
			if s.rounds > 0 && round >= s.rounds {
				continue
			}
			fmt.Fprintf(log, "%4.0f s  round %d of %d: %s\n", time.Since(began).Seconds(), round+1, c.count, s.bench)
			if err := s.run(ctx, c, programs[s.of], raw, log); err != nil {
				return err
			}
		}
	}
	for _, p := range c.plays() {
		fmt.Fprintf(log, "%4.0f s  scenes: %s\n", time.Since(began).Seconds(), p.option)
		if err := p.run(ctx, c, programs[""], dir, raw, log); err != nil {
			return err
		}
	}
	fmt.Fprintf(log, "%4.0f s  done\n", time.Since(began).Seconds())
	return raw.Close()
}

func (s stage) run(ctx context.Context, c config, program string, raw, log io.Writer) error {
	benchtime := s.benchtime
	if benchtime == "" {
		benchtime = c.benchtime
	}
	args := append([]string{"-test.run", "^$", "-test.bench", s.bench, "-test.cpu", s.cpu, "-test.benchtime", benchtime}, s.args...)
	return execute(ctx, raw, log, program, args...)
}

// A play is a test that plays scenes, and the option with which it writes what came of them to a file.
type play struct{ test, option string }

// plays are run after the stages.
func (c config) plays() []play {
	flights, overloads := []play{{"^TestLatency$", "-latency"}, {"^TestInFlight$", "-flights"}}, []play{{"^TestOverload$", "-overloads"}}
	switch {
	case c.shared, c.targets:
		return nil
	case c.inFlight:
		return flights
	case c.overload:
		return overloads
	}
	return slices.Concat([]play{{"^TestAdapting$", "-scenes"}}, flights, overloads)
}

// run adds what comes of the scenes to raw.
func (p play) run(ctx context.Context, c config, program, dir string, raw, log io.Writer) error {
	file := filepath.Join(dir, "play"+p.option)
	err := execute(ctx, log, log, program, "-test.run", p.test, p.option, file, "-seeds", strconv.Itoa(c.seeds), "-test.timeout", "1h")
	if err != nil {
		return err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	_, err = raw.Write(text)
	return err
}

func execute(ctx context.Context, out, log io.Writer, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = out, log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %v: %w", filepath.Base(name), args, err)
	}
	return nil
}
