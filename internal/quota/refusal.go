package quota

import "github.com/httpthrottle/throttle/internal/meter"

// A refusal is one of a request because of a limit, which waiting ends.
type refusal struct {
	at   meter.Instant // when it came
	sent meter.Instant // when the request was sent
	wait int64         // for which it asks; 0: it does not say
	kind Kind          // Refused or Exhausted
	bare Bare
	host bool // it may concern the other accounts of the server, too
}

// A standing is what a refusal changes of an account, except for quotas.
type standing struct {
	barrier barrier
	pace    pace
	row     row
	host    barrier // of the server
}
