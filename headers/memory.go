package headers

import "sync"

// A memory is what a Reader keeps from one response to the next. It works for nil, which keeps nothing.
type memory struct {
	headings headings
	readings sync.Pool // of *reading, empty ones: one takes more room than all else that a response needs
}

// heading returns the heading of a name.
func (m *memory) heading(name string) *heading {
	if m == nil {
		return understood(name)
	}
	return m.headings.of(name)
}

// reading returns an empty reading.
func (m *memory) reading() *reading {
	if m != nil {
		if r, ok := m.readings.Get().(*reading); ok {
			return r
		}
	}
	return new(reading)
}

// end empties a reading, for the next response.
func (m *memory) end(r *reading) {
	if m != nil {
		*r = reading{}
		m.readings.Put(r)
	}
}
