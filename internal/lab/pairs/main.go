// Command pairs plays servers drawn at random against two checkouts of the library, with the same seeds, and prints for each client how much
// of the limits it used and how many of its requests were refused, before and after, with the standard error of the difference. A seed is
// worth nothing alone: the same code differs by some points from run to run.
//
//	go run ./internal/lab/pairs -after 1000 -seeds 100 -clients hints,adaptive ../before .
package main

import (
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

//go:embed play_test.go
var source []byte

type result struct {
	Client        string
	Seed          uint64
	Used, Refused float64
}

func main() {
	after := flag.Uint64("after", 0, "the first seed")
	seeds := flag.Uint64("seeds", 100, "how many seeds")
	clients := flag.String("clients", "known,hints,adaptive", "the clients")
	flag.Parse()
	if flag.NArg() != 2 {
		log.Fatal("pairs: which two directories?")
	}
	var played [2][]result
	for i, dir := range flag.Args() {
		var err error
		if played[i], err = play(dir, fmt.Sprint(*after), fmt.Sprint(*seeds), *clients); err != nil {
			log.Fatalf("pairs: %s: %v", dir, err)
		}
	}
	for client := range strings.SplitSeq(*clients, ",") {
		used, refused := compare(played, client, func(r result) float64 { return r.Used }), compare(played, client, func(r result) float64 { return r.Refused })
		fmt.Printf("%-10s used %v   refused %v\n", client, used, refused)
	}
}

// play plays the servers of this revision with the library of a directory.
func play(dir, after, seeds, clients string) (all []result, err error) {
	temp, err := os.MkdirTemp("", "pairs")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(temp)
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	at := func(name string) string { return filepath.Join(temp, name) }
	lab := filepath.Join(dir, "internal", "lab")
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(lab, "pairs", "play_test.go"): at("play_test.go")}})
	if err != nil {
		return nil, err
	}
	for name, text := range map[string][]byte{"play_test.go": source, "overlay": overlay} {
		if err := os.WriteFile(at(name), text, 0o600); err != nil {
			return nil, err
		}
	}
	build := exec.Command("go", "test", "-vet=off", "-c", "-o", at("play"), "-overlay", at("overlay"), "./pairs")
	build.Dir, build.Stderr = lab, os.Stderr
	if err := build.Run(); err != nil {
		return nil, err
	}
	failed := exec.Command(at("play"), "-test.timeout=1h", "-after", after, "-seeds", seeds, "-clients", clients, "-into", at("results")).Run()
	text, err := os.ReadFile(at("results"))
	if err != nil {
		return nil, errors.Join(failed, err)
	}
	return all, json.Unmarshal(text, &all)
}

// A comparison is two means, and the mean of the differences with its standard error.
type comparison struct{ before, after, more, err float64 }

func compare(played [2][]result, client string, of func(result) float64) (c comparison) {
	n, squares := 0.0, 0.0
	for i, before := range played[0] {
		if before.Client != client {
			continue
		}
		b, a := of(before), of(played[1][i])
		n, c.before, c.after, squares = n+1, c.before+b, c.after+a, squares+(a-b)*(a-b)
	}
	c.before, c.after = c.before/n, c.after/n
	c.more = c.after - c.before
	c.err = math.Sqrt(max(0, squares/n-c.more*c.more) / max(1, n-1))
	return c
}

func (c comparison) String() string {
	return fmt.Sprintf("%5.2f -> %5.2f %% (%+.2f ± %.2f)", c.before, c.after, c.more, c.err)
}
