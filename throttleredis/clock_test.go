package throttleredis

import (
	"net"
	"testing"
	"time"

	"github.com/httpthrottle/throttle/store"
)

func TestClockShowsHowMuchEarlierAResponseCouldHaveArrived(t *testing.T) {
	const redis = 1_000_000_000 // more than ours
	var c clock
	for _, test := range []struct {
		what               string
		now, sent, arrived int64
		early              int64
	}{
		{"the first response", redis + 1_050, 1_000, 1_100, 0},
		{"slower by 200", redis + 2_050, 2_000, 2_300, 199}, // and 1 for what the clocks may have drifted
		{"as quick", redis + 3_050, 3_000, 3_100, 0},
		{"slow on the way there", redis + 4_950, 4_000, 5_000, 0},
		{"quicker than all before", redis + 6_010, 6_000, 6_020, 0},
		{"slower by 90", redis + 7_010, 7_000, 7_110, 89},
		{"Redis's clock jumped ahead", redis + 50_000 + 8_050, 8_000, 8_100, 0},
		{"slower by 100", redis + 50_000 + 9_050, 9_000, 9_200, 99},
		{"Redis's clock was set back", redis + 10_050, 10_000, 10_100, 0},
		{"slower by 100", redis + 11_050, 11_000, 11_200, 99},
		{"after a second", redis + 1_011_050, 1_011_000, 1_012_100, 0}, // 1 ms of drift
	} {
		if early := c.responded(test.now, test.sent, test.arrived); early != test.early {
			t.Errorf("%s: %d µs early, want %d", test.what, early, test.early)
		}
	}
}

// delayedAfter delays the response.
func delayedAfter(d time.Duration) fault {
	return func(p *proxy, request []byte, client, server net.Conn) bool {
		response, ok := p.forward(request, server)
		time.Sleep(d)
		_, err := client.Write(response)
		return ok && err == nil
	}
}

func TestPromisedTokenIsDueByRedissClockHoweverLongTheResponseTook(t *testing.T) { // slow: it takes seconds of real time
	t.Parallel()
	p, c := startProxy(t, start(t))
	st := newStore(t, c)
	b := store.Budget{Kind: store.Pace, Limit: "l", Key: "k", N: 1, Per: time.Minute}
	lease1(t, st, store.Part{Budget: b}) // from here on, Redis's clock is known
	sent := time.Now()
	lease1(t, st, store.Part{Budget: b, Need: 1})
	had := time.Now()
	p.inject(delayedAfter(3 * time.Second)) // far more than a busy machine delays both earlier calls
	next := lease1(t, st, store.Part{Budget: b, Need: 1, Horizon: time.Minute, Within: time.Hour}).Next
	due := time.Now().Add(next)
	if least := sent.Add(time.Minute); due.Before(least) {
		t.Errorf("due %v too early", least.Sub(due))
	}
	if most := had.Add(time.Minute + 2*time.Second); due.After(most) {
		t.Errorf("due %v too late", due.Sub(most))
	}
}
