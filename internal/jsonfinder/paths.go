package jsonfinder

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Paths are what finders look for, compiled once for any number of them, also at the same time.
type Paths struct {
	root    node
	terms   int
	needles [][]byte  // an event with a number at a path contains one of them, unless as an escape; none: that cannot be said
	escapes [256]bool // bytes of needles
}

// A node is a name on a path, below that of the object in which it stands.
type node struct {
	name     string
	parent   *node
	children []*node
	term     int // of the path that ends here; -1: none
}

const (
	maxPaths = 16  // with alternatives
	maxNames = 16  // of a path
	maxName  = 256 // bytes
)

// Compile takes paths of names with dots between them, such as "usage.total_tokens", which lead from the root object to a
// number. Each stands for one figure, and those of all are added up. What has several names, such as
// "usage.input_tokens|message.usage.input_tokens", is one figure: of the numbers at alternatives the last counts.
//
// A path may begin with another, such as "usage" with "usage.total", but none may be there twice. There are at most 16,
// alternatives counted, of at most 16 names, each of at most 256 bytes.
func Compile(paths []string) (*Paths, error) {
	c := &Paths{root: node{term: -1}, terms: len(paths)}
	var problems []error
	count := 0
	for term, path := range paths {
		for alternative := range strings.SplitSeq(path, "|") {
			count++
			if err := c.root.add(alternative, term); err != nil {
				problems = append(problems, fmt.Errorf("path %q: %w", path, err))
			} else if count == maxPaths+1 {
				problems = append(problems, fmt.Errorf("path %q: more than %d paths and alternatives", path, maxPaths))
			}
		}
	}
	if count == 0 {
		problems = append(problems, errors.New("no path"))
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	c.needles = c.root.needles()
	for _, needle := range c.needles {
		for _, b := range needle {
			c.escapes[b] = true
		}
	}
	return c, nil
}

func (n *node) add(path string, term int) error {
	names := strings.Split(path, ".")
	if len(names) > maxNames {
		return fmt.Errorf("more than %d names", maxNames)
	}
	if names[0] == "$" || strings.HasPrefix(path, "/") || strings.ContainsAny(path, "[]*") {
		return errors.New(`a path is names with dots between them, such as "usage.total_tokens", without $, /, * and elements of arrays`)
	}
	for _, name := range names {
		if name == "" {
			return errors.New("an empty name")
		}
		if len(name) > maxName {
			return fmt.Errorf("a name of more than %d bytes", maxName)
		}
	}
	for _, name := range names {
		n = n.child(name)
	}
	if n.term >= 0 {
		return fmt.Errorf("%q is there twice", path)
	}
	n.term = term
	return nil
}

func (n *node) child(name string) *node {
	for _, c := range n.children {
		if c.name == name {
			return c
		}
	}
	c := &node{name: name, parent: n, term: -1}
	n.children = append(n.children, c)
	return c
}

// needles returns what the last names of the paths end with, a quote included.
func (n *node) needles() [][]byte {
	var ends []string
	for _, name := range n.lastNames(nil) {
		if strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r >= utf8.RuneSelf || strings.ContainsRune(`"\/`, r) }) {
			return nil // there are more ways to write it
		}
		ends = addEnd(ends, name)
	}
	needles := make([][]byte, len(ends))
	for i, end := range ends {
		needles[i] = append([]byte(end[rarest(end):]), '"')
	}
	return needles
}

func (n *node) lastNames(names []string) []string {
	if n.term >= 0 {
		names = append(names, n.name)
	}
	for _, c := range n.children {
		names = c.lastNames(names)
	}
	return names
}

// addEnd adds a name to ends, or shortens one of them to what both have in common, unless that is too little.
func addEnd(ends []string, name string) []string {
	for i, end := range ends {
		k := 0
		for k < min(len(end), len(name)) && end[len(end)-1-k] == name[len(name)-1-k] {
			k++
		}
		if k >= min(4, len(end), len(name)) {
			ends[i] = end[len(end)-k:]
			return ends
		}
	}
	return append(ends, name)
}

// rarest returns where the byte of a name is that is the least likely anywhere. What is no small letter is rare.
func rarest(name string) int {
	const letters = "etaoinsrldhcu_mpgyfbwvkxjqz"
	at := 0
	for i := range len(name) {
		if uint(strings.IndexByte(letters, name[i])) > uint(strings.IndexByte(letters, name[at])) {
			at = i
		}
	}
	return at
}
