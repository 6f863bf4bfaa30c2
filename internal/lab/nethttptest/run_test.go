package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func ran(mode string, events ...event) *results {
	r := newResults(mode)
	for _, e := range events {
		r.add(e)
	}
	return r
}

func TestAPackageWithoutTestsIsNoticed(t *testing.T) {
	pass := event{Action: "pass", Package: "net/http", Test: "TestA"}
	sent := event{Action: "output", Package: "net/http", Output: "nethttptest: sent 5, of which 0 waited\n"}
	plain := ran("plain", pass)
	assert.NoError(t, ran("generous", pass, sent).isMissing(plain, "net/http"))
	assert.ErrorContains(t, ran("generous", pass, sent).isMissing(ran("plain"), "net/http"), "plain: net/http: no test ran")
	assert.ErrorContains(t, ran("generous", sent).isMissing(plain, "net/http"), "generous: net/http: no test ran")
	assert.ErrorContains(t, ran("generous", pass).isMissing(plain, "net/http"), "nothing went through")
}

func TestATestIsLostThoughItFailsNowAndThenByItself(t *testing.T) {
	a, b := event{Action: "pass", Package: "net/http", Test: "TestA"}, event{Action: "fail", Package: "net/http", Test: "TestB"}
	plain, r := ran("plain", a, b), ran("generous", event{Action: "fail", Package: "net/http", Test: "TestA"}, b)
	assert.Equal(t, []test{{"net/http", "TestA"}, {"net/http", "TestB"}}, r.lost(plain, "net/http"))
	assert.Empty(t, ran("generous", a, event{Action: "pass", Package: "net/http", Test: "TestB"}).lost(plain, "net/http"))
}

func TestATestThatPassesSeldomIsWorseThanOneThatPassesOften(t *testing.T) {
	for _, c := range []struct {
		n, m  int
		worse bool
	}{
		{100, 100, false}, {98, 100, false}, {92, 100, false}, {91, 100, true}, {0, 100, true}, {75, 90, false}, {70, 90, true}, {30, 60, true}, {50, 65, false}, {0, 17, true}, {40, 10, false},
	} {
		assert.Equal(t, c.worse, isWorse(c.n, c.m, 100), c)
	}
}

func TestWhatTheHookFindsIsAFault(t *testing.T) {
	r := ran("rejecting", event{Action: "output", Package: "net/http", Test: "TestA", Output: "nethttptest: fault: GET /: open\n"})
	assert.Len(t, r.faults, 1)
}
