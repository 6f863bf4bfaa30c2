package throttle_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	goBlock  = regexp.MustCompile("(?s)```go\n(.*?)```")
	selector = regexp.MustCompile(`\b(context|errors|expvar|fmt|headers|json|log|retry|http|testing|synctest|time|throttle|throttletest)\.[A-Z]`)
)

// TestReadmeCompiles builds every Go block of the README in a module that imports this one, as a reader would.
func TestReadmeCompiles(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	repo, err := filepath.Abs(".")
	require.NoError(t, err)
	dir := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	write("go.mod", fmt.Sprintf("module example.com/readme\n\ngo 1.26\n\n"+
		"require github.com/httpthrottle/throttle v0.0.0\n\nreplace github.com/httpthrottle/throttle => %s\n", repo))
	blocks := goBlock.FindAllStringSubmatch(string(readme), -1)
	require.NotEmpty(t, blocks)
	for i, block := range blocks {
		text := block[1]
		if !strings.HasPrefix(text, "package ") {
			text = asProgram(text)
		}
		write(fmt.Sprintf("block%d/main.go", i+1), text)
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(dir, "bin")+"/", "./...")
	build.Dir = dir
	build.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// asProgram makes a program of statements, which may use what the text around them speaks of, and leave unused what
// they declare.
func asProgram(statements string) string {
	imports := map[string]string{
		"http": "net/http", "json": "encoding/json", "synctest": "testing/synctest",
		"throttle": "github.com/httpthrottle/throttle", "throttletest": "github.com/httpthrottle/throttle/throttletest",
		"retry":   "github.com/httpthrottle/throttle/retry",
		"headers": "github.com/httpthrottle/throttle/headers",
	}
	given := []struct{ name, typ string }{
		{"ctx", "context.Context"}, {"client", "*http.Client"}, {"req", "*http.Request"}, {"t", "*testing.T"},
		{"transport", "*throttle.Transport"}, {"next", "*throttle.Transport"},
		{"resp", "*http.Response"}, {"complete", "func(context.Context) (int64, error)"},
	}
	var params, uses []string
	for _, g := range given {
		params = append(params, g.name+" "+g.typ)
		statements = regexp.MustCompile(`(?m)^(`+g.name+`, err) := `).ReplaceAllString(statements, "${1} = ")
	}
	for _, declared := range regexp.MustCompile(`(?m)^([a-z]+)(?:, err)? :?= `).FindAllStringSubmatch(statements, -1) {
		if declared[1] != "err" {
			uses = append(uses, "_ = "+declared[1])
		}
	}
	body := "package main\n\nfunc main() {}\n\nfunc readme(" + strings.Join(params, ", ") + ") (err error) {\n" +
		strings.ReplaceAll(statements, "err := limiter", "err = limiter") + strings.Join(uses, "\n") + "\nreturn err\n}\n"
	seen := map[string]bool{}
	var list []string
	for _, m := range selector.FindAllStringSubmatch(body, -1) {
		if path := m[1]; !seen[path] {
			seen[path] = true
			if full, ok := imports[path]; ok {
				path = full
			}
			list = append(list, fmt.Sprintf("import %q", path))
		}
	}
	return strings.Replace(body, "package main\n", "package main\n\n"+strings.Join(list, "\n")+"\n", 1)
}
