// Throttle-redis lists the shared budgets that are kept in Redis or in a file, holds them, and resets them.
//
//	throttle-redis [flags] list [text]
//	throttle-redis [flags] show name
//	throttle-redis [flags] hold duration [name]
//	throttle-redis [flags] release [name]
//	throttle-redis [flags] reset [name]
//
// List prints a line for each budget whose name contains the text. Show also prints the processes that have slots, by host, pid and a
// random number. Hold blocks a budget in all processes, which follow when they next call the store, and release ends that. Reset deletes the
// state of a budget, which then starts again as a new one.
//
// The flags -limit and -tenant select the budgets of a limit, or of a key of requests. Hold, release and reset without a name need one of
// them, and then apply to each of these budgets.
//
// The URL of Redis is that of -url, of the file -url-file, or of THROTTLE_REDIS_URL, so that a password need not be an argument, which other
// users can see. Rediss: is for TLS. The URL of a Sentinel group has its sentinels as host and as addr, and the name of the master:
//
//	redis://:password@sentinel-1:26379?addr=sentinel-2:26379&master_name=main
//
// The connections have the name throttle-redis in CLIENT LIST. With -file, the budgets are those of a file of package store/file.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/httpthrottle/throttle/store"
	"github.com/httpthrottle/throttle/store/file"
	"github.com/httpthrottle/throttle/throttleredis"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	switch err := run(ctx, os.Args[1:], os.Stdout); {
	case errors.Is(err, errUsage):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "throttle-redis:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("bad usage")

// A keeper is a store whose budgets can be operated.
type keeper interface {
	Budgets(ctx context.Context, match string) ([]store.BudgetState, error)
	Hold(ctx context.Context, name string, d time.Duration) error
	Reset(ctx context.Context, name string) error
}

// A config is what the flags say.
type config struct {
	url, urlFile, prefix, file string
	ca, cert, key              string
	cluster, json              bool
	limit, tenant              *string
}

// text is a flag that may be set to an empty text.
func text(to **string) func(string) error {
	return func(s string) error { *to = &s; return nil }
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("throttle-redis", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "throttle-redis lists the shared budgets that are kept in Redis or in a file, holds them, and resets them.\n\n"+
			"usage: throttle-redis [flags] list [text] | show name | hold duration [name] | release [name] | reset [name]")
		flags.PrintDefaults()
	}
	var c config
	flags.StringVar(&c.url, "url", "", "the URL of Redis, with user, password and database; rediss: for TLS (default: THROTTLE_REDIS_URL, or redis://localhost:6379)")
	flags.StringVar(&c.urlFile, "url-file", "", "a file that has the URL")
	flags.StringVar(&c.prefix, "prefix", "throttle", "the prefix of the store")
	flags.BoolVar(&c.cluster, "cluster", false, "the server belongs to a Cluster")
	flags.StringVar(&c.ca, "ca", "", "a file with the certificates of authorities, in PEM; for rediss:")
	flags.StringVar(&c.cert, "cert", "", "a file with the client's certificate, in PEM; for rediss:")
	flags.StringVar(&c.key, "key", "", "a file with the key of the client's certificate, in PEM")
	flags.StringVar(&c.file, "file", "", "a file of package store/file, instead of Redis")
	flags.BoolVar(&c.json, "json", false, "print one JSON object per budget")
	flags.Func("limit", "only the budgets of the limit with this name", text(&c.limit))
	flags.Func("tenant", "only the budgets of requests with this key", text(&c.tenant))
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return errUsage
	}
	what, rest := flags.Arg(0), flags.Args()
	rest = rest[min(1, len(rest)):]
	var hold time.Duration
	if what == "hold" && len(rest) > 0 {
		var err error
		if hold, err = time.ParseDuration(rest[0]); err != nil || hold <= 0 {
			fmt.Fprintf(flags.Output(), "hold %s: want a duration such as 30s\n", rest[0])
			return errUsage
		}
		rest = rest[1:]
	}
	selects := len(rest) == 1 || c.limit != nil || c.tenant != nil
	known := slices.Contains([]string{"list", "show", "hold", "release", "reset"}, what)
	if !known || len(rest) > 1 || what != "list" && !selects || what == "hold" && hold == 0 {
		flags.Usage()
		return errUsage
	}
	k, done, err := c.open()
	if err != nil {
		return err
	}
	defer done()
	name := strings.Join(rest, "")
	switch what {
	case "list", "show":
		budgets, err := c.selected(ctx, k, name)
		if err != nil {
			return err
		}
		return c.write(out, budgets, what == "show")
	case "hold", "release":
		return c.each(ctx, k, name, func(name string) error {
			fmt.Fprintln(out, what, name)
			return k.Hold(ctx, name, hold)
		})
	}
	return c.each(ctx, k, name, func(name string) error {
		fmt.Fprintln(out, what, name)
		return k.Reset(ctx, name)
	})
}

