package pictures

import "fmt"

// A node is a question or an answer, and where it leads: to others, or to a limit.
type node struct {
	text  string
	limit string
	next  []node
}

// whichLimit is the table "Which limit?" of README.md as a tree.
var whichLimit = node{text: "What does the API document?", next: []node{
	{text: "requests in a period", next: []node{
		{text: "n per minute", limit: "Quota(n, time.Minute)"},
		{text: "a rate and a burst", limit: "TokenBucket(n, per, Burst(b))"},
		{text: "an even rate, no bursts", limit: "Pace(n, per)"},
		{text: "a quota reset on the clock", limit: "FixedWindow(n, 24*time.Hour)"},
		{text: "per day or month of a zone", limit: "CalendarWindow(n, CalendarMonth, tz)"},
	}},
	{text: "tokens of a language model", limit: `ServerQuota("tokens", …)`},
	{text: "requests at a time", limit: "InFlight(n)"},
	{text: "a wait between requests", next: []node{
		{text: "after a response", limit: "InFlight(1, Pause(d))"},
		{text: "after a request", limit: "SlidingWindow(1, d)"},
	}},
	{text: "nothing, or it changes", next: []node{
		{text: "responses report what is left", limit: "none: New(nil) reads the headers"},
		{text: "it refuses requests", limit: "WithAdaptive()"},
		{text: "it queues them, or has workers", limit: "WithAdaptiveInFlight()"},
	}},
}}

const (
	row    = 28.0
	limitX = 470.0
)

var columns = [...]float64{0, 32, 252} // by depth

func drawTree() string {
	c := &canvas{width: 740, label: "Which limit: a tree from what the API documents to the limit"}
	c.text(0, 18, "b", "start", whichLimit.text)
	y := c.children(whichLimit.next, 1, 24, 18)
	c.height = int(y) + 14
	return c.String()
}

// children draws nodes below each other, on a trunk that begins at from, and returns the row of the last leaf. y is the row above.
func (c *canvas) children(nodes []node, depth int, from, y float64) float64 {
	x := columns[depth]
	last := y
	for _, n := range nodes {
		y += row
		last = y - 4
		c.path("line", fmt.Sprintf("M%.0f %.0fH%.0f", x-24, last, x-5))
		c.text(x, y, "", "start", n.text)
		end := x + float64(len(n.text))*7.2 + 4
		if n.limit != "" {
			if end < limitX-8 {
				c.path("line", fmt.Sprintf("M%.0f %.0fH%.0f", end, last, limitX-8))
			}
			c.text(limitX, y, "c", "start", n.limit)
			continue
		}
		c.path("line", fmt.Sprintf("M%.0f %.0fH%.0f", end, last, columns[depth+1]-24))
		y = c.children(n.next, depth+1, last, y-row) // the first is in the same row
	}
	c.path("line", fmt.Sprintf("M%.0f %.0fV%.0f", x-24, from, last))
	return y
}
