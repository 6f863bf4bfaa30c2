// Package store defines what a store of shared limits is. It is for authors of stores, such as module throttleredis. A program that
// only uses throttle.Shared needs a [Store] and nothing else from this package.
//
// A [Store] has one method. A process sends it an [Ask] for tokens of one or several budgets, and gets a [Lease] of tokens that it
// may use without asking again. There are two ways to write a store. If a state can be locked, in memory, in a file or in a database
// transaction, let a [Book] decide, which implements the rules. If the server itself decides in a script, use a [Call], which is a part
// of an Ask as integers, and compare the script with a Book in tests.
//
// Package store/storetest tests a Store of either kind.
package store

import (
	"context"
	"errors"
	"time"
)

// A Store keeps the state of shared budgets and grants leases of their tokens, by the rules of a [Book].
//
// Lease decides all asks, in one round trip if possible, and returns a [Lease] for each, in order. If it returns an error, any of the
// asks may still have been carried out, or may be carried out later. The error has [ErrSetup] in its chain if retrying does not help.
// Asks should not be carried out after the deadline of ctx; see [ErrLate]. If a store repeats an ask, it must count the tokens that the
// ask returns only once.
//
// Up to two goroutines of a Limiter call Lease at a time. Lease must return at some time after its context is done. A Limiter does not
// wait for that, but it does not ask again while two such calls are open.
type Store interface {
	Lease(ctx context.Context, asks []Ask) ([]Lease, error)
}

// An Explainer is a [Store] that may know why a call gets no response, for example that no connection can be made. If a call takes too
// long, its error contains the error of Cause.
type Explainer interface {
	Store
	Cause() error // nil: it is not known
}

// A Queuer is a [Store] whose calls wait for each other, so that one may take long although all is well. A Limiter gives a call up
// after throttle.StoreTimeout, and then the store counts as unreachable, unless Queuing returns true. Then the call goes on, and its
// requests wait for it for as long as they may.
type Queuer interface {
	Store
	// Queuing reports whether a call waits for its turn, and turns are taken. It returns immediately, and may be called while Lease runs.
	Queuing() bool
}

// A Kind is the algorithm of a budget.
type Kind string

const (
	Bucket  Kind = "bucket"
	Pace    Kind = "pace" // a bucket, of one token if it has no Burst, in which a request of any cost may be sent when its first token is due
	Sliding Kind = "sliding-window"
	Fixed   Kind = "fixed-window"
	Slots   Kind = "in-flight"

	Calendar Kind = "calendar-window" // a Fixed window whose ends the processes compute, such as a month in a time zone
)

// A Budget names a state in a [Store] (Kind, Limit, Key) and the rule by which the store computes it. If processes send different
// rules, the stricter one applies until no process has sent it for 10 s. It is the one with the lower rate or, if the rates are equal,
// with the smaller burst, n or number of slots. The leases of the other processes have Differs set, and the rate of the rule that applies.
type Budget struct {
	Kind       Kind
	Limit, Key string // the name of the limit and the key of the requests; either may be empty or of any length

	N       int64         // tokens per Per; slots in all
	Per     time.Duration // not for Slots; a store may round a window up to a whole microsecond
	Burst   int64         // of a Bucket: the most that it holds; of a Pace, what it holds if that is more than one token
	Initial int64         // of a Bucket: the tokens that it holds if the store has no state of it
	Start   time.Time     // of a Fixed window: an instant at which one begins; zero: the Unix epoch

	// Of a Calendar: when four consecutive windows begin. The process's clock is in the second one. The store uses the window that its
	// own clock is in. Per is the average length of a window, and is used to compare rules.
	Windows [4]time.Time
}

// An Ask asks for the tokens of one request, or of all requests in one queue. The store grants either every part or none. No two parts
// are for the same budget; see [Ask.Check].
type Ask struct{ Parts []Part }

