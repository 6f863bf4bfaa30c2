package pattern

import "net/http"

// A node is a place in the tree of patterns, which branches on host, method and then one segment of the path at a time.
type node[V any] struct {
	leaf *leaf[V] // of the pattern that ends here
	rest *leaf[V] // of the one that ends here in a wildcard for all that follows: {x...} or a trailing slash
	wild *node[V] // for any segment, or any method
	few  []edge[V]
	many map[string]*node[V] // nil as long as there are few
}

type leaf[V any] struct{ value V }

type edge[V any] struct {
	name string
	node *node[V]
}

// fewEdges is up to how many edges are faster to look through than to look up.
const fewEdges = 8

// find returns the child of that name; nil if there is none.
func (n *node[V]) find(name string) *node[V] {
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
func (n *node[V]) child(name string) *node[V] {
	if name == "" {
		return n.wildChild()
	}
	c := n.find(name)
	if c != nil {
		return c
	}
	c = new(node[V])
	n.few = append(n.few, edge[V]{name, c})
	if len(n.few) > fewEdges && n.many == nil {
		n.many = make(map[string]*node[V])
		for _, e := range n.few {
			n.many[e.name] = e.node
		}
	} else if n.many != nil {
		n.many[name] = c
	}
	return c
}

func (n *node[V]) wildChild() *node[V] {
	if n.wild == nil {
		n.wild = new(node[V])
	}
	return n.wild
}

// A search is for the pattern that matches one request.
type search[V any] struct {
	method, path string
	escaped      bool     // each segment of path is to be unescaped
	inexact      bool     // what was found is a wildcard that stands for more than a trailing slash
	withSlash    *leaf[V] // the first exact match, should path end in a slash
}

// in returns the leaf of the most specific pattern: of the host first, then of any host.
func (s *search[V]) in(m *Map[V], r *http.Request) *leaf[V] {
	if len(m.hosts.few) > 0 {
		if h := m.hosts.find(hostOf(r)); h != nil {
			if l := s.host(h); l != nil {
				return l
			}
		}
	}
	return s.host(m.anyHost)
}

func (s *search[V]) host(n *node[V]) *leaf[V] {
	if l := s.under(n.find(s.method), s.path); l != nil {
		return l
	}
	if s.method == http.MethodHead {
		if l := s.under(n.find(http.MethodGet), s.path); l != nil {
			return l
		}
	}
	return s.under(n.wild, s.path)
}

// under returns the leaf for what is left of the path. A literal segment goes before a wildcard, and that before one for
// all that follows.
func (s *search[V]) under(n *node[V], path string) *leaf[V] {
	if n == nil {
		return nil
	}
	switch path {
	case "":
		if s.withSlash == nil {
			s.withSlash = n.slashed()
		}
		s.inexact = false
		return n.leaf
	case slash:
		s.inexact = false
		return n.slashed()
	}
	segment, rest := cut(path)
	if s.escaped {
		segment = unescape(segment)
	}
	if l := s.under(n.find(segment), rest); l != nil {
		return l
	}
	if segment != slash {
		if l := s.under(n.wild, rest); l != nil {
			return l
		}
	}
	s.inexact = true
	return n.rest
}

// slashed returns the leaf for a path that has only a slash left.
func (n *node[V]) slashed() *leaf[V] {
	if c := n.find(slash); c != nil && c.leaf != nil {
		return c.leaf
	}
	return n.rest
}