// each calls f for the budget with that name, or for those that are selected.
func (c *config) each(ctx context.Context, k keeper, name string, f func(string) error) error {
	if name != "" {
		return f(name)
	}
	budgets, err := c.selected(ctx, k, "")
	if err != nil {
		return err
	}
	if len(budgets) == 0 {
		return errors.New("there is no such budget")
	}
	for _, b := range budgets {
		err = errors.Join(err, f(b.Name))
	}
	return err
}

// selected returns the budgets whose names contain a text and that the flags select.
func (c *config) selected(ctx context.Context, k keeper, match string) ([]store.BudgetState, error) {
	budgets, err := k.Budgets(ctx, match)
	return slices.DeleteFunc(budgets, func(b store.BudgetState) bool {
		return c.limit != nil && b.Limit != *c.limit || c.tenant != nil && b.Key != *c.tenant
	}), err
}

// open returns the store.
func (c *config) open() (keeper, func() error, error) {
	if c.file != "" {
		if _, err := os.Stat(c.file); err != nil { // it is not to be made
			return nil, nil, err
		}
		s, err := file.Open(c.file)
		if err != nil {
			return nil, nil, err
		}
		return s, s.Close, nil
	}
	client, err := c.client()
	if err != nil {
		return nil, nil, err
	}
	s, err := throttleredis.New(client, throttleredis.Prefix(c.prefix))
	if err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	return s, client.Close, nil
}

const clientName = "throttle-redis"

func (c *config) client() (redis.UniversalClient, error) {
	url := c.url
	if c.urlFile != "" {
		text, err := os.ReadFile(c.urlFile)
		if err != nil {
			return nil, err
		}
		url = strings.TrimSpace(string(text))
	}
	for _, other := range []string{os.Getenv("THROTTLE_REDIS_URL"), "redis://localhost:6379"} {
		if url == "" {
			url = other
		}
	}
	switch {
	case c.cluster:
		o, err := redis.ParseClusterURL(url)
		if err == nil {
			err = c.secure(&o.TLSConfig)
		}
		if err != nil {
			return nil, withoutURL(err)
		}
		o.ClientName = clientName
		return redis.NewClusterClient(o), nil
	case strings.Contains(url, "master_name="):
		o, err := redis.ParseFailoverURL(url)
		if err == nil {
			err = c.secure(&o.TLSConfig)
		}
		if err != nil {
			return nil, withoutURL(err)
		}
		o.ClientName = clientName
		return redis.NewFailoverClient(o), nil
	}
	o, err := redis.ParseURL(url)
	if err == nil {
		err = c.secure(&o.TLSConfig)
	}
	if err != nil {
		return nil, withoutURL(err)
	}
	o.ClientName = clientName
	return redis.NewClient(o), nil
}

// secure adds the certificates of the flags.
func (c *config) secure(to **tls.Config) error {
	if c.ca == "" && c.cert == "" && c.key == "" {
		return nil
	}
	if *to == nil {
		return errors.New("-ca, -cert and -key need a URL that begins with rediss")
	}
	if c.ca != "" {
		text, err := os.ReadFile(c.ca)
		if err != nil {
			return err
		}
		(*to).RootCAs = x509.NewCertPool()
		if !(*to).RootCAs.AppendCertsFromPEM(text) {
			return fmt.Errorf("-ca %s: there is no certificate in it", c.ca)
		}
	}
	if c.cert != "" || c.key != "" {
		pair, err := tls.LoadX509KeyPair(c.cert, c.key)
		if err != nil {
			return err
		}
		(*to).Certificates = []tls.Certificate{pair}
	}
	return nil
}

