//go:build !race

package apart

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/headers"
)

var (
	seed  = flag.Uint64("seed", 0, "the only world to be played")
	seeds = flag.Uint64("seeds", 0, "how many worlds to play")
	only  = flag.String("client", "", "the only client")
	trace = flag.Int("print", -1, "the quota whose requests are printed, when it is played alone") // go test has a flag -trace
)

// clients are what is played in each world.
var clients = map[string]func(w *world) []throttle.Option{
	"hints":    func(*world) []throttle.Option { return nil },
	"presets":  func(*world) []throttle.Option { return []throttle.Option{throttle.WithServerHints(headers.Auto)} },
	"adaptive": func(*world) []throttle.Option { return []throttle.Option{throttle.WithAdaptive()} },
	"own limit": func(w *world) []throttle.Option { // what all may send together, and a fifth
		rate := 0.0
		for _, q := range w.quotas {
			rate += float64(q.limit) / q.window.Seconds()
		}
		return []throttle.Option{throttle.WithLimit(throttle.TokenBucket(int64(1.2*rate*60)+1, time.Minute, throttle.Burst(20)))}
	},
}

// A got is what one quota got.
type got struct {
	sent, accepted, refused int // after its second window
	early                   int // sent before the wait that was asked for had ended
	rows                    int // the most refusals of a window after the second
	late                    int // refused after its tenth window
	windows, lateWindows    float64
	most                    float64
}

func (g got) use() float64   { return min(1, float64(g.accepted)/g.most) }
func (g got) share() float64 { return float64(g.refused) / max(1, float64(g.sent)) }

type kindKey struct{}

// play returns what the quotas get from a client; alone: only that one sends requests.
func play(t *testing.T, w *world, opts []throttle.Option, alone int) (all []got) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var mu sync.Mutex
		all = make([]got, len(w.quotas))
		until := make([]time.Time, len(w.quotas))
		refusals := make([]map[int64]int, len(w.quotas))
		var counters []*counter
		for i, q := range w.quotas {
			counters = append(counters, &counter{counted: q, start: start.Add(-q.window / 3)})
			refusals[i] = map[int64]int{}
			all[i].windows = (w.span - 2*q.window).Seconds() / q.window.Seconds()
			all[i].lateWindows = max(0, (w.span-10*q.window).Seconds()/q.window.Seconds())
			all[i].most = float64(q.limit) * all[i].windows
		}
		r := rand.New(rand.NewPCG(w.seed, 7))
		jitter := func(d time.Duration) time.Duration {
			mu.Lock()
			defer mu.Unlock()
			return time.Duration(float64(d) * (.8 + .4*r.Float64()) / 2)
		}
		serve := func(req *http.Request) (*http.Response, error) {
			k := req.Context().Value(kindKey{}).(int)
			q, g := w.quotas[k], &all[k]
			sent := time.Now()
			counts := sent.Sub(start) >= 2*q.window
			mu.Lock()
			if counts && sent.Before(until[k].Add(-time.Second)) {
				g.early++
			}
			mu.Unlock()
			time.Sleep(jitter(q.latency))
			mu.Lock()
			now := time.Now()
			left, end, ok := counters[k].take(now)
			status, h := 200, http.Header{}
			wait := w.report(h, q, left, end, now, ok)
			if counts {
				g.sent++
				if ok {
					g.accepted++
				} else {
					g.refused++
				}
			}
			if !ok && sent.Sub(start) >= 10*q.window {
				g.late++
			}
			if !ok {
				status = 429
				if counts {
					at := int64(now.Sub(counters[k].start) / q.window)
					refusals[k][at]++
					g.rows = max(g.rows, refusals[k][at])
				}
			}
			if *trace == k && alone == k {
				fmt.Printf("sent at %.3f s, counted at %.3f s, accepted %v, %d left, wait %v\n", sent.Sub(start).Seconds(), now.Sub(start).Seconds(), ok, left, wait)
			}
			mu.Unlock()
			time.Sleep(jitter(q.latency))
			if wait > 0 {
				mu.Lock()
				until[k] = now.Add(wait)
				mu.Unlock()
			}
			return &http.Response{StatusCode: status, Header: h, Body: http.NoBody, Request: req, ProtoMajor: 1, ProtoMinor: 1}, nil
		}
		tr := throttle.Must(throttle.New(trip(serve), opts...))
		ctx, cancel := context.WithTimeout(t.Context(), w.span)
		defer cancel()
		var wg sync.WaitGroup
		for k, q := range w.quotas {
			if alone >= 0 && k != alone {
				continue
			}
			for c := range q.callers {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(w.seed, uint64(100*k+c)))
					time.Sleep(time.Duration(r.Int64N(int64(time.Second))))
					for ctx.Err() == nil {
						req := w.request(context.WithValue(ctx, kindKey{}, k), q, r)
						resp, err := tr.RoundTrip(req)
						if err != nil {
							return
						}
						resp.Body.Close()
					}
				})
			}
		}
		wg.Wait()
	})
	return all
}

