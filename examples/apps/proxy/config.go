package main

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
	"github.com/httpthrottle/throttle/shape"
	"github.com/httpthrottle/throttle/store"
)

// A config is the content of the file.
type config struct {
	Listen    string               `json:"listen"`    // address of the proxy
	Page      string               `json:"page"`      // address of the live page and of /metrics
	Store     string               `json:"store"`     // folder, from that of this file, where budgets survive a restart and are shared with other processes
	Drain     duration             `json:"drain"`     // how long requests may take to end after SIGTERM
	Upstreams map[string]*upstream `json:"upstreams"` // by the first segment of the path
}

// An upstream is an API.
type upstream struct {
	URL      string           `json:"url"`       // the rest of the path follows it
	Hints    string           `json:"hints"`     // preset for its rate-limit headers; "none": they are ignored; otherwise by host
	Shape    string           `json:"shape"`     // form of a rejection, a function of package shape
	MaxWait  *duration        `json:"max_wait"`  // a request that would wait longer is rejected; otherwise it waits until its client leaves
	MaxQueue *int             `json:"max_queue"` // requests that may wait
	Costs    map[string]int64 `json:"costs"`     // in limits without costs of their own, by pattern of http.ServeMux; otherwise 1
	Limits   []limit          `json:"limits"`    // a request is sent when all of them allow it
}

// A limit is one of package throttle, by the name of its kind. The documentation of its functions and options has the details.
type limit struct {
	Kind string `json:"kind"`
	Name string `json:"name"` // for statistics, and for the budget in the store

	N       int64      `json:"n"`       // tokens or, of in-flight, requests
	Per     duration   `json:"per"`     // the time for n
	Burst   *int64     `json:"burst"`   // of bucket
	Start   *time.Time `json:"start"`   // of fixed-window: when a window begins
	Unit    string     `json:"unit"`    // of calendar-window: day, week or month; of server-quota: the word in the server's headers
	Zone    string     `json:"zone"`    // of calendar-window, such as Europe/Berlin; otherwise UTC
	Pause   *duration  `json:"pause"`   // of in-flight: after each request
	Initial *float64   `json:"initial"` // of bucket, adaptive and adaptive-in-flight
	Min     float64    `json:"min"`     // of adaptive and adaptive-in-flight
	Max     float64    `json:"max"`     // of adaptive and adaptive-in-flight

	KeyBy  string `json:"key_by"`  // header: a budget for each of its values, such as Authorization
	FairBy string `json:"fair_by"` // header: callers by whose turns requests are sent

	Costs         map[string]int64 `json:"costs"`           // instead of those of the upstream; 0: the limit does not apply
	BytesPerToken float64          `json:"bytes_per_token"` // adds the length of the request's body, divided by this
	Settle        []string         `json:"settle"`          // where the body of a response has the true cost: the sum of these paths
	LearnCost     bool             `json:"learn_cost"`      // lowers costs to what earlier requests did cost
	ClampCost     bool             `json:"clamp_cost"`      // a cost above the size of the limit is as large as that, instead of rejected
	Fraction      *float64         `json:"fraction"`        // part of the limit that is used

	UntilHeaders bool `json:"until_headers"` // of in-flight: until the headers of the response arrive
	FromGrant    bool `json:"from_grant"`    // of quota and sliding-window
	Local        bool `json:"local"`         // it is not in the store
}

// A kind of limits makes them of the fields that it takes, beside those that are options of all kinds. What it learns is not shared.
type kind struct {
	takes  string
	shared bool
	make   func(*limit, ...throttle.LimitOption) (throttle.Limit, error)
}

// rated returns a kind of limits of n per time.
func rated(f func(int64, time.Duration, ...throttle.LimitOption) throttle.Limit) kind {
	return kind{"n per", true, func(l *limit, opts ...throttle.LimitOption) (throttle.Limit, error) {
		return f(l.N, time.Duration(l.Per), opts...), nil
	}}
}

