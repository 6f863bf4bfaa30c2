package headers

import (
	"bytes"
	"net/http"
	"strings"
	"time"
)

const eventStream = "text/event-stream"

func isStream(h http.Header) bool {
	return strings.HasPrefix(strings.ToLower(get(h, "Content-Type")), eventStream)
}

// WantsEvents reports whether the dialect has a [Rule] for events of such a response, an event stream. The caller then passes the lines of
// each event that it reads, of which at most BodyBytes are needed, to Parse. It returns false for streams that are encoded.
func (d Dialect) WantsEvents(status int, h http.Header) bool {
	return d.looksForEvents(status, h) && isDecoded(h)
}

// looksForEvents is WantsEvents for a stream that the caller decodes.
func (d *Dialect) looksForEvents(status int, h http.Header) bool {
	for i := range d.Rules {
		if rule := &d.Rules[i]; rule.Event != "" && rule.hasStatus(status) && rule.Header.header(h) {
			return isStream(h)
		}
	}
	return false
}

// readEvent returns what an event says. The headers of the stream came with a response that was accepted, and do not count again.
func (d *Dialect) readEvent(status int, h http.Header, text []byte, now time.Time) Signal {
	name, data := cutEvent(text[:min(len(text), BodyBytes)])
	for i := range d.Rules {
		rule := &d.Rules[i]
		if rule.Event == name && rule.hasStatus(status) && rule.Header.header(h) && rule.inBody(data) {
			r := &reading{dialect: d, status: status, body: data, rule: rule, clock: serverClock{now: now}}
			r.readBody()
			r.conclude()
			return r.signal
		}
	}
	return Signal{Wait: known(time.Duration(0))}
}

// cutEvent returns the name of an event, and the lines of its data.
func cutEvent(text []byte) (name string, data []byte) {
	name = "message"
	for line := range bytes.FieldsFuncSeq(text, func(c rune) bool { return c == '\n' || c == '\r' }) {
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch {
		case string(field) == "event" && len(value) > 0:
			name = string(value)
		case string(field) == "data" && data == nil:
			data = value
		case string(field) == "data":
			data = append(append(data[:len(data):len(data)], '\n'), value...)
		}
	}
	return name, data
}
