package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strconv"
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

// A row is what the summary says of a run.
type row struct{ answered, throttled, costly, unsent int }

func rowOf(t *testing.T, out, name string) row {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + name + strings.Repeat(` +(\d+)`, 4) + ` +[\d.]+s$`).FindStringSubmatch(out)
	require.NotNil(t, m, "no row %q in:\n%s", name, out)
	var n [4]int
	for i := range n {
		var err error
		n[i], err = strconv.Atoi(m[i+1])
		require.NoError(t, err)
	}
	return row{n[0], n[1], n[2], n[3]}
}

// shown asserts what does not depend on time.
func shown(t *testing.T, out string) {
	t.Helper()
	before := rowOf(t, out, "without throttle")
	assert.Equal(t, 21, before.answered+before.throttled)
	assert.Equal(t, 3, before.costly)
	assert.Equal(t, row{answered: 21, unsent: 3}, rowOf(t, out, "with throttle"))
	for _, line := range []string{
		`0 +never sent +27601 +-  100 products \(25 variants \(10 prices\)\)`,
		`3 +\d\.\d\ds +441 +118  40 products \(10 variants\)`,
		`3 +\d\.\d\ds +751 +175  30 orders \(8 lineItems \(2 discounts\)\)`,
		`3 +\d\.\d\ds +589 +76  12 collections \(12 products \(3 images\)\)`,
		`3 +\d\.\d\ds +351 +117  25 customers \(3 addresses, 10 orders\)`,
		`3 +\d\.\d\ds +21 +21  20 customers`,
		`Estimates were 8769 points, costs 1977: uncorrected, it takes at least`,
	} {
		assert.Len(t, regexp.MustCompile(`(?m)`+line).FindAllString(out, -1), 1, line)
	}
	assert.LessOrEqual(t, strings.Count(out, "\n"), 24, "one screen")
	for line := range strings.Lines(out) {
		assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimRight(line, "\n")), 84, line)
	}
}

// In the time of a bubble, which nothing disturbs. There is a leak if the bubble does not end.
func TestThrottledBeforeAndNotAfter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, err := parseArgs(nil, io.Discard)
		require.NoError(t, err)
		c.api = []throttletest.Option{throttletest.WithInMemory()}
		var out bytes.Buffer
		start := time.Now()
		require.NoError(t, compare(t.Context(), c, &out))
		shown(t, out.String())
		exampletest.AssertNarrow(t, out.String())
		assert.GreaterOrEqual(t, rowOf(t, out.String(), "without throttle").throttled, 10)
		assert.Less(t, time.Since(start), 5*time.Second, "uncorrected, it would take more than 15")
	})
}

// On sockets, with a margin for a machine that has other things to do.
func TestOnSockets(t *testing.T) { // slow: the program in real time
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-margin", "400ms"}, &out))
	if exampletest.NoneRefused(t, rowOf(t, out.String(), "with throttle").throttled) {
		shown(t, out.String())
	}
}

func TestAQueryCostsWhatItAsksForAtMost(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]int64{
		"":                        1,
		"{ shop { name } }":       1,
		"{ products(first: 40) }": 41,
		"{ products ( after: \"x\", first:3 ) { nodes { id } } shop { name } orders(first: 2) { nodes { id } } }": 6,
		"{ a(first: 2) { nodes { b(first: 3) { nodes { id } } c(first: 4) { nodes { id } } } } }":                 17,
		"query q { a(first: 2) { nodes { b { c(first: 5) { nodes { id } } } } } }":                                13,
		"} } { a(first: 0) { b(first: 9) } }":                                                                     1,
		"{ a(first: 99999999999) { b(first: 99999999999) { c(first: 99999999999) } } }":                           1 << 31,
	} {
		assert.Equal(t, want, parse(query).most(), query)
	}
}

func TestTheEstimateOfARequestNeedsItsQuery(t *testing.T) {
	t.Parallel()
	const query = `{"query":"{ products(first: 9) }"}`
	for want, body := range map[int64]io.Reader{
		10: strings.NewReader(query), 1: io.MultiReader(strings.NewReader(query)), // which can't be read twice
	} {
		r, err := http.NewRequest(http.MethodPost, "http://api.test/", body)
		require.NoError(t, err)
		assert.Equal(t, want, estimate(r))
	}
}

// A shop takes what a query may cost, and gives back what it did not.
func TestAShop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := throttletest.Start(t, throttletest.WithInMemory(), throttletest.WithHandler(newShop()))
		post := func(query string) (code string, actual *int64, left int64) {
			a := struct {
				Errors     []struct{ Extensions struct{ Code string } }
				Extensions struct {
					Cost struct {
						ActualQueryCost *int64
						ThrottleStatus  struct{ MaximumAvailable, CurrentlyAvailable, RestoreRate int64 }
					}
				}
			}{}
			body, err := json.Marshal(map[string]string{"query": query})
			require.NoError(t, err)
			resp, err := api.Client().Post(api.URL, "application/json", bytes.NewReader(body))
			require.NoError(t, err)
			defer resp.Body.Close()
			require.NoError(t, json.NewDecoder(resp.Body).Decode(&a))
			if len(a.Errors) > 0 {
				code = a.Errors[0].Extensions.Code
			}
			status := a.Extensions.Cost.ThrottleStatus
			assert.EqualValues(t, 1000, status.MaximumAvailable)
			assert.EqualValues(t, 500, status.RestoreRate)
			return code, a.Extensions.Cost.ActualQueryCost, status.CurrentlyAvailable
		}
		go post("{ products(first: 30) { images(first: 20) } }") // 631 while it is served, for 38.2 ms
		synctest.Wait()
		code, actual, left := post("{ products(first: 30) { images(first: 20) } }")
		assert.Equal(t, "THROTTLED", code)
		assert.Nil(t, actual)
		assert.EqualValues(t, 369, left)
		code, _, left = post("{ products(first: 1000) }")
		assert.Equal(t, "MAX_COST_EXCEEDED", code)
		assert.EqualValues(t, 369, left)
		time.Sleep(2 * time.Second)
		code, actual, left = post("{ products(first: 50) }")
		assert.Empty(t, code)
		assert.EqualValues(t, 41, *actual, "there are no more")
		assert.EqualValues(t, 973, left, "of 949, 14 came in during 28.2 ms, and 10 were too much")
	})
}

func TestAFailureEndsIt(t *testing.T) {
	t.Parallel()
	c := config{queries: 9, workers: 2, api: []throttletest.Option{
		throttletest.WithFaults(throttletest.Respond(http.StatusTeapot, nil).OnRequests(3)),
	}}
	assert.ErrorContains(t, compare(t.Context(), c, io.Discard), "418 I'm a teapot")
}

func TestInterrupted(t *testing.T) {
	t.Parallel()
	exampletest.Program(run).Interrupted(t, 200*time.Millisecond) // while the Transport waits for points
}

func TestBadArguments(t *testing.T) {
	t.Parallel()
	exampletest.Program(run).RejectsArguments(t, "-margin duration", map[string]string{
		"-queries 0":    "-queries 0",
		"-workers -1":   "-workers -1",
		"-margin 2s":    "-margin 2s",
		"-margin -1ms":  "-margin -1ms",
		"-queries many": `invalid value "many" for flag -queries`,
		"-what":         "-what",
		"now":           `unexpected argument "now"`,
	})
}
