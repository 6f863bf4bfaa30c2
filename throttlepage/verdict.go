package throttlepage

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/httpthrottle/throttle"
)

// This file is how a Limiter is put in a sentence or two.

// verdict returns how the Limiter is in a word with its count, and in a sentence or two, with the remedy if there is one.
func (l *watched) verdict(c change, w *selection, now time.Time) (level, word, n, says string) {
	var all []string
	many := uint64(0)
	add := func(lv, w string, n uint64, format string, args ...any) {
		if len(all) == 0 {
			level, word, many = lv, w, n
		}
		all = append(all, fmt.Sprintf(format, args...))
	}
	outLevel, outWord, out := c.out(now)
	if outLevel == "bad" {
		add(outLevel, outWord, 0, "%s", out)
	}
	if len(w.servers) > 0 && w.servers[0].Final != nil { // it is first
		add("bad", "refused", c.rejected(), "%s refuses, and no waiting helps: %s. Once that is mended, ForgetServer ends it.",
			w.servers[0].Host, strings.TrimSuffix(printable(w.servers[0].Final.String()), "."))
	}
	if n := c.refused(); c.refusedLevel() == "bad" {
		add("bad", "refused", n, "Servers refused %s.", plural(n, "request"))
	}
	if n := c.rejected(); n > 0 {
		add("bad", "rejecting", n, "%s rejected%s.", plural(n, "request"), c.rejectedBy(w, now))
	}
	for i := range c.last.stores {
		if s := &c.last.stores[i]; !s.Up {
			add("bad", "no store", 0, "The store of %s is unreachable.", limitsOf(s))
			break
		}
	}
	if outLevel == "busy" {
		add(outLevel, outWord, 0, "%s", out)
	}
	waiting := uint64(max(0, c.last.stats.Waiting))
	if held := l.heldBy(w, now); held != "" && out == "" {
		add("busy", "held", waiting, "%s.", held)
	}
	if waiting > 0 {
		add("busy", "waiting", waiting, "%s waiting%s%s%s.", plural(waiting, "request"), c.mostly(w, now), mostAt(w), c.drains())
	}
	if len(all) == 0 {
		add("ok", "flowing", 0, "Nothing waits.")
	}
	if many > 0 {
		n = count(many)
	}
	return level, word, n, strings.Join(all[:min(2, len(all))], " ")
}

// mostly returns which limit requests waited for the longest, or which quota of a server.
func (c change) mostly(w *selection, now time.Time) string {
	name := c.slowest()
	if name == "" {
		return ""
	}
	return ", mostly for " + limitOrQuota(name, w, now)
}

// rejectedBy returns which limit, or which quota of a server, rejected the most requests, and the reason in the word of rejections and metrics.
func (c change) rejectedBy(w *selection, now time.Time) string {
	most, name, why := uint64(0), "", ""
	for i := range c.last.limits {
		li, before := &c.last.limits[i], c.first.limit(c.last.limits[i].Name)
		for reason, n := range li.Rejected.All() {
			if n = grown(n, before.Rejected[reason]); n > most {
				most, name, why = n, printable(li.Name), reason.String()
			}
		}
	}
	if most == 0 {
		return ""
	}
	mostly := ", mostly"
	if most == c.rejected() {
		mostly = ""
	}
	return fmt.Sprintf("%s by %s (%s)", mostly, limitOrQuota(name, w, now), why)
}

// limitOrQuota returns what people call a limit: for that of servers, the quota of which the least is left.
func limitOrQuota(name string, w *selection, now time.Time) string {
	if name != serverLimit {
		return "limit “" + name + "”"
	}
	if q := scarcest(w.servers, now); q != "" {
		return q
	}
	return "what servers reported"
}

// scarcest returns the quota of which the smallest part is left, with what is left and until when; "": none is known.
func scarcest(servers []throttle.ServerStats, now time.Time) (text string) {
	least := math.Inf(1)
	for _, s := range servers {
		for _, q := range s.Quotas {
			part := float64(q.Left) / float64(max(1, q.Limit))
			if q.Left < 0 || part >= least {
				continue
			}
			least = part
			text = "a quota of " + s.Host
			if q.Name != "default" {
				text = "quota “" + q.Name + "” of " + s.Host
			}
			text += ": " + number(float64(q.Left))
			if q.Limit > 0 {
				text += " of " + number(float64(q.Limit))
			}
			text += " left"
			if q.Reset.After(now) {
				text += ", resets in " + duration(q.Reset.Sub(now))
			}
		}
	}
	return text
}

// mostAt returns the key at which the most requests wait, if requests wait at several.
func mostAt(w *selection) string {
	var at *throttle.BucketStats
	waiting := 0
	for i := range w.keys {
		if b := &w.keys[i]; b.Waiting > 0 {
			waiting++
			if at == nil || b.Waiting > at.Waiting {
				at = b
			}
		}
	}
	if waiting < 2 {
		return ""
	}
	return fmt.Sprintf("; most wait at key “%s” (%s)", at.Key, number(float64(at.Waiting)))
}

// drains returns when the last request that waits will be sent, if that is known.
func (c change) drains() string {
	f := &c.last.queue
	switch {
	case f.Done() <= 0 || f.Done() == math.MaxInt64:
		return ""
	case f.Least:
		return "; the last is sent in " + duration(f.Done()) + " at the earliest"
	}
	return "; the last is sent in " + duration(f.Done())
}

// heldBy returns which server, limit or key is held, for how long, and what ends it.
func (l *watched) heldBy(w *selection, now time.Time) string {
	if len(w.servers) > 0 && w.servers[0].HeldUntil.After(now) { // the longest is first
		return w.servers[0].Host + " " + serverHold(&w.servers[0], now)
	}
	for _, li := range l.last().limits {
		if !li.Keyed && li.HeldUntil.After(now) {
			return fmt.Sprintf("Limit “%s” is held for %s", printable(li.Name), duration(li.HeldUntil.Sub(now))) + l.release("ReleaseAll")
		}
	}
	for i := range w.keys {
		if b := &w.keys[i]; b.Limit != serverLimit && b.HeldUntil.After(now) {
			return fmt.Sprintf("Key “%s” of limit “%s” is held for %s", b.Key, printable(b.Limit), duration(b.HeldUntil.Sub(now))) + l.release("Release")
		}
	}
	return ""
}

// release returns what ends a hold, if it may be one that the program has set.
func (l *watched) release(method string) string {
	if l.last().stats.Holds.Caller == 0 {
		return ""
	}
	return "; " + method + " ends a hold of this program"
}

// serverHold returns for how long a server is held, whether it asked for that, and why.
func serverHold(s *throttle.ServerStats, now time.Time) string {
	does := "is held for "
	if s.Last != nil && !s.Guessed {
		does = "asks to wait for "
	}
	does += duration(s.HeldUntil.Sub(now))
	if s.Last != nil {
		does += " (" + s.Last.Verdict.String() + ")"
	}
	return does
}
