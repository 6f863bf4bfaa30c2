package sdktest

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	vault "github.com/hashicorp/vault/api"
	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/throttletest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var vaultAPI = api{
	serve: func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, `{"data": {"password": "p"}}`)
	},
	refusal: func(w http.ResponseWriter, _ *http.Request, refusal throttletest.Refusal) {
		writeJSON(w, refusal.Status, `{"errors": ["request path \"secret/k\": rate limit quota exceeded"]}`)
	},
}

func newVault(t *testing.T, url string, transport http.RoundTripper) *vault.Client {
	t.Helper()
	config := vault.DefaultConfig()
	require.NoError(t, config.Error)
	config.Address, config.HttpClient.Transport = url, transport
	c, err := vault.NewClient(config)
	require.NoError(t, err)
	c.SetToken("secret")
	return c
}

// Vault's client retries twice: a 429 after Retry-After, an error after 1 to 1.5 s and twice that. It gives all of that 60 s, which
// is a deadline where a request may wait.
func TestVault(t *testing.T) {
	retried := outcome{tries: 3, min: 3 * time.Second, max: 4500 * time.Millisecond}
	const timeout = 60 * time.Second
	checkSDK(t, sdk{
		api: vaultAPI,
		call: func(t *testing.T, url string, client *http.Client) func(context.Context) error {
			c := newVault(t, url, client.Transport)
			return func(ctx context.Context) error {
				_, err := c.Logical().ReadWithContext(ctx, "secret/k")
				return err
			}
		},
		refused: func(err error) (*http.Response, bool) {
			e, ok := errors.AsType[*vault.ResponseError](err)
			return nil, ok && e.StatusCode == http.StatusTooManyRequests
		},
		rejected: rejections{
			short: outcome{tries: 2, min: 2 * time.Second, ok: true},
			long:  outcome{tries: 2, min: longWait, ok: true},
			hour:  outcome{tries: 1, min: timeout, unlike: true},
		},
		errored:  retried,
		deadline: retried,
	})
}

// ConfigureTLS wants an http.Transport, so it comes first, and what it has made is the base.
func TestVaultTakesATransportAfterTLS(t *testing.T) {
	config := vault.DefaultConfig()
	transport, err := throttle.New(config.HttpClient.Transport)
	require.NoError(t, err)
	require.NoError(t, config.ConfigureTLS(&vault.TLSConfig{Insecure: true}))
	config.HttpClient.Transport = transport
	require.ErrorContains(t, config.ConfigureTLS(&vault.TLSConfig{Insecure: true}), "unsupported HTTPClient transport")
	_, err = vault.NewClient(config)
	assert.NoError(t, err)
}
