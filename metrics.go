package throttle

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/httpthrottle/throttle/internal/aimd"
	"github.com/httpthrottle/throttle/internal/bucket"
	"github.com/httpthrottle/throttle/internal/content"
	"github.com/httpthrottle/throttle/internal/limiter"
	"github.com/httpthrottle/throttle/internal/supply"
	"github.com/httpthrottle/throttle/store"
)

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
	// OnServerRefusal is called when a server has refused a request because of a limit, also under WithoutServerHints.
	OnServerRefusal func(ServerRefusalEvent)
	// OnHold is called after a hold was set, by Limiter.Hold, Limiter.HoldAll, a server or an Adaptive limit, and when a server refuses for a
	// reason that no waiting ends.
	OnHold func(HoldEvent)
	// OnSettle is called after a charge was corrected to the true cost.
	OnSettle func(SettleEvent)
	// OnRetune is called after an Adaptive limit changed a rate notably.
	OnRetune func(RetuneEvent)
	// OnStore is called when the store of a Shared limit became unreachable, is reachable again, or is set up wrongly. It is
	// called by the goroutine that called the store, which belongs to no request: if it panics, that is logged.
	OnStore func(StoreEvent)
}

// A Place is where an event happened. The fields are those of each event that embeds it.
type Place struct {
	Context    context.Context // of the request; nil: none is known
	Limit, Key string          // of the bucket; "" where the event says so
}

// A WaitEvent reports that a request begins to wait.
type WaitEvent struct {
	Place               // a limit that it waits for
	Cost  int64         // in that limit
	Wait  time.Duration // expected: exact with one limit, otherwise a lower bound; 0 or math.MaxInt64: not known, because it depends on a response
}

// A GrantEvent reports that a request was granted.
type GrantEvent struct {
	Place                // what it waited for; "" if it did not wait
	Waited time.Duration // 0: it was granted immediately
	DryRun bool          // it would have waited that long or longer; see WaitEvent.Wait
}

// A RejectEvent reports that a request was rejected.
type RejectEvent struct {
	Place     // as the Rejection has it
	Rejection *Rejection
	Waited    time.Duration // 0: it was rejected on arrival
	DryRun    bool          // it was sent, and would have been rejected
}

// A CancelEvent reports that the context of a request ended while the request waited.
type CancelEvent struct {
	Place  // what it waited for
	Cause  error
	Waited time.Duration
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
	// Place has the request whose response asked for the hold, and what is held: the limit "server" with a key of the host, or of the
	// host and the keys; a limit that learns with its key; or, if Hold or HoldAll was called, the key in all limits.
	Place
	For     time.Duration // as requested; a key that is already held for longer stays held
	Source  Source
	All     bool    // all keys are held, by HoldAll
	Guessed bool    // no server has asked for that end, so For is this client's own
	Verdict Verdict // why the server refused last; 0: no server did
	// Final is what the server said with a refusal that no waiting ends. Requests are rejected with ReasonFinal, and For is the time
	// until one of them asks again. nil: it is a hold.
	Final *FinalError
}

// A SettleEvent reports that a charge was corrected.
type SettleEvent struct {
	Place
	Charged, Cost int64 // what was charged first, and what it really cost
}

// A RetuneEvent reports that an [Adaptive] limit has changed the rate of a key, or an [AdaptiveInFlight] limit the requests that may be
// in flight.
type RetuneEvent struct {
	Place            // the request is the one whose response caused it
	Reason   Cause   // why
	Old, New float64 // tokens per second, or requests in flight; growth is reported when it amounts to a tenth, or to a third
}

// A Cause is why a learned rate or a learned number in flight was changed.
type Cause uint8

const (
	CauseGrowth        Cause = iota + 1 // it was used, and no response spoke against more
	CauseThrottled                      // a 429, or a 503 with Retry-After
	CauseErrors                         // more failures than usual
	CauseErrorsStayed                   // the failures did not become fewer, so the cut is undone
	CauseLatency                        // requests queue at the server
	CauseLatencyStayed                  // the server is slower, but does not queue, so as many requests as before may be in flight again
	CauseSilence                        // the server does not respond, so only probes are sent
	CauseProbeAnswered                  // a probe was answered
	CauseRestored                       // from a Snapshot, or because a refusal turned out to be none
	CauseLatencyAlone                   // a request alone takes longer than the LatencyThreshold, so one at a time is sent; reported once
)

