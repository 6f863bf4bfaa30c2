package main

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/httpthrottle/throttle/throttletest"
)

func TestNoRequestIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		if err := run(t.Context(), &out, throttletest.WithInMemory()); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(out.String(), "golang/repository-"); n != 12 {
			t.Errorf("%d repositories in:\n%s", n, &out)
		}
		if !regexp.MustCompile(`\n[1-9]\d* of 12 requests waited, and the API refused 0\.\n$`).Match(out.Bytes()) {
			t.Errorf("a wrong end of:\n%s", &out)
		}
	})
}
