package ui_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// patience is how long tests wait for what takes a moment, on the slowest machine too.
const patience = time.Minute

// pollInterval is how often a condition is looked at.
const pollInterval = 20 * time.Millisecond

// installed are the names of browsers that speak the protocol, and chromiumVariable names another one.
var installed = []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"}

const chromiumVariable = "ANNALS_TEST_CHROMIUM"

// findBrowser returns the browser's path. Without one the test is skipped, or fails where CI is set.
func findBrowser(t *testing.T) string {
	if path := os.Getenv(chromiumVariable); path != "" {
		return path
	}
	for _, name := range installed {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("no browser: install chromium, or name one in %s", chromiumVariable)
	}
	t.Skipf("no browser: install chromium, or name one in %s", chromiumVariable)
	return ""
}

// browser is one for all tests; each has a tab without a past in it. TestMain ends it.
var browser struct {
	sync.Mutex
	ctx context.Context
	end func()
}

func TestMain(m *testing.M) {
	code := m.Run()
	if browser.end != nil {
		browser.end()
	}
	os.Exit(code)
}

// startBrowser returns the browser, which it starts if it is the first to ask.
func startBrowser(t *testing.T) context.Context {
	path := findBrowser(t)
	browser.Lock()
	defer browser.Unlock()
	if browser.ctx != nil {
		return browser.ctx
	}
	// A profile of its own, which goes with it.
	allocator, endAllocator := chromedp.NewExecAllocator(context.Background(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.DisableGPU, chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true))...)
	ctx, cancel := chromedp.NewContext(allocator)
	browser.end = func() {
		cancel()
		endAllocator()
	}
	require.NoError(t, chromedp.Do(ctx), "start %s", path)
	browser.ctx = ctx
	return ctx
}

// tab is one tab, which watches what the page does that it must not.
type tab struct {
	t      *testing.T
	ctx    context.Context
	origin string // of the server: the page may ask nothing else

	mu     sync.Mutex
	faults []string // errors, violations of the policy, requests to others
	sent   []string // URLs of requests
}

// newTab opens a tab at the size of a desktop.
func newTab(t *testing.T, origin string) *tab {
	b := &tab{t: t, origin: origin}
	var cancel context.CancelFunc
	b.ctx, cancel = chromedp.NewContext(startBrowser(t), chromedp.WithNewBrowserContext(), chromedp.WithListener(b.watch))
	t.Cleanup(func() {
		cancel()
		b.mu.Lock()
		defer b.mu.Unlock()
		require.Empty(t, b.faults, "the page did what it must not")
	})
	require.NoError(t, chromedp.Do(b.ctx, chromedp.EmulateViewport(1280, 900))) // opens it, so without an end of time
	return b
}

// watch notes faults. That an answer was not a success is none: tests provoke that.
func (b *tab) watch(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fault := func(format string, args ...any) { b.faults = append(b.faults, fmt.Sprintf(format, args...)) }
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		fault("exception: %s %v", e.ExceptionDetails.Text, e.ExceptionDetails.Exception)
	case *runtime.EventConsoleAPICalled:
		fault("console: %s", e.Type)
	case *log.EventEntryAdded:
		if e.Entry.Source != log.EntrySourceNetwork && e.Entry.Level != log.EntryLevelVerbose {
			fault("%s: %s", e.Entry.Source, e.Entry.Text)
		}
	case *network.EventRequestWillBeSent:
		if !strings.HasPrefix(e.Request.URL, b.origin+"/") && !strings.HasPrefix(e.Request.URL, "data:") {
			fault("request: %s", e.Request.URL)
		}
		b.sent = append(b.sent, e.Request.URL)
	}
}

// requests returns the URLs of the requests until now.
func (b *tab) requests() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.sent...)
}

// run does something in the tab, and returns what comes of it.
func run[T any](b *tab, action chromedp.Action[T]) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, action)
	require.NoError(b.t, err)
	return v
}

// call sends a command of the protocol.
func call[P, R any](b *tab, command cdp.Command[P, R], params P) R {
	b.t.Helper()
	return run(b, func(ctx context.Context, target *chromedp.Target) (R, error) {
		return cdp.Call(ctx, target, command, params)
	})
}

// open goes to the page at an address, such as #key=a.
func (b *tab) open(hash string) {
	b.t.Helper()
	run(b, chromedp.Navigate(b.origin+"/ui"+hash))
}

// eval returns the value of an expression. The page's policy does not hold for it.
func eval[T any](b *tab, format string, args ...any) T {
	b.t.Helper()
	return run(b, chromedp.Evaluate[T](fmt.Sprintf(format, args...)))
}

// wait waits until an expression is true.
func (b *tab) wait(format string, args ...any) {
	b.t.Helper()
	began := time.Now()
	for !eval[bool](b, "Boolean("+format+")", args...) {
		if time.Since(began) > patience {
			b.t.Fatalf("not in time: %s; the page shows:\n%s", fmt.Sprintf(format, args...), eval[string](b, "document.body.innerText"))
		}
		time.Sleep(pollInterval)
	}
}

// waitText waits until an element shows a text, whose spaces may be line breaks.
func (b *tab) waitText(id, text string) {
	b.t.Helper()
	b.wait("document.getElementById(%s).innerText.replace(/\\s+/g, ' ').includes(%s)", quoted(id), quoted(text))
}

func (b *tab) click(selector string) {
	b.t.Helper()
	run(b, chromedp.Click(chromedp.CSS(selector)))
}

// write puts a text in the place of what is in a field, key by key.
func (b *tab) write(selector, text string) {
	b.t.Helper()
	run(b, chromedp.Focus(chromedp.CSS(selector)))
	eval[any](b, "document.activeElement.select()")
	b.press(text)
}

// press presses a key, as a keyboard would: kb.Tab, kb.Enter, or those of a text.
func (b *tab) press(keys string, options ...chromedp.KeyOption) {
	b.t.Helper()
	run(b, chromedp.KeyEvent(keys, options...))
}

// dark makes the page think that its user likes it dark, or not.
func (b *tab) dark(on bool) {
	b.t.Helper()
	b.prefer("prefers-color-scheme", map[bool]string{true: "dark", false: "light"}[on])
}

// prefer sets what the page is told that its user prefers.
func (b *tab) prefer(feature, value string) {
	b.t.Helper()
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: feature, Value: value}}})
}

// quoted is a text in a script.
func quoted(text string) string {
	b, err := json.Marshal(text)
	if err != nil {
		panic(err)
	}
	return string(b)
}
