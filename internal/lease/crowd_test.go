package lease

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle/internal/meter"
)

// Processes of a crowd ask less often the more they are, and are promised tokens as far ahead, so that a store has about the same number of
// calls. A change does not wait.
func TestACrowdAsksInTurns(t *testing.T) {
	for processes, apart := range map[int]time.Duration{1: 0, 64: 0, 65: 225 * time.Microsecond, 100: 8100 * time.Microsecond, 1000: 210600 * time.Microsecond} {
		m := leasedOf(bucket(1000, time.Second, 1000))
		m.asked = now
		m.latest.processes = processes
		assert.Equal(t, now+int64(apart), m.AskAt(now, waiting(1)), "%d processes", processes)
		assert.Equal(t, 50*time.Millisecond+apart, m.ownReach())
		m.owes(1, now-second)
		assert.Equal(t, now+int64(apart), m.AskAt(now, Demand{}), "a debt of %d processes", processes)
		m.Hold(now, now+second)
		assert.Equal(t, now, m.AskAt(now, Demand{}), "a hold")

		s := newSlotBench(t, 2000)
		s.asked, s.processes = s.now, processes
		assert.Equal(t, s.now+int64(apart), s.AskAt(s.now, waiting(1)), "slots of %d processes", processes)
	}
	m := leasedOf(bucket(1000, time.Second, 1000))
	m.asked, m.latest.processes = now, 1000
	m.Retune(now, meter.Rate{N: 1, Per: time.Second})
	assert.Equal(t, now, m.AskAt(now, Demand{}), "a rate")
}
