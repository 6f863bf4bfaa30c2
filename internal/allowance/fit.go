package allowance

const (
	fitKeeps = 63.0 / 64 // of the responses before, beside the next
	fitPrior = 1         // requests that the guess counts for
	// guessFollows is the part by which the guess follows what was learned. While as much ends as is sent, only the sum of the two is
	// certain, and without that they would return to the first guess.
	guessFollows = 16
)

// A fit is what a request costs a part for each token of its estimate: when it is sent, and when it ends. Responses show it, by
// least squares in which earlier ones count less and less. Before, a guess stands: that the estimate is the cost, or what was
// saved. While responses show only the sum of the two, the guess decides what a request costs when it is sent. A meter that takes
// that for too little sends requests that are refused.
type fit struct {
	sent, ended float64
	whole, most float64 // what it costs in the end, and at most at a time: kept, because each request asks
	guess       float64 // of sent
	ss, se, ee  float64
	sy, ey      float64
	n           float64
}

func newFit(sent, ended float64) fit {
	f := fit{guess: sent}
	f.set(sent, ended)
	return f
}

func (f *fit) set(sent, ended float64) {
	f.sent, f.ended = sent, ended
	f.whole = max(sent+ended, sent/16, 1e-6)
	f.most = max(sent, f.whole)
}

// add takes by how much less was left in a response than in one before, what was sent between, what has ended, and what a request
// was estimated to cost in the mean.
func (f *fit) add(sent, ended, less, each float64) {
	if sent+ended <= 0 {
		return
	}
	if f.guess == 0 && sent > 0 { // nothing was known of estimates: all is charged when a request is sent
		f.guess = max(0, less/sent)
	}
	w := 1 / (sent + ended) // what many requests show is not more certain in proportion to its square
	f.ss = fitKeeps*f.ss + w*sent*sent
	f.se = fitKeeps*f.se + w*sent*ended
	f.ee = fitKeeps*f.ee + w*ended*ended
	f.sy = fitKeeps*f.sy + w*sent*less
	f.ey = fitKeeps*f.ey + w*ended*less
	f.n = fitKeeps*f.n + 1
	prior := fitPrior * each / max(f.n/8, 1) // is worth less and less
	ss, sy := f.ss+prior, f.sy+prior*f.guess
	if det := ss*f.ee - f.se*f.se; det > 0 {
		sent := max(0, (sy*f.ee-f.ey*f.se)/det)
		f.set(sent, max(-sent, (f.ey*ss-sy*f.se)/det)) // no more comes back than was charged
	}
	f.guess += (f.sent - f.guess) / guessFollows
}