// A cause has the same number in the controllers: the array has one element, at the index 0.
var _ = [1]struct{}{}[CauseLatencyAlone-Cause(aimd.CauseAlone)]

// String returns the cause in one or two words, for people.
func (c Cause) String() string {
	if label := c.Label(); label != "" {
		return strings.ReplaceAll(label, "_", " ")
	}
	return "Cause(" + strconv.Itoa(int(c)) + ")"
}

// Label returns the cause as an identifier for logs and metrics, which stays the same in later versions: growth, throttled, errors,
// errors_stayed, latency, latency_stayed, silence, probe_answered, restored or latency_alone; "" for another value.
func (c Cause) Label() string {
	if c == 0 || c >= Cause(aimd.Causes) {
		return ""
	}
	return aimd.Cause(c).String()
}

// A StoreEvent reports that a [store.Store], or one budget in it, became unreachable, is reachable again, or is set up wrongly. An
// event about one budget has its Key: its state is unreadable, or is readable again. An Err with [store.ErrRule] in its chain says
// that processes disagree about a limit, as they do while a new configuration is deployed: the budget is reachable. A Limiter reports it
// when it begins, and once more, as a warning, if it lasts for ten seconds.
type StoreEvent struct {
	Limits []string      // the names of the limits that use it
	Key    string        // of the budget, if the event is about one
	Err    error         // why it is unreachable; with store.ErrSetup in its chain, the set-up is wrong; nil: it is reachable
	Down   time.Duration // how long it was unreachable, 0 when it became unreachable; with store.ErrRule, how long processes have disagreed
}

// A Source is what set a hold.
type Source string

const (
	SourceCaller   Source = "caller"   // Limiter.Hold or Limiter.HoldAll
	SourceServer   Source = "server"   // a response
	SourceAdaptive Source = "adaptive" // an AdaptiveInFlight limit, after refusals in a row
)

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
	dry     bool                        // see WithDryRun
	rations *[bucket.Reasons + 5]ration // by what a line says: a Reason, or one of those below
}

func newObserver(c *config) *observer {
	return &observer{hooks: c.hooks, log: c.log, dry: c.dry, rations: new([bucket.Reasons + 5]ration)}
}

// user returns a User that it observes.
func (o *observer) user() *limiter.User {
	return &limiter.User{Observer: o, Granted: o.hooks.OnGrant != nil, Rejected: o.hooks.OnReject != nil || o.log != nil}
}

