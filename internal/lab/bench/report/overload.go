package main

import (
	"fmt"
	"math"
)

const (
	overloadHead = "## Overload\n"
	overloadNote = "Servers that respond late or with 5xx when they have too much to do, and never with a 429, in bubbles of `testing/synctest`: 128 callers that always " +
		"have another request, and wait 50 ms after a failure, for 180 s (2 s of service: 20 minutes). Each cell has the successes in percent of what the server can " +
		"serve (of what fails softly: of what never fails) / their median latency in ms / the responses that failed in percent, without the first third of the time " +
		"(2 s of service: the first fifth). No client knows anything of the server. Thresholds are `LatencyThreshold` 500 ms and `ErrorThreshold` .2."
)

var overloadImpls = []string{
	"bare", "throttle-rate", "throttle-flight", "throttle-both", "throttle-thresholds", "throttle-unavailable", "failsafe-adaptive", "gradient2", "vegas",
}

// A strained is what a client reached in a scene, in percent and ms.
type strained struct{ use, p50, failed float64 }

func strainedOf(m *measurements, scene, impl string) (s strained, ok bool) {
	ok = playedMedians(m, "Overload", scene, impl, map[string]*float64{"%use": &s.use, "p50-ms": &s.p50, "%failed": &s.failed})
	return s, ok
}

func (s strained) String() string {
	p50 := "–" // there was no success
	if s.use > 0 {
		p50 = number(math.Round(s.p50))
	}
	return fmt.Sprintf("%.0f / %s / %s", s.use, p50, ofAll(s.failed))
}

// beatsOurs reports whether s is better than each of ours in use, latency or failures, and pays for it with none of them.
func (s strained) beatsOurs(m *measurements, scene string) bool {
	for _, impl := range overloadImpls {
		ours, ok := strainedOf(m, scene, impl)
		use, p50, failed := s.use-ours.use, s.p50/ours.p50, s.failed-ours.failed
		if ok && isOurs(impl) && !(use > -2 && p50 < 1.1 && failed < 1 && (use > 2 || p50 < 1/1.1 || failed < -1)) {
			return false
		}
	}
	return true
}

// overloadSection is the section about servers that never refuse; "": none was measured.
func overloadSection(m *measurements) string {
	scenes := m.order["Overload/scene"]
	if len(scenes) == 0 {
		return ""
	}
	return fmt.Sprintf(overloadHead+"\n%s Medians of %s, %s.\n\n", overloadNote, m.config["m-scenes"], m.config["m-date"]) +
		playedTable(scenes, overloadImpls, labelsOf(overloadImpls),
			"Others are better than each of ours here by 2 points of use, a tenth of the latency or a point of failures, without more of the others:",
			func(scene, impl string) (reached, reason string) {
				s, ok := strainedOf(m, scene, impl)
				if !ok {
					return "", ""
				}
				if isPeer(impl) && s.beatsOurs(m, scene) {
					reason = fmt.Sprintf("%s %v. %s", label(impl), s, why("overload", spaced(scene)))
				}
				return s.String(), reason
			})
}
