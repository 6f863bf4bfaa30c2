package allowance

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// A server that takes back what was not used may have done so before the request came of which the client knew earlier than of the end.
func TestWhatEndedWhenARequestWasSentMayBeReportedAlready(t *testing.T) {
	var s sends
	a, b := s.add(0, 100), s.add(0, 40)
	n := s.add(20*mixed, 100)
	assert.Zero(t, s.back(n))
	s.end(a, 20*mixed, 37)
	assert.Equal(t, 100.0, s.back(n))
	s.end(s.add(20*mixed, 7), 21*mixed-1, 7)
	assert.Equal(t, 107.0, s.back(n))
	s.end(b, 21*mixed, 1)
	assert.Equal(t, 107.0, s.back(n), "the server has seen the request before")

	p := newPart(&Figures{Name: "tokens", Limit: 1000, Left: 500})
	p.limit, p.rate, p.refills, p.fit = 1000, 1e-9, 1, newFit(1, -0.6)
	p.now = sample{left: 500, at: 20 * mixed, n: n, then: s.at(n).before, back: s.back(n)}
	p.now.then.sent += 100
	assert.InDelta(t, 500-7+0.6*40, p.free(20*mixed, &s), 1e-9, "what b gives back, and not what a does")
	p.fit = newFit(1, 0.5)
	assert.Less(t, p.free(20*mixed, &s), 500-7-0.5*147+1, "what was produced may be missing in the report")
}
