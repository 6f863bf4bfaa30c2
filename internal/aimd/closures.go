package aimd

import "math"

// Closures are for how long the server was closed after as many requests as this time, from one silence to the next.
type closures struct {
	n    float64 // tokens accepted from the last silence to this one
	shut int64   // after the last silence, the server was closed for so long,
	open int64   // and open after that; 0: it is not known
}

const sameCount = 16 // a part of a count, or of a time, that makes no difference

// begins takes how many tokens were accepted from the last silence to one that begins.
func (w *closures) begins(n float64) {
	if n == 0 || math.Abs(n-w.n) > w.n/sameCount { // it is closed for another reason
		w.shut, w.open = 0, 0
	}
	w.n = n
}

// closed takes that the server was closed for so long after the last silence.
func (w *closures) closed(since int64) {
	if w.shut = max(w.shut, since); w.shut >= w.open {
		w.open = 0
	}
}

// opens returns when the server is expected to be open again after a silence that ended then; 0: it is not known.
func (w *closures) opens(from instant) instant {
	switch {
	case w.open == 0:
		return 0
	case w.open-w.shut > w.open/sameCount:
		return from + w.shut + (w.open-w.shut)/2
	}
	return from + w.open
}

// opened takes that the server was open again so long after the last silence. It reports whether that was expected.
func (w *closures) opened(since int64) (expected bool) {
	if expected = w.open > 0; !expected || since < w.open {
		w.open = since
	}
	w.shut -= w.shut / sameCount // windows may become shorter
	return expected
}
