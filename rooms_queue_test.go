package throttle

import (
	"encoding/json"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
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
	"arithmetic.go", "blocking.go", "change.go", "charge.go", "core.go", "correct.go", "counts.go", "deny.go", "dry.go", "fair.go", "flight.go", "forget.go",
	"gates.go", "hold.go", "judge.go", "keep.go", "leave.go", "line.go", "look.go", "plan.go", "queue.go", "refusal.go", "report.go", "rule.go", "serve.go", "supply.go",
	"word.go",
}

func TestFilesOfTheQueueReferToNothingAboveThem(t *testing.T) {
	c := checked(t)
	assert.Empty(t, c.references(queueFiles, func(to types.Object, file string) bool { return !slices.Contains(queueFiles, file) }))
	for _, file := range queueFiles {
		for _, path := range []string{"net/http", "log/slog", "github.com/httpthrottle/throttle/headers"} {
			assert.NotContains(t, c.imports[file], path, file)
		}
	}
}

// lockers are the functions above the queue that take its lock themselves. There may only become fewer.
var lockers = []string{
	"appendServers", "Bucket", "bucketStatsLocked", "Limits", "refresh", "restoreBucket", "restoreServer", "saveServers", "SetRate",
}

func TestFewFunctionsAboveTheQueueTakeItsLock(t *testing.T) {
	c := checked(t)
	var above []string
	for file := range c.files {
		if !slices.Contains(queueFiles, file) {
			above = append(above, file)
		}
	}
	var names []string
	for to, from := range c.references(above, func(to types.Object, file string) bool {
		return slices.Contains(queueFiles, file) && (to.Name() == "mu" || strings.HasSuffix(to.Name(), "Locked"))
	}) {
		assert.Subset(t, lockers, from, "%s", to)
		names = append(names, from...)
	}
	assert.Subset(t, names, lockers, "remove from the list what is done")
}

// A checkedPackage is the root package without its tests.
type checkedPackage struct {
	files   map[string]*ast.File
	imports map[string][]string // by file
	fset    *token.FileSet
	info    *types.Info
	root    *types.Package
}

func checked(t *testing.T) *checkedPackage {
	c := &checkedPackage{
		files: make(map[string]*ast.File), imports: make(map[string][]string), fset: token.NewFileSet(),
		info: &types.Info{Uses: make(map[*ast.Ident]types.Object)},
	}
	names, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(c.fset, name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		c.files[name] = f
		for _, path := range f.Imports {
			c.imports[name] = append(c.imports[name], strings.Trim(path.Path.Value, `"`))
		}
	}
	config := types.Config{Importer: importer.ForCompiler(c.fset, "gc", exported(t))}
	c.root, err = config.Check("github.com/httpthrottle/throttle", c.fset, slices.Collect(maps.Values(c.files)), c.info)
	require.NoError(t, err)
	return c
}

// references returns the declarations of the package that these files refer to and that are wanted, with the functions that do.
func (c *checkedPackage) references(files []string, wanted func(to types.Object, file string) bool) map[string][]string {
	all := make(map[string][]string)
	for _, file := range files {
		for _, decl := range c.files[file].Decls {
			from := nameOf(decl)
			ast.Inspect(decl, func(n ast.Node) bool {
				id, ok := n.(*ast.Ident)
				if !ok {
					return true
				}
				to := c.info.Uses[id]
				if to == nil || to.Pkg() != c.root || slices.Contains(all[to.Name()], from) {
					return true
				}
				if wanted(to, c.fset.Position(to.Pos()).Filename) {
					all[to.Name()] = append(all[to.Name()], from)
				}
				return true
			})
		}
	}
	return all
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
