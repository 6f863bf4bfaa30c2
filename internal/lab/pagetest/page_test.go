package pagetest

import (
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/httpthrottle/throttle"
	"github.com/httpthrottle/throttle/throttlepage"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	pictures = flag.String("pictures", "", "keep the pictures in this directory")
	load     = flag.Duration("load", 6*time.Second, "watch clients under load for this time before a picture is taken")
)

const live = `document.documentElement.dataset.link === "live"`

func TestPageIsLive(t *testing.T) { // slow: a browser, in real time
	b := openTab(t, 1120, 900)
	if b == nil {
		return
	}
	url := dashboard(t)
	b.navigate(url)
	b.within(5*time.Second, live)
	b.within(5*time.Second, `document.querySelectorAll(".line").length > 0`)
	const fold = `document.querySelector(".fold > details")`
	const points = `document.querySelector(".line path:last-child").getAttribute("d").split(",").length`
	before := eval[int](b, points)
	eval[bool](b, `window.first = document.querySelector("h2"), window.fold = `+fold+`, fold.open = true`)
	time.Sleep(*load)
	assert.Greater(t, eval[int](b, points), before, "the chart grows")
	assert.True(t, eval[bool](b, `first.isConnected && fold.isConnected && fold.open`), "what is the same stays in place")
	eval[bool](b, `fold.open = false; true`)
	for _, scheme := range []string{"light", "dark"} {
		b.prefer(scheme)
		assert.Empty(t, eval[[]string](b, faint), scheme)
		b.crop("2")
		b.picture(map[string]string{"light": "page.png", "dark": "page-dark.png"}[scheme])
	}
	assert.Empty(t, b.console(), "on the console")
	for _, asked := range b.requested() {
		assert.True(t, strings.HasPrefix(asked, url) || strings.HasPrefix(asked, "data:"), asked)
	}
}

// Thirty Limiters, of which one rejects: it comes first, and the others are folded.
func TestManyLimitersFitAndTheWorstIsFirst(t *testing.T) { // slow: a browser, in real time
	limiters := make(map[string]*throttle.Limiter)
	for i := range 30 {
		limiters[fmt.Sprintf("service-%02d", i)] = limiter(t)
	}
	worst, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(10, time.Hour, throttle.Name("uploads"))))
	require.NoError(t, err)
	limiters["service-17"] = worst
	page := throttlepage.New(limiters, throttlepage.Every(time.Second))
	defer page.Close()
	server := serve(t, "", page)
	defer stop(server)
	for range 40 {
		worst.Try(throttle.Ask{Key: "tenant"})
		_, _ = worst.Acquire(t.Context(), throttle.Ask{Key: "tenant", MaxWait: new(time.Duration(0))})
	}
	for _, width := range []int64{1400, 400} {
		b := openTab(t, width, 1000)
		if b == nil {
			return
		}
		b.navigate(pageOf(server))
		b.within(5*time.Second, live)
		b.within(15*time.Second, `document.querySelectorAll("svg.line").length > 100`)
		assert.LessOrEqual(t, eval[int64](b, `document.documentElement.scrollWidth`), width)
		assert.Equal(t, "service-17", eval[string](b, `document.querySelector("h2").innerText`))
		assert.Equal(t, 1, eval[int](b, `document.querySelectorAll(".card[open]").length`))
		assert.Contains(t, eval[string](b, `document.querySelector(".events").innerText`), "requests rejected by limit “uploads”: no tokens")
		eval[bool](b, `(() => {
			const box = document.querySelector("svg.line").getBoundingClientRect()
			document.querySelector("svg.line").dispatchEvent(new PointerEvent("pointermove", {bubbles: true, clientX: box.left + box.width - 1, clientY: box.top + 5}))
			return true
		})()`)
		assert.Regexp(t, `^\d\d:\d\d:\d\d  [\d.]+/s$`, eval[string](b, `document.querySelector("#tip").textContent`), "the value at the pointer")
		for _, scheme := range []string{"light", "dark"} {
			b.prefer(scheme)
			assert.Empty(t, eval[[]string](b, faint), scheme)
			b.picture(fmt.Sprintf("page-30-%d-%s.png", width, scheme))
		}
		// The stream begins again with another query.
		eval[bool](b, `(() => {
			const input = document.querySelector("input")
			input.value = "nothing"
			input.dispatchEvent(new Event("input", {bubbles: true}))
			return true
		})()`)
		b.within(5*time.Second, `![...document.querySelectorAll("bdi")].some(e => e.innerText === "tenant") && location.search.includes("q=nothing")`)
		eval[bool](b, `document.querySelector("a.copy").click(); true`)
		b.within(5*time.Second, `location.pathname.endsWith("text") || document.querySelector("a.copy").innerText === "copied"`)
		assert.Empty(t, b.console())
	}
}

