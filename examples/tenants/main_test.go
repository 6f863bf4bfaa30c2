package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle/examples/internal/exampletest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestGreedyTenantDelaysNoOther(t *testing.T) { // slow: the program in real time
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), nil, &out))
	assert.Contains(t, out.String(), "In order of arrival")
	assert.Contains(t, out.String(), "With FairBy")
	assert.Regexp(t, `The upstream refused 0 of 144 requests`, out.String())
	exampletest.AssertNarrow(t, out.String())
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// The same in the time of a bubble, where everything is exact.
func TestWaitsExactly(t *testing.T) {
	for fair, want := range map[bool]time.Duration{
		false: 1325 * time.Millisecond, // the first of them is behind all of acme's
		true:  50 * time.Millisecond,   // or they have the next two turns
	} {
		t.Run(fmt.Sprint("fair ", fair), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gateway, err := newGateway(roundTripper(func(*http.Request) (*http.Response, error) {
					return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
				}), "http://upstream", fair)
				require.NoError(t, err)
				took, err := load(t.Context(), 60, func(ctx context.Context, tenant string) error {
					r := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://gateway/", nil)
					r.Header.Set("X-Tenant", tenant)
					gateway.ServeHTTP(httptest.NewRecorder(), r)
					return nil
				})
				require.NoError(t, err)
				require.Len(t, took["acme"], 60)
				require.Equal(t, want, max(slices.Max(took["blue"]), slices.Max(took["coral"])))
			})
		})
	}
}

func TestBadArguments(t *testing.T) {
	t.Parallel()
	exampletest.Program(run).RejectsArguments(t, "-greedy int", map[string]string{
		"-greedy 0": "-greedy 0: must be from 1 to 1000",
		"-what":     "-what",
		"x":         `unexpected argument "x"`,
	})
}
