package tests

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var updateAPI = flag.Bool("update-api", false, "write testdata/api")

// testdata/api is the API of v0.1.0. A change of an exported name or type is a decision: it changes a file there, and a line that is
// removed or changed breaks programs. The package documentation says what may grow.
//
//	go test -run TestAPIIsAsDecided ./internal/tests -update-api
func TestAPIIsAsDecided(t *testing.T) {
	modules := []string{"."}
	if !testing.Short() {
		modules = append(modules, "throttleotel", "throttleprom", "throttleredis")
	}
	var files []string
	for _, dir := range modules {
		for path, text := range exported(t, dir) {
			name := strings.ReplaceAll(strings.TrimPrefix(path, "github.com/httpthrottle/"), "/", "_") + ".txt"
			if slices.Contains(files, name) { // the workspace has all modules
				continue
			}
			files = append(files, name)
			name = filepath.Join("testdata", "api", name)
			if *updateAPI {
				require.NoError(t, os.WriteFile(name, []byte(text), 0o644))
			}
			want, err := os.ReadFile(name)
			require.NoError(t, err, "run with -update-api")
			if changed := changedLines(string(want), text); changed != "" {
				t.Errorf("the API of %s has changed: run with -update-api if it should\n%s", path, changed)
			}
		}
	}
	if testing.Short() {
		return
	}
	kept, err := filepath.Glob("testdata/api/*.txt")
	require.NoError(t, err)
	for _, name := range kept {
		assert.Contains(t, files, filepath.Base(name), "there is no such package")
	}
}

// changedLines returns the lines of one of two sorted texts alone, after a sign that says which; "" if they are equal.
func changedLines(before, after string) string {
	var changed []string
	add := func(sign, from, without string) {
		for line := range strings.Lines(from) {
			if !slices.Contains(slices.Collect(strings.Lines(without)), line) {
				changed = append(changed, sign+line)
			}
		}
	}
	add("-", before, after)
	add("+", after, before)
	return strings.Join(changed, "")
}

func TestChangesOfTheAPIAreShownByLine(t *testing.T) {
	assert.Empty(t, changedLines("a\nb\n", "a\nb\n"))
	assert.Equal(t, "-b\n+bb\n+d\n", changedLines("a\nb\nc\n", "a\nbb\nc\nd\n"))
}

// exported returns the exported declarations of each public package of a module, as the compiler knows them.
func exported(t *testing.T, dir string) map[string]string {
	t.Helper()
	from, public := compiled(t, dir)
	all := make(map[string]string)
	for _, path := range public {
		p, err := from.Import(path)
		require.NoError(t, err, path)
		all[path] = declarations(p)
	}
	return all
}

// compiled returns what imports the packages of a module and those that they import, and the paths of its public packages.
func compiled(t *testing.T, dir string) (from types.Importer, public []string) {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-export", "-deps", "-json=ImportPath,Export,Name,Module", "./...")
	list.Dir = dir
	var problems bytes.Buffer
	list.Stderr = &problems
	out, err := list.Output()
	require.NoError(t, err, "%s", &problems)
	files := make(map[string]string)
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath, Export, Name string
			Module                   *struct{ Main bool }
		}
		if err := d.Decode(&p); err == io.EOF {
			break
		} else {
			require.NoError(t, err)
		}
		files[p.ImportPath] = p.Export
		// Modules of other versions import internal/metrics.
		hidden := strings.Contains(p.ImportPath, "/internal") && !strings.HasSuffix(p.ImportPath, "/internal/metrics") || strings.Contains(p.ImportPath, "/examples")
		if strings.HasPrefix(p.ImportPath, "github.com/httpthrottle/throttle") && p.Name != "main" && p.Module != nil && p.Module.Main && !hidden {
			public = append(public, p.ImportPath)
		}
	}
	return importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(files[path]) }), public
}

