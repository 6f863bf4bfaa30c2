package main

import (
	"bytes"
	"regexp"
	"testing"
	"testing/synctest"

	"github.com/httpthrottle/throttle/throttletest"
)

// In the time of a bubble 48 messages take four windows.
func TestABotIsNotRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		if err := run(t.Context(), &out, throttletest.WithInMemory()); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			`without throttle +48 accepted +[1-9]\d* refused`, `with throttle +48 accepted +0 refused +1\.0 s`, `\nWith throttle no request was refused; .*\n.*\n$`,
		} {
			if !regexp.MustCompile(want).Match(out.Bytes()) {
				t.Errorf("no %s in:\n%s", want, &out)
			}
		}
	})
}

func TestOnSockets(t *testing.T) {
	if err := run(t.Context(), new(bytes.Buffer)); err != nil {
		t.Error(err)
	}
}
