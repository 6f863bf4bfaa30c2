package sdktest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bwmarrin/discordgo"
	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/throttletest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A toServer sends what is meant for Discord, whose addresses discordgo has as constants, to the server in memory.
type toServer struct{ next http.RoundTripper }

func (s toServer) RoundTrip(req *http.Request) (*http.Response, error) {
	local := req.Clone(req.Context())
	local.URL.Scheme = "http"
	return s.next.RoundTrip(local)
}

func newDiscordSession(t *testing.T, client *http.Client) *discordgo.Session {
	t.Helper()
	session, err := discordgo.New("Bot secret")
	require.NoError(t, err)
	session.Client = &http.Client{Transport: toServer{client.Transport}}
	return session
}

// discordCaller asks for another channel each time: calls for one channel wait for each other in a mutex.
func discordCaller(retries bool) caller {
	return func(t *testing.T, _ string, client *http.Client) func(context.Context) error {
		session := newDiscordSession(t, client)
		session.ShouldRetryOnRateLimit = retries
		var channel atomic.Int64
		return func(ctx context.Context) error {
			_, err := session.Channel(strconv.FormatInt(channel.Add(1), 10), discordgo.WithContext(ctx))
			return err
		}
	}
}

var discordSDK = sdk{
	api: api{
		serve: func(w http.ResponseWriter, _ *http.Request) {
			writeJSON(w, http.StatusOK, `{"id": "1", "type": 0, "name": "general"}`)
		},
		refusal: func(w http.ResponseWriter, _ *http.Request, refusal throttletest.Refusal) {
			writeJSON(w, refusal.Status, fmt.Sprintf(`{"message": "You are being rate limited.", "retry_after": %.3f, "global": false}`,
				refusal.Wait.Seconds()))
		},
	},
	call: discordCaller(true),
	refused: func(err error) (*http.Response, bool) {
		_, ok := errors.AsType[*discordgo.RateLimitError](err)
		return nil, ok
	},
	rejected: rejections{
		short: outcome{tries: 2, min: shortWait, ok: true}, // retry_after
		long:  outcome{tries: 2, min: longWait, ok: true},
		hour:  outcome{tries: 2, min: time.Hour, ok: true},
	},
	errored:  once,
	deadline: once,
}

func TestDiscordgo(t *testing.T) { checkSDK(t, discordSDK) }

func TestDiscordgoWithoutRetries(t *testing.T) {
	s := discordSDK
	s.call = discordCaller(false)
	s.rejected = rejections{once, once, once}
	checkSDK(t, s)
	for name, wait := range map[string]time.Duration{"1.5 s": shortWait, "1 h": time.Hour} {
		bubble(t, "its error has the wait: "+name, func(t *testing.T) {
			err := s.check(t, t.Context(), wait, once, throttle.WithFailFast())
			e, ok := errors.AsType[*discordgo.RateLimitError](err)
			require.True(t, ok)
			assert.Equal(t, wait, e.RetryAfter)
		})
	}
}
