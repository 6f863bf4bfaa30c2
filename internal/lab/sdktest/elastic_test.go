package sdktest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"testing"

	"github.com/elastic/elastic-transport-go/v8/elastictransport"
	"github.com/elastic/go-elasticsearch/v9/esapi"
	"github.com/httpthrottle/throttle/throttletest"
	"github.com/stretchr/testify/require"
)

// An elasticError is a response with an error status, which this SDK does not take for an error.
type elasticError struct{ *esapi.Response }

func (e elasticError) Error() string { return e.Response.String() }

func elasticCaller(opts ...elastictransport.Option) caller {
	return func(t *testing.T, address string, client *http.Client) func(context.Context) error {
		c := newElastic(t, address, client, opts...)
		return func(ctx context.Context) error {
			resp, err := c.Info(c.Info.WithContext(ctx))
			switch {
			case err != nil:
				return err
			case resp.IsError():
				return elasticError{resp}
			}
			defer resp.Body.Close()
			_, err = io.Copy(io.Discard, resp.Body)
			return err
		}
	}
}

// newElastic makes what an elasticsearch.Client consists of, without the typed API: a thousand packages.
func newElastic(t *testing.T, address string, client *http.Client, opts ...elastictransport.Option) *esapi.API {
	t.Helper()
	server, err := url.Parse(address)
	require.NoError(t, err)
	transport, err := elastictransport.NewClient(append(opts, elastictransport.WithURLs(server), elastictransport.WithTransport(client.Transport))...)
	require.NoError(t, err)
	return esapi.New(transport)
}

var elasticSDK = sdk{
	api: api{
		serve: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Elastic-Product", "Elasticsearch")
			writeJSON(w, http.StatusOK, `{"version": {"number": "9.5.2"}}`)
		},
		refusal: func(w http.ResponseWriter, _ *http.Request, refusal throttletest.Refusal) {
			writeJSON(w, refusal.Status, `{"error": {"type": "es_rejected_execution_exception", "reason": "rejected"}, "status": 429}`)
		},
	},
	call: elasticCaller(),
	refused: func(err error) (*http.Response, bool) {
		e, ok := errors.AsType[elasticError](err)
		return nil, ok && e.StatusCode == http.StatusTooManyRequests
	},
	open: func(t *testing.T, url string, client *http.Client) stream {
		resp, err := newElastic(t, url, client).Info()
		require.NoError(t, err)
		return streamOf(resp.Body)
	},
	rejected: rejections{once, once, once},
	errored:  outcome{tries: 4},
	deadline: outcome{tries: 4},
}

// Elastic's client retries errors three times at once.
func TestElastic(t *testing.T) { checkSDK(t, elasticSDK) }

func TestElasticWithoutRetries(t *testing.T) {
	s := elasticSDK
	s.call = elasticCaller(elastictransport.WithDisableRetry())
	s.errored, s.deadline = once, once
	checkSDK(t, s)
}

// If it may retry a 429, it does so immediately as well, unless RetryBackoff says when.
func TestElasticRetrying429(t *testing.T) {
	s := elasticSDK
	s.call = elasticCaller(elastictransport.WithRetryOnStatus(http.StatusTooManyRequests))
	all := outcome{tries: 4}
	s.rejected = rejections{all, all, all}
	checkSDK(t, s)
}
