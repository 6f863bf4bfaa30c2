// Adaptive calls an API whose limit is unknown: it falls to a tenth and returns while 50 workers send requests. The client
// finds each limit from the outcomes of its requests, and a chart shows how.
//
//	go run ./examples/adaptive
//	go run ./examples/adaptive -high 80 -low 16 -workers 10
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/examples/internal/example"
	"github.com/httpthrottle/throttle/throttletest"
	"golang.org/x/sync/errgroup"
)

// shows is what -h prints first.
const shows = `Adaptive calls an API whose limit is unknown: it falls to a tenth and returns
while 50 workers send requests. The client finds each limit from the outcomes of
its requests, and a chart shows how.`

func main() { example.Main(run) }

func run(ctx context.Context, args []string, out io.Writer) error {
	c, err := parse(args, out)
	if err != nil {
		return example.Usage(err)
	}
	api, err := startAPI(c)
	if err != nil {
		return err
	}
	defer api.Close()
	return show(ctx, api, c, out)
}

// show presses on the API until its limit has been found thrice: before the drop, after it, and after the return.
func show(ctx context.Context, api *throttletest.Server, c config, out io.Writer) error {
	// This is all there is to it. The base has connections for all workers, of which http.DefaultTransport keeps two.
	transport, err := throttle.New(api.Transport(), throttle.WithAdaptive())
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "The API allows %d requests per second (%d at once), then %d, then %[1]d again.\n", c.high, c.burst(), c.low)
	fmt.Fprintf(out, "%d workers send requests, and do not know the limit:\n\n", c.workers)

	// The workers are stopped by cancel. With a deadline, requests that cannot be sent before it would be rejected
	// immediately, and a worker that tries again would loop until the deadline.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	workers, ctx := errgroup.WithContext(ctx)
	for range c.workers {
		workers.Go(func() error { return press(ctx, &http.Client{Transport: transport}, api.URL) })
	}
	w := &watch{api: api, limiter: transport.Limiter(), c: c, out: out, start: time.Now()}
	interrupted := w.watch(ctx) // perhaps because a worker failed
	cancel()
	if err := workers.Wait(); err != nil {
		return err
	}
	w.report()
	if interrupted != nil {
		return interrupted
	}
	return w.missing()
}

// press sends one request after the other. A 429 is no error and needs no pause here: the Transport makes it wait.
func press(ctx context.Context, client *http.Client, url string) error {
	for ctx.Err() == nil {
		status, err := get(ctx, client, url)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			return err
		case status != http.StatusOK && status != http.StatusTooManyRequests:
			return fmt.Errorf("%s: %d %s", url, status, http.StatusText(status))
		}
	}
	return nil
}

func get(ctx context.Context, client *http.Client, url string) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body) // to its end, so that the connection can be used again
	return resp.StatusCode, err
}

// startAPI starts a server whose 429 says to the millisecond when there will be a token again, as some APIs do. (With whole
// seconds, as in Retry-After, all workers would stop for a second after each 429.)
func startAPI(c config, opts ...throttletest.Option) (*throttletest.Server, error) {
	refuse := func(w http.ResponseWriter, _ *http.Request, refusal throttletest.Refusal) {
		w.Header().Set("Retry-After-Ms", strconv.FormatInt(1+refusal.Wait.Milliseconds(), 10))
		w.WriteHeader(refusal.Status)
	}
	return throttletest.New(append(opts,
		throttletest.WithLimits(throttletest.TokenBucket(c.high, time.Second, throttletest.Burst(c.burst()))),
		throttletest.WithServiceTime(throttletest.LogNormal(5*time.Millisecond, 0.3)),
		throttletest.WithRetryAfter(throttletest.NoRetryAfter),
		throttletest.WithRefusal(refuse),
		throttletest.WithSeed(c.seed),
	)...)
}

