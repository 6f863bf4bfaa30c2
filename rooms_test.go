package throttle_test

import (
	"encoding/json"
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

// The rooms of the module, as CONTRIBUTING.md shows them: what each package may import, directly and not in its tests. A room
// that is not listed here fails the test.
var rooms = map[string]struct {
	inside []string // packages of this module
	never  []string // packages of the standard library
}{
	".":            {inside: []string{"headers", "internal/aimd", "internal/bucket", "internal/concurrency", "internal/jsonfinder", "internal/lease", "internal/meter", "internal/order", "internal/pattern", "internal/limiter", "internal/quota", "internal/saved", "store", "internal/supply"}},
	"headers":      {},
	"retry":        {inside: []string{".", "headers"}},
	"shape":        {inside: []string{"."}},
	"throttlepage": {inside: []string{"."}},
	"throttletest": {},
	"store":        {inside: []string{"internal/meter"}, never: []string{"net/http", "log", "log/slog", "os"}},

	"store/file":      {inside: []string{"store"}, never: []string{"net/http", "log", "log/slog"}},
	"store/storetest": {inside: []string{"store"}},
	"internal/limiter": {inside: []string{"internal/aimd", "internal/bucket", "internal/heap", "internal/keep", "internal/lease", "internal/meter", "internal/order", "internal/quota", "store", "internal/supply"},
		never: []string{"net/http", "log", "log/slog", "os"}},
	"internal/bucket":      {inside: []string{"internal/aimd", "internal/heap", "internal/keep", "internal/lease", "internal/meter", "internal/order", "internal/quota", "internal/supply", "store"}, never: arithmetic},
	"internal/heap":        {never: append(arithmetic, "time")},
	"internal/order":       {inside: []string{"internal/heap", "internal/meter"}, never: arithmetic},
	"internal/aimd":        {inside: []string{"internal/meter"}, never: arithmetic},
	"internal/concurrency": {inside: []string{"internal/aimd", "internal/meter"}, never: arithmetic},
	"internal/quota":       {inside: []string{"internal/aimd", "internal/keep", "internal/meter"}, never: arithmetic},
	"internal/meter":       {never: arithmetic},
	"internal/lease":       {inside: []string{"internal/meter", "store"}, never: []string{"sync", "sync/atomic", "net/http", "log", "log/slog", "os"}},
	"internal/keep":        {inside: []string{"internal/heap", "internal/meter"}, never: arithmetic},
	"internal/supply":      {inside: []string{"internal/lease", "internal/meter", "store"}, never: arithmetic},
	"internal/metrics":     {inside: []string{".", "retry"}, never: []string{"sync", "net/http", "log", "log/slog", "os"}},
	"internal/saved":       {never: arithmetic},
	"internal/pattern":     {never: []string{"sync", "time"}},
	"internal/jsonfinder":  {never: []string{"net/http", "sync", "time"}},
}

// Arithmetic has no lock, no context, no HTTP and no log.
var arithmetic = []string{"sync", "sync/atomic", "context", "net/http", "log", "log/slog", "os"}

func TestImportsKeepTheDirectionOfTheRooms(t *testing.T) {
	const module = "github.com/httpthrottle/throttle"
	out, err := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports", "./...").Output()
	require.NoError(t, err)
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := d.Decode(&p); err == io.EOF {
			break
		} else {
			require.NoError(t, err)
		}
		name := inside(p.ImportPath, module)
		if strings.HasPrefix(name, "examples/") || slices.Contains(helpers, name) {
			continue
		}
		room, ok := rooms[name]
		if !assert.True(t, ok, "package %s stands in no room", name) {
			continue
		}
		for _, imported := range p.Imports {
			if imported == module || strings.HasPrefix(imported, module+"/") {
				assert.Contains(t, room.inside, inside(imported, module), "%s imports it", name)
			}
			assert.NotContains(t, room.never, imported, "%s imports it", name)
			if name == "." {
				assert.False(t, strings.Contains(strings.Split(imported, "/")[0], ".") && !strings.HasPrefix(imported, module),
					"the root imports %s, which is not in the standard library", imported)
			}
		}
	}
}

// Arithmetic is given the time.
func TestArithmeticReadsNoClock(t *testing.T) {
	for _, room := range []string{"aimd", "bucket", "concurrency", "heap", "keep", "lease", "meter", "order", "quota", "supply"} {
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
var helpers = []string{"internal/meter/metertest", "internal/metrics/metricstest", "internal/scene", "internal/scene/flight", "internal/scene/loop"}

// inside returns the path of a package within the module.
func inside(path, module string) string {
	if path == module {
		return "."
	}
	return strings.TrimPrefix(path, module+"/")
}