// A Part asks for tokens of one budget.
type Part struct {
	Budget Budget

	Need  int64 // the store grants at least this many tokens, or none; at most the burst, n or the number of slots
	Want  int64 // the store grants at most this many tokens; at least Need
	Whole bool  // the store grants Need or Want, and nothing between, which requests could not use
	Ahead int64 // if the store grants Want, it adds up to this many tokens, but no more than a quarter of the rest

	// A Bucket or a Pace may promise tokens that come in later. A promised token may be used once it is due. Tokens are
	// promised up to Horizon ahead, and those of Need up to Within if that is further. All processes share the horizon:
	// beyond its Need, each ask gets at most half of what is left of it.
	Horizon, Within time.Duration

	// Queue has a budget of any kind but Calendar and Slots set Turn of the LeasedPart if nothing is granted. If the Turn of each part with
	// Queue is at most its Within, the ask has one place in all of them, behind those that asked before. The place is ID of the LeasedPart,
	// and the next ask keeps it if it has it as Queued. The tokens of a Bucket or a Pace are then promised up to Horizon ahead at most, and
	// not before those for others that have places. A store may ignore both.
	Queue  bool
	Queued int64

	Back []Return // leased tokens that were not used, or that were refunded
	Owe  int64    // tokens used beyond the leased ones; the store charges them even if it goes into debt, a window up to five times its N in all
	// Hold blocks the budget for all processes for this long; negative: ends every hold. A Bucket has no more tokens afterwards than before,
	// or one, because a server that has refused a request is to get the next ones one by one. A store may let it fill meanwhile.
	Hold time.Duration

	Replace bool // the rule of Budget applies from now on, even if a stricter one did: it was changed while the process runs

	// The time since the previous ask of this process about this budget, at most MaxSince; MaxSince for the first. Of Slots: since the
	// latest one after which the store certainly has the process among the holders; 0: unknown.
	Since time.Duration

	Holder string // of Slots: the name of the process, 1 to 64 bytes. Its slots become free SlotLease after its last ask
	Held   int64  // of Slots: the number of slots this process has and keeps, including those of requests whose slots expired
}

// A Return returns tokens of one lease.
type Return struct{ Tokens, Lease int64 }

// A Lease is the response to an [Ask]: a part for each of its parts, in order, or an error.
type Lease struct {
	Parts []LeasedPart
	Err   error // except with ErrApart, the ask may still have been carried out, or may be carried out later
}

// A LeasedPart reports which tokens of one budget were granted.
//
// AtOnce of the Tokens may be used now. The others are promised one by one: the first is due Next after the response
// arrives, and the k-th after it k·Per/N later, by the rule that applies.
type LeasedPart struct {
	ID             int64 // for Return; if nothing was granted, for Queued
	Tokens, AtOnce int64
	Next           time.Duration
	Until          time.Duration // the tokens expire this long after the ask was sent, or up to 1 µs earlier if the store counts whole µs; 0: never
	Wait           time.Duration // if nothing was granted: the time until Need can be granted; of a Sliding window without tokens: until the next one comes in
	Turn           time.Duration // if nothing was granted: the time until Need can be granted behind what those with earlier places need; of parts that share a place, the latest one's, except for parts whose own is at most half of that; 0: it can be now, or Queue was not set. Nothing is reserved
	Left           float64       // tokens in the store after this ask, negative if some are promised or owed; of Slots: minus those that other processes wait for
	Hold           time.Duration // how long the budget remains blocked
	Processes      int           // an estimate of how many processes use the budget; at least 1
	Differs        bool          // another process sends a stricter rule, which applies
	N              int64         // if Differs: tokens per Per by the rule that applies; of Slots: in all
	Per            time.Duration // if Differs, and not for Slots
	Over           int64         // of Slots: how many of Held must not be used for another request, because other processes have them
}

const (
	// MaxSince is the longest Since of a Part.
	MaxSince = 10 * time.Second
	// SlotLease is how long a process that does not ask again keeps its slots.
	SlotLease = 10 * time.Second
)

var (
	// ErrSetup is in the chain of an error that retrying does not fix, such as a missing permission, a key that holds something
	// else, or a server that does not run scripts.
	ErrSetup = errors.New("the store of shared limits is set up wrongly")

	// ErrRule means that another process shares a budget with a stricter rule, which applies.
	ErrRule = errors.New("another process shares the budget with a stricter rule, which applies: a lower rate, or a smaller burst, n or number of slots")

	// ErrLate is in the chain of the error of a call that carried nothing out, because its context ended first: it arrived late, or
	// waited too long for others. How long that took shows how far away the store is.
	ErrLate = errors.New("the call ended before the store did anything")

	// ErrApart is the error of a Lease whose parts are in different places, so that the store cannot grant them together.
	// Nothing was carried out. The caller should ask for each part separately.
	ErrApart = errors.New("the store keeps the parts of this ask in different places: ask for each separately")
)
