package main

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/httpthrottle/throttle/examples/internal/exampletest"
	"github.com/httpthrottle/throttle/throttletest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBudgetIsSpentAndNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // begins at midnight UTC
		api := throttletest.Start(t, throttletest.WithInMemory(), throttletest.WithHandler(http.HandlerFunc(model)))
		time.Sleep(20 * time.Hour)
		var out bytes.Buffer
		require.NoError(t, spend(t.Context(), 1_000_000, api, &out))
		assert.Equal(t, want, out.String())
		for line := range strings.Lines(out.String()) {
			assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimRight(line, "\n")), 84, line)
		}
		assert.EqualValues(t, 58, api.Counts().Received, "rejected calls are not sent")
	})
}

const want = `A budget of $1.0000 a day.

call      at most         cost         left
   1      $0.0156      $0.0056      $0.9944
   7      $0.0388      $0.0138      $0.8760
  13      $0.0619      $0.0219      $0.7761
  19      $0.0161      $0.0061      $0.7022
  25      $0.0393      $0.0143      $0.5808
  31      $0.0609      $0.0209      $0.4824
  37      $0.0166      $0.0066      $0.4071
  43      $0.0383      $0.0133      $0.2857
  49      $0.0614      $0.0214      $0.1888

Warning: 81 % of the budget is spent after 49 calls.

  55      $0.0171      $0.0071      $0.1104

Rejected: call 59 may cost $0.0535, and $0.0405 is left.
The next budget begins in 4h0m0s.

58 calls cost $0.9595 of $1.0000; 2 more were rejected, and cost nothing.
`

func TestOnSockets(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-dollars", "0.3"}, &out))
	assert.Equal(t, 1, strings.Count(out.String(), "Warning: "))
	assert.Equal(t, 1, strings.Count(out.String(), "Rejected: "))
	assert.Regexp(t, `\n\d+ calls cost \$0\.\d{4} of \$0\.3000; \d+ more were rejected, and cost nothing\.\n$`, out.String())
}

func TestBadArguments(t *testing.T) {
	t.Parallel()
	exampletest.Program(run).RejectsArguments(t, "-dollars float", map[string]string{"-dollars 0": "-dollars 0", "-dollars NaN": "-dollars NaN", "-dollars x": `"x"`, "-what": "-what"})
}
