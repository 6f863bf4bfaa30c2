package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
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

func TestLocalHosts(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), nil, &out))
	if !exampletest.NoneRefused(t, refused(t, out.String())) {
		return
	}

	for _, want := range []string{
		`line 12: "htp://blog.test/typo": want http://HOST`,
		`line 17: "http://blog.test:port/": invalid port`,
		`line 23: "archive.test/2002": want http://HOST`,
		"http://blog.test/missing: 404 Not Found",
		"saw 19 requests",
	} {
		assert.Contains(t, out.String(), want)
	}
	assert.Regexp(t, `(?m)^news.test +10 +0 +250ms `, out.String())
	assert.Regexp(t, `(?m)^archive.test +4 +0 +900ms `, out.String())
	assert.Regexp(t, `(?m)^blog.test +4 +1 +400ms `, out.String())
	for line := range strings.Lines(out.String()) {
		assert.LessOrEqual(t, utf8.RuneCountInString(line), 80, line)
	}
}

// refused returns how many requests the hosts refused.
func refused(t *testing.T, out string) int {
	t.Helper()
	m := regexp.MustCompile(`requests and refused (\d+)`).FindStringSubmatch(out)
	require.NotNil(t, m, out)
	n, err := strconv.Atoi(m[1])
	require.NoError(t, err)
	return n
}

// In the time of a bubble every gap is exact, and each host is as fast as if it were alone.
func TestHostsDoNotDelayEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := throttletest.Start(t, throttletest.WithInMemory(),
			throttletest.WithKey(func(r *http.Request) string { return r.Host }),
			throttletest.WithServiceTime(throttletest.Constant(30*time.Millisecond)))
		urls, faults := readURLs(localURLs)
		require.Len(t, faults, 3)
		c := config{delay: 100 * time.Millisecond, delays: map[string]time.Duration{"archive.test": time.Hour}}
		visits, err := crawl(t.Context(), api.Transport(), c, urls)
		require.NoError(t, err)

		byHost := map[string][]visit{}
		for _, v := range visits {
			require.NoError(t, v.err)
			byHost[hostOf(v.url)] = append(byHost[hostOf(v.url)], v)
		}
		// A window waits for the response: for all of the first one, and for no more than a twentieth of its length after that.
		const first, short = 130 * time.Millisecond, 105 * time.Millisecond
		assert.Equal(t, hostSummary{fetched: 10, gap: short, last: first + 8*short}, summarize(byHost["news.test"]))
		assert.Equal(t, hostSummary{fetched: 5, gap: short, last: first + 3*short}, summarize(byHost["blog.test"]))
		const long = time.Hour + 30*time.Millisecond
		assert.Equal(t, hostSummary{fetched: 4, gap: long, last: 3 * long}, summarize(byHost["archive.test"]))
	})
}

func TestURLsFromAFile(t *testing.T) {
	t.Parallel()
	api := throttletest.Start(t, throttletest.WithLimits(throttletest.SlidingWindow(3, 300*time.Millisecond)))
	host := strings.TrimPrefix(api.URL, "http://")
	file := filepath.Join(t.TempDir(), "urls")
	text := "# mine\r\n\r\n" + strings.Repeat(api.URL+"/page\r\n", 4) + "http://%zz/\n" + api.URL
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))

	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"-urls", file, "-delay", "5h", "-delay", host + "=250ms"}, &out))
	if !exampletest.NoneRefused(t, int(api.Counts().Refused)) {
		return
	}
	assert.Contains(t, out.String(), file+", skipped:\n  line 7: \"http://%zz/\": invalid URL escape")
	assert.Regexp(t, `(?m)^`+regexp.QuoteMeta(host)+` +5 +0 +250ms `, out.String())
	assert.EqualValues(t, 5, api.Counts().Accepted)
}

func TestBadFiles(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "missing")
	assert.ErrorIs(t, run(t.Context(), []string{"-urls", missing}, io.Discard), os.ErrNotExist)

	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, []byte("# nothing\n\n"), 0o600))
	assert.ErrorContains(t, run(t.Context(), []string{"-urls", empty}, io.Discard), empty+": no URL to fetch")
}

func TestInterrupted(t *testing.T) {
	t.Parallel()
	out := exampletest.Program(run).Interrupted(t, 100*time.Millisecond)
	assert.Regexp(t, `(?m)^archive.test +\d +[34] `, out, "what was done is reported")
}

func TestSummary(t *testing.T) {
	t.Parallel()
	u := &url.URL{Scheme: "http", Host: "a.test"}
	never := visit{url: u, sent: -1, err: context.Canceled}
	assert.Equal(t, "-", summarize([]visit{never, {url: u, sent: 5}, never}).gapString())
	s := summarize([]visit{{url: u, sent: 5 * time.Second}, never, {url: u}, {url: u, sent: 2 * time.Second}})
	assert.Equal(t, hostSummary{fetched: 3, failed: 1, gap: 2 * time.Second, last: 5 * time.Second}, s)
}

func TestBadArguments(t *testing.T) {
	t.Parallel()
	exampletest.Program(run).RejectsArguments(t, "-delay DURATION", map[string]string{
		"-delay -1s":            "must be positive",
		"-delay soon":           `invalid duration "soon"`,
		"-delay example.com=0s": "must be positive",
		"-delay =1s":            "want HOST=DURATION",
		"-what":                 "-what",
		"urls.txt":              `unexpected argument "urls.txt"`,
	})
}
