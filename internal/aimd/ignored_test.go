package aimd

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// A request of which nothing is known changes when the next probe is sent only if it was the probe of this silence.
func TestOnlyTheProbeOfASilenceIsSentAgainIfItIsIgnored(t *testing.T) {
	for _, s := range []struct {
		probe, on, again bool
	}{
		{true, true, true}, {false, true, false}, {true, false, false}, {false, false, false},
	} {
		b := newBench(t, Config{Initial: 100})
		b.work(10, OK)
		sent := b.send(b.now, 1)
		b.silence = silence{on: s.on, from: b.now, gap: firstGap, probe: sent.seq, probeAt: b.now + second*100}
		if !s.probe {
			b.silence.probe++
		}
		b.now += firstGap / 2
		b.ignore(b.now, sent)
		assert.Equal(t, !s.again, b.silence.probe > 0, "%+v", s)
		if s.again {
			assert.InDelta(t, float64(sent.at)+1.1*float64(firstGap), float64(b.silence.probeAt), 0.1*float64(firstGap)+1, "a gap after it, and up to a fifth")
		} else {
			assert.Equal(t, sent.at+second*100, b.silence.probeAt, "%+v", s)
		}
	}
}
