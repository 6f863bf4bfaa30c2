package throttlepage

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/httpthrottle/throttle"
)

const pages = 100 // events that are remembered of a Limiter

// An event is something that happened between two readings, such as a number of requests rejected for one reason. If it continues in the
// next reading, it stays one event, which becomes longer.
type event struct {
	from, to time.Time // the readings before and after it
	kind     kind
	limit    string // that it is about; "": none
	cause    string // a reason, a host, a source
	n        uint64
	old, now float64 // rates, of a retune
	detail   string
	bad      bool // of refusals: more than is normal
}

type kind string

const (
	kindRejected kind = "rejected"
	kindRefused  kind = "refused"
	kindHeld     kind = "held"
	kindRetuned  kind = "retuned"
	kindOutage   kind = "outage"
	kindEvicted  kind = "evicted"
	kindOut      kind = "out"
	kindBack     kind = "back"
)

// A diary is the last events of a Limiter, oldest first. They are found in counters, so that the page needs no hooks.
type diary struct {
	events  []event
	refused map[[3]string]uint64 // by host and account
}

// add adds an event, or prolongs one that it continues: a change of a rate continues one that ended at its first rate.
func (d *diary) add(e event) {
	for i := len(d.events) - 1; i >= 0 && !d.events[i].to.Before(e.from); i-- {
		if x := &d.events[i]; x.to.Equal(e.from) && x.kind == e.kind && x.limit == e.limit && x.cause == e.cause && x.now == e.old {
			e.from, e.n, e.bad = x.from, e.n+x.n, e.bad || x.bad
			if e.kind == kindRetuned {
				e.old = x.old
			}
			d.events = slices.Delete(d.events, i, i+1)
			break
		}
	}
	if len(d.events) == pages {
		d.events = slices.Delete(d.events, 0, 1)
	}
	d.events = append(d.events, e)
}

// note adds what happened between two samples.
func (d *diary) note(first, last *sample, from source, names naming) {
	e := event{from: first.at, to: last.at}
	d.noteHolds(e, first, last, from, names)
	d.noteRefusals(e, first, last, from, names)
	for i := range last.limits {
		now, before := &last.limits[i], first.limit(last.limits[i].Name)
		e.limit = printable(now.Name)
		e.kind, e.detail = kindRejected, ""
		for reason, n := range now.Rejected.All() {
			if e.n = grown(n, before.Rejected[reason]); e.n > 0 {
				e.cause = reason.String()
				d.add(e)
			}
		}
		d.noteRetunes(e, now, &before)
		if e.n = grown(now.Evicted, before.Evicted); e.n > 0 {
			e.kind, e.cause = kindEvicted, ""
			d.add(e)
		}
	}
	d.noteOutages(event{from: first.at, to: last.at, kind: kindOutage}, first, last)
	d.noteMembers(event{from: first.at, to: last.at}, first, last)
}

// noteRetunes adds the changes of a learned rate. If they had several causes, it is not known how far the rate went because of each.
func (d *diary) noteRetunes(e event, now, before *throttle.LimitStats) {
	e.kind = kindRetuned
	var all []event
	for cause, n := range now.Retunes.All() {
		if e.n = grown(n, before.Retunes[cause]); e.n > 0 {
			e.cause = cause.String()
			all = append(all, e)
		}
	}
	for _, e := range all {
		if len(all) == 1 {
			e.old, e.now = before.Rate, now.Rate
		}
		d.add(e)
	}
}

// noteHolds adds the holds that were set, by their source, with the longest one that is known.
func (d *diary) noteHolds(e event, first, last *sample, from source, names naming) {
	e.kind = kindHeld
	now, before := last.stats.Holds, first.stats.Holds
	if e.n = grown(now.Server, before.Server); e.n > 0 {
		e.cause = "by a server"
		longest := throttle.ServerStats{HeldUntil: last.at}
		for _, s := range from.Servers() {
			if s.HeldUntil.After(longest.HeldUntil) {
				longest = s
			}
		}
		e.detail = ""
		if longest.Host != "" {
			e.detail = names(longest.Host) + " " + serverHold(&longest, last.at)
		}
		d.add(e)
	}
	e.detail = ""
	for i := range last.limits {
		if li := &last.limits[i]; li.Kind != serverLimit && li.HeldUntil.After(last.at) && li.HeldUntil.After(first.limit(li.Name).HeldUntil) {
			e.detail = fmt.Sprintf("limit “%s” is held for %s", printable(li.Name), duration(li.HeldUntil.Sub(last.at)))
			break
		}
	}
	if e.n = grown(now.Adaptive, before.Adaptive); e.n > 0 {
		e.cause = "by an adaptive limit"
		d.add(e)
	}
	if e.n = grown(now.Caller, before.Caller); e.n > 0 {
		e.cause = "by Hold"
		d.add(e)
	}
}

