package throttle

// UntilHeaders gives back the slots of an [InFlight] limit when the headers of the response arrive, instead of when its body was
// read or closed.
func UntilHeaders() LimitOption {
	return limitOption(func(l *Limit) {
		l.untilHeaders = true
		l.onlyFor(kindInFlight, "UntilHeaders", "")
	})
}
