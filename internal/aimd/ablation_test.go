package aimd

import (
	"slices"
	"testing"
)

func byName(t *testing.T, name string) scenario {
	for _, g := range slices.Concat(goals, beyond, retryAfter()) {
		if g.name == name {
			return g.scenario
		}
	}
	for _, s := range slices.Concat(varied, unseen) {
		if s.name == name {
			return s
		}
	}
	t.Fatalf("no scenario %q", name)
	return scenario{}
}

// Each rule is switched off in a scenario that it is there for.
func TestControllerIsWorseWithoutAnyOfItsRules(t *testing.T) {
	type worse func(with, without figures) bool
	less := func(by float64) worse {
		return func(with, without figures) bool { return without.goodput <= with.goodput-by }
	}
	refused := func(times float64) worse {
		return func(with, without figures) bool { return without.refused >= with.refused*times }
	}
	unequal := func(by float64) worse {
		return func(with, without figures) bool { return without.jain <= with.jain-by }
	}
	slow := func(times float64) worse {
		return func(with, without figures) bool { return without.p99 >= with.p99*times }
	}
	for _, c := range []struct {
		rule, scenario string
		off            ablation
		worse          worse
	}{
		{"one cut per round", "100/s, round trip 1 s", ablation{round: true}, less(50)},
		{"one cut per event", "1.5 ms away: 200 per 2 s fixed", ablation{event: true}, less(3)},
		{"a mild cut", "token bucket, bare 429", ablation{mild: true}, less(5)},
		{"deeper cuts where one follows another", "200/s and 20/s in turn, 10 ms away", ablation{deeper: true}, refused(1.8)},
		{"a ceiling that stays where a window is closed", "all counted: 500 per 10 s, at most 60/s", ablation{closed: true}, less(20)},
		{"a climb that bends at the ceiling", "limit / 10 at 60 s, back at 180 s", ablation{curve: true}, less(30)},
		{"quick tests where refusals come below the ceiling", "20 clients on 40/s", ablation{crowd: true}, unequal(0.03)},
		{"a creep that falls with the rate", "2/s, burst 5", ablation{creep: true}, refused(3)},
		{"growth only while used", "load comes and goes", ablation{use: true}, refused(10)},
		{"Retry-After is a pause", "unseen: five clients share 600 per minute, Retry-After", ablation{pause: true}, refused(3)},
		{"hold", "Retry-After 50/s sliding, 1.5 ms, from twice", ablation{hold: true}, less(10)},
		{"half of the pause counts", "Retry-After 50/s sliding, 40 ms, from twice", ablation{part: true}, less(20)},
		{"toll", "token bucket, Retry-After", ablation{toll: true}, less(5)},
		{"quota", "60 per 60 s, all counted, 600 s", ablation{quota: true}, less(10)},
		{"dear", "300 per 10 s, bare 429", ablation{dear: true}, refused(3)},
		{"dear", "all counted: 500 per 10 s, from twice", ablation{dear: true}, refused(1.6)},
		{"error share", "nginx, 503 above burst 20", ablation{errors: true}, refused(50)},
		{"errors that stay are not load", "15 % random 503 at half load", ablation{verify: true}, less(30)},
		{"silence", "outage 60 to 90 s, fast 503", ablation{silence: true}, less(20)},
		{"bound in flight", "server stands still for 0.5 s every 9 s", ablation{inFlight: true}, less(10)},
		{"bound in flight", "10 servers lose nine tenths from 100 to 160 s", ablation{inFlight: true}, slow(1.3)},
	} {
		t.Run(c.rule+"/"+c.scenario, func(t *testing.T) {
			t.Parallel()
			s := byName(t, c.scenario)
			with, worst := s.runs(2, ablation{})
			s.report(t, with, worst)
			without, worst := s.runs(2, c.off)
			s.report(t, without, worst)
			if !c.worse(with, without) {
				t.Errorf("without %s it is no worse", c.rule)
			}
		})
	}
}
