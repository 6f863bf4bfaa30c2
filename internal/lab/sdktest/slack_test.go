package sdktest

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/httpthrottle/throttle/throttletest"
	"github.com/slack-go/slack"
)

func slackCaller(opts ...slack.Option) caller {
	return func(_ *testing.T, url string, client *http.Client) func(context.Context) error {
		c := slack.New("xoxb-1", append([]slack.Option{slack.OptionHTTPClient(client), slack.OptionAPIURL(url + "/")}, opts...)...)
		return func(ctx context.Context) error {
			_, err := c.AuthTestContext(ctx)
			return err
		}
	}
}

var slackSDK = sdk{
	api: api{
		serve: func(w http.ResponseWriter, _ *http.Request) {
			writeJSON(w, http.StatusOK, `{"ok": true, "team": "t", "user": "u"}`)
		},
		refusal: func(w http.ResponseWriter, _ *http.Request, refusal throttletest.Refusal) {
			writeJSON(w, refusal.Status, `{"ok": false, "error": "ratelimited"}`)
		},
	},
	call: slackCaller(),
	refused: func(err error) (*http.Response, bool) {
		_, ok := errors.AsType[*slack.RateLimitedError](err)
		return nil, ok
	},
	rejected: rejections{once, once, once},
	errored:  once,
	deadline: once,
}

func TestSlack(t *testing.T) { checkSDK(t, slackSDK) }

// With OptionRetry Slack's client waits for Retry-After, and up to a second longer, however long that is.
func TestSlackRetrying(t *testing.T) {
	s := slackSDK
	s.call = slackCaller(slack.OptionRetry(3))
	after := func(wait time.Duration) outcome {
		return outcome{tries: 2, min: wait, max: wait + time.Second, ok: true}
	}
	s.rejected = rejections{after(2 * time.Second), after(longWait), after(time.Hour)}
	s.late = time.Second
	checkSDK(t, s)
}
