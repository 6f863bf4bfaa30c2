package main

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A dependency is a module of which a published module compiles a package.
type dependency struct {
	Path, Version, Dir string

	licence string // SPDX identifier
}

// dependenciesOf returns what the module in a directory compiles, without tests and without the modules of this repository.
func dependenciesOf(dir string) ([]dependency, error) {
	packages, err := list(dir, "./...")
	if err != nil {
		return nil, err
	}
	users := slices.DeleteFunc(strings.Fields(packages), func(p string) bool { return strings.Contains(p, "/examples/") || strings.Contains(p, "/internal/") })
	out, err := list(dir, append([]string{"-deps", "-f", "{{with .Module}}{{.Path}}\t{{.Version}}\t{{.Dir}}{{end}}"}, users...)...)
	if err != nil {
		return nil, err
	}
	var all []dependency
	var faults []error
	for line := range strings.Lines(out) {
		part := strings.Split(strings.TrimSpace(line), "\t")
		if len(part) < 3 || part[0] == root || strings.HasPrefix(part[0], root+"/") {
			continue
		}
		d := dependency{Path: part[0], Version: part[1], Dir: part[2]}
		if slices.ContainsFunc(all, func(other dependency) bool { return other.Path == d.Path }) {
			continue
		}
		d.licence, err = licenceIn(d.Dir)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", d.Path, err))
		}
		all = append(all, d)
	}
	slices.SortFunc(all, func(a, b dependency) int { return cmp.Compare(a.Path, b.Path) })
	return all, errors.Join(faults...)
}

func list(dir string, args ...string) (string, error) {
	cmd := exec.Command("go", append([]string{"list"}, args...)...)
	cmd.Dir, cmd.Env, cmd.Stderr = dir, append(os.Environ(), "GOWORK=off"), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go list in %s: %w", dir, err)
	}
	return string(out), nil
}

// licences are found by a sentence of theirs, the first that matches. A program under any licence may use modules under these.
var licences = []struct {
	spdx string
	says *regexp.Regexp
}{
	{"Apache-2.0", regexp.MustCompile(`Apache License\s+Version 2\.0, January 2004`)},
	{"MIT", regexp.MustCompile(`Permission is hereby granted, free of charge, to any person obtaining\s+a copy`)},
	{"BSD-3-Clause", regexp.MustCompile(`(?s)Redistribution and use in source and binary forms.*(?:Neither the name|names? of .* contributors may)`)},
	{"BSD-2-Clause", regexp.MustCompile(`Redistribution and use in source and binary forms`)},
	{"MPL-2.0", regexp.MustCompile(`Mozilla Public License,? [Vv]ersion 2\.0`)},
	{"ISC", regexp.MustCompile(`Permission to use, copy, modify, and(?:/or)? distribute this software`)},
}

func licenceIn(dir string) (string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "LICEN[CS]E*"))
	if err != nil {
		return "", err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		for _, l := range licences {
			if l.says.Match(text) {
				return l.spdx, nil
			}
		}
	}
	return "", fmt.Errorf("no known licence in %d files", len(files))
}

func printLicences(w io.Writer) error {
	var faults []error
	for _, m := range published {
		all, err := dependenciesOf(m)
		faults = append(faults, err)
		fmt.Fprintf(w, "%s: %d dependencies\n", modulePath(m), len(all))
		for _, d := range all {
			fmt.Fprintf(w, "  %-14s %s %s\n", d.licence, d.Path, d.Version)
		}
	}
	return errors.Join(faults...)
}

// A component is a module in a bill of materials.
type component struct {
	Type     string           `json:"type"`
	Name     string           `json:"name"`
	Version  string           `json:"version"`
	URL      string           `json:"purl"`
	Licences []map[string]any `json:"licenses"`
}

func componentOf(path, version, licence string) component {
	return component{"library", path, version, "pkg:golang/" + path + "@" + version, []map[string]any{{"license": map[string]string{"id": licence}}}}
}

func writeBills(dir, version string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, m := range published {
		all, err := dependenciesOf(m)
		if err != nil {
			return err
		}
		components := []component{}
		for _, d := range all {
			components = append(components, componentOf(d.Path, d.Version, d.licence))
		}
		if m != "." {
			components = append(components, componentOf(root, version, "Apache-2.0"))
		}
		b := make([]byte, 16)
		rand.Read(b)
		b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
		data, err := json.MarshalIndent(map[string]any{
			"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
			"serialNumber": fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:]),
			"metadata":     map[string]any{"component": componentOf(modulePath(m), version, "Apache-2.0")},
			"components":   components,
		}, "", "  ")
		if err != nil {
			return err
		}
		name := filepath.Join(dir, filepath.Base(modulePath(m))+".cdx.json")
		if err := os.WriteFile(name, append(data, '\n'), 0o644); err != nil {
			return err
		}
		fmt.Printf("%s: %d components\n", name, len(components))
	}
	return nil
}
