package headers

import (
	"bytes"
	"cmp"
	"encoding/json"
	"iter"
	"strings"
)

// readBody reads the body: the dialect's members, and those of a problem document.
func (r *reading) readBody() {
	if len(r.body) == 0 {
		return
	}
	costs := make([]string, len(r.dialect.Members)) // of several members with it, the first in the dialect counts
	problem := strings.Contains(strings.ToLower(get(r.header, "Content-Type")), "application/problem+")
	for name, value := range members(r.body) {
		r.readUnit(name, value)
		if problem && name == "violated-policies" {
			r.readPlain(&Field{Role: RoleViolated}, []string{value})
		}
		for i := range r.dialect.Members {
			f := &r.dialect.Members[i]
			switch {
			case f.Name != name:
			case f.Role == RoleCost:
				costs[i] = cmp.Or(costs[i], value)
			case f.Role != RoleViolated || !problem:
				r.readPlain(f, []string{value})
			}
		}
	}
	r.readCost(costs)
}

// readUnit reads what the limit counts that refused a request from the words of its body.
func (r *reading) readUnit(name, value string) {
	switch name {
	case "message", "detail":
		r.unit = cmp.Or(r.unit, unitIn(value))
	case "quotaId": // of Google, more exact than its message
		r.unit = cmp.Or(unitIn(value), r.unit)
	}
}

// unitIn returns what a limit counts that a sentence or a name is about; "": it does not say.
func unitIn(text string) string {
	plain := strings.NewReplacer(" ", "", "-", "", "_", "").Replace(strings.ToLower(text))
	for _, unit := range [...]struct{ text, name string }{{"inputtoken", "input-tokens"}, {"outputtoken", "output-tokens"}, {"token", "tokens"}, {"request", "requests"}} {
		if strings.Contains(plain, unit.text) {
			return unit.name
		}
	}
	return ""
}

// members yields the texts, numbers and booleans in the beginning of a body by the name of the member or element that they
// are the value of, at any depth; in an array, by the array's. It stops where the body is not well-formed.
func members(body []byte) iter.Seq2[string, string] {
	body = bytes.TrimSpace(bytes.TrimPrefix(body, []byte("\xef\xbb\xbf")))
	switch {
	case len(body) == 0:
		return func(func(string, string) bool) {}
	case body[0] == '{' || body[0] == '[':
		return jsonMembers(body)
	case body[0] == '<':
		return xmlMembers(string(body))
	}
	return func(yield func(string, string) bool) { yield("", string(body)) }
}

func jsonMembers(body []byte) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		type level struct {
			name   string // of the member whose value comes next
			object bool
			isKey  bool // a key comes next
		}
		decoder := json.NewDecoder(bytes.NewReader(body))
		decoder.UseNumber()
		levels := []level{{}}
		for {
			token, err := decoder.Token()
			if err != nil {
				return
			}
			top := &levels[len(levels)-1]
			name := top.name
			switch t := token.(type) {
			case json.Delim:
				if t == '}' || t == ']' {
					levels = levels[:len(levels)-1]
					continue
				}
				top.isKey = top.object
				levels = append(levels, level{name: name, object: t == '{', isKey: t == '{'})
				continue
			case string:
				if top.isKey {
					top.name, top.isKey = t, false
					continue
				}
				if !yield(name, t) {
					return
				}
			case json.Number:
				if !yield(name, t.String()) {
					return
				}
			case bool:
				if !yield(name, map[bool]string{false: "false", true: "true"}[t]) {
					return
				}
			}
			top.isKey = top.object
		}
	}
}

// xmlMembers yields the texts of elements that have nothing else in them.
func xmlMembers(body string) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for {
			_, rest, found := strings.Cut(body, "<")
			tag, after, closed := strings.Cut(rest, ">")
			if !found || !closed {
				return
			}
			body = after
			name, _, _ := strings.Cut(tag, " ")
			if text, end, found := strings.Cut(after, "<"); found && strings.HasPrefix(end, "/"+name+">") {
				if !yield(name, strings.TrimSpace(text)) {
					return
				}
			}
		}
	}
}