type trip func(*http.Request) (*http.Response, error)

func (f trip) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		defer r.Body.Close()
	}
	return f(r)
}

// A mean is of all worlds.
type mean struct{ use, refused, alone, other, early, rows, window, late, lateWindows, n, quotas float64 }

// A kind is a kind of server: how it counts, and how it refuses.
type kind struct{ counts, refuses string }

// A sum is of all quotas of a kind.
type sum struct{ n, use, refused, window, alone float64 }

// print writes a line for each kind.
func print(t *testing.T, of map[kind]*sum) {
	for _, c := range []string{"fixed", "sliding", "bucket"} {
		for _, r := range refusals {
			if s := of[kind{c, r}]; s != nil {
				t.Logf("TABLE %-7s %-11s %2.0f quotas: used %.1f %%, refused %.2f %%, %.2f in a window; alone %.2f %%", c, r, s.n, 100*s.use/s.n, 100*s.refused/s.n, s.window/s.n, 100*s.alone/s.n)
			}
		}
	}
}

// Each quota gets what it would get alone.
func TestQuotas(t *testing.T) { // slow: 7 worlds of each client
	first, last := uint64(1), uint64(7) // 20 take minutes
	if *seeds > 0 {
		last = *seeds
	}
	if *seed > 0 {
		first, last = *seed, *seed
	}
	names := []string{"hints", "presets", "adaptive", "own limit"}
	if testing.Short() { // adaptive clients need more worlds, because all of their requests share one learned rate
		names = []string{"hints", "presets", "own limit"}
	}
	for _, client := range names {
		if *only != "" && *only != client {
			continue
		}
		t.Run(client, func(t *testing.T) {
			var m mean
			kinds := map[kind]*sum{}
			for seed := first; seed <= last; seed++ {
				w := draw(seed)
				all := play(t, w, clients[client](w), -1)
				var line strings.Builder
				line.WriteString(w.String())
				for k, g := range all {
					alone := play(t, w, clients[client](w), k)[k]
					m.quotas++
					m.early += float64(g.early)
					assert.Zero(t, g.early, "of quota %d of seed %d, sent early", k, seed)
					m.rows = max(m.rows, float64(g.rows))
					m.window += float64(g.refused) / g.windows
					m.late += float64(g.late)
					m.lateWindows += g.lateWindows
					of := kind{w.quotas[k].kind, w.refuse}
					if kinds[of] == nil {
						kinds[of] = new(sum)
					}
					s := kinds[of]
					*s = sum{s.n + 1, s.use + g.use(), s.refused + g.share(), s.window + float64(g.refused)/g.windows, s.alone + alone.share()}
					line.WriteString(fmt.Sprintf("\n  %d: used %.1f %%, refused %.1f %%, %d in one window, %d early; alone %.1f %%, %.1f %%, %d, %d", k, 100*g.use(), 100*g.share(), g.rows, g.early, 100*alone.use(), 100*alone.share(), alone.rows, alone.early))
					if k == 0 {
						m.use += g.use()
						m.refused += g.share()
						m.alone += alone.share()
					} else {
						m.other += min(1, g.use()/max(alone.use(), .01)) / float64(len(all)-1)
					}
				}
				m.n++
				t.Log(line.String())
			}
			t.Logf("TABLE %s: small used %.1f %%, refused %.1f %% (alone %.1f), others %.1f %% of alone, %.1f sent early, %.2f refused in a window, at most %v, %.2f after ten", client, 100*m.use/m.n, 100*m.refused/m.n, 100*m.alone/m.n, 100*m.other/m.n, m.early/m.quotas, m.window/m.quotas, m.rows, m.late/max(1, m.lateWindows))
			print(t, kinds)
			if *seed > 0 {
				return
			}
			use, least := .85, .95
			if client == "adaptive" { // one rate is learned for all parts: of these worlds 91 and 92 % in the mean, with standard deviations of 1.6 and 3.6
				use, least = .8, .75
			}
			assert.GreaterOrEqual(t, m.use/m.n, use)
			assert.LessOrEqual(t, m.refused/m.n, .03)
			assert.LessOrEqual(t, m.window/m.quotas, 1.4, "refused in a window") // .86 in the mean of these worlds, with a standard deviation of .12
			assert.LessOrEqual(t, m.late, m.lateWindows, "refused after ten windows: more than one in each")
			assert.GreaterOrEqual(t, m.other/m.n, least)
		})
	}
}

