package throttle

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"math"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/store"
)

// Stats are the counters and gauges of a Transport or a Limiter. It is a plain value, and prints as one line. To publish it
// with expvar:
//
//	expvar.Publish("throttle", expvar.Func(func() any { return transport.Stats() }))
//
// Under [WithDryRun], Delayed, Waited and Rejected count what would have happened.
//
// A grant is undone if the context ends while the request is being granted, if a hook panics, by [Grant.Cancel], or if the
// request did not reach a server. Granted and Delayed include undone grants, because no counter ever falls.
type Stats struct {
	// Gauges
	Waiting int `json:"waiting"`           // requests in the queue now
	Callers int `json:"callers,omitempty"` // callers with requests in the queue now, where a limit has FairBy
	Buckets int `json:"buckets"`           // buckets kept now in all limits, except those of limits without keys

	// Counters
	Granted  uint64        `json:"granted"`          // requests granted, immediately or after a wait
	Undone   uint64        `json:"undone,omitempty"` // grants that were never used and returned their tokens: see above
	Delayed  uint64        `json:"delayed"`          // requests granted after a wait
	Waited   time.Duration `json:"waited"`           // their total wait; in seconds as JSON
	Rejected Rejections    `json:"rejected"`         // requests rejected
	Canceled uint64        `json:"canceled"`         // requests whose context ended while they waited
	Exempt   uint64        `json:"exempt,omitempty"` // requests that were exempt; always 0 for a Limiter

	ServerRefused uint64     `json:"server_refused"` // responses by which a server refused, also if its hints are ignored
	Holds         HoldCounts `json:"holds,omitzero"` // holds set; those of Hold and HoldAll count for the Limiter alone

	// Settings
	MaxQueue int  `json:"max_queue"`        // see WithMaxQueue
	MaxKeys  int  `json:"max_keys"`         // see WithMaxKeys
	DryRun   bool `json:"dry_run,omitzero"` // see WithDryRun
}

// Rejections counts rejected requests by [Reason].
type Rejections struct {
	NoTokens  uint64 `json:"no_tokens"`
	MaxWait   uint64 `json:"max_wait"`
	Deadline  uint64 `json:"deadline"`
	QueueFull uint64 `json:"queue_full"`
	Cost      uint64 `json:"cost"`
	Held      uint64 `json:"held"`
	Keys      uint64 `json:"keys"`
	Store     uint64 `json:"store"`
	Final     uint64 `json:"final"`
}

func rejections(n *[bucket.Reasons]uint64) Rejections {
	return Rejections{
		NoTokens: n[ReasonNoTokens], MaxWait: n[ReasonMaxWait], Deadline: n[ReasonDeadline], QueueFull: n[ReasonQueueFull],
		Cost: n[ReasonCost], Held: n[ReasonHeld], Keys: n[ReasonKeys], Store: n[ReasonStore],
		Final: n[ReasonFinal],
	}
}

// All yields every [Reason] and its count.
func (r Rejections) All() iter.Seq2[Reason, uint64] {
	counts := [bucket.Reasons]uint64{
		ReasonNoTokens: r.NoTokens, ReasonMaxWait: r.MaxWait, ReasonDeadline: r.Deadline, ReasonQueueFull: r.QueueFull,
		ReasonCost: r.Cost, ReasonHeld: r.Held, ReasonKeys: r.Keys, ReasonStore: r.Store,
		ReasonFinal: r.Final,
	}
	return func(yield func(Reason, uint64) bool) {
		for reason := ReasonNoTokens; reason < Reason(bucket.Reasons) && yield(reason, counts[reason]); reason++ {
		}
	}
}

// Total returns the number of rejected requests.
func (r Rejections) Total() (n uint64) {
	for _, count := range r.All() {
		n += count
	}
	return n
}

// statsOf returns c as Stats.
func (l *Limiter) statsOf(of *bucket.Counts) Stats {
	c, callers, buckets := l.core.Read(of)
	return Stats{
		Waiting: c.Waiting, Callers: callers, Buckets: buckets,
		Granted: c.Granted, Undone: c.Undone, Delayed: c.Delayed, Waited: c.Waited, Canceled: c.Canceled,
		Rejected: rejections(&c.Refused), ServerRefused: c.ServerRefused, Holds: HoldCounts(c.Holds),
		MaxQueue: l.maxQueue, MaxKeys: l.maxKeys, DryRun: l.dry,
	}
}