// noteRefusals adds what servers refused, by host unless there are too many.
func (d *diary) noteRefusals(e event, first, last *sample, from source, names naming) {
	all := grown(last.stats.ServerRefused, first.stats.ServerRefused)
	if all == 0 && (d.refused != nil || last.stats.ServerRefused == 0) {
		return
	}
	e.kind, e.cause, e.bad = kindRefused, "servers", change{first, last}.refusedLevel() == "bad"
	known := uint64(0)
	if last.stats.Buckets <= many {
		servers := from.Servers()
		refused, byHost := make(map[[3]string]uint64, len(servers)), make(map[string]uint64)
		for _, s := range servers {
			id := [3]string{s.Host, s.Account, s.For}
			refused[id] = max(refused[id], s.Refused)
			if n := grown(s.Refused, d.refused[id]); n > 0 && known+n <= all {
				byHost[s.Host], known = byHost[s.Host]+n, known+n
			}
		}
		for _, host := range slices.Sorted(maps.Keys(byHost)) { // one event for all accounts there
			e.cause, e.n = names(host), byHost[host]
			d.add(e)
		}
		d.refused = refused
	}
	if e.n = all - known; e.n > 0 {
		e.cause = "servers"
		d.add(e)
	}
}

func (d *diary) noteOutages(e event, first, last *sample) {
	for i := range last.stores {
		if i >= len(first.stores) || first.stores[i].Up == last.stores[i].Up {
			continue
		}
		now := &last.stores[i]
		e.limit, e.n, e.cause, e.detail = printable(now.Limits[0]), 1, "reachable again", ""
		if !now.Up {
			e.cause, e.detail = "unreachable", printable(fmt.Sprint(now.Err))
		}
		d.add(e)
	}
}

// text returns what happened, in a sentence.
func (e *event) text() string {
	of := ""
	if e.limit != "" {
		of = " “" + e.limit + "”"
	}
	switch e.kind {
	case kindRejected:
		return plural(e.n, "request") + " rejected by limit" + of + ": " + e.cause
	case kindRefused:
		return plural(e.n, "request") + " refused by " + e.cause
	case kindHeld:
		text := plural(e.n, "hold") + " set " + e.cause
		if e.detail != "" {
			text += ": " + e.detail
		}
		return text
	case kindRetuned:
		text := "limit" + of + " "
		if e.old > 0 && e.now > 0 && e.old != e.now {
			text += rate(e.old) + " → " + rate(e.now)
		} else {
			text += "changed " + plural(e.n, "rate")
		}
		return text + ": " + e.cause
	case kindOut:
		return joined("member"+of+" is left out", e.detail)
	case kindBack:
		return "member" + of + " is back"
	case kindEvicted:
		return plural(e.n, "key") + " of limit" + of + " forgotten to make room"
	}
	text := "the store of limit" + of + " is " + e.cause
	if e.detail != "" {
		text += ": " + e.detail
	}
	return text
}

// level returns how bad it is.
func (e *event) level() string {
	switch {
	case e.kind == kindRejected, e.kind == kindOut, e.kind == kindRefused && e.bad, e.kind == kindOutage && e.cause == "unreachable":
		return "bad"
	case e.kind == kindRefused, e.kind == kindHeld, e.kind == kindEvicted:
		return "busy"
	}
	return ""
}

// An eventState is what state.json says of an event.
type eventState struct {
	From  time.Time `json:"from"`
	To    time.Time `json:"to"`
	Kind  kind      `json:"kind"`
	Limit string    `json:"limit,omitempty"`
	Cause string    `json:"cause,omitempty"`
	Count uint64    `json:"count"`
	Text  string    `json:"text"`
}

func (d *diary) state() []eventState {
	all := make([]eventState, 0, len(d.events))
	for i := range d.events {
		e := &d.events[i]
		all = append(all, eventState{e.from, e.to, e.kind, e.limit, e.cause, e.n, e.text()})
	}
	return all
}

// latest yields the events, the latest first.
func (d *diary) latest() []event {
	all := slices.Clone(d.events)
	slices.SortStableFunc(all, func(a, b event) int { return cmp.Or(b.to.Compare(a.to), b.from.Compare(a.from)) })
	return all
}
