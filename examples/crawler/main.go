// Crawler fetches a list of URLs and is polite to each host: never two requests to it within its crawl delay. A host
// with a long delay does not delay other hosts.
//
//	go run ./examples/crawler
//	go run ./examples/crawler -urls FILE -delay 2s -delay www.example.com=500ms
//
// Without -urls it crawls three hosts that it starts itself.
package main

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/examples/internal/example"
	"github.com/httpthrottle/throttle/throttletest"
)

//go:embed testdata/urls.txt
var localURLs string

// shows is what -h prints first.
const shows = `Crawler fetches a list of URLs and is polite to each host: never two requests to
it within its crawl delay. A host with a long delay does not delay other hosts.`

func main() { example.Main(run) }

func run(ctx context.Context, args []string, out io.Writer) error {
	c, err := parse(args, out)
	if err != nil {
		return example.Usage(err)
	}
	if c.file != "" {
		list, err := os.ReadFile(c.file)
		if err != nil {
			return err
		}
		base := http.DefaultTransport.(*http.Transport).Clone()
		base.ResponseHeaderTimeout = 30 * time.Second // for a host that accepts requests and never responds
		return crawlList(ctx, base, c, c.file, string(list), out)
	}
	web, err := startWeb()
	if err != nil {
		return err
	}
	defer web.close()
	maps.Copy(c.delays, web.delays(c.delays))
	err = crawlList(ctx, web.transport(), c, "testdata/urls.txt", localURLs, out)
	web.report(out)
	return err
}

func crawlList(ctx context.Context, base http.RoundTripper, c config, name, list string, out io.Writer) error {
	urls, faults := readURLs(list)
	for i, fault := range faults {
		if i == 0 {
			fmt.Fprintf(out, "%s, skipped:\n", name)
		}
		fmt.Fprintf(out, "  %v\n", fault)
	}
	if len(urls) == 0 {
		return fmt.Errorf("%s: no URL to fetch", name)
	}
	visits, err := crawl(ctx, base, c, urls)
	if err != nil {
		return err
	}
	report(out, c, visits)
	return ctx.Err()
}

// crawl fetches all URLs and returns the visits in the order of the URLs.
func crawl(ctx context.Context, base http.RoundTripper, c config, urls []*url.URL) ([]visit, error) {
	start := time.Now()
	transport, err := throttle.New(base,
		// A window of one request is a delay between two requests. Each host has a window of its own, whose length RateFor
		// sets; 0, 0 stands for the limit's own rate.
		throttle.WithKey(throttle.ByHost),
		throttle.WithLimit(throttle.SlidingWindow(1, c.delay, throttle.RateFor(func(host string) (int64, time.Duration) {
			if delay, ok := c.delays[host]; ok {
				return 1, delay
			}
			return 0, 0
		}))),
		throttle.WithHooks(throttle.Hooks{OnGrant: stamp}),
	)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: transport} // redirects are requests too, and counted for the host they lead to

	// A goroutine for each URL, and no worker pool: sooner or later all workers would wait for the slowest host. A waiting
	// request costs little more than its goroutine.
	visits := make([]visit, len(urls))
	var wg sync.WaitGroup
	for i, u := range urls {
		wg.Go(func() { visits[i] = fetch(ctx, client, u, start) })
	}
	wg.Wait()
	return visits, nil
}

// A visit is what became of one URL.
type visit struct {
	url  *url.URL
	sent time.Duration // since the crawl began; negative: never
	size int64
	err  error // it was not fetched
}

func fetch(ctx context.Context, client *http.Client, u *url.URL, start time.Time) visit {
	var sent time.Time
	v := visit{url: u, sent: -1}
	v.size, v.err = get(context.WithValue(ctx, sentKey{}, &sent), client, u)
	if !sent.IsZero() {
		v.sent = sent.Sub(start)
	}
	return v
}

func get(ctx context.Context, client *http.Client, u *url.URL) (size int64, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return 0, err
	}
	req.Header.Set("User-Agent", "throttle-example-crawler/1.0") // whom to complain about belongs to good manners
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	size, err = io.Copy(io.Discard, resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return size, err
}

type sentKey struct{}

// stamp notes when a request is sent; of a request and its redirects, the first one.
func stamp(e throttle.GrantEvent) {
	if sent, ok := e.Context.Value(sentKey{}).(*time.Time); ok && sent.IsZero() {
		*sent = time.Now()
	}
}

// readURLs reads a URL from each line that is neither blank nor a comment. The faults name the other lines
// by their numbers.
func readURLs(list string) (urls []*url.URL, faults []error) {
	number := 0
	for line := range strings.Lines(list) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		u, err := url.Parse(line)
		var parse *url.Error
		if errors.As(err, &parse) {
			err = parse.Err // without the URL, which is shown below
		} else if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
			err = errors.New("want http://HOST/… or https://HOST/…")
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("line %d: %q: %w", number, line, err))
			continue
		}
		urls = append(urls, u)
	}
	return urls, faults
}

