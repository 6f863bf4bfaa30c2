package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// A machineInfo describes the machine on which something was measured, without anything that identifies it.
type machineInfo struct {
	os, goVersion, commit, date string
	cpus                        int
	modules, missing            []string
}

// compared are the modules that are measured next to ours. Those that the module proxy does not give are named.
var compared = []string{
	"golang.org/x/time", "go.uber.org/ratelimit", "github.com/failsafe-go/failsafe-go", "resty.dev/v3",
	"github.com/gofri/go-github-ratelimit/v2", "github.com/juju/ratelimit", "github.com/sethvargo/go-limiter", "github.com/throttled/throttled/v2", "k8s.io/client-go", "golang.org/x/sync",
	"github.com/aws/aws-sdk-go-v2", "github.com/go-redis/redis_rate/v10", "github.com/redis/go-redis/v9", "github.com/redis/rueidis",
}

func machine(ctx context.Context) (machineInfo, error) {
	m := machineInfo{os: system(), goVersion: runtime.Version(), cpus: runtime.NumCPU(), date: time.Now().UTC().Format(time.DateOnly)}
	for _, path := range compared {
		out, err := output(ctx, "go", "list", "-m", "-f", "{{.Path}} {{.Version}}", path)
		if err == nil {
			m.modules = append(m.modules, out)
			continue
		}
		m.missing = append(m.missing, path+": "+whyMissing(ctx, path))
	}
	commit, err := output(ctx, "git", "rev-parse", "--short=12", "HEAD")
	if err != nil {
		return m, err
	}
	changed, err := output(ctx, "git", "status", "--porcelain", "--", ":/", ":!RESULTS.md", ":!TARGETS.md", ":!*.svg")
	if err != nil {
		return m, err
	}
	if changed != "" {
		commit += " with changes that are not committed"
	}
	m.commit = commit
	return m, nil
}

// whyMissing asks the module proxy.
func whyMissing(ctx context.Context, path string) string {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", path+"@latest")
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := cmd.CombinedOutput()
	if err == nil {
		return "the module proxy has it, and it is not added yet"
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return "the module proxy does not serve it (" + strings.TrimSpace(lines[len(lines)-1]) + ")"
}

func output(ctx context.Context, name string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, name, args...).Output()
	return strings.TrimSpace(string(out)), err
}

// system names the operating system, by its distribution where there is one.
func system() string {
	name := runtime.GOOS + "/" + runtime.GOARCH
	text, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return name
	}
	for line := range bytes.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(string(line)), "PRETTY_NAME="); ok {
			return name + ", " + strings.Trim(value, `"`)
		}
	}
	return name
}

// lines are configuration in the format of Go benchmarks, so that one file has everything.
func (m machineInfo) lines(c config) string {
	var b strings.Builder
	put := func(key, value string) { fmt.Fprintf(&b, "%s: %s\n", key, value) }
	put("m-os", m.os)
	put("m-go", m.goVersion)
	put("m-cpus", strconv.Itoa(m.cpus))
	put("m-commit", m.commit)
	put("m-date", m.date)
	put("m-modules", strings.Join(m.modules, "; "))
	put("m-missing", strings.Join(m.missing, "; "))
	put("m-shared", fmt.Sprintf("%d rounds of %s each", c.count, c.benchtime))
	put("m-scenes", fmt.Sprintf("%d runs", c.seeds))
	put("m-run", fmt.Sprintf("%d rounds of %s each (%d of what one request costs), %d seeds of each adaptive scene", c.count, c.benchtime, 3*c.count, c.seeds))
	return b.String()
}
