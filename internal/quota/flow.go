package quota

import "math"

const (
	flowKeeps = 7.0 / 8 // of what responses before have shown, beside the next
	flowKnown = 2.0     // requests that came back show a rate
	flowLeast = 0.15    // of a request for each: what reordered responses seem to show is less
	flowUsed  = 0.95    // of the rate
)

// A flow is what comes back to a quota before its window ends, as in a bucket or a sliding window: in sums that give less and less
// weight to earlier responses.
type flow struct {
	back float64 // requests
	span float64 // in that time, in ns
	n    float64 // responses that showed it
}

// add takes what came back in a time, as two responses show.
func (f *flow) add(back, span int64) {
	f.back = flowKeeps*f.back + float64(back)
	f.span = flowKeeps*f.span + float64(span)
	f.n = flowKeeps*f.n + 1
}

// rate returns how many requests come back per ns; 0: none, as far as responses show.
func (f *flow) rate() float64 {
	if f.back < flowKnown || f.back < flowLeast*f.n || f.span <= 0 {
		return 0
	}
	return f.back / f.span
}

// refused takes a refusal, which shows that requests were sent too fast for it. Only a second one in a row shows that it may be none. It
// reports whether the flow was known.
func (f *flow) refused() (known bool) {
	if known = f.back > flowKnown*flowKeeps; known { // what the refusal showed was added before
		f.back = max(f.back/2, flowKnown)
	}
	return known
}

// longest returns the longest time between requests for which what is shown is worth anything: twice the one between the responses.
func (f *flow) longest() float64 { return 2 * f.span / max(f.n, 1) }

// foreign returns by how many requests more than the client's the quota falls for each of these.
func (f *flow) foreign() float64 {
	if f.back >= 0 {
		return 0
	}
	return -f.back * (1 - flowKeeps)
}

// others returns that as a whole number.
func (f *flow) others() int64 {
	if f.back >= 0 { // as for most
		return 0
	}
	return int64(math.Round(f.foreign()))
}
