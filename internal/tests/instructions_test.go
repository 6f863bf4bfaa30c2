//go:build linux && amd64 && !race

package tests

import (
	"fmt"
	"maps"
	"math"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/httpthrottle/throttle"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Times depend on the machine and on what else it does, and so drift by a tenth without a notice. The number of instructions that a
// request takes, beyond those of the base, does not: a process is stepped through a request, one instruction after the other. If a change
// is worth more of them, raise the bound. Fewer lower it. A bound has room of a seventh to a fifth above what was counted, because on a busy
// machine a stepped request takes so long that more is due in it.
//
// Where the machine does not allow a process to trace its child, the test says so.
func TestInstructionsOfARequestThatNeedNotWait(t *testing.T) { // slow: it steps processes
	if testing.CoverMode() != "" {
		t.Log("not counted: coverage counts, too")
		return
	}
	bare, err := countInstructions("bare")
	if err != nil {
		t.Log("not counted: this machine does not allow to trace:", err)
		return
	}
	for _, c := range steppedRequests {
		if c.name == "bare" || testing.Short() && c.name != "one limit" { // stepping takes seconds each
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			n, err := countInstructions(c.name)
			require.NoError(t, err)
			t.Log(n-bare, "instructions")
			assert.LessOrEqual(t, n-bare, c.most)
		})
	}
}

const many = 1_000_000_000

// steppedRequests are the requests of which instructions are counted.
var steppedRequests = []struct {
	name    string
	most    int
	opts    func() []throttle.Option // nil: only the base
	reports reports                  // which responses of its server report limits
}{
	{name: "bare"},
	{"one limit", 715, limitsWithoutHints(1), noReport},
	{"two limits", 990, limitsWithoutHints(2), noReport},
	{"four limits", 1420, limitsWithoutHints(4), noReport},
	{"eight limits", 2280, limitsWithoutHints(8), noReport},
	{"one limit and hints", 840, options(throttle.WithLimit(large())), noReport},
	{"by host", 1040, options(throttle.WithoutServerHints(), throttle.WithKey(throttle.ByHost), throttle.WithLimit(large())), noReport},
	{"by host and weights and hints", 1700, options(throttle.WithKey(throttle.ByHost), throttle.WithLimit(large()),
		throttle.WithWeights(map[string]int64{"/v1/": 2, "POST /upload": 10})), noReport},
	{"in flight", 1340, options(throttle.WithoutServerHints(), throttle.WithLimit(throttle.InFlight(1000))), noReport},
	{"quota", 1370, options(throttle.WithoutServerHints(), throttle.WithLimit(throttle.Quota(many, time.Minute))), noReport},
	{"after a report of limits", 4500, options(throttle.WithLimit(large())), once}, // 3,000, 3,600 if it takes a second, as a sweep is due then, and 4,100 if its timer is moved, too
	{"if each response reports limits", 22500, options(throttle.WithLimit(large())), always},
}

// A reports says which responses report limits.
type reports uint8

const (
	noReport reports = iota
	once             // the first
	always
)

func large(opts ...throttle.LimitOption) throttle.Limit {
	return throttle.TokenBucket(many, time.Second, opts...)
}

func options(opts ...throttle.Option) func() []throttle.Option {
	return func() []throttle.Option { return opts }
}

func limitsWithoutHints(n int) func() []throttle.Option {
	return func() []throttle.Option {
		opts := []throttle.Option{throttle.WithoutServerHints()}
		for i := range n {
			opts = append(opts, throttle.WithLimit(large(throttle.Name(fmt.Sprint(i)))))
		}
		return opts
	}
}

const (
	countedInside = "THROTTLE_TEST_INSTRUCTIONS" // set in the process that is stepped
	countedTimes  = 5                            // a timer, or what is done once a second, is no part of a request
)

