package flight

import "math/rand/v2"

// A world is one run of a scene, as far as the server is concerned.
type world struct {
	Scene
	rng  *rand.Rand
	line []*job
	busy int

	tokens float64
	filled int64
	found  Tally

	// The clock: now returns the time since the scene began in nanoseconds, and after calls do so much later.
	now   func() int64
	after func(d int64, do func())
}

func newWorld(s Scene, seed uint64) *world {
	s = s.WithDefaults()
	w := &world{Scene: s, rng: rand.New(rand.NewPCG(seed, 77))}
	w.found.per = make([]float64, s.Clients)
	return w
}

func (w *world) seconds() float64 { return float64(w.now()) / 1e9 }
func (w *world) measuring() bool  { return w.seconds() >= w.From && w.seconds() <= w.Length }

// others sends the requests of others.
func (w *world) others() {
	r := w.Others(w.seconds())
	if r <= 0 {
		w.after(At(0.1), w.others)
		return
	}
	w.after(At(w.rng.ExpFloat64()/r), func() {
		w.arrive(&job{done: func(Outcome) {}, over: func() {}})
		w.others()
	})
}

// A job is a request at the server, which serves first come, first served.
type job struct {
	done func(Outcome) // headers
	over func()
}

// travel sends a request to the server. done is called when its headers are back, and over when its body is.
func (w *world) travel(done func(Outcome), over func()) {
	sent, good := w.now(), false
	w.after(At(w.RTT/2), func() {
		w.arrive(&job{
			done: func(o Outcome) {
				good = o == Good
				w.after(At(w.RTT/2), func() { done(o) })
			},
			over: func() {
				w.after(At(w.RTT/2), func() {
					if good && w.measuring() {
						w.found.Calls = append(w.found.Calls, newAnswer(w.now(), sent))
					}
					over()
				})
			},
		})
	})
}

func (w *world) refuse(j *job) {
	w.after(At(0.001), func() { j.done(Refused); j.over() })
}

func (w *world) arrive(j *job) {
	if w.Rate > 0 {
		now := w.now()
		w.tokens = min(20, w.tokens+float64(now-w.filled)/1e9*w.Rate)
		w.filled = now
		if w.tokens < 1 {
			w.refuse(j)
			return
		}
		w.tokens--
	}
	full := w.Connect > 0 && w.busy+len(w.line) >= w.Connect || w.Queue > 0 && len(w.line) >= w.Queue
	if full || w.Faults > 0 && w.rng.Float64() < w.Faults {
		w.refuse(j)
		return
	}
	w.line = append(w.line, j)
	w.work()
}

func (w *world) work() {
	for t := w.seconds(); len(w.line) > 0; {
		if n := w.Workers(t); n > 0 && w.busy >= n {
			return
		}
		j := w.line[0]
		w.line = w.line[1:]
		w.busy++
		d := w.Service(w.rng, t)
		if w.Crowd != nil {
			d *= w.Crowd(w.busy)
		}
		total := d
		if w.Stands != nil {
			total = w.stopped(t, d)
		}
		if w.streams() {
			w.after(At(total*w.Headers), func() { j.done(Good) })
			w.after(At(total), func() { j.over(); w.busy--; w.work() })
		} else {
			w.after(At(total), func() { j.done(Good); j.over(); w.busy--; w.work() })
		}
	}
}

// streams reports whether headers come before the end.
func (w *world) streams() bool { return w.Headers > 0 && w.Headers < 1 }

// stopped returns how long work of d takes from t on, if the server stands still now and then.
func (w *world) stopped(t, d float64) float64 {
	total := d + w.Stands(t)
	for step := 0.0; step < total; step += 0.01 {
		if s := w.Stands(t + step); s > 0 && step > 0 {
			return total + s
		}
	}
	return total
}
