package pattern

import "net/http"

// A node is a place in the tree of patterns, which branches on host, method and then one segment of the path at a time.
type node struct {
	leaf  leaf  // of the pattern that ends here
	rest  leaf  // of the one that ends here in a wildcard for all that follows: {x...} or a trailing slash
	wild  *node // for any segment, or any method
	slash *node // the child of that name
	few   []edge
	many  map[string]*node // nil as long as there are few
}

// A leaf is the index of the value of a pattern; 0: there is none.
type leaf int

type edge struct {
	name string
	node *node
}

// fewEdges is up to how many edges are faster to look through than to look up.
const fewEdges = 8

// find returns the child of that name; nil if there is none.
func (n *node) find(name string) *node {
	if n.many != nil {
		return n.many[name]
	}
	for i := range n.few {
		if n.few[i].name == name {
			return n.few[i].node
		}
	}
	return nil
}

// child returns the child of that name, which is made if there is none. As in ServeMux, the empty name is the wildcard.
func (n *node) child(name string) *node {
	if name == "" {
		return n.wildChild()
	}
	c := n.find(name)
	if c != nil {
		return c
	}
	c = new(node)
	if name == slash {
		n.slash = c
	}
	n.few = append(n.few, edge{name, c})
	if len(n.few) > fewEdges && n.many == nil {
		n.many = make(map[string]*node)
		for _, e := range n.few {
			n.many[e.name] = e.node
		}
	} else if n.many != nil {
		n.many[name] = c
	}
	return c
}

func (n *node) wildChild() *node {
	if n.wild == nil {
		n.wild = new(node)
	}
	return n.wild
}

// A search is for the pattern that matches one request.
type search struct {
	method, path string
	escaped      bool // each segment of path is to be unescaped
	inexact      bool // what was found is a wildcard that stands for more than a trailing slash
	dotted       bool // a segment is empty or begins with a dot, so the path may not be clean
	withSlash    leaf // the first exact match, should path end in a slash
}

// host returns the leaf of the most specific pattern of a host: of the method first, then of any method.
func (s *search) host(n *node) leaf {
	if l := s.under(n.find(s.method), s.path); l != 0 {
		return l
	}
	if s.method == http.MethodHead {
		if l := s.under(n.find(http.MethodGet), s.path); l != 0 {
			return l
		}
	}
	return s.under(n.wild, s.path)
}

// under returns the leaf for what is left of the path. A literal segment takes precedence over a wildcard, and a
// wildcard over one for the rest of the path.
func (s *search) under(n *node, path string) leaf {
	for n != nil {
		switch path {
		case "":
			if s.withSlash == 0 {
				s.withSlash = n.slashed()
			}
			s.inexact = false
			return n.leaf
		case slash:
			s.inexact = false
			return n.slashed()
		}
		segment, rest := cut(path)
		if segment == "" || segment[0] == '.' {
			s.dotted = true
		}
		if s.escaped {
			segment = unescape(segment)
		}
		first, second := n.find(segment), n.wild
		if segment == slash {
			second = nil
		} else if first == nil {
			first, second = second, nil
		}
		if second == nil && n.rest == 0 { // there is one way on
			n, path = first, rest
			continue
		}
		for _, n := range [...]*node{first, second} {
			if n != nil {
				if l := s.under(n, rest); l != 0 {
					return l
				}
			}
		}
		s.inexact = true
		return n.rest
	}
	return 0
}

// slashed returns the leaf for a path that has only a slash left.
func (n *node) slashed() leaf {
	if n.slash != nil && n.slash.leaf != 0 {
		return n.slash.leaf
	}
	return n.rest
}
