package tests

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/httpthrottle/throttle/headers"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	goBlock  = regexp.MustCompile("(?s)```go\n(.*?)```")
	quote    = regexp.MustCompile("(?s)<!-- (\\S+) -->\n```go\n(.*?)```\n") // of a program of this repository
	clause   = regexp.MustCompile(`(?m)^package `)
	selector = regexp.MustCompile(`\b(context|errors|expvar|fmt|headers|http|httputil|io|json|log|math|os|pool|redis|retry|signal|slog|store|storetest|sync|synctest|syscall|testing|throttle|throttlepage|throttleredis|throttletest|time)\.[A-Z]`)
	link     = regexp.MustCompile(`\]\(([^)#:\s]*)(#[^)\s]*)?\)`)
)

func documents(t *testing.T) []string {
	docs, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	lab, err := filepath.Glob("docs/lab/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, docs)
	require.NotEmpty(t, lab)
	return slices.Concat(docs, lab, []string{"README.md"})
}

// TestDocumentsCompile builds every Go block of the README and of docs in a module that imports this one, as a reader would.
func TestDocumentsCompile(t *testing.T) { // slow: it compiles them
	repo, err := filepath.Abs(".")
	require.NoError(t, err)
	dir := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	write("go.mod", fmt.Sprintf("module example.com/readme\n\ngo 1.26\n\n"+
		"require github.com/httpthrottle/throttle v0.0.0\nrequire github.com/httpthrottle/throttle/throttleredis v0.0.0\n\n"+
		"replace github.com/httpthrottle/throttle => %[1]s\nreplace github.com/httpthrottle/throttle/throttleredis => %[1]s/throttleredis\n", repo))
	sums, err := os.ReadFile("throttleredis/go.sum")
	require.NoError(t, err)
	own, err := os.ReadFile("go.sum")
	require.NoError(t, err)
	write("go.sum", string(sums)+string(own))
	for _, name := range documents(t) {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for i, block := range goBlock.FindAllStringSubmatch(quote.ReplaceAllString(string(text), ""), -1) {
			program, doc := block[1], strings.ReplaceAll(strings.TrimSuffix(name, ".md"), "/", "-")
			if clause.MatchString(program) {
				write(fmt.Sprintf("%s/block%d/main.go", doc, i+1), program)
			} else { // all in one package, because go vet begins a process for each
				write(fmt.Sprintf("statements/%s_block%d.go", doc, i+1), asFunction(program, fmt.Sprintf("%s%d", strings.ReplaceAll(doc, "-", ""), i+1)))
			}
		}
	}
	vet := exec.CommandContext(t.Context(), "go", "vet", "-unusedresult=false", "./...")
	vet.Dir = dir
	vet.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod "+os.Getenv("GOFLAGS"))
	out, err := vet.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// TestDocumentsQuotePrograms compares each Go block below the name of a file with that file.
func TestDocumentsQuotePrograms(t *testing.T) {
	found := 0
	for _, name := range documents(t) {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, m := range quote.FindAllStringSubmatch(string(text), -1) {
			program, err := os.ReadFile(m[1])
			require.NoError(t, err)
			assert.Contains(t, string(program), m[2], "%s quotes %s", name, m[1])
			found++
		}
	}
	require.GreaterOrEqual(t, found, 3)
}

// TestLinksOfDocumentsLead checks that every file, and every heading, that a document links to is there.
func TestLinksOfDocumentsLead(t *testing.T) {
	for _, name := range append(documents(t), "CHANGELOG.md", "CONTRIBUTING.md", "RELEASING.md", "internal/lab/bench/RESULTS.md") {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, m := range link.FindAllStringSubmatch(goBlock.ReplaceAllString(string(text), ""), -1) {
			if strings.Contains(m[1], "actions/workflows/") {
				continue // a page of the repository's host
			}
			target := name
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(name), m[1])
			}
			if m[2] == "" {
				_, err := os.Stat(target)
				require.NoError(t, err, "%s links to %s", name, m[1])
			} else if assert.Equal(t, ".md", filepath.Ext(target), "%s links to %s%s", name, m[1], m[2]) {
				assert.Contains(t, anchors(t, target), m[2], "%s links to %s%s", name, m[1], m[2])
			}
		}
	}
}

// anchors returns the names that GitHub gives to the headings of a document.
func anchors(t *testing.T, name string) (all []string) {
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(string(text), -1) {
		plain := regexp.MustCompile(`[^\p{L}\p{N}_ -]`).ReplaceAllString(strings.ToLower(m[1]), "")
		all = append(all, "#"+strings.ReplaceAll(plain, " ", "-"))
	}
	return all
}

