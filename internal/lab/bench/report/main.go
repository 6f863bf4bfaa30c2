// Report runs the benchmarks of package bench and writes RESULTS.md, TARGETS.md and the plots beside them:
//
//	go run ./report                    # as make bench does
//	go run ./report -from out/raw.txt  # what was measured before, written again
//	go run ./report -shared            # only the section about budgets over Redis
//	go run ./report -targets -count 3  # only TARGETS.md
//	go run ./report -in-flight         # only the section about requests in flight, and its plots
//	go run ./report -overload          # only the section about servers that respond late or with 5xx
//
// Implementations take turns: each round measures everything once, and what is written is the median of the rounds.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
)

type config struct {
	benchtime string
	count     int
	seeds     int
	keys      int
	waiters   int
	from      string
	shared    bool
	inFlight  bool
	overload  bool
	targets   bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, log io.Writer) error {
	var c config
	flags := flag.NewFlagSet("report", flag.ContinueOnError)
	flags.SetOutput(log)
	flags.StringVar(&c.benchtime, "benchtime", "100ms", "for each benchmark of a cost, in each round")
	flags.IntVar(&c.count, "count", 5, "rounds")
	flags.IntVar(&c.seeds, "seeds", 3, "how often each adaptive scene is played")
	flags.IntVar(&c.keys, "keys", 1_000_000, "how many keys there are where there are many")
	flags.IntVar(&c.waiters, "waiters", 1_000_000, "the most that wait at once")
	flags.BoolVar(&c.shared, "shared", false, "only budgets over Redis: their section of RESULTS.md is replaced")
	flags.BoolVar(&c.inFlight, "in-flight", false, "only servers that limit requests in flight: their section of RESULTS.md is replaced")
	flags.BoolVar(&c.overload, "overload", false, "only servers that respond late or with 5xx: their section of RESULTS.md is replaced")
	flags.BoolVar(&c.targets, "targets", false, "only what targets are set for: TARGETS.md is replaced")
	flags.StringVar(&c.from, "from", "", "measure nothing: take this file, as a run has left it in out/raw.txt")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if c.from == "" {
		c.from = filepath.Join("out", "raw.txt")
		if c.shared {
			c.from = filepath.Join("out", "shared.txt")
		}
		if c.inFlight {
			c.from = filepath.Join("out", "in-flight.txt")
		}
		if c.overload {
			c.from = filepath.Join("out", "overload.txt")
		}
		if c.targets {
			c.from = filepath.Join("out", "targets.txt")
		}
		if err := measure(ctx, c, log); err != nil {
			return err
		}
	}
	file, err := os.Open(c.from)
	if err != nil {
		return err
	}
	defer file.Close()
	m, err := readMeasurements(file)
	if err != nil {
		return err
	}
	if c.shared {
		return writeShared(m)
	}
	if c.targets {
		return os.WriteFile("TARGETS.md", []byte(renderTargets(m)), 0o644)
	}
	if c.inFlight {
		return errors.Join(replaceIn("RESULTS.md", flightHead, flightSection(m)), draw(m, "."))
	}
	if c.overload {
		return replaceIn("RESULTS.md", overloadHead, overloadSection(m))
	}
	results, targets, unexplained := render(m)
	for _, u := range unexplained {
		fmt.Fprintln(log, "no reason is given in why.go for:", u)
	}
	if err := os.WriteFile("RESULTS.md", []byte(results), 0o644); err != nil {
		return err
	}
	if err := os.WriteFile("TARGETS.md", []byte(targets), 0o644); err != nil {
		return err
	}
	return draw(m, ".")
}

// writeShared replaces the section about budgets over Redis, and their targets.
func writeShared(m *measurements) error {
	section, _ := sharedSection(m)
	if section == "" {
		return errors.New("nothing was measured over Redis: is there a redis-server?")
	}
	return errors.Join(replaceIn("RESULTS.md", sharedHead, section), replaceIn("TARGETS.md", sharedTargetsHead, sharedTargets(m)))
}

func replaceIn(file, head, section string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(replaceSection(string(text), head, section)), 0o644)
}
