// Command llm measures what the program of docs/llm.md gets from vendors of language models, as throttletest imitates them: over loopback
// sockets, in real time, with streams and 64 callers. Its test sends the same requests in memory and in simulated time.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/httpthrottle/throttle/throttletest"
)

func main() {
	lasts := flag.Duration("for", 2*time.Minute, "how long each vendor is asked; all at the same time")
	only := flag.String("vendor", "", "only the vendors whose names contain this")
	flag.Parse()
	time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute))) // windows are those of the clock
	all := slices.DeleteFunc(vendors(), func(v vendor) bool { return !strings.Contains(v.name, *only) })
	results := make([]result, len(all))
	var group sync.WaitGroup
	for i := range all {
		group.Go(func() { results[i] = meet(&all[i], listen, *lasts-time.Second) })
	}
	group.Wait()
	for i, v := range all {
		if err := results[i].failed; err != nil {
			log.Fatalf("%s: %v", v.name, err)
		}
		fmt.Printf("%-50s %v\n", v.name, results[i])
	}
}

// listen starts a server on a loopback socket, to which all hosts lead.
func listen(opts ...throttletest.Option) (*throttletest.Server, http.RoundTripper) {
	server, err := throttletest.New(opts...)
	if err != nil {
		log.Fatal(err)
	}
	base := server.Transport()
	address := server.URL[len("http://"):]
	base.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	return server, base
}
