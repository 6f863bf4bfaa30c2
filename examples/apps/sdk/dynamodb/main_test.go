package main

import (
	"bytes"
	"regexp"
	"testing"
	"testing/synctest"

	"github.com/httpthrottle/throttle/throttletest"
)

func TestTheSDKKnowsAShapedRejection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		if err := run(t.Context(), &out, throttletest.WithInMemory()); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			`it waits +the item +1 +1\.0s`, `plain 429 +UnknownError +1 +0\.0s`, `an error +throttle.ErrThrottled +3 `,
			`as DynamoDB sends +ThrottlingException +3 `, `\nLet requests wait\. .*\n.*\n$`,
		} {
			if !regexp.MustCompile(want).Match(out.Bytes()) {
				t.Errorf("no %s in:\n%s", want, &out)
			}
		}
	})
}
