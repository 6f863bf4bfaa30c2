package meter

// Dice is a pseudo-random number generator (splitmix64); its value is the seed.
type Dice uint64

// Chance returns a number in [0, 1).
func (d *Dice) Chance() float64 {
	*d += 0x9e3779b97f4a7c15
	z := uint64(*d)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return float64((z^z>>31)>>11) / (1 << 53)
}