// An entry point is a function of the package, or a method of what its functions return. Each is used in an example.
//
// http.Client calls the two methods of a Transport that no example needs.
func TestEveryEntryPointHasAnExample(t *testing.T) {
	text, err := os.ReadFile("testdata/api/throttle.txt")
	require.NoError(t, err)
	used := usedByExamples(t)
	entry := regexp.MustCompile(`(?m)^(?:func |method \(\*(Grant|Limiter|Receipt|Ticket|Transport)\) )(\w+)`)
	found := entry.FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, found)
	for _, m := range found {
		switch name := strings.TrimPrefix(m[1]+"."+m[2], "."); name {
		case "Transport.RoundTrip", "Transport.CloseIdleConnections":
		default:
			assert.True(t, used[name], "no example uses %s", name)
		}
	}
}

// usedByExamples returns the functions of the package that its examples use, and the methods with their type.
func usedByExamples(t *testing.T) map[string]bool {
	t.Helper()
	names, err := filepath.Glob("example*_test.go")
	require.NoError(t, err)
	set := token.NewFileSet()
	var files []*ast.File
	for _, name := range names {
		f, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		if f.Name.Name == "throttle_test" {
			files = append(files, f)
		}
	}
	from, _ := compiled(t, ".")
	info := types.Info{Uses: make(map[*ast.Ident]types.Object)}
	checker := types.Config{Importer: from, Error: func(error) {}} // helpers in other files are not known here
	_, _ = checker.Check("throttle_test", set, files, &info)
	used := make(map[string]bool)
	for _, f := range files {
		for _, d := range f.Decls {
			example, ok := d.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(example.Name.Name, "Example") {
				continue
			}
			for n := range ast.Preorder(example) {
				id, ok := n.(*ast.Ident)
				if !ok {
					continue
				}
				if use, ok := info.Uses[id].(*types.Func); ok && use.Pkg() != nil && use.Pkg().Name() == "throttle" {
					used[entryPoint(use)] = true
				}
			}
		}
	}
	return used
}

// entryPoint returns the name of a function, or Type.Method.
func entryPoint(f *types.Func) string {
	receiver := f.Signature().Recv()
	if receiver == nil {
		return f.Name()
	}
	of := receiver.Type()
	if p, ok := of.(*types.Pointer); ok {
		of = p.Elem()
	}
	return of.(*types.Named).Obj().Name() + "." + f.Name()
}

// declarations returns a line for each exported name of a package, and for each exported field and method.
func declarations(p *types.Package) string {
	local := func(other *types.Package) string {
		if other == p {
			return ""
		}
		return other.Name()
	}
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for _, name := range p.Scope().Names() {
		o := p.Scope().Lookup(name)
		if !o.Exported() {
			continue
		}
		switch o := o.(type) {
		case *types.Const:
			add("const %s %s = %s", name, types.TypeString(o.Type(), local), o.Val())
		case *types.Var:
			add("var %s %s", name, types.TypeString(o.Type(), local))
		case *types.Func:
			add("%s", types.ObjectString(o, local))
		case *types.TypeName:
			declareType(add, o, local)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n"
}

func declareType(add func(string, ...any), o *types.TypeName, local types.Qualifier) {
	if o.IsAlias() {
		add("type %s = %s", o.Name(), types.TypeString(types.Unalias(o.Type()), local))
		return
	}
	switch u := o.Type().Underlying().(type) {
	case *types.Struct:
		add("type %s struct", o.Name())
		for f := range u.Fields() {
			if f.Exported() {
				add("type %s struct, %s %s", o.Name(), f.Name(), types.TypeString(f.Type(), local))
			}
		}
	case *types.Interface:
		add("type %s interface", o.Name())
		for m := range u.Methods() {
			if m.Exported() {
				add("type %s interface, %s%s", o.Name(), m.Name(), strings.TrimPrefix(types.TypeString(m.Type(), local), "func"))
			} else {
				add("type %s interface, unexported methods", o.Name())
			}
		}
		return
	default:
		add("type %s %s", o.Name(), types.TypeString(u, local))
	}
	value := types.NewMethodSet(o.Type())
	for m := range types.NewMethodSet(types.NewPointer(o.Type())).Methods() {
		f, ok := m.Obj().(*types.Func)
		if !ok || !ast.IsExported(f.Name()) {
			continue
		}
		star := "*"
		if value.Lookup(f.Pkg(), f.Name()) != nil {
			star = ""
		}
		add("method (%s%s) %s%s", star, o.Name(), f.Name(), strings.TrimPrefix(types.TypeString(f.Type(), local), "func"))
	}
}
