package throttle

// UntilHeaders gives the slots of an [InFlight] limit back when the headers of the answer have come, in place of when its
// body was read or closed.
func UntilHeaders() LimitOption {
	return limitOption(func(l *Limit) {
		l.untilHeaders = true
		l.onlyFor(kindInFlight, "UntilHeaders", "")
	})
}
