package aimd

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
)

// However long a pause a server asks for, the pause lasts a day and its jitter, and requests go one at a time after it.
func TestThePauseLastsADayAtMost(t *testing.T) {
	const day = int64(24 * time.Hour)
	for name, pause := range map[string]func(m *Meter, d time.Duration){
		"a refusal":         func(m *Meter, d time.Duration) { m.Answered(0, m.Take(0, 0, 1, false), 0, 1, Throttled, d) },
		"a pause of before": func(m *Meter, d time.Duration) { m.Pause(0, int64(d)) },
	} {
		for _, d := range []time.Duration{24*time.Hour - 1, 24 * time.Hour, 24*time.Hour + 1, 365 * 24 * time.Hour} {
			m, dice := New(0, Config{Initial: 100}, 1), meter.Dice(1)
			pause(m, d)
			want := min(day, int64(d))
			require.Equal(t, want+dice.Jitter(want), m.HeldUntil(), "%s, %v", name, d)
			if name == "a refusal" {
				require.Equal(t, d >= 24*time.Hour, m.control.asking)
			}
		}
	}
}
