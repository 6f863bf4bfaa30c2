package throttle

import (
	"encoding/json"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// queueFiles are the files that will be the package internal/queue: the lock, lines, plans, grants, timers, and buckets kept and
// forgotten. They know neither HTTP nor the functions, hooks and loggers of users. Files that are not listed stand above them.
var queueFiles = []string{
	"arithmetic.go", "blocking.go", "change.go", "charge.go", "core.go", "correct.go", "counts.go", "dry.go", "fair.go", "flight.go", "forget.go",
	"gates.go", "hold.go", "judge.go", "keep.go", "leave.go", "line.go", "look.go", "plan.go", "refusal.go", "report.go", "rule.go", "serve.go", "supply.go",
	"word.go",
}

func TestFilesOfTheQueueReferToNothingAboveThem(t *testing.T) {
	above, imported := referencesAbove(t, queueFiles)
	assert.Empty(t, above)
	for _, path := range []string{"net/http", "log/slog", "github.com/httpthrottle/throttle/headers"} {
		assert.NotContains(t, imported, path)
	}
}

// referencesAbove returns the declarations in other files of this package that these refer to, with the functions that do, and
// the packages that these files import.
func referencesAbove(t *testing.T, files []string) (above, imported map[string][]string) {
	fset := token.NewFileSet()
	names, err := filepath.Glob("*.go")
	require.NoError(t, err)
	var parsed []*ast.File
	for _, name := range names {
		if !strings.HasSuffix(name, "_test.go") {
			f, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			parsed = append(parsed, f)
		}
	}
	info := &types.Info{Uses: make(map[*ast.Ident]types.Object)}
	config := types.Config{Importer: importer.ForCompiler(fset, "gc", exported(t))}
	root, err := config.Check("github.com/httpthrottle/throttle", fset, parsed, info)
	require.NoError(t, err)
	above, imported = make(map[string][]string), make(map[string][]string)
	for _, f := range parsed {
		file := fset.Position(f.Pos()).Filename
		if !slices.Contains(files, file) {
			continue
		}
		for _, path := range f.Imports {
			path := strings.Trim(path.Path.Value, `"`)
			imported[path] = append(imported[path], file)
		}
		for _, decl := range f.Decls {
			from := nameOf(decl)
			ast.Inspect(decl, func(n ast.Node) bool {
				id, ok := n.(*ast.Ident)
				if !ok {
					return true
				}
				if to := info.Uses[id]; to != nil && to.Pkg() == root && !slices.Contains(files, fset.Position(to.Pos()).Filename) {
					name := to.Name()
					if !slices.Contains(above[name], from) {
						above[name] = append(above[name], from)
					}
				}
				return true
			})
		}
	}
	return above, imported
}

// exported returns a function that opens the export data of the packages that this one depends on.
func exported(t *testing.T) func(path string) (io.ReadCloser, error) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-json=ImportPath,Export", ".").Output()
	require.NoError(t, err)
	data := make(map[string]string)
	for d := json.NewDecoder(strings.NewReader(string(out))); d.More(); {
		var p struct{ ImportPath, Export string }
		require.NoError(t, d.Decode(&p))
		data[p.ImportPath] = p.Export
	}
	return func(path string) (io.ReadCloser, error) { return os.Open(data[path]) }
}

// nameOf returns the name of a function, or of the first of some types, variables or constants.
func nameOf(decl ast.Decl) string {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		return d.Name.Name
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				return s.Name.Name
			case *ast.ValueSpec:
				return s.Names[0].Name
			}
		}
	}
	return "imports"
}
