package meter

// Late counts the overcharged tokens that a window got back too late: all of them if their period has ended, and else in proportion to the
// part of it for which no other request could use them. Undercharges are reduced by them, so that a window loses nothing to estimates that
// are right on average. As what was used, they are forgotten within about a period.
type Late struct {
	tokens float64
	at     Instant
}

// Add records an overcharge that became known some time after the charge.
func (l *Late) Add(now Instant, tokens int64, after, per int64) {
	l.fade(now, per)
	l.tokens += float64(tokens) * min(1, float64(after)/float64(per))
}

// Reduce returns what is left of an undercharge.
func (l *Late) Reduce(now Instant, tokens, per int64) int64 {
	l.fade(now, per)
	n := min(tokens, int64(l.tokens))
	l.tokens -= float64(n)
	return tokens - n
}

func (l *Late) fade(now Instant, per int64) {
	if past := now - l.at; past > 0 {
		l.tokens *= max(0, 1-float64(past)/float64(per))
		l.at = now
	}
}
