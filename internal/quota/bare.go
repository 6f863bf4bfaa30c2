package quota

// A Bare is a response that refuses without mentioning a limit, by a status that mostly means something else; see [aimd.Suspicion].
type Bare uint8

const (
	NotBare Bare = iota
	Unavailable
	Forbidden
)