// faint lists the texts whose contrast is below 4.5, as WCAG has it.
const faint = `(() => {
	const channels = color => color.match(/[\d.]+/g).map(Number)
	const luminance = color => {
		const [r, g, b] = channels(color).map(c => c / 255).map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
		return 0.2126 * r + 0.7152 * g + 0.0722 * b
	}
	const behind = e => {
		const color = getComputedStyle(e).backgroundColor
		return channels(color)[3] === 0 ? behind(e.parentElement) : color
	}
	return [...document.querySelectorAll("main *")].filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) && e.checkVisibility()).filter(e => {
		const [a, b] = [luminance(getComputedStyle(e).color), luminance(behind(e))]
		return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5
	}).map(e => e.innerText)
})()`

func (b *tab) prefer(scheme string) {
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	require.NoError(b.t, err)
	dark := eval[bool](b, `getComputedStyle(document.body).backgroundColor.match(/\d+/)[0] < 100`)
	assert.Equal(b.t, scheme == "dark", dark)
}

// crop makes the screen as high as the first sections.
func (b *tab) crop(sections string) {
	height := eval[float64](b, `document.querySelectorAll("section")[`+sections+`-1].getBoundingClientRect().bottom + scrollY + 24`)
	require.NoError(b.t, chromedp.Do(b.ctx, chromedp.EmulateViewport(1120, int64(height), chromedp.EmulateScale(1.5))))
}

func (b *tab) picture(name string) {
	shot, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	require.NoError(b.t, err)
	dir := *pictures
	if dir == "" {
		dir = b.t.ArtifactDir()
	}
	require.NoError(b.t, os.WriteFile(filepath.Join(dir, name), shot, 0o644))
}

func TestFitsNarrowScreen(t *testing.T) { // slow: a browser, in real time
	b := openTab(t, 360, 740, chromedp.EmulateMobile)
	if b == nil {
		return
	}
	server := serve(t, "", throttlepage.New(map[string]*throttle.Limiter{`<b id="x">`: hostile(t)}))
	defer stop(server)
	for _, url := range []string{pageOf(server), dashboard(t)} {
		b.navigate(url)
		b.within(5*time.Second, live)
		time.Sleep(4 * time.Second) // for charts
		eval[bool](b, `document.querySelectorAll("details").forEach(d => d.open = true); true`)
		assert.LessOrEqual(t, eval[int](b, `document.documentElement.scrollWidth`), 360)
		assert.Empty(t, eval[[]string](b, `[...document.querySelectorAll("main *")].filter(e => e.getBoundingClientRect().right > 360.5).map(e => e.outerHTML)`))
	}
	b.picture("page-narrow.png")
}