// A deployment changes by what the server counts: what was counted separately is counted together, or the other way round. The client notices, and
// each quota is used again, with few refusals.
func TestADeploymentChangesWhatIsCountedTogether(t *testing.T) {
	first, last := uint64(1), uint64(10)
	if *seeds > 0 {
		last = *seeds
	}
	if *seed > 0 {
		first, last = *seed, *seed
	}
	var use, share [2]float64
	n := float64(last - first + 1)
	for seed := first; seed <= last; seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 41))
				window := time.Duration(2+r.IntN(28)) * time.Second
				by := dimensions[r.IntN(len(dimensions))]
				w := &world{host: "api.example", naming: "plain", refuse: refusals[r.IntN(len(refusals))], span: 24 * window}
				small, large := int64(20+r.IntN(80)), int64(150+r.IntN(600))
				quotaOf := func(limit int64, kind string) *counter {
					return &counter{counted: &counted{limit: limit, window: window, kind: kind}, start: time.Now()}
				}
				kind := counts[r.IntN(len(counts))]
				apart := []*counter{quotaOf(small, kind), quotaOf(large, kind)}
				together := quotaOf(small+large, kind)
				before, after := apart, []*counter{together, together}
				if seed%2 == 0 {
					before, after = after, before
				}
				begun, change := time.Now(), 12*window
				var mu sync.Mutex
				var sent, refused, accepted [2]float64 // of all quotas in the last six windows before the change, and of the last six
				serve := func(req *http.Request) (*http.Response, error) {
					time.Sleep(25 * time.Millisecond)
					mu.Lock()
					defer mu.Unlock()
					k, now := req.Context().Value(kindKey{}).(int), time.Now()
					phase, of := 0, before
					if now.Sub(begun) >= change {
						phase, of = 1, after
					}
					left, end, ok := of[k].take(now)
					status, h := 200, http.Header{}
					w.report(h, of[k].counted, left, end, now, ok)
					if !ok {
						status = 429
					}
					if now.Sub(begun) >= time.Duration(6+12*phase)*window {
						sent[phase]++
						if ok {
							accepted[phase]++
						} else {
							refused[phase]++
						}
					}
					return &http.Response{StatusCode: status, Header: h, Body: http.NoBody, Request: req, ProtoMajor: 1, ProtoMinor: 1}, nil
				}
				tr := throttle.Must(throttle.New(trip(serve)))
				ctx, cancel := context.WithTimeout(t.Context(), w.span)
				defer cancel()
				var wg sync.WaitGroup
				for k := range 2 {
					for range 12 {
						wg.Go(func() {
							r := rand.New(rand.NewPCG(seed, uint64(k)))
							for ctx.Err() == nil {
								req := w.request(context.WithValue(ctx, kindKey{}, k), &counted{trait: map[string]string{by: fmt.Sprint(k)}}, r)
								resp, err := tr.RoundTrip(req)
								if err != nil {
									return
								}
								resp.Body.Close()
							}
						})
					}
				}
				wg.Wait()
				for phase, of := range []string{"before", "after"} {
					used := accepted[phase] / (6 * float64(small+large))
					t.Logf("%s: %s, %d and %d per %v, by %s, refuses with %s: used %.1f %%, refused %.1f %%", of, kind, small, large, window, by, w.refuse, 100*used, 100*refused[phase]/sent[phase])
					use[phase] += used / n
					share[phase] += refused[phase] / sent[phase] / n
					assert.GreaterOrEqual(t, used, .7, of) // of one world, which chance moves: its standard deviation is up to .06
					assert.LessOrEqual(t, refused[phase]/sent[phase], .05, of)
				}
			})
		})
	}
	assert.GreaterOrEqual(t, use[0], .95, "used before the change")
	assert.GreaterOrEqual(t, use[1], .95, "used after the change")
	assert.LessOrEqual(t, share[0], .02, "refused before the change")
	assert.LessOrEqual(t, share[1], .02, "refused after the change")
}
