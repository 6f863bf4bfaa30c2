package realserver

import (
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestReachedHeedsEveryFigure(t *testing.T) {
	bar := Bar{Clients: 2, Share: 90, Refused: 2, P50: 100 * time.Millisecond, Slower: 2.5, Jain: 0.98, Trend: 1.2}
	good := Result{Share: 90, Refused: 2, P50: 100 * time.Millisecond, Slower: 2.5, Jain: 0.98, Trend: 1.2}
	assert.True(t, bar.Reached(good, 0))
	for name, spoil := range map[string]func(*Result){
		"share":    func(r *Result) { r.Share = 89.9 },
		"refused":  func(r *Result) { r.Refused = 2.1 },
		"median":   func(r *Result) { r.P50 += time.Millisecond },
		"slower":   func(r *Result) { r.Slower = 2.51 },
		"fairness": func(r *Result) { r.Jain = 0.979 },
		"trend":    func(r *Result) { r.Trend = 1.21 },
	} {
		bad := good
		spoil(&bad)
		assert.False(t, bar.Reached(bad, 0), name)
		assert.True(t, bar.Reached(bad, 5), "%s, with a margin", name)
	}
	assert.True(t, Bar{Share: 90}.Reached(Result{Share: 91, Refused: 50, P50: time.Minute, Trend: 9}, 0), "what the bar does not name")
}

func TestMedianTakesEachFigureByItself(t *testing.T) {
	m := Median([]Result{{Share: 1, Refused: 30, P50: 2}, {Share: 3, Refused: 10, P50: 3}, {Share: 2, Refused: 20, P50: 1}})
	assert.Equal(t, Result{Share: 2, Refused: 20, P50: 2}, m)
}

func TestFairnessIsOneOnlyIfAllGetTheSame(t *testing.T) {
	assert.Equal(t, 1.0, jain([]float64{7, 7, 7}))
	assert.Equal(t, 0.25, jain([]float64{0, 0, 5, 0}))
	assert.InDelta(t, 0.9, jain([]float64{1, 2}), 1e-9)
}

func TestReachesFindsTheFirstTwoSecondsAtARate(t *testing.T) {
	r := &Recorder{}
	for i := range 10 { // one per second, then ten per second
		r.all = append(r.all, exchange{sent: time.Duration(i) * time.Second, status: http.StatusOK})
	}
	for i := range 50 {
		r.all = append(r.all, exchange{sent: 10*time.Second + time.Duration(i)*100*time.Millisecond, status: http.StatusOK},
			exchange{sent: time.Second, status: http.StatusTooManyRequests})
	}
	assert.Equal(t, 6*time.Second, r.Reaches(9, 4*time.Second))
	assert.Equal(t, time.Duration(0), r.Reaches(1, 4*time.Second))
	assert.Equal(t, time.Duration(math.MaxInt64), r.Reaches(20, 0))
}

// Every bar and every load names a server and a client that exist, else Named and ClientNamed panic.
func TestBarsNameServersAndClients(t *testing.T) {
	names := make(map[string]bool)
	for _, b := range Bars() {
		assert.False(t, names[b.String()], "%s is there twice", b)
		names[b.String()] = true
		assert.NotPanics(t, func() {
			Named(b.Spec)
			b.Load(b.Client)
			if b.Like != "" {
				b.Load(b.Like)
			}
		})
	}
	for name := range missed {
		assert.True(t, names[name], "no bar is called %q", name)
	}
}
