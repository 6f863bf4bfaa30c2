package headers

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// A Hint is an argument of [NewReader]: a [Preset] or a [Dialect].
type Hint interface{ hint() (d Dialect, err error) }

func (p Preset) hint() (Dialect, error) {
	if p == "" || (p != Generic && p != Auto && p.Dialect().Name == "") {
		return Dialect{}, fmt.Errorf("headers: there is no preset %q", string(p))
	}
	return p.Dialect(), nil
}

func (d Dialect) hint() (Dialect, error) { return d.clone(), d.validate() }

// clone returns a copy that shares nothing with d that its owner may change.
func (d *Dialect) clone() Dialect {
	c := *d
	c.Hosts, c.Parts, c.Fields, c.Members, c.Rules = slices.Clone(d.Hosts), slices.Clone(d.Parts), slices.Clone(d.Fields), slices.Clone(d.Members), slices.Clone(d.Rules)
	for i := range c.Rules {
		rule := &c.Rules[i]
		rule.Statuses, rule.Body = slices.Clone(rule.Statuses), slices.Clone(rule.Body)
		rule.Header.Values = slices.Clone(rule.Header.Values)
		for j := range rule.Body {
			rule.Body[j].Values = slices.Clone(rule.Body[j].Values)
		}
	}
	return c
}

func (d *Dialect) validate() error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("headers: dialect %q: "+format, append([]any{d.Name}, args...)...))
	}
	if d.MinWait < 0 {
		fault("MinWait %v is negative", d.MinWait)
	}
	for _, host := range d.Hosts {
		name := strings.Replace(strings.TrimPrefix(host, "*."), ".*.", ".", 1)
		if name == "" || strings.ContainsAny(name, "*/: ") || strings.Count(host, "*") > 1 {
			fault("host %q is neither a host nor *. and a host, nor a host with a * for one label", host)
		}
	}
	for _, f := range append(d.Fields[:len(d.Fields):len(d.Fields)], d.Members...) {
		if f.Name == "" || f.Form > JSON || f.Role >= roles || f.Window < 0 {
			fault("field %+v has no name, or a form, role or window that there isn't", f)
		}
	}
	for _, p := range d.Parts {
		if (p.After == "") == (p.Member == "") || strings.Contains(p.After, "/") {
			fault("part %+v is to be either after one segment of a path or a member", p)
		}
	}
	for _, rule := range d.Rules {
		if rule.Wait < 0 {
			fault("rule %+v has a negative wait", rule)
		}
		if rule.NotLimited && rule.Final {
			fault("rule %+v says NotLimited and Final: a refusal is one of them", rule)
		}
	}
	return errors.Join(faults...)
}

// A Reader reads responses of several hosts. For each host it uses the first dialect that claims the host; with [Auto], the
// preset that does; otherwise the first Dialect or Preset that it was given, so that a single one applies to
// every host; otherwise what [Parse] reads. What it reads does not change, and it is safe for concurrent use. A nil Reader reads what Parse reads.
type Reader struct {
	other *Dialect // for hosts that no dialect claims
	named bool     // some hosts are claimed
	hosts map[string]*Dialect
	below map[string]*Dialect // *.host
	among []among
	kept  memory
}

// An among is the hosts that differ in one label.
type among struct {
	before, after string // with their dots
	dialect       *Dialect
}

// has reports whether a host is one of them.
func (a *among) has(host string) bool {
	label, ok := strings.CutPrefix(host, a.before)
	if !ok {
		return false
	}
	label, ok = strings.CutSuffix(label, a.after)
	return ok && label != "" && !strings.Contains(label, ".")
}