// A name may have no place at which a line usually breaks.
func TestLongNamesWrapOnNarrowScreen(t *testing.T) { // slow: a browser, in real time
	b := openTab(t, 390, 844, chromedp.EmulateMobile)
	if b == nil {
		return
	}
	name := func(what string) string { return what + strings.Repeat("WideName_", 9) }
	l, err := throttle.NewLimiter(throttle.WithMaxWait(time.Millisecond),
		throttle.WithLimit(throttle.TokenBucket(1, time.Hour, throttle.Name(name("limit")))),
		throttle.WithLimit(throttle.SlidingWindow(1000, time.Minute, throttle.Name(name("window")))))
	require.NoError(t, err)
	page := throttlepage.New(map[string]*throttle.Limiter{name("limiter"): l, name("keyed"): hostile(t)}, throttlepage.Every(time.Second))
	defer page.Close()
	server := serve(t, "", page)
	defer stop(server)
	b.navigate(pageOf(server))
	b.within(5*time.Second, live)
	for range 3 {
		_ = l.Wait(t.Context(), throttle.Ask{Key: name("key")}) // all but the first are rejected
	}
	l.Hold(name("key"), time.Minute)
	b.within(5*time.Second, `document.querySelector(".events .bad") !== null`)
	eval[bool](b, `document.querySelectorAll("details").forEach(d => d.open = true); true`)
	for _, scheme := range []string{"light", "dark"} {
		b.prefer(scheme)
		assert.LessOrEqual(t, eval[int](b, `document.documentElement.scrollWidth`), 390)
		assert.Empty(t, eval[[]string](b, wide), scheme)
		assert.Empty(t, eval[[]string](b, faint), scheme)
		height := eval[float64](b, `document.documentElement.scrollHeight`)
		require.NoError(t, chromedp.Do(b.ctx, chromedp.EmulateViewport(390, int64(height), chromedp.EmulateMobile)))
		b.picture("page-long-" + scheme + ".png")
	}
}

// wide lists the texts that go beyond the edge of their section.
const wide = `(() => {
	const range = document.createRange()
	return [...document.querySelectorAll("main *")].filter(e => e.checkVisibility()).filter(e => {
		const edge = (e.closest("section") ?? document.body).getBoundingClientRect().right
		return [...e.childNodes].filter(n => n.nodeType === 3).some(text => {
			range.selectNodeContents(text)
			return [...range.getClientRects()].some(box => box.right > edge)
		})
	}).map(e => e.innerText)
})()`

func TestHostileNamesStayText(t *testing.T) {
	b := openTab(t, 1120, 900)
	if b == nil {
		return
	}
	server := serve(t, "", throttlepage.New(map[string]*throttle.Limiter{`<b id="x">`: hostile(t)}))
	defer stop(server)
	b.navigate(pageOf(server))
	for _, state := range []string{"true", live} { // as the document has them, and as a patch
		b.within(5*time.Second, state)
		text := eval[string](b, `document.querySelector("main").innerText`)
		for _, name := range []string{`<b id="x">`, `<img src="//example.com/x">`, "<script>alert(1)</script>", `"a\x00b\u202ec\xff"`, `"><b onclick=alert(1)>`, `"a\r\n\r\ndata: b"`} {
			assert.Contains(t, text, name)
		}
		assert.Zero(t, eval[int](b, `document.querySelectorAll("main script, main img, main [onclick], #x").length`))
	}
	assert.Empty(t, b.console())
	for _, asked := range b.requested() {
		assert.True(t, strings.HasPrefix(asked, pageOf(server)) || strings.HasPrefix(asked, "data:"), asked)
	}
}

