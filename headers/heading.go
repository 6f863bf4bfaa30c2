package headers

import (
	"maps"
	"strings"
	"sync/atomic"
)

// A heading is what the name of a header says that concerns limits.
type heading struct {
	name  string // in lower case
	order int64  // the lower, the more the header is worth: by its rank, then by its length
	meaning
}

// headings keeps the headings of names that a Reader has read, as servers write them. A program reads the same few of them in each response,
// and to understand one takes longer than all else that is done for a request. The map is replaced, and never changed.
type headings struct {
	atomic.Pointer[map[string]*heading]
}

// Servers choose the names, so what is kept is bounded.
const (
	mostHeadings   = 256
	longestHeading = 64 // bytes
)

// of returns the heading of a name.
func (k *headings) of(name string) *heading {
	old := k.Load()
	if old != nil {
		if h, ok := (*old)[name]; ok {
			return h
		}
	}
	if len(name) > longestHeading || old != nil && len(*old) >= mostHeadings {
		return understood(name)
	}
	name = strings.Clone(name) // the name of a response may be a part of all of its headers
	h := understood(name)
	names := make(map[string]*heading)
	if old != nil {
		maps.Copy(names, *old)
	}
	names[name] = h
	k.CompareAndSwap(old, &names) // else another response has added a name, and this one is added next time
	return h
}

// understood returns the heading of a name.
func understood(name string) *heading {
	h := &heading{name: strings.ToLower(name)}
	h.order = int64(rank(h.name))<<32 + int64(len(h.name))
	h.meaning, _ = parseName(h.name)
	return h
}