var kinds = map[string]kind{
	throttle.KindTokenBucket: {"n per initial", true, func(l *limit, opts ...throttle.LimitOption) (throttle.Limit, error) {
		if l.Initial != nil {
			opts = append(opts, throttle.Initial(int64(*l.Initial)))
		}
		return throttle.TokenBucket(l.N, time.Duration(l.Per), opts...), nil
	}},
	throttle.KindPace:          rated(throttle.Pace),
	throttle.KindQuota:         rated(throttle.Quota),
	throttle.KindSlidingWindow: rated(throttle.SlidingWindow),
	throttle.KindFixedWindow:   rated(throttle.FixedWindow),
	throttle.KindCalendarWindow: {"n unit zone", true, func(l *limit, opts ...throttle.LimitOption) (throttle.Limit, error) {
		zone, err := time.LoadLocation(l.Zone)
		if err != nil {
			zone = time.UTC
		}
		unit := throttle.CalendarDay
		for unit.String() != l.Unit && unit < throttle.CalendarMonth {
			unit++
		}
		if unit.String() != l.Unit {
			err = errors.Join(err, fmt.Errorf("unknown unit %q; there are day, week and month", l.Unit))
		}
		return throttle.CalendarWindow(l.N, unit, zone, opts...), err
	}},
	throttle.KindInFlight: {"n", true, func(l *limit, opts ...throttle.LimitOption) (throttle.Limit, error) {
		return throttle.InFlight(l.N, opts...), nil
	}},
	throttle.KindAdaptive: {"initial min max", false, func(l *limit, opts ...throttle.LimitOption) (throttle.Limit, error) {
		return throttle.Adaptive(throttle.AIMD{Initial: orZero(l.Initial), Min: l.Min, Max: l.Max}, opts...), nil
	}},
	throttle.KindAdaptiveInFlight: {"initial min max", false, func(l *limit, opts ...throttle.LimitOption) (throttle.Limit, error) {
		return throttle.AdaptiveInFlight(throttle.Concurrency{Initial: int64(orZero(l.Initial)), Min: int64(l.Min), Max: int64(l.Max)}, opts...), nil
	}},
	throttle.KindServerQuota: {"unit", false, func(l *limit, opts ...throttle.LimitOption) (throttle.Limit, error) {
		return throttle.ServerQuota(l.Unit, opts...), nil
	}},
}

var shapes = map[string]func(*throttle.Rejection, *http.Request) *http.Response{
	"": (*throttle.Rejection).Response, "aws-json": shape.AWSJSON, "discord": shape.Discord, "gitlab": shape.GitLab, "google": shape.Google,
	"problem": shape.Problem, "s3": shape.S3, "stripe": shape.Stripe,
}

// readConfig reads a file. The error has a line for everything that is wrong with it.
func readConfig(name string) (*config, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	c := &config{Listen: "127.0.0.1:8080", Page: "127.0.0.1:8081", Drain: duration(25 * time.Second)}
	t := decode(name, b, c)
	if !t.broken {
		c.check(t)
	}
	if c.Store != "" && !filepath.IsAbs(c.Store) {
		c.Store = filepath.Join(filepath.Dir(name), c.Store)
	}
	return c, t.err()
}

var segment = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// check adds the faults of what could be decoded.
func (c *config) check(t *text) {
	if len(c.Upstreams) == 0 && t.isSound(&c.Upstreams) {
		t.fault(t.place(&c.Upstreams, c), "there are no upstreams")
	}
	if c.Drain < 0 {
		t.fault(t.places[&c.Drain], "%v is negative", time.Duration(c.Drain))
	}
	var shared store.Store
	if c.Store != "" {
		shared = store.NewMemory() // for the check alone
	}
	for name, u := range c.Upstreams {
		if !segment.MatchString(name) {
			t.fault(t.places[u], "the name of an upstream is a segment of a path: letters, digits, dots, hyphens and underscores")
		}
		if _, err := u.target(); err != nil && t.isSound(&u.URL) {
			t.fault(t.place(&u.URL, u), "%v", err)
		}
		for i := range u.Limits {
			if l := &u.Limits[i]; t.isSound(l) {
				l.check(t, shared)
			}
		}
		limits := u.Limits
		if !t.isSound(&u.Limits) {
			u.Limits = nil // whose faults were found
		}
		t.blame(u, func() error { _, err := u.transport(nil, shared, nil); return err })
		u.Limits = limits
	}
}

func (l *limit) check(t *text, shared store.Store) {
	if _, ok := kinds[l.Kind]; !ok {
		t.fault(t.place(&l.Kind, l), "unknown kind %q; there are %s", l.Kind, names(kinds))
		return
	}
	t.blame(l, func() error {
		made, err := l.limit(shared)
		_, faults := throttle.New(nil, throttle.WithLimit(made))
		return errors.Join(err, faults)
	})
}

// target returns the URL of an upstream.
func (u *upstream) target() (*url.URL, error) {
	target, err := url.Parse(u.URL)
	if err != nil || target.Scheme != "http" && target.Scheme != "https" || target.Host == "" || target.User != nil || target.RawQuery != "" {
		return nil, errors.New("want a URL such as https://api.example.com, without a user and a query")
	}
	return target, nil
}