// A phase is a time in which the limit of the API stays the same.
type phase struct {
	name              string
	limit             int64
	began, lasted     time.Duration // began: since the start
	found             time.Duration // since it began: the rate was within a quarter of the limit; negative: never
	accepted, refused int64
	searched          int64 // requests that were accepted before the limit was found
}

// A watch changes the limit of the API, looks at what the client makes of it, and prints that.
type watch struct {
	api     *throttletest.Server
	limiter *throttle.Limiter
	c       config
	out     io.Writer
	start   time.Time

	phases  []phase
	printed throttletest.Counts // at the last line
	line    time.Duration       // when that was
}

const (
	look = 20 * time.Millisecond // between two looks at the rate
	tick = 2 * time.Second       // between two lines, so that all of them fit on a screen
	rest = 3 * time.Second       // how long a limit stays after it was found
)

// watch returns when all limits have been found, the time is up, or ctx ends.
func (w *watch) watch(ctx context.Context) error {
	fmt.Fprintf(w.out, "%6s%8s%8s%12s%11s   %s\n", "time", "limit", "rate", "accepted/s", "refused/s", "rate █   limit |")
	for _, p := range []phase{
		{name: "at first", limit: w.c.high},
		{name: "after the drop", limit: w.c.low},
		{name: "after the return", limit: w.c.high},
	} {
		if err := w.api.SetRate("bucket", p.limit, time.Second); err != nil {
			return err
		}
		p.began, p.found = time.Since(w.start), -1
		before := w.api.Counts()
		w.follow(ctx, &p)
		p.lasted = time.Since(w.start) - p.began
		after := w.api.Counts()
		p.accepted, p.refused = after.Accepted-before.Accepted, after.Refused-before.Refused
		p.searched -= before.Accepted
		w.phases = append(w.phases, p)
		if p.found < 0 {
			break
		}
	}
	return ctx.Err()
}

// follow returns a little after the limit has been found.
func (w *watch) follow(ctx context.Context, p *phase) {
	looks := time.NewTicker(look)
	defer looks.Stop()
	for p.found < 0 || time.Since(w.start) < p.began+p.found+rest {
		select {
		case <-ctx.Done():
			return
		case <-looks.C:
		}
		now, rate := time.Since(w.start), w.rate()
		if now-w.line >= tick {
			w.show(now, rate, p.limit)
		}
		switch {
		case p.found >= 0:
		case rate >= 0.75*float64(p.limit) && rate <= 1.25*float64(p.limit):
			p.found, p.searched = now-p.began, w.api.Counts().Accepted
		case now >= w.c.duration:
			return
		}
	}
}

// rate returns the requests per second that the client takes the API to allow.
func (w *watch) rate() float64 {
	for b := range w.limiter.Buckets() {
		if b.Limit == "adaptive" {
			return b.Rate
		}
	}
	return 0
}

// show prints a line. Its numbers are those of the API, except the rate.
func (w *watch) show(now time.Duration, rate float64, limit int64) {
	seen, took := w.api.Counts(), (now - w.line).Seconds()
	perSecond := func(n int64) float64 { return float64(n) / took }
	fmt.Fprintf(w.out, "%5.1fs%6d/s%6.0f/s%12.0f%11.0f   %s\n", now.Seconds(), limit, rate,
		perSecond(seen.Accepted-w.printed.Accepted), perSecond(seen.Refused-w.printed.Refused), bar(rate, limit, w.c.high))
	w.printed, w.line = seen, now
}

// bar draws the rate, and the limit as a line across it.
func bar(rate float64, limit, high int64) string {
	const scale, most = 22, 31 // marks for the high limit, and for whatever is far above it
	at := func(x float64) int { return min(most, int(x*scale/float64(high)+0.5)) }
	marks := []rune(strings.Repeat("█", at(rate)) + strings.Repeat(" ", most+1-at(rate)))
	marks[at(float64(limit))] = '|'
	return strings.TrimRight(string(marks), " ")
}