// NewReader returns a Reader of the hints. Without hints it reads what Parse reads. Dialects are copied. The error names every
// problem; nil hints and unknown presets are errors.
func NewReader(hints ...Hint) (*Reader, error) {
	r := &Reader{hosts: map[string]*Dialect{}, below: map[string]*Dialect{}}
	var faults []error
	auto, named := false, 0
	for i, hint := range hints {
		if hint == nil {
			faults = append(faults, fmt.Errorf("headers: hint %d is nil", i))
			continue
		}
		d, err := hint.hint()
		if err != nil {
			faults = append(faults, err)
			continue
		}
		if hint == Hint(Auto) {
			auto = true
			continue
		}
		if named++; r.other == nil {
			r.other = &d
		}
		r.claim(&d)
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	if auto {
		for _, p := range Presets() {
			d := p.Dialect()
			r.claim(&d)
		}
	} else if named == 1 {
		r.hosts, r.below, r.among = nil, nil, nil
	}
	r.named = len(r.hosts)+len(r.below)+len(r.among) > 0
	return r, nil
}

// claim gives d its hosts, except those that another dialect has.
func (r *Reader) claim(d *Dialect) {
	for _, host := range d.Hosts {
		hosts := r.hosts
		name, open := strings.CutPrefix(strings.ToLower(host), "*.")
		if before, after, ok := strings.Cut(name, ".*."); ok {
			r.among = append(r.among, among{before + ".", "." + after, d})
			continue
		}
		if open {
			hosts = r.below
		}
		if hosts[name] == nil {
			hosts[name] = d
		}
	}
}

// Silent reports whether a response of that host says nothing about limits, neither by its status nor by its headers, so that
// its body and Parse are not needed, whatever its Content-Encoding is.
func (r *Reader) Silent(host string, status int, h http.Header) bool {
	if limits(status) {
		return false
	}
	if d := r.dialect(host); d != nil {
		return d.silent(status, h, nil) && !d.looksInto(status, h) && !d.looksForEvents(status, h)
	}
	for name := range h {
		if concerns(name) {
			return false
		}
	}
	return true
}

// Parse returns what a response of that host says about rate limits; see [Dialect.Parse]. host is as in a URL or a Host
// header, with or without a port.
func (r *Reader) Parse(host string, status int, h http.Header, body []byte, now time.Time) Signal {
	var kept *memory
	if r != nil {
		kept = &r.kept
	}
	d := r.dialect(host)
	switch {
	case d == nil && len(body) > 0:
		return Dialect{}.Parse(status, h, body, now)
	case d == nil:
		return parse(status, h, now, kept)
	case d.silent(status, h, body):
		return silent(status)
	}
	return d.parse(status, h, body, now, kept)
}

// WantsBody reports whether Parse needs the body of such a response of that host; see [Dialect.WantsBody].
func (r *Reader) WantsBody(host string, status int, h http.Header) bool {
	d := r.dialect(host)
	if d == nil {
		d = new(Dialect)
	}
	return d.wantsBody(status, h)
}

// WantsEvents reports whether Parse needs the events of such a response of that host; see [Dialect.WantsEvents].
func (r *Reader) WantsEvents(host string, status int, h http.Header) bool {
	d := r.dialect(host)
	return d != nil && d.WantsEvents(status, h)
}

// Parts returns the parts of requests to that host by which they are counted separately; see [Dialect.Parts]. Do not change the slice.
func (r *Reader) Parts(host string) []Part {
	if d := r.dialect(host); d != nil {
		return d.Parts
	}
	return nil
}

// dialect returns the dialect for a host, nil for the generic one.
func (r *Reader) dialect(host string) *Dialect {
	switch {
	case r == nil:
		return nil
	case !r.named:
		return r.other
	}
	return r.claimant(bareHost(host))
}

// claimant returns the dialect that claims a host, or else the one for other hosts.
func (r *Reader) claimant(host string) *Dialect {
	if d := r.hosts[host]; d != nil {
		return d
	}
	for i := range r.among {
		if a := &r.among[i]; a.has(host) {
			return a.dialect
		}
	}
	for rest := host; ; {
		_, below, found := strings.Cut(rest, ".")
		if !found {
			return r.other
		}
		if d := r.below[below]; d != nil {
			return d
		}
		rest = below
	}
}

// bareHost returns host in lower case, without port and final dot.
func bareHost(host string) string {
	if i := strings.LastIndexByte(host, ':'); i >= 0 && strings.IndexByte(host[i:], ']') < 0 {
		host = host[:i]
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}