// Hooks are functions that observe requests. Each may be nil. They are called by the goroutine of the request, without a lock
// and concurrently, and delay the request for as long as they take.
type Hooks struct {
	// OnWait is called before a request begins to wait in the queue.
	OnWait func(WaitEvent)
	// OnGrant is called when a request was granted, before it is sent.
	OnGrant func(GrantEvent)
	// OnReject is called when a request is rejected, on arrival or in the queue.
	OnReject func(RejectEvent)
	// OnCancel is called when the context of a request ended while the request waited.
	OnCancel func(CancelEvent)
	// OnServerRefusal is called when a server has refused a request because of a limit, also under [WithoutServerHints].
	OnServerRefusal func(ServerRefusalEvent)
	// OnHold is called after a hold was set, by [Limiter.Hold], [Limiter.HoldAll], a server or an [Adaptive] limit.
	OnHold func(HoldEvent)
	// OnSettle is called after a charge was corrected to the true cost.
	OnSettle func(SettleEvent)
	// OnRetune is called after an [Adaptive] limit changed a rate notably.
	OnRetune func(RetuneEvent)
	// OnStore is called when the store of a [Shared] limit became unreachable, is reachable again, or is set up wrongly. It is
	// called by the goroutine that called the store, which belongs to no request: if it panics, that is logged.
	OnStore func(StoreEvent)
}

// A WaitEvent reports that a request begins to wait.
type WaitEvent struct {
	Context    context.Context
	Limit, Key string        // a limit that it waits for
	Cost       int64         // in that limit
	Wait       time.Duration // expected: exact with one limit, otherwise a lower bound; 0 or math.MaxInt64: not known, because it depends on a response
}

// A GrantEvent reports that a request was granted.
type GrantEvent struct {
	Context    context.Context
	Waited     time.Duration // 0: it was granted immediately
	DryRun     bool          // it would have waited that long or longer; see WaitEvent.Wait
	Limit, Key string        // what it waited for; "" if it did not wait
}

// A RejectEvent reports that a request was rejected.
type RejectEvent struct {
	Context   context.Context
	Rejection *Rejection
	Waited    time.Duration // 0: it was rejected on arrival
	DryRun    bool          // it was sent, and would have been rejected
}

// A CancelEvent reports that the context of a request ended while the request waited.
type CancelEvent struct {
	Context    context.Context
	Cause      error
	Waited     time.Duration
	Limit, Key string // what it waited for
}

// A ServerRefusalEvent reports that a server refused a request because of a limit. The caller gets the response unchanged.
type ServerRefusalEvent struct {
	Context    context.Context
	Host       string // as ByHost returns it
	Status     int
	RetryAfter time.Duration // until the server would accept the request; 0: it did not say
}

// A HoldEvent reports that a key was held.
type HoldEvent struct {
	Context context.Context // of the request whose response asked for it; nil: Hold or HoldAll was called
	Key     string          // for a server the host, or the host and the keys; for an Adaptive limit its key
	For     time.Duration   // as requested; a key that is already held for longer stays held
	Source  Source
	All     bool // all keys are held, by HoldAll
	// Final is what the server said with a refusal that no waiting ends. Requests are rejected with ReasonFinal, and For is the time
	// until one of them asks again. nil: it is a hold.
	Final *FinalError
}

// and returns Hooks that call both, h first.
func (h Hooks) and(other Hooks) Hooks {
	return Hooks{
		OnWait: both(h.OnWait, other.OnWait), OnGrant: both(h.OnGrant, other.OnGrant), OnReject: both(h.OnReject, other.OnReject),
		OnCancel: both(h.OnCancel, other.OnCancel), OnServerRefusal: both(h.OnServerRefusal, other.OnServerRefusal),
		OnHold: both(h.OnHold, other.OnHold), OnSettle: both(h.OnSettle, other.OnSettle), OnRetune: both(h.OnRetune, other.OnRetune),
		OnStore: both(h.OnStore, other.OnStore),
	}
}