// used returns the share of the limit that was used after it had been found, and what the API would have accepted then.
func (p phase) used() (share, gives float64) {
	gives = float64(p.limit) * (p.lasted - p.found).Seconds()
	return float64(p.accepted-p.searched) / gives, gives
}

// report compares what the API accepted with what it would have accepted from a client that knows its limit.
func (w *watch) report() {
	fmt.Fprintf(w.out, "\n%-17s%7s%8s%11s%10s%9s%8s%10s\n", "", "limit", "lasted", "would give", "accepted", "refused", "found", "then used")
	var all phase
	var whole, used, known float64
	for _, p := range w.phases {
		gives, found, then := float64(p.limit)*p.lasted.Seconds(), "never", "-"
		if p.found >= 0 {
			share, g := p.used()
			found, then = fmt.Sprintf("%.2fs", p.found.Seconds()), fmt.Sprintf("%.0f%%", 100*share)
			used, known = used+share*g, known+g
		}
		fmt.Fprintf(w.out, "%-17s%5d/s%7.1fs%11.0f%10d%9d%8s%10s\n", p.name, p.limit, p.lasted.Seconds(), gives, p.accepted,
			p.refused, found, then)
		whole += gives
		all.lasted, all.accepted, all.refused = all.lasted+p.lasted, all.accepted+p.accepted, all.refused+p.refused
	}
	fmt.Fprintf(w.out, "%-17s%7s%7.1fs%11.0f%10d%9d\n", "all", "", all.lasted.Seconds(), whole, all.accepted, all.refused)
	w.compare(all, whole, used/max(1, known))
}

// compare says what fixed limits would have cost: the high one while the API allows only the low one, and the low one all
// the time. Its last line is the verdict.
func (w *watch) compare(all phase, whole, used float64) {
	high, low := float64(w.c.high), float64(w.c.low)
	fmt.Fprintf(w.out, "\nA fixed %d/s would have had %.0f%% of its requests refused after the drop,\nand a fixed %d/s would have got %.0f%% of what the API could give.\n",
		w.c.high, 100*(high-low)/high, w.c.low, 100*low*all.lasted.Seconds()/whole)
	example.Verdict(w.out, float64(all.refused) < (high-low)/high*float64(all.accepted+all.refused),
		"Adaptive, without a guess: %.1f%% refused, and %.0f%% of each limit used once found.",
		100*float64(all.refused)/float64(max(1, all.accepted+all.refused)), 100*used)
}

// missing is the error that a limit was not found.
func (w *watch) missing() error {
	if p := w.phases[len(w.phases)-1]; p.found < 0 {
		return fmt.Errorf("the limit %s, %d/s, was not found within %v", p.name, p.limit, w.c.duration)
	}
	return nil
}

type config struct {
	high, low int64
	workers   int
	duration  time.Duration
	seed      uint64
}

// burst is how many requests the API accepts at one instant after a pause.
func (c config) burst() int64 { return max(4, c.high/10) }

func parse(args []string, out io.Writer) (config, error) {
	var c config
	flags := example.NewFlags(shows)
	flags.Int64Var(&c.high, "high", 200, "the API allows this many requests per second, …")
	flags.Int64Var(&c.low, "low", 20, "… and for a while only this many")
	flags.IntVar(&c.workers, "workers", 50, "the number of workers")
	flags.DurationVar(&c.duration, "duration", 30*time.Second, "give up after this time")
	flags.Uint64Var(&c.seed, "seed", 1, "seed of how long the API takes for each request")
	if err := flags.Parse(args, out); err != nil {
		return c, err
	}
	switch {
	case c.low < 1 || c.high < c.low:
		return c, fmt.Errorf("-high %d -low %d: low must be at least 1, and high no less", c.high, c.low)
	case c.workers < 1:
		return c, fmt.Errorf("-workers %d: must be at least 1", c.workers)
	case c.duration <= 0:
		return c, fmt.Errorf("-duration %v: must be positive", c.duration)
	}
	return c, nil
}