// countInstructions returns how many instructions a request takes, in a process of its own.
func countInstructions(name string) (least int, err error) {
	runtime.LockOSThread() // one thread traces
	defer runtime.UnlockOSThread()
	pid, err := syscall.ForkExec(os.Args[0], os.Args[:1], &syscall.ProcAttr{
		Env:   append(os.Environ(), countedInside+"="+name, "GODEBUG=asyncpreemptoff=1", "GOMAXPROCS=1"),
		Files: []uintptr{0, 1, 2},
		Sys:   &syscall.SysProcAttr{Ptrace: true},
	})
	if err != nil {
		return 0, err
	}
	defer func() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		_, _ = syscall.Wait4(pid, nil, syscall.WALL, nil)
	}()
	least = math.MaxInt
	at := place{names: make(map[uintptr]string)}
	for stops, n := 0, 0; stops < 2*countedTimes; {
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &status, syscall.WALL, nil); err != nil {
			return 0, err
		}
		if !status.Stopped() {
			return 0, fmt.Errorf("the process of %s has ended", name)
		}
		signal := status.StopSignal()
		if signal == syscall.SIGSTOP {
			if stops++; stops%2 == 0 {
				least = min(least, n)
			}
			n = 0
		}
		switch stepping := stops%2 == 1; {
		case stepping:
			var regs syscall.PtraceRegs
			if err = syscall.PtraceGetRegs(pid, &regs); err == nil {
				err = syscall.PtraceSingleStep(pid)
			}
			if at.isOfRequest(uintptr(regs.Rip)) {
				n++
			}
		case signal == syscall.SIGSTOP, signal == syscall.SIGTRAP:
			err = syscall.PtraceCont(pid, 0)
		default:
			err = syscall.PtraceCont(pid, int(signal))
		}
		if err != nil {
			return 0, err
		}
	}
	return least, nil
}

// A place is where a process is that is stepped. It has the functions of the one that traces, as both are one program.
type place struct {
	names   map[uintptr]string // of functions, by instruction
	resumes bool               // that ends
	paused  bool               // the runtime lets other goroutines run, as it does after each 10 ms, or makes the stack larger
}

// isOfRequest goes on to the next instruction, and reports whether it is one of a request.
func (p *place) isOfRequest(pc uintptr) bool {
	name, ok := p.names[pc]
	if !ok {
		if f := runtime.FuncForPC(pc); f != nil {
			name = f.Name()
		}
		p.names[pc] = name
	}
	switch {
	case strings.HasPrefix(name, "runtime.morestack"):
		p.paused = true
	case p.paused && p.resumes && !isSwitch(name):
		p.paused, p.resumes = false, false
	case p.paused:
		p.resumes = isSwitch(name)
	}
	// Without a name, it is the system that reads its clock. A record goes on once a second, which is each time on a busy machine.
	return name != "" && !p.paused && !strings.HasSuffix(name, "record.(*Record).advance")
}

// isSwitch reports whether a function of the runtime switches to a goroutine.
func isSwitch(name string) bool { return name == "runtime.gogo" || name == "gogo" }

// init is where the main goroutine runs on the main thread, which is the one that is stepped.
func init() {
	if name := os.Getenv(countedInside); name != "" {
		beCounted(name)
		os.Exit(0)
	}
}

// The headers of responses that report limits, and of others.
var (
	reported = http.Header{"X-Ratelimit-Limit": {"1000000000000"}, "X-Ratelimit-Remaining": {"1000000000000"}, "X-Ratelimit-Reset": {"3600"}}
	plain    = http.Header{"Content-Type": {"application/json"}, "Date": {"Sun, 22 Nov 2026 00:00:00 GMT"}, "Content-Length": {"2"}, "Server": {"x"},
		"Etag": {"y"}, "Vary": {"Accept"}}
)

// beCounted stops before and after each request that is counted.
func beCounted(name string) {
	next := &answered{&http.Response{StatusCode: http.StatusOK, Body: http.NoBody}}
	var transport http.RoundTripper = next
	req, _ := http.NewRequest(http.MethodGet, "http://api.example.com/v1/x", nil)
	for _, c := range steppedRequests {
		if c.name != name || c.opts == nil {
			continue
		}
		transport = throttle.Must(throttle.New(next, c.opts()...))
		if c.reports != noReport {
			next.resp.Header = reported
			_, _ = transport.RoundTrip(req)
		}
		if c.reports == always {
			maps.Copy(plain, reported)
		}
	}
	next.resp.Header = plain
	for range 2000 {
		_, _ = transport.RoundTrip(req)
	}
	debug.SetGCPercent(-1)
	pid, thread := uintptr(os.Getpid()), uintptr(syscall.Gettid())
	for range countedTimes {
		_, _, _ = syscall.RawSyscall(syscall.SYS_TGKILL, pid, thread, uintptr(syscall.SIGSTOP))
		_, _ = transport.RoundTrip(req)
		_, _, _ = syscall.RawSyscall(syscall.SYS_TGKILL, pid, thread, uintptr(syscall.SIGSTOP))
	}
}
