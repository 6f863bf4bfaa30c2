// Github reads repositories with go-github, from an API with a quota and a secondary limit. The Transport knows neither: it reads
// the responses, and go-github's own check is off, so that requests wait for the next window instead of failing.
//
//	go run ./examples/apps/sdk/github
//
// The API is local, and its windows are short.
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/google/go-github/v89/github"
	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/examples/internal/example"
	"github.com/httpthrottle/throttle/headers"
	"github.com/httpthrottle/throttle/throttletest"
)

// shows is what -h prints first.
const shows = `Github reads repositories with go-github, from an API with a quota and a
secondary limit. The Transport knows neither: it reads the responses, and
go-github's own check is off, so that requests wait for the next window instead
of failing.`

func main() {
	example.Main(example.WithoutFlags(shows, run))
}

func run(ctx context.Context, out io.Writer, server ...throttletest.Option) error {
	api, err := throttletest.New(append(server, throttletest.WithHandler(http.HandlerFunc(repository)),
		throttletest.WithLimits(throttletest.FixedWindow(5, 2*time.Second)), throttletest.WithFields(throttletest.XEpoch))...)
	if err != nil {
		return err
	}
	defer api.Close()
	transport, err := throttle.New(api.Transport(), throttle.WithServerHints(headers.GitHub),
		throttle.WithLimit(throttle.InFlight(100, throttle.Name("concurrent")))) // the limit that no header reports
	if err != nil {
		return err
	}
	client, err := github.NewClient(github.WithHTTPClient(&http.Client{Transport: transport}),
		github.WithDisableRateLimitCheck(), github.WithURLs(new(api.URL+"/"), nil))
	if err != nil {
		return err
	}
	start := time.Now()
	for i := range 12 {
		repo, _, err := client.Repositories.Get(ctx, "golang", fmt.Sprintf("repository-%d", i))
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%5.1fs %s\n", time.Since(start).Seconds(), repo.GetFullName())
	}
	fmt.Fprintf(out, "\n%d of %d requests waited, and the API refused %d.\n", transport.Stats().Delayed, api.Counts().Received, api.Counts().Refused)
	return nil
}

// repository is the API.
func repository(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"id": 1, "full_name": %q}`, strings.TrimPrefix(r.URL.Path, "/repos/"))
}
