// Command longtests prints arguments of go test for those tests of some folders that do more without -short: that ask testing.Short,
// themselves or by a function that they call. In go test's output, the folders that come first end first, so they keep their order.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	names, folders, err := find(os.Args[1:])
	if err != nil {
		log.Fatal(err)
	}
	if len(names) == 0 {
		log.Fatal("no test of these folders asks testing.Short")
	}
	fmt.Printf("-run ^(%s)$ %s\n", strings.Join(names, "|"), strings.Join(folders, " "))
}

// find returns the names of the tests, and their folders.
func find(in []string) (names, folders []string, err error) {
	calls := map[string][]string{} // by folder or package, and name, of a function: what it calls
	testsOf := map[string][]string{}
	for _, folder := range in {
		files, err := filepath.Glob(filepath.Join(folder, "*.go"))
		if err != nil {
			return nil, nil, err
		}
		for _, name := range files {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			if err != nil {
				return nil, nil, err
			}
			for _, d := range file.Decls {
				if f, ok := d.(*ast.FuncDecl); ok {
					caller := folder + "." + f.Name.Name
					calls[caller] = append(calls[caller], called(folder, f)...)
					calls[file.Name.Name+"."+f.Name.Name] = []string{caller}
					if strings.HasSuffix(name, "_test.go") && strings.HasPrefix(f.Name.Name, "Test") {
						testsOf[folder] = append(testsOf[folder], f.Name.Name)
					}
				}
			}
		}
	}
	asks := map[string]bool{"testing.Short": true}
	for known := 0; known < len(asks); {
		known = len(asks)
		for caller, all := range calls {
			if slices.ContainsFunc(all, func(f string) bool { return asks[f] }) {
				asks[caller] = true
			}
		}
	}
	for _, folder := range in {
		tests := slices.DeleteFunc(testsOf[folder], func(t string) bool { return !asks[folder+"."+t] })
		if len(tests) > 0 {
			names, folders = append(names, tests...), append(folders, folder)
		}
	}
	return names, folders, nil
}

// called is what f, a function in a folder, calls or passes on.
func called(folder string, f *ast.FuncDecl) (all []string) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok {
				all = append(all, x.Name+"."+n.Sel.Name)
			}
		case *ast.Ident:
			all = append(all, folder+"."+n.Name)
		}
		return true
	})
	return all
}
