package headers

import "time"

// A pause is the longest of several delays that a server gave in its Retry-After or one of the relatives.
type pause struct {
	d         time.Duration
	known     bool
	saturated bool
}

// longest takes the moment that text gives, if it is a later one. Numbers are always valid and never wrap: what is no delay
// and no epoch is too long to be true, and becomes Ceiling.
func (p *pause) longest(text string, unit TimeUnit, clock time.Time) {
	m := readMoment(text, unit, clock)
	if _, isNumber := scanNumber(text); isNumber && m.is == stale {
		m.is = beyond
	}
	switch {
	case m.is == beyond:
		*p = pause{Ceiling, true, true}
	case m.is == told && (!p.known || m.d > p.d):
		*p = pause{m.d, true, false}
	}
}

// readPause returns the longest valid line.
func (p *pause) read(lines []string, unit TimeUnit, clock time.Time) {
	for _, line := range lines {
		if text, ok := clean(line); ok {
			p.longest(text, unit, clock)
		}
	}
}

// refined returns p as a finer header tells it: that one says the same in milliseconds where Retry-After had to be rounded up
// to seconds. Where they say different things, who waits longer is right; a fine zero says nothing.
func (p pause) refined(fine pause) pause {
	switch {
	case !fine.known || fine.d == 0:
		return p
	case !p.known:
		return fine
	case fine.d > p.d, p.d-fine.d < time.Second:
		return fine
	}
	return p
}
