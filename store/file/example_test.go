package file_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/store/file"
)

// A daily quota of all processes of a host. What is spent stays spent, however the processes end.
func Example() {
	dir, err := os.MkdirTemp("", "quota")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	for range 2 { // two runs of the program
		quota, err := file.Open(filepath.Join(dir, "quota"))
		if err != nil {
			log.Fatal(err)
		}
		limiter, err := throttle.NewLimiter(throttle.WithMaxWait(0), throttle.WithLimit(
			throttle.FixedWindow(10, 365*24*time.Hour, throttle.Name("quota"), throttle.Shared(quota, throttle.LeaseAhead(0)))))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(limiter.Wait(context.Background(), throttle.Ask{Cost: 8}) == nil)
	}
	// Output:
	// true
	// false
}
