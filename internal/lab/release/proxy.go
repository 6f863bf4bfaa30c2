package main

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

// writeProxy writes the published modules as a module proxy serves them.
func writeProxy(dir, version string) error {
	tree, err := os.MkdirTemp("", "release")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tree)
	if err := checkOut(tree); err != nil {
		return err
	}
	for _, m := range published {
		if err := writeModule(filepath.Join(tree, m), dir, module.Version{Path: modulePath(m), Version: version}); err != nil {
			return fmt.Errorf("%s: %w", m, err)
		}
	}
	return nil
}

// checkOut copies the files that git knows of.
func checkOut(to string) error {
	out, err := exec.Command("git", "ls-files", "-z").Output()
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		name = filepath.Join(to, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// writeModule writes a module whose go.mod requires the others by their versions, instead of replacing them.
func writeModule(from, dir string, m module.Version) error {
	name := filepath.Join(from, "go.mod")
	data, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	f, err := modfile.Parse(name, data, nil)
	if err != nil {
		return err
	}
	if err := require(f, m.Version); err != nil {
		return err
	}
	if data, err = f.Format(); err != nil {
		return err
	}
	if err := os.WriteFile(name, data, 0o644); err != nil {
		return err
	}
	at := filepath.Join(dir, filepath.FromSlash(m.Path), "@v")
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	for ext, text := range map[string]string{
		".mod": string(data), ".info": fmt.Sprintf(`{"Version":%q,"Time":"2026-01-01T00:00:00Z"}`, m.Version),
	} {
		if err := os.WriteFile(filepath.Join(at, m.Version+ext), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(at, "list"), []byte(m.Version+"\n"), fs.FileMode(0o644)); err != nil {
		return err
	}
	w, err := os.Create(filepath.Join(at, m.Version+".zip"))
	if err != nil {
		return err
	}
	defer w.Close()
	return zip.CreateFromDir(w, m, from)
}

// require turns the replacements of this repository's modules into requirements.
func require(f *modfile.File, version string) error {
	for _, r := range f.Replace {
		if r.Old.Path != root && !strings.HasPrefix(r.Old.Path, root+"/") {
			return fmt.Errorf("it replaces %s", r.Old.Path)
		}
		if err := f.AddRequire(r.Old.Path, version); err != nil {
			return err
		}
		if err := f.DropReplace(r.Old.Path, r.Old.Version); err != nil {
			return err
		}
	}
	f.Cleanup()
	return nil
}
