//go:build !race

package main

import (
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle/throttletest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// In whatever manner a vendor counts, the program of docs/llm.md gets nearly all of it, and is hardly refused.
func TestTheProgramFitsAllVendors(t *testing.T) {
	all := vendors()
	if testing.Short() {
		all = all[1:3] // one that settles, and one with windows
	}
	for _, v := range all {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := meet(&v, func(opts ...throttletest.Option) (*throttletest.Server, http.RoundTripper) {
					server := throttletest.Start(t, append(opts, throttletest.WithInMemory())...)
					return server, server.Transport()
				}, 2*time.Minute-time.Second)
				t.Log(r)
				require.NoError(t, r.failed)
				assert.GreaterOrEqual(t, r.used, 0.9)
				assert.LessOrEqual(t, r.refusedShare(), 0.01)
				assert.Less(t, r.other, time.Second, "each model is counted by itself")
			})
		})
	}
}

// The program is that of the page, except for its key and its constant.
func TestTheProgramIsThatOfThePage(t *testing.T) {
	page, err := os.ReadFile("../../../docs/llm.md")
	require.NoError(t, err)
	_, program, ok := strings.Cut(string(page), "```go\n")
	require.True(t, ok)
	program, _, _ = strings.Cut(program, "```")
	source, err := os.ReadFile("client.go")
	require.NoError(t, err)
	for line := range strings.Lines(program) {
		line = strings.TrimSpace(line)
		line, _, _ = strings.Cut(line, "throttle.New(nil")
		line = strings.TrimPrefix(line, "transport, err := ")
		line = strings.ReplaceAll(line, "ServerQuota(unit, throttle.Cost(cost), throttle.SettleJSON(paths))", "ServerQuota(unit, append(key, throttle.Cost(cost), throttle.SettleJSON(paths))...)")
		line = strings.ReplaceAll(line, "return 1000 }                 // max_tokens", "return maxTokens }")
		assert.Contains(t, string(source), line)
	}
}