func both[E any](first, second func(E)) func(E) {
	switch {
	case first == nil:
		return second
	case second == nil:
		return first
	}
	return func(e E) { first(e); second(e) }
}

// An observer calls hooks and a logger.
type observer struct {
	hooks   Hooks
	log     *slog.Logger
	rations *[bucket.Reasons + 5]ration // by what a line says: a Reason, or one of those below
}

func newObserver(h Hooks, log *slog.Logger) *observer {
	return &observer{hooks: h, log: log, rations: new([bucket.Reasons + 5]ration)}
}

// with returns an observer for a Transport with hooks, and maybe a logger, of its own.
func (o *observer) with(h Hooks, log *slog.Logger) *observer {
	if log != nil {
		return newObserver(o.hooks.and(h), log)
	}
	return &observer{hooks: o.hooks.and(h), log: o.log, rations: o.rations}
}

const (
	rationWait  = bucket.Reasons
	rationHold  = bucket.Reasons + 1
	rationTune  = bucket.Reasons + 2
	rationCrowd = bucket.Reasons + 3
	rationStore = bucket.Reasons + 4
)

// A ration lets one line a second pass.
type ration struct {
	next       atomic.Int64 // in ns of Unix time
	suppressed atomic.Int64
}

// pass reports whether a line may be logged now, and how many lines were suppressed since the last one.
func (r *ration) pass(now time.Time) (suppressed int64, ok bool) {
	next := r.next.Load()
	if now.UnixNano() < next || !r.next.CompareAndSwap(next, now.Add(time.Second).UnixNano()) {
		r.suppressed.Add(1)
		return 0, false
	}
	return r.suppressed.Swap(0), true
}

func (o *observer) line(ctx context.Context, level slog.Level, of int, msg string, attrs ...slog.Attr) {
	if o.log == nil || !o.log.Enabled(ctx, level) {
		return
	}
	if suppressed, ok := o.rations[of].pass(time.Now()); ok {
		if suppressed > 0 {
			attrs = append(attrs, slog.Int64("suppressed", suppressed))
		}
		o.log.LogAttrs(ctx, level, msg, attrs...)
	}
}

// reportGranted reports that a request was granted, after a wait for a bucket if it waited. If the hook panics, the charges are undone.
func (l *Limiter) reportGranted(ctx context.Context, by *asker, charges []bucket.Charge, waited time.Duration, bucket *bucket.Bucket) {
	o := by.observer
	if o.hooks.OnGrant == nil {
		return
	}
	returned := false
	defer func() {
		if !returned {
			l.core.Undo(charges, &by.counts)
		}
	}()
	e := GrantEvent{Context: ctx, Waited: waited, DryRun: l.dry}
	if bucket != nil {
		e.Limit, e.Key = bucket.Limit.Name, bucket.Key
	}
	o.hooks.OnGrant(e)
	returned = true
}

func (o *observer) rejected(ctx context.Context, r *Rejection, waited time.Duration, dry bool) {
	if o.hooks.OnReject != nil {
		o.hooks.OnReject(RejectEvent{Context: ctx, Rejection: r, Waited: waited, DryRun: dry})
	}
	if o.log == nil {
		return
	}
	o.line(ctx, slog.LevelWarn, int(r.Reason), "throttle: request rejected",
		slog.String("reason", r.Reason.String()), slog.String("limit", r.Limit), slog.String("key", r.Key),
		slog.Int64("cost", r.Cost), durationAttr("wait", r.Wait), slog.Bool("dry_run", dry))
}

// waits reports that a request begins to wait.
func (o *observer) waits(e WaitEvent) {
	if o.hooks.OnWait != nil {
		o.hooks.OnWait(e)
	}
	wait := slog.Duration("wait", e.Wait)
	if e.Wait <= 0 || e.Wait == math.MaxInt64 { // it depends on a response
		wait = slog.String("wait", "unknown")
	}
	o.line(e.Context, slog.LevelInfo, int(rationWait), "throttle: request waits",
		slog.String("limit", e.Limit), slog.String("key", e.Key), slog.Int64("cost", e.Cost), wait)
}

