package meter

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The numbers are those of the reference implementation (https://prng.di.unimi.it/splitmix64.c) with the seed 1234567.
func TestDiceIsSplitmix64(t *testing.T) {
	d := Dice(1234567)
	for _, z := range []uint64{6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821} {
		require.Equal(t, float64(z>>11)/(1<<53), d.Chance())
	}
}

func TestJitterIsUpToATenthAndASecond(t *testing.T) {
	require.Equal(t, 5*second/100, Jitter(.5, second))
	require.Equal(t, second/2, Jitter(.5, 10*second))
	require.Equal(t, second/2, Jitter(.5, Never))
	require.Zero(t, Jitter(.999, 9))
	d := Dice(7)
	require.Equal(t, Jitter(Dice(7).next(), 3*second), d.Jitter(3*second))
}

// next returns the number that d will return next.
func (d Dice) next() float64 { return d.Chance() }