// TestDocumentsNameDocumentation checks that each `go doc X` finds X in a list of the API.
func TestDocumentsNameDocumentation(t *testing.T) {
	found := 0
	for _, name := range documents(t) {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile("`go doc (?:github.com/httpthrottle/)?([\\w/]+)\\.?([\\w.]*)`").FindAllStringSubmatch(string(text), -1) {
			list := strings.ReplaceAll(strings.TrimPrefix(m[1], "throttle/"), "/", "_")
			if m[1] != "throttle" {
				list = "throttle_" + list
			}
			api, err := os.ReadFile("testdata/api/" + list + ".txt")
			require.NoError(t, err, "%s: %s", name, m[0])
			symbol := `(?m)^(func|type) ` + m[2] + `\b`
			if of, method, ok := strings.Cut(m[2], "."); ok {
				symbol = `(?m)^method \(\*?` + of + `\) ` + method + `\(`
			}
			if m[2] != "" {
				assert.Regexp(t, symbol, string(api), "%s: %s", name, m[0])
			}
			found++
		}
	}
	require.GreaterOrEqual(t, found, 10)
}

// TestQuestionsAreAnswered looks for what docs/lab/questions.md quotes below the heading that it links to.
func TestQuestionsAreAnswered(t *testing.T) {
	text, err := os.ReadFile("docs/lab/questions.md")
	require.NoError(t, err)
	rows := regexp.MustCompile(`(?m)^\| .+ \| \[.+\]\((.+)(#.+)\) \| (.+) \|$`).FindAllStringSubmatch(string(text), -1)
	require.GreaterOrEqual(t, len(rows), 20)
	for _, row := range rows {
		assert.Contains(t, section(t, filepath.Join("docs/lab", row[1]), row[2]), row[3], "%s%s", row[1], row[2])
	}
}

// section returns the text below a heading, up to the next heading.
func section(t *testing.T, name, anchor string) string {
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	for i, below := range regexp.MustCompile(`(?m)^#+ .*$`).Split(string(text), -1)[1:] {
		if anchors(t, name)[i] == anchor {
			return below
		}
	}
	assert.Fail(t, "no such heading", "%s%s", name, anchor)
	return ""
}

// TestGuaranteesListEveryReason compares the table of reasons with the constants.
func TestGuaranteesListEveryReason(t *testing.T) {
	source, err := os.ReadFile("reject.go")
	require.NoError(t, err)
	text, err := os.ReadFile("docs/guarantees.md")
	require.NoError(t, err)
	sorted := func(pattern, text string) (names []string) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			names = append(names, m[1])
		}
		slices.Sort(names)
		return slices.Compact(names)
	}
	reasons := sorted(`(?m)^\t(Reason[A-Z]\w+) .*//`, string(source))
	require.Len(t, reasons, 10)
	require.Equal(t, reasons, sorted("(?m)^\\| `(Reason\\w+)` \\|", string(text)))
}

// TestDocumentsCountThePresets checks each "33 APIs".
func TestDocumentsCountThePresets(t *testing.T) {
	found := 0
	for _, name := range append(documents(t), "CHANGELOG.md") {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`(\d+) APIs`).FindAllStringSubmatch(string(text), -1) {
			require.Equal(t, fmt.Sprint(len(headers.Presets())), m[1], name)
			found++
		}
	}
	require.GreaterOrEqual(t, found, 4)
}

// TestDocumentsCountTheSDKs checks each "21 SDKs" against the table of them.
func TestDocumentsCountTheSDKs(t *testing.T) {
	table, _, _ := strings.Cut(section(t, "docs/sdks.md", "#by-sdk"), "Libraries beside them:")
	rows := strings.Count(table, "\n|") - 2
	found := 0
	for _, name := range documents(t) {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`(\d+) SDKs`).FindAllStringSubmatch(string(text), -1) {
			require.Equal(t, fmt.Sprint(rows), m[1], name)
			found++
		}
	}
	require.GreaterOrEqual(t, found, 2)
}

// Headers, servers and metrics report; they do not tell, and nobody hears them. A page that needs such a word in another sense quotes it as
// code.
var unplain = regexp.MustCompile(`(?i)\b(told|telling|tells?|heard|hears|at hand|out of reach|patience|anew|in vain|so many|party|ever (slower|faster)|somebody|whoever|nobody|the latter|in order to|utilize)\b`)

// TestDocumentsAreInPlainWords keeps out words for which there is a plainer one, outside code.
func TestDocumentsAreInPlainWords(t *testing.T) {
	code := regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
	for _, name := range append(documents(t), "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "RELEASING.md", "internal/lab/bench/RESULTS.md", "internal/lab/bench/TARGETS.md") {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for i, line := range strings.Split(code.ReplaceAllStringFunc(string(text), func(c string) string {
			return strings.Repeat("\n", strings.Count(c, "\n"))
		}), "\n") {
			assert.NotRegexp(t, unplain, line, "%s:%d", name, i+1)
		}
	}
}

func TestReadmeIsShort(t *testing.T) {
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	require.LessOrEqual(t, strings.Count(string(text), "\n"), 200)
}

