package meter

// A Flier is a meter that counts requests, or slots, in flight.
type Flier interface{ InFlight() int64 }

// A Rater is a meter whose rate is not the one that it was given; 0: it has none.
type Rater interface{ PerSecond(now Instant) float64 }

// A Holder is a meter that holds by itself, beside the holds of its bucket.
type Holder interface{ HeldUntil() Instant }

// A Sharer is a meter that keeps in one place what it has in common with other meters of its limit.
type Sharer interface {
	// Another returns another one, unused, for a key with that rate, burst and initial balance.
	Another(now Instant, r Rate, burst, initial int64) Meter
}

// A Steady is a meter whose tokens come in at a steady rate. Before they are rounded up, the instants that Ready and Plan return are
// convex in the cost ahead: a straight line is convex, and so is the later of two convex instants.
type Steady interface {
	// Interval returns the time between two tokens, in ns, rounded.
	Interval() int64
}

// A Rester is a meter whose slots rest after a request, before they are given back by GiveBack. Slots of a request that was never sent
// do not rest.
type Rester interface{ Rest(now Instant, cost int64) }

// A Turner is a meter of windows, the current one of which ends at an instant.
type Turner interface{ Turns(now Instant) Instant }

// A Copier is a meter about which time alone decides: a copy of it shows what it will do if nothing else happens.
type Copier interface{ Copy() Meter }

// A Bounder is a meter about which others decide, too: Best returns one that grants what this one would if they took nothing.
type Bounder interface{ Best(now Instant) Meter }

// A Halter is a meter that learns from how much it is used. Halted says that a request that is granted now has waited since an instant,
// for tokens that others share: if the meter could have paid, that time shows no lack of use.
type Halter interface{ Halted(since, now Instant) }

// A Player is a meter about which responses decide. Play returns a copy that goes on as the meter would if the server went on as it did
// lately. If known is false, too little was seen of that, and the copy grants no later than the meter would.
type Player interface {
	Play(now Instant) (m Meter, known bool)
}