// report prints what failed, a table, and a time line per host.
func report(out io.Writer, c config, visits []visit) {
	var hosts []string // in the order of the list
	byHost := map[string][]visit{}
	nameWidth, whole := len("archive.test"), time.Duration(0)
	for _, v := range visits {
		if v.err != nil && !errors.Is(v.err, context.Canceled) {
			fmt.Fprintf(out, "%s: %v\n", v.url.Redacted(), v.err)
		}
		host := hostOf(v.url)
		if byHost[host] == nil {
			hosts = append(hosts, host)
		}
		byHost[host] = append(byHost[host], v)
		nameWidth, whole = max(nameWidth, len(host)), max(whole, v.sent)
	}

	fmt.Fprintf(out, "\n%-*s%10s%9s%9s%15s%13s\n", nameWidth, "host", "fetched", "failed", "delay", "smallest gap", "last sent")
	for _, host := range hosts {
		s := summarize(byHost[host])
		fmt.Fprintf(out, "%-*s%10d%9d%9v%15s%12.2fs\n", nameWidth, host, s.fetched, s.failed, c.delayOf(host), s.gapString(),
			s.last.Seconds())
	}

	const width = 56
	fmt.Fprintf(out, "\nRequests over %.2fs:\n", whole.Seconds())
	for _, host := range hosts {
		line := []rune(strings.Repeat("·", width))
		for _, v := range byHost[host] {
			if v.sent >= 0 {
				line[v.sent*(width-1)/max(1, whole)] = '█'
			}
		}
		fmt.Fprintf(out, "%-*s  %s\n", nameWidth, host, string(line))
	}
}

// A hostSummary says how the visits to one host went.
type hostSummary struct {
	fetched, failed int
	gap, last       time.Duration // gap: negative if there were not two requests
}

func summarize(visits []visit) hostSummary {
	s := hostSummary{gap: -1}
	slices.SortFunc(visits, func(a, b visit) int { return cmp.Compare(a.sent, b.sent) })
	for i, v := range visits {
		if v.err == nil {
			s.fetched++
		} else {
			s.failed++
		}
		if v.sent < 0 {
			continue
		}
		if i > 0 && visits[i-1].sent >= 0 && (s.gap < 0 || v.sent-s.last < s.gap) {
			s.gap = v.sent - s.last
		}
		s.last = v.sent
	}
	return s
}

func (s hostSummary) gapString() string {
	if s.gap < 0 {
		return "-"
	}
	return s.gap.Round(time.Millisecond).String()
}

// hostOf names a host as throttle.ByHost does.
func hostOf(u *url.URL) string { return throttle.ByHost(&http.Request{URL: u}) }

// A web is three local hosts with names that exist nowhere else. Each rejects requests that come too early.
type web []site

type site struct {
	host   string
	delay  time.Duration // what it asks of crawlers
	server *throttletest.Server
}

func startWeb() (web, error) {
	var w web
	for _, s := range []struct {
		host  string
		delay time.Duration
		most  int64 // what it takes in any second
	}{
		{"news.test", 250 * time.Millisecond, 7},
		{"archive.test", 900 * time.Millisecond, 3},
		{"blog.test", 400 * time.Millisecond, 5},
	} {
		server, err := throttletest.New(
			throttletest.WithLimits(throttletest.SlidingWindow(s.most, time.Second)),
			throttletest.WithHandler(http.HandlerFunc(page)),
		)
		if err != nil {
			w.close()
			return nil, err
		}
		w = append(w, site{s.host, s.delay, server})
	}
	return w, nil
}

func page(rw http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/missing" {
		http.NotFound(rw, r)
		return
	}
	fmt.Fprintf(rw, "This is %s.\n", r.URL.Path)
}

// delays returns the delays that the hosts ask for, except those that are set already.
func (w web) delays(set map[string]time.Duration) map[string]time.Duration {
	d := map[string]time.Duration{}
	for _, s := range w {
		if _, ok := set[s.host]; !ok {
			d[s.host] = s.delay
		}
	}
	return d
}

// transport returns one that knows where the hosts are.
func (w web) transport() *http.Transport {
	return &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		for _, s := range w {
			if addr == s.host+":80" {
				addr = strings.TrimPrefix(s.server.URL, "http://")
			}
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}}
}

// report prints what the hosts have counted, which is what matters.
func (w web) report(out io.Writer) {
	var received, refused int64
	for _, s := range w {
		seen := s.server.Counts()
		received, refused = received+seen.Received, refused+seen.Refused
	}
	fmt.Fprintln(out)
	example.Verdict(out, refused == 0, "The hosts saw %d requests and refused %d.", received, refused)
}

func (w web) close() {
	for _, s := range w {
		s.server.Close()
	}
}

type config struct {
	file   string
	delay  time.Duration
	delays map[string]time.Duration // by host
}

func (c config) delayOf(host string) time.Duration {
	if d, ok := c.delays[host]; ok {
		return d
	}
	return c.delay
}

func parse(args []string, out io.Writer) (config, error) {
	c := config{delay: time.Second, delays: map[string]time.Duration{}}
	flags := example.NewFlags(shows)
	flags.StringVar(&c.file, "urls", "", "read URLs from this `FILE`, one per line (default: those of three local hosts)")
	flags.Func("delay", "the least time between two requests to a host: `DURATION` for all hosts (default 1s), "+
		"or HOST=DURATION for one; may be repeated", c.setDelay)
	return c, flags.Parse(args, out)
}

func (c *config) setDelay(s string) error {
	host, value, single := strings.Cut(s, "=")
	if !single {
		host, value = "", s
	}
	d, err := time.ParseDuration(value)
	switch {
	case err != nil:
		return err
	case d <= 0:
		return errors.New("must be positive")
	case !single:
		c.delay = d
	case host == "":
		return errors.New("want HOST=DURATION")
	default:
		c.delays[strings.ToLower(host)] = d
	}
	return nil
}
