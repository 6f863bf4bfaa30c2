package meter

// needed reports whether a bucket may not be forgotten now.
func needed(m Meter, now Instant) bool {
	must, _ := m.Matters(now)
	return must > now
}

// fullAt returns the instant from which a bucket is as good as new.
func fullAt(m Meter) Instant {
	_, full := m.Matters(0)
	return full
}
