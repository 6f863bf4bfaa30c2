package tests

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
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

// What packages must not import of the standard library.
var never = map[string][]string{
	"store":                {"net/http", "log", "log/slog", "os"},
	"store/file":           {"net/http", "log"},
	"internal/limiter":     {"net/http", "log", "log/slog", "os"},
	"internal/bucket":      arithmetic,
	"internal/heap":        append(arithmetic, "time"),
	"internal/order":       arithmetic,
	"internal/aimd":        arithmetic,
	"internal/concurrency": arithmetic,
	"internal/quota":       arithmetic,
	"internal/record":      arithmetic,
	"internal/traits":      {"sync", "sync/atomic", "context", "log", "log/slog", "os", "time"},
	"internal/seen":        {"sync", "context", "net/http", "log", "log/slog", "os"},
	"internal/content":     {"sync", "sync/atomic", "context", "log", "log/slog", "os", "time"},
	"internal/down":        {"log", "log/slog", "os"},
	"internal/server":      arithmetic,
	"internal/meter":       arithmetic,
	"internal/lease":       {"sync", "sync/atomic", "net/http", "log", "log/slog", "os"},
	"internal/keep":        arithmetic,
	"internal/supply":      arithmetic,
	"internal/metrics":     {"sync", "net/http", "log", "log/slog", "os"},
	"internal/saved":       arithmetic,
	"internal/words":       arithmetic,
	"internal/problem":     {"sync", "sync/atomic", "context", "log", "log/slog", "os"},
	"internal/pattern":     {"sync", "time"},
	"internal/jsonfinder":  {"net/http", "sync", "time"},
}

// Arithmetic has no lock, no context, no HTTP and no log.
var arithmetic = []string{"sync", "sync/atomic", "context", "net/http", "log", "log/slog", "os"}

const module = "github.com/httpthrottle/throttle"

// The picture in CONTRIBUTING.md has every arrow, and all of them run down.
func TestPictureOfPackagesIsComplete(t *testing.T) {
	places, arrows := picture(t)
	for name, imports := range importsOf(t) {
		if strings.HasPrefix(name, "examples/") || slices.Contains(helpers, name) {
			continue
		}
		if !assert.Contains(t, places, name, "the picture lacks the package") {
			continue
		}
		var inside []string
		for _, path := range imports {
			if other, ok := within(path); ok {
				inside = append(inside, other)
				assert.Less(t, places[name], places[other], "the arrow from %s to %s does not run down", name, other)
			}
			assert.NotContains(t, never[name], path, "%s imports it", name)
			if name == "." {
				assert.False(t, strings.Contains(strings.Split(path, "/")[0], ".") && !strings.HasPrefix(path, module),
					"the root imports %s, which is not in the standard library", path)
			}
		}
		assert.ElementsMatch(t, inside, arrows[name], "the arrows of %s", name)
	}
}

// picture returns the lines of the packages in the picture, and what they import there.
func picture(t *testing.T) (places map[string]int, arrows map[string][]string) {
	t.Helper()
	text, err := os.ReadFile("CONTRIBUTING.md")
	require.NoError(t, err)
	_, text, _ = bytes.Cut(text, []byte("```text\n"))
	text, _, found := bytes.Cut(text, []byte("```"))
	require.True(t, found)
	places, arrows = make(map[string]int), make(map[string][]string)
	full := map[string]string{} // by the name that arrows have
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		name, _, _ := strings.Cut(line, " ")
		short := strings.TrimPrefix(name, "internal/")
		if full[short] = name; name == "throttle" {
			full[short] = "."
		}
		places[full[short]] = i
	}
	for _, line := range lines {
		name, imports, _ := strings.Cut(line, "─►")
		name, _, _ = strings.Cut(name, " ")
		from := full[strings.TrimPrefix(name, "internal/")]
		for other := range strings.FieldsSeq(imports) {
			arrows[from] = append(arrows[from], full[other])
		}
	}
	return places, arrows
}

