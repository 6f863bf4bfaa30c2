package headers

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// readJSON reads headers that hold JSON, whose lines may be longer than others.
func (r *reading) readJSON(f *Field, lines []string) {
	for _, line := range lines[:min(len(lines), maxLines)] {
		decoder := json.NewDecoder(strings.NewReader(line[:min(len(line), BodyBytes)]))
		decoder.UseNumber()
		var value any
		if decoder.Decode(&value) == nil {
			r.readValue(f, f.Bucket, value)
		}
	}
}

// readValue reads an object, or the objects within an array.
func (r *reading) readValue(f *Field, bucket string, value any) {
	switch v := value.(type) {
	case []any:
		for _, element := range v {
			r.readValue(f, bucket, element)
		}
	case map[string]any:
		r.readObject(f, bucket, v)
	}
}

// readObject reads the members of an object that the dialect knows. A reset applies to all of its buckets.
func (r *reading) readObject(f *Field, bucket string, object map[string]any) {
	if kind, ok := object["type"].(string); ok {
		bucket = joinName(bucket, ":", first([]string{kind}))
	}
	var reset list
	var buckets []*group
	for _, name := range slices.Sorted(maps.Keys(object)) {
		member := r.dialect.member(name)
		n, ok := object[name].(json.Number)
		switch {
		case !ok || member == nil:
			r.readValue(f, bucket, object[name])
		case isMoment(member.Role):
			reset = r.readList([]string{n.String()}, member.Role, member.Unit)
		case len(r.groups) >= maxTold:
		case member.Role == RolePercent:
			if g := r.fieldGroup(f, joinName(bucket, ":", name)); g.putPercent(n.String()) {
				buckets = append(buckets, g)
			}
		default:
			named := *member
			named.Bucket = bucket
			r.readPlain(&named, []string{n.String()})
			buckets = append(buckets, r.group("", bucket))
		}
	}
	for _, g := range buckets {
		g.put(RoleResetAfter, reset)
	}
}

// member returns the dialect's Field for a member of that name, nil if it has none.
func (d *Dialect) member(name string) *Field {
	if i := slices.IndexFunc(d.Members, func(f Field) bool { return f.Name == name }); i >= 0 {
		return &d.Members[i]
	}
	return nil
}

// putPercent puts how much of the limit was used, in per cent, unless more was already.
func (g *group) putPercent(text string) bool {
	used, ok := scanCount(text).up().Get()
	if !ok || g.has(RoleUsed) && g.lists[RoleUsed].elements[0].count.n >= used {
		return false
	}
	g.unit, g.lists[RoleResetAfter] = "percent", list{}
	g.lists[RoleUsed] = list{elements: []element{{count: count{n: used, ok: true}}}}
	g.lists[RoleLimit] = list{elements: []element{{count: count{n: 100, ok: true}}}}
	return true
}
