package main

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"

	"golang.org/x/perf/benchfmt"
)

// measurements are all values of all benchmarks.
type measurements struct {
	values map[string][]float64
	config map[string]string
	order  map[string][]string // of the values of a dimension of a benchmark, as they came
	round  int                 // if it is not 0, only that value of each benchmark counts, where there are so many
}

// readMeasurements reads the format of Go benchmarks, where several runs follow each other.
func readMeasurements(r io.Reader) (*measurements, error) {
	m := &measurements{values: make(map[string][]float64), config: make(map[string]string), order: make(map[string][]string)}
	reader := benchfmt.NewReader(r, "raw")
	for reader.Scan() {
		result, ok := reader.Result().(*benchfmt.Result)
		if !ok {
			continue // a line that is none
		}
		bench, dims := dimensions(result.Name)
		for _, d := range dims {
			name, value, _ := strings.Cut(d, "=")
			if o := bench + "/" + name; !slices.Contains(m.order[o], value) {
				m.order[o] = append(m.order[o], value)
			}
		}
		for _, v := range result.Values {
			unit, x := v.Unit, v.Value
			if v.OrigUnit != "" {
				unit, x = v.OrigUnit, v.OrigValue
			}
			k := key(bench, unit, dims)
			m.values[k] = append(m.values[k], x)
		}
		for _, c := range result.Config {
			m.config[c.Key] = string(c.Value)
		}
	}
	if len(m.values) == 0 {
		return nil, errors.Join(errors.New("there is not a single measurement"), reader.Err())
	}
	return m, reader.Err()
}

// dimensions splits a name such as Request/impl=xtime-2.
func dimensions(n benchfmt.Name) (bench string, dims []string) {
	base, parts := n.Parts()
	cpu := "cpu=1"
	for _, p := range parts {
		if s := string(p); s[0] == '-' {
			cpu = "cpu=" + s[1:]
		} else {
			dims = append(dims, s[1:])
		}
	}
	return string(base), append(dims, cpu)
}

func key(bench, unit string, dims []string) string {
	dims = slices.Clone(dims)
	slices.Sort(dims)
	return fmt.Sprint(bench, " ", unit, " ", dims)
}

// median returns the median of what was measured for a benchmark with these dimensions, its processors among them.
func (m *measurements) median(bench, unit string, dims ...string) (float64, bool) {
	x := slices.Clone(m.values[key(bench, unit, dims)])
	switch {
	case len(x) == 0:
		return 0, false
	case m.round > 0 && m.round <= len(x):
		return x[m.round-1], true
	}
	slices.Sort(x)
	return (x[len(x)/2] + x[(len(x)-1)/2]) / 2, true
}

// rounds yields the measurements of each round.
func (m *measurements) rounds() iter.Seq[*measurements] {
	return func(yield func(*measurements) bool) {
		n := 0
		for _, x := range m.values {
			n = max(n, len(x))
		}
		for i := range n {
			one := *m
			if one.round = i + 1; !yield(&one) {
				return
			}
		}
	}
}
