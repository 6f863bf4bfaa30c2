package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// A connection is a field of a query that stands for a list: no more than first of those objects, and of each of them
// what is asked for inside.
type connection struct {
	name   string
	first  int64
	inside []*connection
}

var parts = regexp.MustCompile(`(\w+)\s*\([^)]*\bfirst:\s*(\d+)[^)]*\)|[{}]`)

// parse finds the connections of a query. For their cost nothing else matters.
func parse(query string) *connection {
	root := &connection{name: "root", first: 1}
	open := []*connection{root} // the last is what we are inside of, once for each brace
	last := root
	for _, m := range parts.FindAllStringSubmatch(query, -1) {
		switch m[0] {
		case "{":
			open = append(open, last)
		case "}":
			open = open[:max(1, len(open)-1)]
			last = open[len(open)-1]
		default:
			n, _ := strconv.ParseInt(m[2], 10, 32) // what is too large stays so: the largest there is
			last = &connection{name: m[1], first: n}
			in := open[len(open)-1]
			in.inside = append(in.inside, last)
		}
	}
	return root
}

// most is what a query costs if there is all it asks for: a point for the query, and one for each object.
func (c *connection) most() int64 {
	cost := int64(1)
	for _, in := range c.inside {
		cost += in.most()
	}
	return c.first * min(cost, 1<<31) // no overflow
}

// String returns what is asked for, in short.
func (c *connection) String() string {
	var inside []string
	for _, in := range c.inside {
		inside = append(inside, in.String())
	}
	list := strings.Join(inside, ", ")
	switch {
	case c.name == "root":
		return list
	case list == "":
		return fmt.Sprint(c.first, " ", c.name)
	}
	return fmt.Sprintf("%d %s (%s)", c.first, c.name, list)
}
