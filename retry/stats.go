package retry

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
)

// A Cause is the kind of failure that a retry follows. The values stay the same in later versions.
type Cause string

const (
	CauseRejected Cause = "rejected" // the Transport rejected the attempt
	CauseLimited  Cause = "limited"  // the server refused it because of a limit
	CauseStatus   Cause = "status"   // another response, such as a 500
	CauseError    Cause = "error"    // there was no response
	CauseHandler  Cause = "handler"  // a response handler returned an error
)

var causes = [...]Cause{CauseRejected, CauseLimited, CauseStatus, CauseError, CauseHandler}

// Stats counts what a [Policy] has decided. It is a plain value, and prints as one line.
type Stats struct {
	Attempts uint64           `json:"attempts"` // attempts that have ended, including first ones
	Retries  map[Cause]uint64 `json:"retries"`  // decisions to retry, with an entry for each Cause; a context may end before the attempt
	NoRetry  NoRetries        `json:"no_retry"` // failures that a retry might have fixed, and that were returned

	Budget    int64 `json:"budget"`     // retries that the budget allows now; -1: there is no budget
	BudgetMax int64 `json:"budget_max"` // retries that a full budget allows; -1: there is no budget
}

// String returns the counters in one line, for people.
func (s Stats) String() string {
	var some []string
	retries := uint64(0)
	for _, cause := range causes {
		if n := s.Retries[cause]; n > 0 {
			retries += n
			some = append(some, fmt.Sprintf("%s %d", cause, n))
		}
	}
	text := fmt.Sprintf("%d attempts, %d retries", s.Attempts, retries)
	if retries > 0 {
		text += " (" + strings.Join(some, ", ") + ")"
	}
	some = nil
	given := s.NoRetry
	for _, why := range []struct {
		name string
		n    uint64
	}{{"budget", given.Budget}, {"max wait", given.MaxWait}, {"deadline", given.Deadline}, {"exhausted", given.Exhausted}} {
		if why.n > 0 {
			some = append(some, fmt.Sprintf("%s %d", why.name, why.n))
		}
	}
	text += fmt.Sprintf(", gave up %d", given.Budget+given.MaxWait+given.Deadline+given.Exhausted)
	if some != nil {
		text += " (" + strings.Join(some, ", ") + ")"
	}
	if s.Budget >= 0 {
		text += fmt.Sprintf("; the budget allows %d of %d retries", s.Budget, s.BudgetMax)
	}
	return text
}

// NoRetries counts failures that were not retried, by the reason.
type NoRetries struct {
	Budget    uint64 `json:"budget"`    // the budget was empty
	MaxWait   uint64 `json:"max_wait"`  // the wait would exceed WithMaxWait
	Deadline  uint64 `json:"deadline"`  // the wait would exceed the context's deadline
	Exhausted uint64 `json:"exhausted"` // RetryMax attempts were made
}

// A RetryEvent reports that a request will be retried.
type RetryEvent struct {
	Context context.Context
	Attempt int           // number of the attempt that failed, from 1
	Cause   Cause         // of its failure
	Status  int           // of its response; 0: there was none
	Err     error         // nil if there was a response
	Wait    time.Duration // until the retry at least
}

// counts are the counters of a Policy.
type counts struct {
	attempts                              atomic.Uint64
	retries                               [len(causes)]atomic.Uint64
	budget, maxWait, deadline, exhaustion atomic.Uint64
}

// Stats returns what the Policy has decided so far.
func (p *Policy) Stats() Stats {
	c := &p.counts
	s := Stats{Attempts: c.attempts.Load(), Retries: make(map[Cause]uint64, len(causes)), NoRetry: NoRetries{
		Budget: c.budget.Load(), MaxWait: c.maxWait.Load(), Deadline: c.deadline.Load(), Exhausted: c.exhaustion.Load(),
	}}
	for i, cause := range causes {
		s.Retries[cause] = c.retries[i].Load()
	}
	s.Budget, s.BudgetMax = p.budget.left()
	return s
}

// willRetry counts and reports that an attempt is retried.
func (p *Policy) willRetry(ctx context.Context, f failure, err error, wait time.Duration) {
	for i, cause := range causes {
		if cause == f.cause {
			p.counts.retries[i].Add(1)
		}
	}
	if p.onRetry != nil {
		p.onRetry(RetryEvent{Context: ctx, Attempt: p.attempt(ctx) + 1, Cause: f.cause, Status: f.status, Err: err, Wait: wait})
	}
}

// wontRetry counts and logs why a failure is not retried.
func (p *Policy) wontRetry(ctx context.Context, why string, f failure, err error) {
	switch why {
	case whyBudget:
		p.counts.budget.Add(1)
	case whyMaxWait:
		p.counts.maxWait.Add(1)
	case whyDeadline:
		p.counts.deadline.Add(1)
	}
	p.report(ctx, why, f, err)
}

const (
	whyBudget   = "budget"
	whyMaxWait  = "max wait"
	whyDeadline = "deadline"
)