// importsOf returns what each package of the module imports, without its tests.
func importsOf(t *testing.T) map[string][]string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports", "./...").Output()
	require.NoError(t, err)
	all := make(map[string][]string)
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p struct {
			ImportPath string
			Imports    []string
		}
		require.NoError(t, d.Decode(&p))
		name, _ := within(p.ImportPath)
		all[name] = p.Imports
	}
	return all
}

// The tests of the core drive it alone.
func TestTestsOfTheCoreNeedNeitherHTTPNorTheRoot(t *testing.T) {
	files, err := filepath.Glob("internal/limiter/*_test.go")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		require.NoError(t, err)
		for _, imported := range f.Imports {
			assert.NotContains(t, []string{`"` + module + `"`, `"net/http"`, `"reflect"`, `"unsafe"`}, imported.Path.Value, file)
		}
	}
}

// Arithmetic is given the time.
func TestArithmeticReadsNoClock(t *testing.T) {
	for _, room := range []string{"aimd", "bucket", "concurrency", "down", "heap", "keep", "lease", "meter", "order", "quota", "record", "supply"} {
		files, err := filepath.Glob("internal/" + room + "/*.go")
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			source, err := os.ReadFile(file)
			require.NoError(t, err)
			assert.NotRegexp(t, `time\.(Now|Since|Until|After|AfterFunc|Sleep|NewTimer|NewTicker|Tick)\(`, string(source), file)
		}
	}
}

// helpers serve tests and development alone.
var helpers = []string{"internal/meter/metertest", "internal/metrics/metricstest", "internal/scene", "internal/scene/flight", "internal/scene/loop", "internal/scene/overload", "internal/tests"}

// within returns the path of a package within the module, and reports whether it is one of it.
func within(path string) (name string, ok bool) {
	if path == module {
		return ".", true
	}
	return strings.CutPrefix(path, module+"/")
}

// What only its own package uses has no exported name. Names are compared without what they belong to, so that one which two packages have
// may hide. Types may be used without their names, and so may the others of a list of constants.
func TestExportedNamesOfInternalPackagesAreUsedByOthers(t *testing.T) { // slow: it loads every package
	type name struct{ room, name string }
	declared, used := make(map[name]token.Position), make(map[string]map[string]bool) // used by name and room
	files := token.NewFileSet()
	err := filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		f, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		room := filepath.Dir(path)
		use := func(id *ast.Ident) {
			if used[id.Name] == nil {
				used[id.Name] = make(map[string]bool)
			}
			used[id.Name][room] = true
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				use(n.Sel)
			case *ast.InterfaceType: // the methods are called where the interface is known
				for _, m := range n.Methods.List {
					for _, id := range m.Names {
						use(id)
					}
				}
			}
			return true
		})
		if !strings.HasPrefix(room, "internal/") || strings.HasPrefix(room, "internal/lab/") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		for _, id := range funcsAndValues(f) {
			if id.IsExported() {
				declared[name{room, id.Name}] = files.Position(id.Pos())
			}
		}
		return nil
	})
	require.NoError(t, err)
	require.NotEmpty(t, declared)
	fromElsewhere := []string{"String", "MarshalJSON", "UnmarshalJSON"} // called by the standard library
	for n, at := range declared {
		others := maps.Clone(used[n.name])
		delete(others, n.room)
		assert.True(t, len(others) > 0 || slices.Contains(fromElsewhere, n.name), "%s: no other package uses %s", at, n.name)
	}
}

// funcsAndValues returns the names of functions, methods and values that a file declares, except of those in a list of constants.
func funcsAndValues(f *ast.File) (names []*ast.Ident) {
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			names = append(names, d.Name)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if v, ok := spec.(*ast.ValueSpec); ok && len(v.Values) > 0 && !isIota(v.Values[0]) {
					names = append(names, v.Names...)
				}
			}
		}
	}
	return names
}

// isIota reports whether an expression has iota.
func isIota(x ast.Expr) (is bool) {
	ast.Inspect(x, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		is = is || ok && id.Name == "iota"
		return true
	})
	return is
}