// A browser takes localhost and 127.0.0.1 for two sites.
func TestOtherSiteCanLinkToThePageAndNotLoadIt(t *testing.T) {
	b := openTab(t, 800, 600)
	if b == nil {
		return
	}
	page := throttlepage.New(map[string]*throttle.Limiter{"api": limiter(t)})
	defer page.Close()
	var mu sync.Mutex
	status := make(map[string]int) // by what the browser wants it for
	server := serve(t, "", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := httptest.NewRecorder()
		page.ServeHTTP(answer, r)
		mu.Lock()
		status[r.Header.Get("Sec-Fetch-Dest")] = answer.Code
		mu.Unlock()
		w.Header().Set("Content-Type", answer.Header().Get("Content-Type"))
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
	}))
	defer stop(server)
	url := pageOf(server)
	other := serve(t, "", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<img src="%[1]stext"><iframe src="%[1]s"></iframe><script src="%[1]sstate.json"></script><a href="%[1]stext">link</a>
			<script>fetch("%[1]sstate.json", {mode: "no-cors"}).finally(() => document.title = "done")</script>`, url)
	}))
	defer stop(other)
	b.navigate(strings.Replace(pageOf(other), "127.0.0.1", "localhost", 1))
	b.within(5*time.Second, `document.title === "done"`)
	eval[bool](b, `document.querySelector("a").click(); true`)
	b.within(5*time.Second, `document.body.innerText.includes("Nothing waits.")`)
	mu.Lock()
	defer mu.Unlock()
	assert.Equal(t, map[string]int{"image": 403, "iframe": 403, "script": 403, "empty": 403, "document": 200}, status)
}

func TestLostConnectionIsShownUntilItReturns(t *testing.T) { // slow: a browser, in real time
	b := openTab(t, 800, 600)
	if b == nil {
		return
	}
	page := throttlepage.New(map[string]*throttle.Limiter{"api": limiter(t)})
	server := serve(t, "", page)
	b.navigate(pageOf(server))
	b.within(5*time.Second, live)
	assert.False(t, eval[bool](b, lost))
	address := server.Listener.Addr().String()
	stop(server)
	b.within(5*time.Second, lost)
	b.picture("page-lost.png")
	server = serve(t, address, page)
	defer stop(server)
	b.within(6*time.Second, live)
	assert.False(t, eval[bool](b, lost))
}

const lost = `document.querySelector("[role=alert]").checkVisibility()`

func limiter(t *testing.T) *throttle.Limiter {
	l, err := throttle.NewLimiter(throttle.WithLimit(throttle.TokenBucket(1000, time.Hour)))
	require.NoError(t, err)
	return l
}

// As behind a proxy or a handler that does not let streams through.
func TestPageIsLiveWithoutStreams(t *testing.T) { // slow: a browser, in real time
	b := openTab(t, 800, 600)
	if b == nil {
		return
	}
	page := throttlepage.New(map[string]*throttle.Limiter{"api": limiter(t)})
	server := serve(t, "", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/events") {
			http.Error(w, "no streams here", http.StatusBadGateway)
			return
		}
		page.ServeHTTP(w, r)
	}))
	defer stop(server)
	b.navigate(pageOf(server))
	for range 2 {
		b.within(5*time.Second, live)
		before := eval[string](b, `document.querySelector("time").innerText`)
		b.within(5*time.Second, `document.querySelector("time").innerText !== "`+before+`"`)
	}
}

func TestHiddenPageDoesNotStream(t *testing.T) { // slow: a browser, in real time
	b := openTab(t, 800, 600)
	if b == nil {
		return
	}
	page, streams := throttlepage.New(map[string]*throttle.Limiter{"api": limiter(t)}), atomic.Int32{}
	server := serve(t, "", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/events") {
			streams.Add(1)
			defer streams.Add(-1)
		}
		page.ServeHTTP(w, r)
	}))
	defer stop(server)
	b.navigate(pageOf(server))
	b.within(5*time.Second, live)
	for _, hidden := range []string{"true", "false"} {
		eval[bool](b, `Object.defineProperty(document, "hidden", {value: `+hidden+`, configurable: true}); dispatchEvent(new Event("visibilitychange"))`)
		want := int32(1)
		if hidden == "true" {
			want = 0
		}
		assert.Eventually(t, func() bool { return streams.Load() == want }, 5*time.Second, 10*time.Millisecond)
	}
}

func TestFirstLookNeedsNoScript(t *testing.T) {
	b := openTab(t, 800, 600)
	if b == nil {
		return
	}
	l := limiter(t)
	require.NoError(t, l.Wait(t.Context(), throttle.Ask{}))
	server := serve(t, "", throttlepage.New(map[string]*throttle.Limiter{"api": l}))
	defer stop(server)
	_, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	require.NoError(t, err)
	b.navigate(pageOf(server))
	text := eval[string](b, `document.body.innerText`)
	for _, want := range []string{"api", "flowing", "Nothing waits.", "999 / 1,000", "bucket"} {
		assert.Contains(t, text, want)
	}
	assert.False(t, eval[bool](b, live), "and does not claim to be live")
}
