// Command circles prints the circles of the files of a package: files that use each other's declarations, directly or through
// others. A file uses another if it names a declaration in it, a method or a field included. With -names it also prints what the
// files of a circle use.
//
//	go run ./internal/lab/circles -names . ./internal/quota
package main

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
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	names := flag.Bool("names", false, "print what the files of a circle use of each other")
	flag.Parse()
	for _, p := range flag.Args() {
		if err := show(os.Stdout, p, *names); err != nil {
			fmt.Fprintf(os.Stderr, "circles: %s: %v\n", p, err)
			os.Exit(1)
		}
	}
}

// show prints what the files of a package use of each other.
func show(w io.Writer, pattern string, names bool) error {
	uses, err := usesOf(pattern)
	if err != nil {
		return err
	}
	arrows, mutual := 0, 0
	for file, used := range uses {
		arrows += len(used)
		for other := range used {
			if uses[other][file] != nil {
				mutual++
			}
		}
	}
	fmt.Fprintf(w, "%s: %d files, %d arrows, %d of them mutual\n", pattern, len(uses), arrows, mutual)
	for _, circle := range circles(uses) {
		fmt.Fprintf(w, "  circle of %d: %s\n", len(circle), strings.Join(circle, " "))
		for _, file := range circle {
			for _, other := range circle {
				if used := uses[file][other]; names && used != nil {
					fmt.Fprintf(w, "    %s -> %s: %s\n", file, other, strings.Join(slices.Sorted(maps.Keys(used)), " "))
				}
			}
		}
	}
	return nil
}

// A graph has, for each file, the files that it uses, and the names that it uses of them.
type graph map[string]map[string]map[string]bool

// usesOf returns the graph of a package.
func usesOf(pattern string) (graph, error) {
	list := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,DepOnly", pattern)
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, err
	}
	type listed struct {
		ImportPath, Dir, Export string
		GoFiles                 []string
		DepOnly                 bool
	}
	var asked listed
	exports := make(map[string]string)
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p listed
		if err := d.Decode(&p); err != nil {
			return nil, err
		}
		exports[p.ImportPath] = p.Export
		if !p.DepOnly {
			asked = p
		}
	}
	set := token.NewFileSet()
	var files []*ast.File
	for _, name := range asked.GoFiles {
		f, err := parser.ParseFile(set, filepath.Join(asked.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	from := importer.ForCompiler(set, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	info := types.Info{Uses: make(map[*ast.Ident]types.Object)}
	p, err := (&types.Config{Importer: from}).Check(asked.ImportPath, set, files, &info)
	if err != nil {
		return nil, err
	}
	fileOf := func(pos token.Pos) string { return filepath.Base(set.Position(pos).Filename) }
	uses := make(graph)
	for _, f := range files {
		uses[fileOf(f.Pos())] = make(map[string]map[string]bool)
	}
	for id, o := range info.Uses {
		if o.Pkg() != p || !o.Pos().IsValid() {
			continue
		}
		if by, of := fileOf(id.Pos()), fileOf(o.Pos()); by != of {
			if uses[by][of] == nil {
				uses[by][of] = make(map[string]bool)
			}
			uses[by][of][o.Name()] = true
		}
	}
	return uses, nil
}

// circles returns the sets of several files each of which reaches every other, the largest first.
func circles(uses graph) (all [][]string) {
	reached := make(map[string]map[string]bool, len(uses))
	for file := range uses {
		reached[file] = reach(uses, file, make(map[string]bool))
	}
	done := make(map[string]bool)
	for _, file := range slices.Sorted(maps.Keys(uses)) {
		if done[file] || !reached[file][file] {
			continue
		}
		var circle []string
		for other := range reached[file] {
			if reached[other][file] {
				circle, done[other] = append(circle, other), true
			}
		}
		slices.Sort(circle)
		all = append(all, circle)
	}
	slices.SortStableFunc(all, func(x, y []string) int { return len(y) - len(x) })
	return all
}

// reach adds to found the files that a file uses, directly or through others.
func reach(uses graph, file string, found map[string]bool) map[string]bool {
	for other := range uses[file] {
		if !found[other] {
			found[other] = true
			reach(uses, other, found)
		}
	}
	return found
}