// transport returns a Transport for the upstream. A nil logger logs nothing.
func (u *upstream) transport(base http.RoundTripper, shared store.Store, log *slog.Logger) (*throttle.Transport, error) {
	var faults []error
	shape, ok := shapes[u.Shape]
	if !ok {
		faults = append(faults, fmt.Errorf("unknown shape %q; there are %s", u.Shape, names(shapes)))
		shape = shapes[""]
	}
	opts := []throttle.Option{throttle.WithRejectionResponse(shape), throttle.WithWeights(u.Costs)}
	for i := range u.Limits {
		made, err := u.Limits[i].limit(shared)
		faults = append(faults, err)
		opts = append(opts, throttle.WithLimit(made))
	}
	switch u.Hints {
	case "":
		opts = append(opts, throttle.WithServerHints(headers.Auto))
	case "none":
		opts = append(opts, throttle.WithoutServerHints())
	default:
		opts = append(opts, throttle.WithServerHints(headers.Preset(u.Hints)))
	}
	if u.MaxWait != nil {
		opts = append(opts, throttle.WithMaxWait(time.Duration(*u.MaxWait)))
	}
	if u.MaxQueue != nil {
		opts = append(opts, throttle.WithMaxQueue(*u.MaxQueue))
	}
	if log != nil {
		opts = append(opts, throttle.WithLogger(log))
	}
	made, err := throttle.New(base, opts...)
	return made, errors.Join(append(faults, err)...)
}

// limit returns the limit as package throttle has it, and an error that says what that cannot know.
func (l *limit) limit(shared store.Store) (throttle.Limit, error) {
	var faults []error
	k := kinds[l.Kind]
	for name, given := range map[string]bool{
		"n": l.N != 0, "per": l.Per != 0, "unit": l.Unit != "", "zone": l.Zone != "", "initial": l.Initial != nil, "min": l.Min != 0, "max": l.Max != 0,
	} {
		if given && !slices.Contains(strings.Fields(k.takes), name) {
			faults = append(faults, fmt.Errorf("a limit of kind %s has no %s", l.Kind, name))
		}
	}
	for name, f := range map[string]float64{"initial": orZero(l.Initial), "min": l.Min, "max": l.Max} {
		if l.Kind != throttle.KindAdaptive && f != math.Trunc(f) {
			faults = append(faults, fmt.Errorf("%s of %v is not a whole number", name, f))
		}
	}
	if l.BytesPerToken < 0 {
		faults = append(faults, fmt.Errorf("bytes_per_token of %v is negative", l.BytesPerToken))
	}
	var opts []throttle.LimitOption
	add := func(given bool, option func() throttle.LimitOption) {
		if given {
			opts = append(opts, option())
		}
	}
	add(l.Name != "", func() throttle.LimitOption { return throttle.Name(l.Name) })
	add(l.Burst != nil, func() throttle.LimitOption { return throttle.Burst(*l.Burst) })
	add(l.Start != nil, func() throttle.LimitOption { return throttle.Start(*l.Start) })
	add(l.Pause != nil, func() throttle.LimitOption { return throttle.Pause(time.Duration(*l.Pause)) })
	add(l.KeyBy != "", func() throttle.LimitOption { return throttle.Key(throttle.ByHeader(l.KeyBy)) }) // which hashes it
	add(l.FairBy != "", func() throttle.LimitOption { return throttle.FairBy(throttle.ByHeader(l.FairBy)) })
	add(l.Settle != nil, func() throttle.LimitOption { return throttle.SettleJSON(l.Settle...) })
	add(l.LearnCost, throttle.LearnCost)
	add(l.ClampCost, throttle.ClampCost)
	add(l.Fraction != nil, func() throttle.LimitOption { return throttle.Fraction(*l.Fraction) })
	add(l.UntilHeaders, throttle.UntilHeaders)
	add(l.FromGrant, throttle.FromGrant)
	add(shared != nil && k.shared && !l.Local, func() throttle.LimitOption { return throttle.Shared(shared) })
	if l.Costs != nil || l.BytesPerToken != 0 {
		cost, err := l.cost()
		faults = append(faults, err)
		add(err == nil, func() throttle.LimitOption { return throttle.Cost(cost) })
	}
	made, err := k.make(l, opts...)
	return made, errors.Join(append(faults, err)...)
}

// cost returns what a request costs: by its pattern and by the length of its body. It is 0 if the pattern says so.
func (l *limit) cost() (throttle.CostFunc, error) {
	if _, err := throttle.New(nil, throttle.WithWeights(l.Costs)); err != nil {
		return nil, errors.New(strings.ReplaceAll(err.Error(), "WithWeights: ", ""))
	}
	route := throttle.ByRoute(slices.Collect(maps.Keys(l.Costs))...)
	return func(r *http.Request) int64 {
		cost, ok := l.Costs[route(r)]
		switch {
		case !ok:
			cost = 1
		case cost == 0:
			return 0
		}
		if l.BytesPerToken > 0 && r.ContentLength > 0 {
			cost += int64(float64(r.ContentLength) / l.BytesPerToken)
		}
		return cost
	}, nil
}

func orZero(f *float64) float64 {
	if f == nil {
		return 0
	}
	return *f
}

// names returns the keys of a map as an error shows them.
func names[V any](m map[string]V) string {
	all := slices.Sorted(maps.Keys(m))
	return strings.Join(slices.DeleteFunc(all, func(name string) bool { return name == "" }), ", ")
}