// withoutURL returns an error that does not contain the URL, which may have a password.
func withoutURL(err error) error {
	if _, after, ok := strings.Cut(err.Error(), `": `); ok && strings.HasPrefix(err.Error(), "parse ") {
		return fmt.Errorf("the URL of Redis: %s", after)
	}
	return err
}

// A line is a budget in JSON. Durations are in seconds.
type line struct {
	Name      string   `json:"name"`
	Kind      string   `json:"kind"`
	Limit     string   `json:"limit"`
	Key       string   `json:"key"`
	Rate      string   `json:"rate,omitzero"`
	PerSecond float64  `json:"per_second"`
	Most      float64  `json:"most"`
	Left      float64  `json:"left"`
	Held      float64  `json:"held_seconds"`
	Processes int      `json:"processes"`
	Expires   float64  `json:"expires_seconds"`
	Holders   []holder `json:"holders,omitzero"`
	Err       string   `json:"error,omitzero"`
}

type holder struct {
	Name    string  `json:"name"`
	Slots   int64   `json:"slots"`
	Wants   int64   `json:"wants"`
	Expires float64 `json:"expires_seconds"`
}

func (c *config) write(out io.Writer, budgets []store.BudgetState, holders bool) error {
	if !c.json {
		return write(out, budgets, holders)
	}
	lines := json.NewEncoder(out)
	for _, b := range budgets {
		l := line{
			Name: b.Name, Kind: b.Kind, Limit: b.Limit, Key: b.Key, PerSecond: b.PerSecond, Most: b.Most, Left: b.Left,
			Held: b.Held.Seconds(), Processes: b.Processes, Expires: b.Expires.Seconds(),
		}
		if b.PerSecond > 0 {
			l.Rate = rate(b.PerSecond)
		}
		if b.Err != nil {
			l.Err = b.Err.Error()
		}
		for _, h := range b.Holders {
			l.Holders = append(l.Holders, holder{h.Name, h.Slots, h.Wants, h.Expires.Seconds()})
		}
		if err := lines.Encode(l); err != nil {
			return err
		}
	}
	return nil
}

// rate returns a rate as people write it, such as 10/h: in the shortest period in which it is a whole number, or at least one.
func rate(perSecond float64) string {
	periods := []struct {
		name    string
		seconds float64
	}{{"s", 1}, {"min", 60}, {"h", 3600}, {"d", 86400}}
	for _, p := range periods {
		n := perSecond * p.seconds
		if whole := math.Round(n); whole >= 1 && math.Abs(n-whole) < 1e-6*n {
			return fmt.Sprintf("%.0f/%s", whole, p.name)
		}
	}
	for _, p := range periods {
		if n := perSecond * p.seconds; n >= 1 {
			return fmt.Sprintf("%.4g/%s", n, p.name)
		}
	}
	return fmt.Sprintf("%.4g/d", perSecond*86400)
}

func write(out io.Writer, budgets []store.BudgetState, holders bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tKIND\tRATE\tMOST\tLEFT\tHELD\tPROCESSES\tEXPIRES")
	for _, b := range budgets {
		if b.Err != nil {
			fmt.Fprintf(w, "%q\t%s\tunreadable: %v\n", b.Name, b.Kind, b.Err)
			continue
		}
		per := "-"
		if b.PerSecond > 0 {
			per = rate(b.PerSecond)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%.0f\t%.1f\t%v\t%d\t%v\n", printable(b.Name), b.Kind, per, b.Most, b.Left, b.Held.Round(time.Millisecond), b.Processes, b.Expires.Round(time.Second))
		for _, h := range b.Holders {
			if holders {
				fmt.Fprintf(w, "  %s\t\t\t%s\twaits for %d\t\t\t%v\n", printable(h.Name), slots(h.Slots), h.Wants, h.Expires.Round(time.Second))
			}
		}
	}
	return w.Flush()
}

func slots(n int64) string {
	if n == 1 {
		return "1 slot"
	}
	return fmt.Sprintf("%d slots", n)
}

// printable returns a name without characters that a terminal would obey.
func printable(name string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, name)
}