// TestPagesForUsersAreShort counts the words outside programs, and those of the longest sentence. docs/decisions.md and docs/lab are not for users.
func TestPagesForUsersAreShort(t *testing.T) {
	program, table, word := regexp.MustCompile("(?s)```.*?```"), regexp.MustCompile(`(?m)^\|.*$`), regexp.MustCompile(`\S*[\pL\pN]\S*`)
	sentence := regexp.MustCompile(`[.:?!]["*)]*\s|\n\s*\n|\n[-\d]|\|`)
	total := 0
	for _, name := range documents(t) {
		if name == "docs/decisions.md" || strings.HasPrefix(name, "docs/lab/") {
			continue
		}
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		prose := program.ReplaceAllString(string(text), "")
		total += len(word.FindAllString(prose, -1))
		for _, s := range sentence.Split(table.ReplaceAllString(prose, ""), -1) {
			assert.LessOrEqual(t, len(strings.Fields(s)), 25, "%s: %s", name, s)
		}
	}
	require.LessOrEqual(t, total, 12_000)
}

// asFunction makes a file with a function of statements, which may use what the text around them speaks of, and leave unused what
// they declare.
func asFunction(statements, name string) string {
	imports := map[string]string{
		"http": "net/http", "httputil": "net/http/httputil", "json": "encoding/json", "slog": "log/slog", "synctest": "testing/synctest", "signal": "os/signal",
		"throttle": "github.com/httpthrottle/throttle", "throttletest": "github.com/httpthrottle/throttle/throttletest",
		"throttlepage": "github.com/httpthrottle/throttle/throttlepage",
		"retry":        "github.com/httpthrottle/throttle/retry",
		"store":        "github.com/httpthrottle/throttle/store",
		"storetest":    "github.com/httpthrottle/throttle/store/storetest",
		"headers":      "github.com/httpthrottle/throttle/headers",
		"pool":         "github.com/httpthrottle/throttle/pool",
		"redis":        "github.com/redis/go-redis/v9", "throttleredis": "github.com/httpthrottle/throttle/throttleredis",
	}
	given := []struct{ name, typ string }{
		{"ctx", "context.Context"}, {"client", "*http.Client"}, {"req", "*http.Request"}, {"t", "*testing.T"},
		{"transport", "*throttle.Transport"}, {"next", "*throttle.Transport"},
		{"resp", "*http.Response"}, {"complete", "func(context.Context) (int64, error)"},
		{"server", "*http.Server"}, {"callWith", "func(*http.Client, string)"}, {"model", "throttle.KeyFunc"}, {"rateOfTenant", "func(string) (int64, time.Duration)"}, {"rewrite", "func(*httputil.ProxyRequest)"}, {"limiter", "*throttle.Limiter"},
	}
	var params, uses []string
	for _, g := range given {
		params = append(params, g.name+" "+g.typ)
		statements = regexp.MustCompile(`(?m)^(`+g.name+`(?:, err)?) := `).ReplaceAllString(statements, "${1} = ")
	}
	variables := map[string]bool{}
	for _, declared := range regexp.MustCompile(`(?m)^([a-z]+)(?:, err)? :?= `).FindAllStringSubmatch(statements, -1) {
		variables[declared[1]] = true
		if declared[1] != "err" {
			uses = append(uses, "_ = "+declared[1])
		}
	}
	body := "package statements\n\nfunc " + name + "(" + strings.Join(params, ", ") + ") (err error) {\n" +
		strings.ReplaceAll(statements, "err := limiter", "err = limiter") + strings.Join(uses, "\n") + "\nreturn err\n}\n"
	seen := map[string]bool{}
	var list []string
	for _, m := range selector.FindAllStringSubmatch(body, -1) {
		if path := m[1]; !seen[path] && !variables[path] {
			seen[path] = true
			if full, ok := imports[path]; ok {
				path = full
			}
			list = append(list, fmt.Sprintf("import %q", path))
		}
	}
	return strings.Replace(body, "package statements\n", "package statements\n\n"+strings.Join(list, "\n")+"\n", 1)
}

// TestGodocIsInPlainWords checks the documentation of the public packages.
func TestGodocIsInPlainWords(t *testing.T) {
	lists, err := filepath.Glob("testdata/api/*.txt")
	require.NoError(t, err)
	for _, list := range lists {
		dir := strings.TrimPrefix(strings.TrimSuffix(filepath.Base(list), ".txt"), "throttle")
		files, err := filepath.Glob("." + strings.ReplaceAll(dir, "_", "/") + "/*.go")
		require.NoError(t, err)
		require.NotEmpty(t, files, list)
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
			require.NoError(t, err)
			assert.NotRegexp(t, unplain, parsed.Doc.Text(), file)
			ast.Inspect(parsed, func(n ast.Node) bool {
				var docs []*ast.CommentGroup
				switch n := n.(type) {
				case *ast.FuncDecl:
					docs = append(docs, n.Doc)
				case *ast.GenDecl:
					docs = append(docs, n.Doc)
				case *ast.TypeSpec:
					docs = append(docs, n.Doc, n.Comment)
				case *ast.ValueSpec:
					docs = append(docs, n.Doc, n.Comment)
				case *ast.Field:
					docs = append(docs, n.Doc, n.Comment)
				}
				for _, doc := range docs {
					assert.NotRegexp(t, unplain, doc.Text(), file)
				}
				return true
			})
		}
	}
}