// waited reports the outcome of w unless it was granted; err is the cause of its context if that has ended.
func (o *observer) waited(ctx context.Context, w *limiter.Waiter, r *Rejection, err error) {
	waited := time.Duration(w.At - w.Arrived)
	switch {
	case r != nil:
		o.rejected(ctx, r, waited, false)
	case err != nil && o.hooks.OnCancel != nil:
		b := w.Bucket()
		o.hooks.OnCancel(CancelEvent{Context: ctx, Cause: err, Waited: waited, Limit: b.Limit.Name, Key: b.Key})
	}
}

func (o *observer) held(e HoldEvent) {
	if o.hooks.OnHold != nil {
		o.hooks.OnHold(e)
	}
	what := slog.String("key", e.Key)
	switch {
	case e.All:
		what = slog.Bool("all", true)
	case e.Final != nil:
		o.line(orBackground(e.Context), slog.LevelError, int(rationHold), "throttle: the server refuses, and no waiting helps",
			what, slog.String("server", e.Final.Error()), slog.Duration("asked_again_in", e.For))
		return
	}
	o.line(orBackground(e.Context), slog.LevelWarn, int(rationHold), "throttle: held",
		what, slog.Duration("for", e.For), slog.String("source", string(e.Source)))
}

// orBackground returns the context of an event for a logger.
func orBackground(ctx context.Context) context.Context {
	if ctx == nil {
		return context.Background()
	}
	return ctx
}

// heldAll reports that a limit holds all keys without a bucket, because it had no room for the one to be held.
func (o *observer) heldAll(limit, key string, d time.Duration) {
	o.line(context.Background(), slog.LevelWarn, int(rationCrowd), "throttle: no room to hold a key, so all keys without a bucket are held",
		slog.String("limit", limit), slog.String("key", key), slog.Duration("for", d))
}

// forgot reports that a server that had stopped requests was forgotten, because there was no room for the reports of all servers.
func (o *observer) forgot(ctx context.Context, key string) {
	o.line(orBackground(ctx), slog.LevelWarn, int(rationCrowd), "throttle: no room for the reports of all servers, so those of one are forgotten",
		slog.String("key", key))
}

func (o *observer) settled(e SettleEvent) {
	if o.hooks.OnSettle != nil {
		o.hooks.OnSettle(e)
	}
}

func (o *observer) retuned(e RetuneEvent) {
	if o.hooks.OnRetune != nil {
		o.hooks.OnRetune(e)
	}
	o.line(orBackground(e.Context), slog.LevelInfo, int(rationTune), "throttle: rate changed", slog.String("limit", e.Limit),
		slog.String("key", e.Key), slog.String("reason", e.Reason), slog.Float64("old", e.Old), slog.Float64("new", e.New))
}

// guesses warns that processes guess their shares of limits in an outage.
func (o *observer) guesses(limits []string) {
	if o.log != nil {
		o.log.LogAttrs(context.Background(), slog.LevelWarn, "throttle: in an outage of the store, all processes together may use 0.2 to 1.6 of the rate: set ExpectProcesses beside OutageLocalShare",
			slog.Any("limits", limits))
	}
}

// storeChanged reports that a store became unreachable, or is reachable again. It runs in a goroutine of its own, where no caller could
// recover the panic of a hook.
func (o *observer) storeChanged(e StoreEvent) {
	defer func() {
		if p := recover(); p != nil {
			log := o.log
			if log == nil {
				log = slog.Default()
			}
			log.Error("throttle: OnStore panicked", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
		}
	}()
	if o.hooks.OnStore != nil {
		o.hooks.OnStore(e)
	}
	limits := slog.Any("limits", e.Limits)
	key := slog.Any("key", e.Key)
	if e.Err == nil {
		o.line(context.Background(), slog.LevelInfo, int(rationStore), "throttle: the store is reachable again", limits, key, slog.Duration("down", e.Down))
		return
	}
	text, level := "throttle: the store is unreachable", slog.LevelError
	switch {
	case errors.Is(e.Err, store.ErrSetup):
		text = "throttle: the store is set up wrongly"
	case errors.Is(e.Err, store.ErrRule):
		text, level = "throttle: processes disagree about a shared limit", slog.LevelWarn
	}
	o.line(context.Background(), level, int(rationStore), text, limits, key, slog.Any("error", e.Err))
}
