package down

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle/internal/meter"
)

const (
	gap = int64(100 * time.Millisecond)
	at  = meter.Instant(time.Hour)
)

// Attempts at a server that is down are a gap apart. A request that arrived before one that failed has its error.
func TestAttemptsAreAGapApart(t *testing.T) {
	var s Servers
	sent := func(now, arrived meter.Instant) bool {
		turn := s.Try("a", now, arrived, gap)
		return turn.Changed == nil && turn.Err == nil
	}
	assert.True(t, sent(at, at), "nothing is known of the server")
	refused := errors.New("refused")
	s.Failed("a", at, at+5, refused)
	assert.Equal(t, Turn{}, s.Try("b", at+6, at+6, gap))
	assert.Equal(t, Turn{Down: true, Err: refused}, s.Try("a", at+6, at+4, gap), "it arrived before the attempt failed")
	turn := s.Try("a", at+6, at+6, gap)
	assert.NotNil(t, turn.Changed)
	assert.Equal(t, Turn{true, turn.Changed, at + gap, refused}, turn)
	assert.False(t, sent(at+gap-1, at+6))
	assert.True(t, sent(at+gap, at+6))
	assert.False(t, sent(at+gap, at+gap), "another request waits for that attempt")

	again := errors.New("refused again")
	s.Failed("a", at+gap, at+gap+1, again)
	<-turn.Changed
	assert.Equal(t, again, s.Try("a", at+gap+1, at+6, gap).Err)

	turn = s.Try("a", at+gap+1, at+gap+1, gap)
	s.Reached("a")
	<-turn.Changed
	assert.False(t, s.Any())
	assert.True(t, sent(at+gap+2, at+gap+2))
}

// A server that no request has tried to reach for a minute is forgotten, and what waited for a change goes on.
func TestServersAreForgotten(t *testing.T) {
	var s Servers
	for i := range most + 1 {
		s.Failed(fmt.Sprint(i), at, at, errors.New("refused"))
	}
	assert.Equal(t, Turn{}, s.Try(fmt.Sprint(most), at+1, at+1, gap), "there is no room for it")
	turn := s.Try("0", at+1, at+1, gap)
	s.Try("1", at+gap, at+gap, gap) // an attempt that has not ended

	end := at + stale + 1
	s.Try("none", end, end, gap)
	<-turn.Changed
	assert.False(t, s.Try("0", end, end, gap).Down)
	assert.True(t, s.Try("1", end, end, gap).Down)
}
