package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	_ "embed"
)

// target is where this module's root package appears in the standard library.
const target = "net/http/internal/throttle"

//go:embed hook_test.go.txt
var hookTest string

// An overlay shows go test files that are not there.
type overlay struct {
	dir     string // where they really are
	src     string // $GOROOT/src
	Replace map[string]string
}

// writeOverlay makes an overlay in dir, and returns the file for go test -overlay.
func writeOverlay(dir string) (file string, err error) {
	goroot, err := output("go", "env", "GOROOT")
	if err != nil {
		return "", err
	}
	o := &overlay{dir: dir, src: filepath.Join(strings.TrimSpace(string(goroot)), "src"), Replace: map[string]string{}}
	if err := errors.Join(o.addModule(), o.addHooks()); err != nil {
		return "", err
	}
	list, err := json.Marshal(o)
	if err != nil {
		return "", err
	}
	file = filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, list, 0o666)
}

// add shows content at a path below $GOROOT/src.
func (o *overlay) add(name string, content []byte) error {
	real := filepath.Join(o.dir, strconv.Itoa(len(o.Replace))+".go")
	o.Replace[filepath.Join(o.src, filepath.FromSlash(name))] = real
	return os.WriteFile(real, content, 0o666)
}

// edit shows a file of $GOROOT/src with text replaced that must be there once.
func (o *overlay) edit(name, before, after string) error {
	content, err := os.ReadFile(filepath.Join(o.src, filepath.FromSlash(name)))
	if err != nil {
		return err
	}
	if n := strings.Count(string(content), before); n != 1 {
		return fmt.Errorf("%s has %q %d times, not once: this version of Go needs another hook", name, before, n)
	}
	return o.add(name, []byte(strings.Replace(string(content), before, after, 1)))
}

// addModule shows this module's root package, and those of its own that it imports, in the standard library.
func (o *overlay) addModule() error {
	list, err := output("go", "list", "-deps", "-json=ImportPath,Dir,GoFiles,Standard", ".")
	if err != nil {
		return err
	}
	type pkg struct {
		ImportPath, Dir string
		GoFiles         []string
		Standard        bool
	}
	var packages []pkg
	for d := json.NewDecoder(bytes.NewReader(list)); d.More(); {
		var p pkg
		if err := d.Decode(&p); err != nil {
			return err
		}
		if !p.Standard {
			packages = append(packages, p)
		}
	}
	root := packages[len(packages)-1].ImportPath // dependencies come first
	for _, p := range packages {
		sub, ok := strings.CutPrefix(p.ImportPath+"/", root+"/")
		if !ok {
			return fmt.Errorf("%s imports %s, which is neither its own nor of the standard library", root, p.ImportPath)
		}
		for _, file := range p.GoFiles {
			content, err := os.ReadFile(filepath.Join(p.Dir, file))
			if err != nil {
				return err
			}
			if content, err = moveImports(content, root); err != nil {
				return err
			}
			if err := o.add(path.Join(target, sub, file), content); err != nil {
				return err
			}
		}
	}
	return nil
}

// moveImports returns a source file that imports from target what it imported from root.
func moveImports(content []byte, root string) ([]byte, error) {
	f, err := parser.ParseFile(token.NewFileSet(), "", content, parser.ImportsOnly)
	if err != nil {
		return nil, err
	}
	for _, spec := range f.Imports {
		if p, _ := strconv.Unquote(spec.Path.Value); p == root || strings.HasPrefix(p, root+"/") {
			content = bytes.Replace(content, []byte(spec.Path.Value), []byte(strconv.Quote(target+p[len(root):])), 1)
		}
	}
	return content, nil
}

// addHooks lets every client's RoundTripper go through http.ThrottleHook, which the tests of each package set.
func (o *overlay) addHooks() error {
	const mainFunc = "\nfunc TestMain(m *testing.M) { os.Exit(throttled(m)) }\n"
	hook := func(pkg, rest string) error {
		content := strings.Replace(hookTest, "package hook_test", "package "+path.Base(pkg)+"_test", 1) + rest
		return o.add(pkg+"/throttle_hook_test.go", []byte(content))
	}
	return errors.Join(
		o.edit("net/http/client.go", "func (c *Client) transport() RoundTripper {", `
// ThrottleHook wraps the RoundTripper of every client.
var ThrottleHook func(RoundTripper) RoundTripper

func (c *Client) transport() RoundTripper {
	rt := c.bareTransport()
	if ThrottleHook == nil || rt == nil {
		return rt
	}
	return ThrottleHook(rt)
}

func (c *Client) bareTransport() RoundTripper {`),
		o.edit("net/http/httputil/reverseproxy.go", "\t\ttransport = http.DefaultTransport\n\t}\n", `
		transport = http.DefaultTransport
	}
	if http.ThrottleHook != nil {
		transport = http.ThrottleHook(transport)
	}
`),
		o.edit("net/http/main_test.go", "m.Run()", "throttled(m)"),
		hook("net/http", ""),
		hook("net/http/httptest", mainFunc),
		hook("net/http/httputil", mainFunc),
	)
}

func output(name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	return cmd.Output()
}
