package main

import (
	"fmt"
	"strings"
)

// A gain is what a user has of the library, in one sentence with figures. It is left out where one of them is missing.
type gain struct {
	text    string // with %s for each figure
	figures []func(*measurements) (float64, bool)
}

func gains() []gain {
	line := func(i int, impl string) func(*measurements) (float64, bool) {
		return func(m *measurements) (float64, bool) { return lineTable().columns[i].value(m, impl) }
	}
	adapted := func(impl, unit string) func(*measurements) (float64, bool) {
		return func(m *measurements) (float64, bool) { return inScene(m, "token_bucket,_bare_429", impl, unit) }
	}
	loopback := query{"Loopback", "%ofBare", append(goroutinesOn(1, 2), "protocol=http1", "impl=throttle")}
	waiter := query{"Waiters", "B/waiter", []string{"n=100000", "cpu=2", "impl=throttle"}}
	type figures = []func(*measurements) (float64, bool)
	return []gain{
		{"A request that need not wait costs **%s ns** in one limit, and allocates nothing. The usual wrapper of ten lines around x/time/rate costs " +
			"%s ns, and failsafe-go %s ns.", figures{requestOf("throttle", 1, 1).of, requestOf("xtime", 1, 1).of, requestOf("failsafe", 1, 1).of}},
		{"An HTTP/1.1 request over a loopback socket takes **%s %%** of the time that it takes without limits.", figures{loopback.of}},
		{"Of 1,000 waiting requests, half are cancelled. The others are served in the time that they need (**%s %%** of the ideal). With x/time/rate " +
			"they still wait for the cancelled ones (%s %%).", figures{line(0, "throttle"), line(0, "xtime")}},
		{"While 1,000 requests wait, the rate is raised from 10 to 1,000 per second. In the next 0.4 s, **%s %%** of what the new rate allows is sent. " +
			"With x/time/rate it is %s %%, because waiting requests keep the instants of the old rate.", figures{line(1, "throttle"), line(1, "xtime")}},
		{"A limit that the client does not know is found: an adaptive limit gets **%s %%** of it, with %s %% of the requests refused. The adaptive mode " +
			"of the AWS SDK gets %s %% of it.", figures{adapted("throttle", "%goodput"), adapted("throttle", "%refused"), adapted("aws", "%goodput")}},
		{"A waiting request takes **%s bytes**, with the stack of its goroutine.", figures{waiter.of}},
	}
}

func renderGains(m *measurements, b *strings.Builder) {
	b.WriteString("## What a user gains\n\n")
	for _, g := range gains() {
		var values []any
		for _, figure := range g.figures {
			if x, ok := figure(m); ok {
				values = append(values, number(x))
			}
		}
		if len(values) == len(g.figures) {
			fmt.Fprintf(b, "- "+g.text+"\n", values...)
		}
	}
	b.WriteString("\n")
}
