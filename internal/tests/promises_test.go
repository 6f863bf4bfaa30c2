package tests

import (
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPromisesHaveTests compares the promises of docs/guarantees.md with the list of their tests.
func TestPromisesHaveTests(t *testing.T) {
	guarantees, err := os.ReadFile("docs/guarantees.md")
	require.NoError(t, err)
	list, err := os.ReadFile("docs/lab/promises.md")
	require.NoError(t, err)

	tests := map[string]string{}
	for _, row := range regexp.MustCompile(`(?m)^\| (.+?) \| (.+) \|$`).FindAllStringSubmatch(string(list), -1)[1:] {
		tests[row[1]] = row[2]
	}
	promises := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\*\*(.+?)[.,:]?\*\*`).FindAllStringSubmatch(string(guarantees), -1) {
		promises[m[1]] = true
		assert.Contains(t, tests, m[1], "a promise without a test")
	}
	require.Greater(t, len(promises), 25)

	ran := packagesThatAreTested(t)
	declared := map[string]map[string]*ast.FuncDecl{}
	for promise, text := range tests {
		assert.True(t, promises[promise], "docs/guarantees.md does not promise %q", promise)
		found := 0
		for of := range strings.SplitSeq(text, "; ") {
			m := regexp.MustCompile("^`([a-z./]+)` (Test.+)$").FindStringSubmatch(of)
			if m == nil {
				continue // a target of the Makefile
			}
			dir := m[1]
			if declared[dir] == nil {
				declared[dir] = testsThatRun(t, dir)
			}
			for name := range strings.SplitSeq(m[2], ", ") {
				found++
				test := declared[dir][name]
				if !assert.NotNil(t, test, "%s: no test %s in %s that is built", promise, name, dir) {
					continue
				}
				assert.False(t, skips(test), "%s: %s is skipped", promise, name)
				assert.True(t, ran.short[dir] && !onlyLong(test) || ran.long[dir], "%s: neither make test nor make long runs %s of %s", promise, name, dir)
			}
		}
		assert.NotZero(t, found, "%s has no test", promise)
	}
}

// testsThatRun returns the tests of a directory, without those of files with a constraint that the packages of .ci/test do not meet.
func testsThatRun(t *testing.T, dir string) map[string]*ast.FuncDecl {
	files, err := filepath.Glob(dir + "/*_test.go")
	require.NoError(t, err)
	all := map[string]*ast.FuncDecl{}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
		require.NoError(t, err)
		built := true
		for _, group := range parsed.Comments {
			for _, line := range group.List {
				if constraint.IsGoBuild(line.Text) {
					expr, err := constraint.Parse(line.Text)
					require.NoError(t, err)
					built = expr.Eval(func(tag string) bool { return tag == "linux" || tag == "unix" || tag == "amd64" })
				}
			}
		}
		for _, decl := range parsed.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && built && f.Recv == nil {
				all[f.Name.Name] = f
			}
		}
	}
	return all
}

// skips reports whether a test skips itself in any case.
func skips(test *ast.FuncDecl) bool {
	for _, s := range test.Body.List {
		if e, ok := s.(*ast.ExprStmt); ok && calls(e, "Skip", "Skipf", "SkipNow") {
			return true
		}
	}
	return false
}

// onlyLong reports whether a test skips itself with -short.
func onlyLong(test *ast.FuncDecl) bool {
	for _, s := range test.Body.List {
		if i, ok := s.(*ast.IfStmt); ok && calls(i.Cond, "Short") && calls(i.Body, "Skip", "Skipf", "SkipNow") {
			return true
		}
	}
	return false
}

func calls(n ast.Node, names ...string) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		if c, ok := n.(*ast.CallExpr); ok {
			if s, ok := c.Fun.(*ast.SelectorExpr); ok {
				for _, name := range names {
					found = found || s.Sel.Name == name
				}
			}
		}
		return true
	})
	return found
}

// packagesThatAreTested returns the directories of the packages that make test and make long test, as .ci/test has them.
func packagesThatAreTested(t *testing.T) (dirs struct{ short, long map[string]bool }) {
	dirs.short, dirs.long = map[string]bool{}, map[string]bool{}
	sdks, err := os.ReadFile(".ci/sdks")
	require.NoError(t, err)
	require.NoError(t, filepath.WalkDir(".", func(file string, _ os.DirEntry, err error) error {
		dir := filepath.ToSlash(filepath.Dir(file))
		if strings.HasSuffix(file, "_test.go") && !slices.ContainsFunc(strings.Fields(string(sdks)), func(sdk string) bool {
			return strings.HasPrefix("./"+dir+"/", sdk+"/")
		}) {
			dirs.short[dir] = true
		}
		return err
	}))
	script, err := os.ReadFile(".ci/test")
	require.NoError(t, err)
	_, long, _ := strings.Cut(string(script), "\nlong)\n")
	long, _, _ = strings.Cut(long, "\n\t;;")
	for dir := range dirs.short {
		if !strings.HasPrefix(dir, "examples") && !inNestedModule(dir) {
			dirs.long[dir] = true // go list ./...
		}
	}
	for _, m := range regexp.MustCompile(` \./([a-z/]+)`).FindAllStringSubmatch(long, -1) {
		dirs.long[m[1]] = true
	}
	return dirs
}

func inNestedModule(dir string) bool {
	for ; dir != "."; dir = path.Dir(dir) {
		if _, err := os.Stat(path.Join(dir, "go.mod")); err == nil {
			return true
		}
	}
	return false
}
