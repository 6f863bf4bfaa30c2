package realserver

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// A Bar is what a client must reach at a server. Shares are in percent.
type Bar struct {
	Spec, Client string
	Clients      int           // that share the limit and know nothing of each other; 0: 1
	Callers      int           // of each client; 0: 16
	Length       time.Duration // 0: 20 s

	Share   float64       // accepted by all clients, of the server's limit
	Like    string        // if set, Share is of what this client gets, measured beside it
	Refused float64       // at most, of all that is sent; 0: any
	P50     time.Duration // at most, until the header; 0: any
	Slower  float64       // at most, the median as a multiple of that of Like; 0: any
	Jain    float64       // at least, of the clients' accepted requests
	Trend   float64       // at most, see Result; 0: any
}

// String names the bar: the server, the client, and what is unusual about the load.
func (b Bar) String() string {
	text := b.Spec + ": " + b.Client
	if b.Clients > 1 {
		text += fmt.Sprintf(", %d clients", b.Clients)
	}
	if b.Callers > 0 {
		text += fmt.Sprintf(", %d callers", b.Callers)
	}
	if b.Length > 0 {
		text += fmt.Sprintf(", %.0f s", b.Length.Seconds())
	}
	return text
}

// Load returns the bar's load with a client.
func (b Bar) Load(client string) Load {
	return Load{Client: ClientNamed(client), Clients: b.Clients, Callers: b.Callers, Length: b.Length}
}

// A Result is what came of a bar's load, in the bar's terms.
type Result struct {
	Share, Refused float64
	P50, P99       time.Duration
	Slower         float64 // P50 as a multiple of that of Like; 0: there is none
	Jain           float64
	Trend          float64 // the ratio of largest to smallest in the last third, by that in the third before
	Stalled        time.Duration
}

// Measure plays the load of the bar once.
func (b Bar) Measure() (Result, error) {
	if b.Like == "" {
		return b.measure(b.Client)
	}
	type outcome struct {
		Result
		err error
	}
	beside := make(chan outcome)
	go func() {
		r, err := b.measure(b.Like)
		beside <- outcome{r, err}
	}()
	r, err := b.measure(b.Client)
	like := <-beside
	r.Share *= 100 / like.Share
	r.Slower = float64(r.P50) / float64(like.P50)
	r.Stalled = max(r.Stalled, like.Stalled)
	return r, cmp.Or(err, like.err)
}

func (b Bar) measure(client string) (Result, error) {
	spec, load := Named(b.Spec), b.Load(client)
	srv, err := spec.Start()
	if err != nil {
		return Result{}, err
	}
	defer srv.Close()
	recorders, err := load.Run(srv, nil)
	if err != nil {
		return Result{}, err
	}
	return Summary(spec, recorders, cmp.Or(b.Length, 20*time.Second)), nil
}

// Summary returns the figures of what was sent in that time.
func Summary(spec Spec, recorders []*Recorder, length time.Duration) (r Result) {
	var accepted, bad float64
	var each, before, last []float64
	for _, rec := range recorders {
		sum := rec.Between(0, length)
		accepted += float64(sum.Accepted)
		bad += float64(sum.Refused + sum.Failed)
		r.P50, r.P99, r.Stalled = max(r.P50, sum.P50), max(r.P99, sum.P99), max(r.Stalled, sum.Stalled)
		each = append(each, float64(sum.Accepted))
		before = append(before, float64(rec.Between(length/3, length*2/3).Accepted))
		last = append(last, float64(rec.Between(length*2/3, length).Accepted))
	}
	r.Share = 100 * accepted / (spec.Rate() * length.Seconds())
	r.Refused = 100 * bad / max(1, accepted+bad)
	r.Jain = jain(each)
	r.Trend = ratio(last) / ratio(before)
	return r
}

// jain returns the fairness index of shares: 1 if all are equal, 1/n if one has everything.
func jain(shares []float64) float64 {
	var sum, squares float64
	for _, x := range shares {
		sum += x
		squares += x * x
	}
	return sum * sum / (float64(len(shares)) * squares)
}

// ratio returns the largest by the smallest.
func ratio(shares []float64) float64 { return slices.Max(shares) / max(1, slices.Min(shares)) }

// Reached reports whether r reaches the bar. margin is by how many points shares may miss it; the fairness index may miss it by a
// hundredth of that, and the other figures by as much in proportion.
func (b Bar) Reached(r Result, margin float64) bool {
	atMost := func(figure, bound float64) bool { return bound == 0 || figure <= bound*(1+margin/10)+margin/10 }
	return r.Share >= b.Share-margin &&
		atMost(r.Refused, b.Refused) &&
		atMost(r.P50.Seconds()*1000, b.P50.Seconds()*1000) &&
		(b.Slower == 0 || r.Slower <= b.Slower+margin/10) &&
		r.Jain >= b.Jain-margin/100 &&
		(b.Trend == 0 || r.Trend <= b.Trend+margin/10)
}

// Median returns the medians of the figures.
func Median(all []Result) (m Result) {
	pick := func(figure func(Result) float64) float64 {
		figures := make([]float64, len(all))
		for i, r := range all {
			figures[i] = figure(r)
		}
		slices.Sort(figures)
		return figures[len(figures)/2]
	}
	duration := func(figure func(Result) time.Duration) time.Duration {
		return time.Duration(math.Round(pick(func(r Result) float64 { return float64(figure(r)) })))
	}
	return Result{
		Share:   pick(func(r Result) float64 { return r.Share }),
		Refused: pick(func(r Result) float64 { return r.Refused }),
		P50:     duration(func(r Result) time.Duration { return r.P50 }),
		P99:     duration(func(r Result) time.Duration { return r.P99 }),
		Jain:    pick(func(r Result) float64 { return r.Jain }),
		Slower:  pick(func(r Result) float64 { return r.Slower }),
		Trend:   pick(func(r Result) float64 { return r.Trend }),
		Stalled: duration(func(r Result) time.Duration { return r.Stalled }),
	}
}
