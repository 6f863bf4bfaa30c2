// Discord posts to several channels at once with discordgo: first with discordgo alone, then over a Transport.
// discordgo knows the limit of each channel, but not the one that Discord sets for all requests of a bot.
//
//	go run ./examples/apps/sdk/discord
//
// The API is local and allows 10 requests in any 200 ms, where Discord allows 50 a second.
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bwmarrin/discordgo"
	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/examples/internal/example"
	"github.com/httpthrottle/throttle/throttletest"
)

const (
	allowed  = 10
	window   = 200 * time.Millisecond
	margin   = 50 * time.Millisecond // for requests that take longer to arrive than others
	channels = 6
	messages = 8 // in each channel
)

// shows is what -h prints first.
const shows = `Discord posts to several channels at once with discordgo: first with discordgo
alone, then over a Transport. discordgo knows the limit of each channel, but not
the one that Discord sets for all requests of a bot.`

func main() {
	example.Main(example.WithoutFlags(shows, run))
}

func run(ctx context.Context, out io.Writer, opts ...throttletest.Option) error {
	fmt.Fprintf(out, "%d messages in each of %d channels; the server allows %d in %v.\n\n", messages, channels, allowed, window)
	plain, err := post(ctx, out, "without throttle", func(base http.RoundTripper) (http.RoundTripper, error) { return base, nil }, opts)
	if err != nil {
		return err
	}
	throttled, err := post(ctx, out, "with throttle", func(base http.RoundTripper) (http.RoundTripper, error) {
		return throttle.New(base, throttle.WithLimit(throttle.SlidingWindow(allowed, window+margin)))
	}, opts)
	if err != nil {
		return err
	}
	if throttled > 0 { // two requests arrived closer together than they were sent, by more than the margin
		fmt.Fprintf(out, "\nWith throttle %d requests were refused, because this machine is busy; without, %d were.\n", throttled, plain)
		return nil
	}
	fmt.Fprintf(out, "\nWith throttle no request was refused; without, %d were.\nDiscord blocks bots for that.\n", plain)
	return nil
}

// post sends all messages, and returns how many requests the server refused.
func post(ctx context.Context, out io.Writer, name string, wrap func(http.RoundTripper) (http.RoundTripper, error),
	opts []throttletest.Option) (int64, error) {
	server, err := throttletest.New(append(opts, throttletest.WithLimits(throttletest.SlidingWindow(allowed, window)),
		throttletest.WithHandler(http.HandlerFunc(created)), throttletest.WithRefusal(refused))...)
	if err != nil {
		return 0, err
	}
	defer server.Close()
	at, err := url.Parse(server.URL)
	if err != nil {
		return 0, err
	}
	transport, err := wrap(local{at, server.Transport()})
	if err != nil {
		return 0, err
	}
	session, err := discordgo.New("Bot secret")
	if err != nil {
		return 0, err
	}
	session.Client = &http.Client{Transport: transport}
	start := time.Now()
	if err := send(ctx, session); err != nil {
		return 0, err
	}
	counts := server.Counts()
	fmt.Fprintf(out, "%-18s %3d accepted  %3d refused  %4.1f s\n", name, counts.Accepted, counts.Refused, time.Since(start).Seconds())
	return counts.Refused, nil
}

// send posts to all channels at the same time. Messages for one channel are sent one after the other: discordgo has a mutex for each, and
// a call that waits for it does not look at its context.
func send(ctx context.Context, session *discordgo.Session) error {
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	for channel := range channels {
		wg.Go(func() {
			for range messages {
				if _, err := session.ChannelMessageSend(strconv.Itoa(channel), "hello", discordgo.WithContext(ctx)); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// local sends to the local server what discordgo, which has Discord's addresses as constants, sends to Discord.
type local struct {
	server *url.URL
	next   http.RoundTripper
}

func (l local) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.URL.Scheme, req.URL.Host = l.server.Scheme, l.server.Host
	return l.next.RoundTrip(req)
}

func created(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"id": "1", "content": "hello"}`)
}

func refused(w http.ResponseWriter, _ *http.Request, refusal throttletest.Refusal) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(refusal.Status)
	fmt.Fprintf(w, `{"message": "You are being rate limited.", "retry_after": %.3f, "global": true}`, refusal.Wait.Seconds())
}