// with returns an observer for a Transport with hooks, and maybe a logger, of its own.
func (o *observer) with(h Hooks, log *slog.Logger) *observer {
	both := *o
	both.hooks = o.hooks.and(h)
	if log != nil {
		both.log, both.rations = log, new([bucket.Reasons + 5]ration)
	}
	return &both
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

// Waits implements [limiter.Observer], as do the methods below whose names are exported.
func (o *observer) Waits(at limiter.Place, cost int64, wait time.Duration) {
	if o.hooks.OnWait != nil || o.log != nil { // in a frame of its own, because the request is about to wait on this stack
		o.waits(WaitEvent{Place(at), cost, wait})
	}
}

func (o *observer) Granted(at limiter.Place, waited time.Duration) {
	o.hooks.OnGrant(GrantEvent{Place(at), waited, o.dry})
}

func (o *observer) Rejected(ctx context.Context, why limiter.Rejection, waited time.Duration) error {
	r := rejected(&why)
	if o.hooks.OnReject != nil || o.log != nil {
		o.rejects(ctx, r, waited)
	}
	return r
}

func (o *observer) Canceled(at limiter.Place, cause error, waited time.Duration) {
	if o.hooks.OnCancel != nil {
		o.hooks.OnCancel(CancelEvent{Place(at), cause, waited})
	}
}

func (o *observer) Held(at limiter.Place, h limiter.Hold) {
	e := HoldEvent{Place: Place(at), For: h.By, Source: SourceAdaptive, Guessed: h.Guessed, Verdict: Verdict(h.Verdict)}
	if h.Server {
		e.Source = SourceServer
	}
	e.Final, _ = h.Final.(*FinalError)
	o.held(e)
}

func (o *observer) Retuned(at limiter.Place, r aimd.Retune) {
	o.retuned(RetuneEvent{Place(at), Cause(r.Cause), r.From, r.To})
}

// Forgot reports that a server that had stopped requests was forgotten, because there was no room for the reports of all servers.
func (o *observer) Forgot(ctx context.Context, server string) {
	o.line(orBackground(ctx), slog.LevelWarn, int(rationCrowd), "throttle: no room for the reports of all servers, so those of one are forgotten",
		slog.String("key", server))
}

// rejects calls the hook and the logger for a request that is rejected.
func (o *observer) rejects(ctx context.Context, r *Rejection, waited time.Duration) {
	if o.hooks.OnReject != nil {
		o.hooks.OnReject(RejectEvent{Place: Place{ctx, r.Limit, r.Key}, Rejection: r, Waited: waited, DryRun: o.dry})
	}
	if o.log == nil {
		return
	}
	o.line(ctx, slog.LevelWarn, int(r.Reason), "throttle: request rejected",
		slog.String("reason", r.Reason.String()), slog.String("limit", r.Limit), slog.String("key", r.Key),
		slog.Int64("cost", r.Cost), r.waitAttr(), slog.Bool("dry_run", o.dry))
}

// waits calls the hook and the logger for a request that begins to wait.
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
		what, slog.Duration("for", e.For), slog.String("source", string(e.Source)), slog.String("verdict", e.Verdict.Label()), slog.Bool("guessed", e.Guessed))
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

func (o *observer) settled(e SettleEvent) {
	if o.hooks.OnSettle != nil {
		o.hooks.OnSettle(e)
	}
}

func (o *observer) retuned(e RetuneEvent) {
	if o.hooks.OnRetune != nil {
		o.hooks.OnRetune(e)
	}
	if e.Reason == CauseLatencyAlone {
		o.line(orBackground(e.Context), slog.LevelWarn, int(rationTune), "throttle: a request alone takes longer than the LatencyThreshold, so one at a time is sent",
			slog.String("limit", e.Limit), slog.String("key", e.Key))
		return
	}
	o.line(orBackground(e.Context), slog.LevelInfo, int(rationTune), "throttle: rate changed", slog.String("limit", e.Limit),
		slog.String("key", e.Key), slog.String("reason", e.Reason.Label()), slog.Float64("old", e.Old), slog.Float64("new", e.New))
}

// unread counts a response whose body a limit needs and which is compressed. The first time, it warns of that.
func (o *observer) unread(core *limiter.Core, of *bucket.Limit, req *http.Request, host string, resp *http.Response) {
	if core.CountUnread(of) && o.log != nil {
		o.log.LogAttrs(req.Context(), slog.LevelWarn, "throttle: a compressed response body cannot be read: delete Accept-Encoding from the requests, so that net/http decompresses",
			slog.String("limit", of.Name), slog.String("host", host), slog.String("content_encoding", strings.Join(resp.Header[content.Encoding], ", ")))
	}
}

// suspicious warns of what responses have shown of the options of a limit.
func (o *observer) suspicious(p *policy) {
	if text := p.warning(); o.log != nil && text != "" {
		o.log.LogAttrs(context.Background(), slog.LevelWarn, "throttle: a limit finds nothing of what it looks for in responses",
			slog.String("limit", p.rule.Name), slog.String("warning", text))
	}
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
func (o *observer) storeChanged(event supply.Event) {
	e := StoreEvent(event)
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
		text, level = "throttle: processes disagree about a shared limit", slog.LevelInfo // as they do during a deploy
		if e.Down >= supply.RollOut {
			level = slog.LevelWarn
		}
	}
	o.line(context.Background(), level, int(rationStore), text, limits, key, slog.Any("error", e.Err))
}
