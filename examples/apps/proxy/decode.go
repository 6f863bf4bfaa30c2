package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A text is a configuration file in JSON. It collects everything that is wrong with it.
type text struct {
	name   string
	bytes  []byte
	input  *json.Decoder
	places map[any]place // of the values that the file has, by pointers to where they were decoded
	faults []fault
	broken bool // it is no JSON
}

// A place is where a value is in the file.
type place struct {
	offset int
	path   string // such as upstreams.openai.limits[0]
}

type fault struct {
	place
	what string
}

// decode decodes the file into the struct that v points to. The faults are those of the syntax, unknown and repeated fields, and values of
// another type.
func decode(name string, b []byte, v any) *text {
	t := &text{name: name, bytes: b, input: json.NewDecoder(bytes.NewReader(b)), places: make(map[any]place)}
	if err := json.Unmarshal(b, new(json.RawMessage)); err != nil {
		at := len(b)
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			at = max(0, int(syntax.Offset)-1)
		}
		t.fault(place{offset: at}, "%v", err)
		t.broken = true
		return t
	}
	t.value(reflect.ValueOf(v).Elem(), "")
	return t
}

func (t *text) fault(at place, format string, args ...any) {
	t.faults = append(t.faults, fault{at, fmt.Sprintf(format, args...)})
}

// place returns where the value is that v points to, or else where its owner is.
func (t *text) place(v, owner any) place {
	if at, ok := t.places[v]; ok {
		return at
	}
	return t.places[owner]
}

// isSound reports whether no fault was found so far in the value that v points to.
func (t *text) isSound(v any) bool {
	path := t.places[v].path
	return !slices.ContainsFunc(t.faults, func(f fault) bool {
		rest, in := strings.CutPrefix(f.path, path)
		return in && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

var before = regexp.MustCompile(`^throttle: (limit "[^"]*": )?`)

// blame adds the faults that check returns, one a line: each at the last field of the struct without which it would not be there, or else
// at the struct. The first field is never blamed, because it says what the others mean.
func (t *text) blame(v any, check func() error) {
	lines := func() []string {
		if err := check(); err != nil {
			return strings.Split(err.Error(), "\n")
		}
		return nil
	}
	s := reflect.ValueOf(v).Elem()
	for _, line := range lines() {
		at := t.places[v]
		for i := s.NumField() - 1; i > 0 && at == t.places[v]; i-- {
			field := s.Field(i)
			if field.IsZero() {
				continue
			}
			value := reflect.ValueOf(field.Interface())
			field.SetZero()
			if !slices.Contains(lines(), line) {
				at = t.places[field.Addr().Interface()]
			}
			field.Set(value)
		}
		t.fault(at, "%s", before.ReplaceAllString(line, ""))
	}
}

// err returns all faults, in the order of the file; nil: there are none.
func (t *text) err() error {
	slices.SortStableFunc(t.faults, func(a, b fault) int { return cmp.Compare(a.offset, b.offset) })
	var all []error
	for _, f := range t.faults {
		head := t.bytes[:min(f.offset, len(t.bytes))]
		line, column := 1+bytes.Count(head, []byte("\n")), len(head)-bytes.LastIndexByte(head, '\n')
		if f.path != "" {
			f.what = f.path + ": " + f.what
		}
		all = append(all, fmt.Errorf("%s:%d:%d: %s", t.name, line, column, f.what))
	}
	return errors.Join(all...)
}

// next returns where the next token begins.
func (t *text) next() int {
	at := int(t.input.InputOffset())
	for at < len(t.bytes) && strings.IndexByte(" \t\r\n,:", t.bytes[at]) >= 0 {
		at++
	}
	return at
}

// token returns the next token. There is no error, because the syntax has been checked.
func (t *text) token() json.Token {
	token, _ := t.input.Token()
	return token
}

// skip returns the next value as it is.
func (t *text) skip() (raw json.RawMessage) {
	_ = t.input.Decode(&raw)
	return raw
}

// value decodes the next value of the file into v, and reports whether it was of that type.
func (t *text) value(v reflect.Value, path string) (ok bool) {
	at := place{t.next(), path}
	t.places[v.Addr().Interface()] = at
	first := t.bytes[at.offset]
	switch kind := v.Kind(); {
	case kind == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return t.value(v.Elem(), path)
	case kind == reflect.Map && first == '{':
		v.Set(reflect.MakeMap(v.Type()))
		t.object(func(name string, _ place) {
			element := reflect.New(v.Type().Elem()).Elem()
			if t.value(element, join(path, name)) {
				v.SetMapIndex(reflect.ValueOf(name), element)
			}
		}, path)
	case kind == reflect.Struct && first == '{' && v.Type() != reflect.TypeFor[time.Time]():
		fields := make(map[string]reflect.Value)
		for i := range v.NumField() {
			fields[v.Type().Field(i).Tag.Get("json")] = v.Field(i)
		}
		t.object(func(name string, at place) {
			field, ok := fields[name]
			if !ok {
				t.fault(at, "unknown field; the fields are %s", strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
				t.skip()
				return
			}
			t.value(field, join(path, name))
		}, path)
	case kind == reflect.Slice && first == '[':
		t.token()
		v.Set(reflect.MakeSlice(v.Type(), 0, bytes.Count(t.bytes, []byte(","))+1)) // enough, so that its elements stay where they are
		for i := 0; t.input.More(); i++ {
			v.SetLen(i + 1)
			t.value(v.Index(i), fmt.Sprintf("%s[%d]", path, i))
		}
		t.token()
	default:
		if raw := t.skip(); string(raw) == "null" || json.Unmarshal(raw, v.Addr().Interface()) != nil {
			t.fault(at, "%s is not %s", cut(string(raw)), wanted(v.Type()))
			return false
		}
	}
	return true
}

// object calls field for each field of the next object. It has to read the value.
func (t *text) object(field func(name string, at place), path string) {
	t.token()
	seen := make(map[string]bool)
	for t.input.More() {
		at := place{offset: t.next()}
		name := t.token().(string)
		if at.path = join(path, name); seen[name] {
			t.fault(at, "repeated field")
		}
		seen[name] = true
		field(name, at)
	}
	t.token()
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func cut(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}

// wanted says what a value of a type is in the file.
func wanted(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[duration]():
		return `a time with its unit, such as "90s" or "5m"`
	case reflect.TypeFor[time.Time]():
		return `a date and a time, such as "2026-01-31T08:00:00Z"`
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "an array"
	}
	return "an object"
}

// A duration is a time in the notation of [time.ParseDuration].
type duration time.Duration

// UnmarshalJSON implements [json.Unmarshaler].
func (d *duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	parsed, err := time.ParseDuration(s)
	*d = duration(parsed)
	return err
}
