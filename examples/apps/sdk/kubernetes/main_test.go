package main

import (
	"bytes"
	"regexp"
	"testing"
	"testing/synctest"

	"github.com/httpthrottle/throttle/throttletest"
)

// In the time of a bubble the 60 reads of one Limiter take five windows.
func TestClientsThatShareALimiterAreNotRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		if err := run(t.Context(), &out, throttletest.WithInMemory()); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			`a limit for each client +[1-9]\d* refused`, `one Limiter +0 refused +1\.2 s`, `\nOne Limiter for all clients: no request was refused\.\n$`,
		} {
			if !regexp.MustCompile(want).Match(out.Bytes()) {
				t.Errorf("no %s in:\n%s", want, &out)
			}
		}
	})
}

func TestOnSockets(t *testing.T) { // slow: the program in real time
	if err := run(t.Context(), new(bytes.Buffer)); err != nil {
		t.Error(err)
	}
}
