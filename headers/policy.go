package headers

import "time"

// readStructured reads the draft's own fields, RateLimit and RateLimit-Policy, each ignored whole if any of it is malformed.
// Up to draft -07, values without a name belong to the default bucket.
func (r *reading) readStructured() {
	limits, policies := r.lines("ratelimit"), r.lines("ratelimit-policy")
	if len(limits) == 0 && len(policies) == 0 {
		return
	}
	if items, ok := r.limitItems(readable(limits)); ok {
		r.structured = items[:min(len(items), maxTold)]
	} else {
		r.readDraft07(readable(limits))
	}
	named, counts, ok := policyItems(readable(policies))
	if !ok {
		return
	}
	for _, p := range named {
		r.joinPolicy(p)
	}
	if len(counts) > 0 {
		r.group("", "").policies = counts
	}
}

// readable returns the lines that may be read.
func readable(lines []string) (out []string) {
	for _, line := range lines[:min(len(lines), maxLines)] {
		if text, ok := clean(line); ok {
			out = append(out, text)
		}
	}
	return out
}

// limitItems reads RateLimit since draft -08: "name";r=50;t=30, …. Some servers write a Token, or no r.
func (r *reading) limitItems(lines []string) (buckets []Bucket, ok bool) {
	items, ok := parseList(lines)
	for _, item := range items {
		if !ok || !item.isNamed() {
			return nil, false
		}
		b := Bucket{Name: item.value.text}
		var t Maybe[int64]
		ok = item.integer("r", &b.Remaining) && item.integer("t", &t) && item.bytes("pk", &b.PartitionKey)
		if t.Known {
			b.Reset = number{whole: uint64(t.Value)}.moment(ByMagnitude, &r.clock).known()
		}
		buckets = append(buckets, b)
	}
	return buckets, ok
}

// policyItems reads RateLimit-Policy: since draft -08 "name";q=100;w=60, …, before it 100;w=60, ….
func policyItems(lines []string) (named []Bucket, counts []element, ok bool) {
	items, ok := parseList(lines)
	for _, item := range items {
		var window Maybe[int64]
		if !ok || !item.integer("w", &window) || (window.Known && window.Value == 0) {
			return nil, nil, false
		}
		w := number{whole: uint64(window.Value)}.delta(time.Second).known().only(window.Known)
		if item.value.kind == sfInteger && item.value.n >= 0 {
			counts = append(counts, element{count: count{n: item.value.n, ok: true}, window: w})
			continue
		}
		b := Bucket{Name: item.value.text, Window: w}
		ok = item.isNamed() && item.integer("q", &b.Limit) && b.Limit.Known && item.text("qu", &b.Unit) && item.bytes("pk", &b.PartitionKey)
		named = append(named, b)
	}
	return named, counts, ok
}

// joinPolicy adds a policy to the buckets of its name. One without a partition key is for every partition.
func (r *reading) joinPolicy(p Bucket) {
	joined := false
	for i := range r.structured {
		b := &r.structured[i]
		if b.Name == p.Name && (b.PartitionKey == p.PartitionKey || b.PartitionKey == "" || p.PartitionKey == "") {
			b.fill(p)
			joined = true
			if b.PartitionKey == "" {
				b.PartitionKey = p.PartitionKey
			}
		}
	}
	if !joined && len(r.structured) < maxTold {
		r.structured = append(r.structured, p)
	}
}

// readDraft07 reads limit=100, remaining=50, reset=5.
func (r *reading) readDraft07(lines []string) {
	members, ok := parseDictionary(lines)
	lists := map[string]list{}
	for _, m := range members {
		if m.key != "limit" && m.key != "remaining" && m.key != "reset" {
			continue
		}
		if !ok || m.value.kind != sfInteger || m.value.n < 0 {
			return
		}
		lists[m.key] = list{elements: []element{{
			count:  count{n: m.value.n, ok: true},
			moment: number{whole: uint64(m.value.n)}.moment(ByMagnitude, &r.clock),
		}}}
	}
	g := r.group("", "")
	g.put(RoleLimit, lists["limit"])
	g.put(RoleRemaining, lists["remaining"])
	g.put(RoleReset, lists["reset"])
}

func (it sfItem) isNamed() bool { return it.value.kind == sfString || it.value.kind == sfToken }

// integer, text and bytes read a parameter; false if it is there and not what it must be.
func (it sfItem) integer(key string, to *Maybe[int64]) bool {
	v, there := it.param(key)
	if !there {
		return true
	}
	*to = known(v.n)
	return v.kind == sfInteger && v.n >= 0
}

func (it sfItem) text(key string, to *string) bool {
	v, there := it.param(key)
	if there {
		*to = v.text
	}
	return !there || v.kind == sfString || v.kind == sfToken
}

func (it sfItem) bytes(key string, to *string) bool {
	v, there := it.param(key)
	if there {
		*to = v.text
	}
	return !there || v.kind == sfBytes
}
