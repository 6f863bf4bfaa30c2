package sdktest

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/throttletest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

const (
	configMap    = `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "default"}}`
	tooManyCalls = `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "TooManyRequests", "code": 429}`
)

var kubernetesAPI = api{
	serve: func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") == "true" {
			w.Header().Set("Content-Type", "application/json")
			for range 2 {
				_, _ = w.Write([]byte(`{"type": "ADDED", "object": ` + configMap + "}\n"))
				_ = http.NewResponseController(w).Flush()
			}
			return
		}
		writeJSON(w, http.StatusOK, configMap)
	},
	refusal: func(w http.ResponseWriter, _ *http.Request, refusal throttletest.Refusal) {
		writeJSON(w, refusal.Status, tooManyCalls)
	},
}

// newKubernetes makes a client with a rest.Config, as those of package kubernetes are made, which compile every API.
func newKubernetes(t *testing.T, config *rest.Config) dynamic.ResourceInterface {
	t.Helper()
	c, err := dynamic.NewForConfig(config)
	require.NoError(t, err)
	return c.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace("default")
}

// over has client-go use an http.Client's Transport, and none of its own limits.
func over(url string, client *http.Client) *rest.Config {
	config := &rest.Config{Host: url, QPS: -1}
	config.Wrap(func(http.RoundTripper) http.RoundTripper { return client.Transport })
	return config
}

func getConfigMap(ctx context.Context, c dynamic.ResourceInterface) error {
	_, err := c.Get(ctx, "c", metav1.GetOptions{})
	return err
}

// client-go waits for Retry-After up to ten times, however long that is; errors are not retried.
func TestClientGo(t *testing.T) {
	checkSDK(t, sdk{
		api: kubernetesAPI,
		call: func(t *testing.T, url string, client *http.Client) func(context.Context) error {
			c := newKubernetes(t, over(url, client))
			return func(ctx context.Context) error { return getConfigMap(ctx, c) }
		},
		refused: func(err error) (*http.Response, bool) { return nil, apierrors.IsTooManyRequests(err) },
		open: func(t *testing.T, url string, client *http.Client) stream {
			w, err := newKubernetes(t, over(url, client)).Watch(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			<-w.ResultChan()
			return stream{
				rest: func() error {
					for range w.ResultChan() {
					}
					return nil
				},
				close: func() error {
					w.Stop()
					synctest.Wait() // the body is closed by a goroutine of client-go
					return nil
				},
			}
		},
		rejected: rejections{
			short: outcome{tries: 2, min: 2 * time.Second, ok: true},
			long:  outcome{tries: 2, min: longWait, ok: true},
			hour:  outcome{tries: 2, min: time.Hour, ok: true},
		},
		errored:  once,
		deadline: once,
	})
}

// Its own limit, 5 a second and 10 at first, lies above the Transport's unless QPS is negative.
func TestClientGoHasALimitOfItsOwn(t *testing.T) {
	for name, c := range map[string]struct {
		qps  float32
		want time.Duration
	}{"by default": {0, (calls - 10) * time.Second / 5}, "switched off": {-1, 0}} {
		bubble(t, name, func(t *testing.T) {
			server := kubernetesAPI.start(t)
			_, client := throttled(t, server)
			config := over(server.URL, client)
			config.QPS = c.qps
			k := newKubernetes(t, config)
			begun := time.Now()
			assert.NoError(t, work(t.Context(), func(ctx context.Context) error { return getConfigMap(ctx, k) }))
			assert.Equal(t, c.want, time.Since(begun))
		})
	}
}

// WrapTransport is called for each client, so what they share is a Limiter.
func TestClientGoClientsShareALimiter(t *testing.T) {
	limit := throttle.WithLimit(throttle.SlidingWindow(perSec, time.Second))
	took := func(t *testing.T, opts ...throttle.Option) time.Duration {
		server := kubernetesAPI.start(t)
		config := &rest.Config{Host: server.URL, QPS: -1}
		config.Wrap(func(http.RoundTripper) http.RoundTripper {
			return throttle.Must(throttle.New(server.Transport(), opts...))
		})
		begun := time.Now()
		var both sync.WaitGroup
		for range 2 {
			k := newKubernetes(t, config)
			both.Go(func() {
				assert.NoError(t, work(t.Context(), func(ctx context.Context) error { return getConfigMap(ctx, k) }))
			})
		}
		both.Wait()
		return time.Since(begun)
	}
	bubble(t, "each has a budget of its own without", func(t *testing.T) {
		assert.Equal(t, (calls/perSec-1)*time.Second, took(t, limit))
	})
	bubble(t, "one budget with", func(t *testing.T) {
		limiter, err := throttle.NewLimiter(limit)
		require.NoError(t, err)
		assert.Equal(t, (2*calls/perSec-1)*time.Second, took(t, throttle.WithLimiter(limiter)))
	})
}
