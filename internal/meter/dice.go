package meter

const mostJitter = second

// Dice is a pseudo-random number generator (splitmix64); its value is the seed.
type Dice uint64

// Chance returns a number in [0, 1).
func (d *Dice) Chance() float64 { return float64(d.Uint64()>>11) / (1 << 53) }

// Uint64 returns any number.
func (d *Dice) Uint64() uint64 {
	*d += 0x9e3779b97f4a7c15
	z := uint64(*d)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Jitter returns a random part of a tenth of d, or of a second if that is less, to be added to a wait of d, so that many
// clients do not come back as one.
func (d *Dice) Jitter(wait int64) int64 { return Jitter(d.Chance(), wait) }

// Jitter returns the same for a number in [0, 1) that was drawn before.
func Jitter(chance float64, wait int64) int64 {
	return int64(chance * float64(min(mostJitter, wait/10)))
}
