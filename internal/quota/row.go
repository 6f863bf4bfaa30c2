package quota

const (
	longestBack = 6               // doublings of a backoff of 1 s
	mostRow     = longestBack + 4 // refusals in a row that are counted
)

// A row counts refusals in a row, each of a request that was sent after the wait of the one before. From the second on, requests ask one by
// one whether the server accepts one.
type row struct {
	asking   bool // one request a second is sent until one is accepted
	refusals int8
}

// add counts a refusal.
func (r *row) add() {
	r.refusals = min(r.refusals+1, mostRow)
	r.asking = r.asking || r.refusals > 1
}
