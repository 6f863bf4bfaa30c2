package main

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// step is how much time a column of the chart stands for.
const step = 250 * time.Millisecond

// A chart counts the requests that the API accepts, by process and time.
type chart struct {
	first chan struct{} // closed with the first request
	began time.Time     // the instant of that

	mu     sync.Mutex
	counts [processes][endAt / step]int
}

func newChart() *chart { return &chart{first: make(chan struct{})} }

// ServeHTTP counts an accepted request.
func (c *chart) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	process, err := strconv.Atoi(req.Header.Get(header))
	if err != nil || process < 1 || process > processes {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.began.IsZero() {
		c.began = time.Now()
		close(c.first)
	}
	if column := int(time.Since(c.began) / step); column < len(c.counts[0]) {
		c.counts[process-1][column]++
	}
}

// show prints a line for each process, and one for all.
func (c *chart) show(out io.Writer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]int, len(c.counts[0]))
	fmt.Fprintf(out, "\nrequests in each %v, and per second:\n", step)
	for i, counts := range c.counts {
		for column, n := range counts {
			all[column] += n
		}
		fmt.Fprintf(out, "process %d  %s %6.1f\n", i+1, bars(counts[:], rate/processes*2), perSecond(counts[:]))
	}
	fmt.Fprintf(out, "all        %s %6.1f\n", bars(all, rate*1.5), perSecond(all))
}

func perSecond(counts []int) float64 {
	sum := 0
	for _, n := range counts {
		sum += n
	}
	return float64(sum) / endAt.Seconds()
}

// bars returns a bar for each count; a full one stands for most per second.
func bars(counts []int, most float64) string {
	var b strings.Builder
	for _, n := range counts {
		height := float64(n) / step.Seconds() / most * 8
		b.WriteRune([]rune(" ▁▂▃▄▅▆▇█")[min(8, int(height+0.5))])
	}
	return b.String()
}
