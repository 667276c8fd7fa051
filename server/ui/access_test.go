package ui_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/auth"
	"github.com/annalsdb/annals/server"
)

// both opens a page that shows everything that it can: records of each kind, all tables, an escape, a running tail; and one
// that asks for a token.
func both(t *testing.T) (showing, asking *tab) {
	s := serve(t, server.Options{Replicas: []string{"http://127.0.0.1:9"}})
	key := "key/" + strings.Repeat("long", 100) + "\u202e"
	for _, v := range []string{strings.Repeat("word ", 500), strings.Repeat("w", 500), `{"json":[1,2]}`, "\x00" + strings.Repeat("\xff", 500), ""} {
		s.append(key, v)
	}
	b := newTab(t, s.origin())
	b.open("")
	b.waitText("replica-table", "refused")
	b.wait("document.querySelector('#key-list a')")
	eval[any](b, "document.querySelector('#key-list a').click()")
	b.waitText("stream-note", "5 records")
	eval[any](b, "document.querySelectorAll('details').forEach((d) => { d.open = true })")
	b.wait("document.querySelectorAll('#segments-table tbody tr').length > 0")
	b.click("#live")
	b.waitText("stream-note", "Live")

	_, tokens := secrets(t, auth.Entry{Name: "full", Scopes: auth.Read})
	closed := serve(t, server.Options{Tokens: tokens})
	a := newTab(t, closed.origin())
	a.open("")
	a.waitText("token-why", "only who has a token")
	return b, a
}

// TestKeyboardOnly reaches a record, and what is appended meanwhile, without a pointer.
func TestKeyboardOnly(t *testing.T) {
	s := serve(t, server.Options{})
	s.append("user/1", "one", "user/2", "two", "other", "three")
	b := newTab(t, s.origin())
	b.open("")
	b.waitText("key-list", "other")
	focused := func() string {
		return eval[string](b, "document.activeElement.id || document.activeElement.textContent")
	}
	// tabTo presses Tab until an element has the focus, which is then to be seen.
	tabTo := func(name string) {
		t.Helper()
		var passed []string
		for !slices.Contains(passed, name) {
			require.Less(t, len(passed), 30, "Tab does not lead to %s: %q", name, passed)
			b.press(kb.Tab)
			passed = append(passed, focused())
			require.True(t, eval[bool](b, "document.activeElement.matches(':focus-visible') && getComputedStyle(document.activeElement).outlineStyle !== 'none'"), focused())
		}
	}
	b.press(kb.Tab)
	require.Equal(t, "skip", focused())
	require.True(t, eval[bool](b, "document.activeElement.getBoundingClientRect().top >= 0"), "the focus is out of sight")
	b.press(kb.Enter)
	require.Equal(t, "main", focused())
	tabTo("prefix")
	b.press("user/")
	b.press(kb.Enter)
	b.waitText("keys-note", "2 keys with this prefix")
	tabTo("user/2")
	b.press(kb.Enter)
	b.waitText("records", "two")
	require.Equal(t, "stream-title", focused(), "where reading goes on")
	tabTo("live")
	b.press(" ")
	b.waitText("stream-note", "Live")
	s.append("user/2", "meanwhile")
	b.waitText("records", "meanwhile")
	require.Equal(t, "live", focused(), "what comes must not take the focus")
	b.press(kb.Enter)
	b.waitText("stream-note", "Paused.")
}

// TestPhone fits all of it into 320 px, which is also a window of 1,280 px at 400 %, and into others.
func TestPhone(t *testing.T) {
	b, asking := both(t)
	for _, width := range []int64{320, 360, 640, 768, 800} {
		for _, b := range []*tab{b, asking} {
			run(b, chromedp.EmulateViewport(width, 640, chromedp.EmulateMobile))
			b.wait("document.documentElement.clientWidth === %d", width)
			require.LessOrEqual(t, eval[int64](b, "document.documentElement.scrollWidth"), width)
			over := eval[[]string](b, `[...document.querySelectorAll('body *')].filter((e) => !e.closest('.scroll, svg, .skip, .keys a > *') && e.getBoundingClientRect().right > %d + 1)
				.map((e) => e.outerHTML.slice(0, 200))`, width)
			require.Empty(t, over, "they stick out at %d px", width)
		}
	}
}

// TestTargets wants controls that a finger hits: 24 px by 24 px at least everywhere, 44 px high on a phone.
func TestTargets(t *testing.T) {
	b, asking := both(t)
	small := `[...document.querySelectorAll('%s')].filter((e) => e.checkVisibility())
		.map((e) => [e.getBoundingClientRect(), e.outerHTML]).filter(([r]) => r.height < %d || r.width < 24).map(([r, html]) => r.height + ' ' + html.slice(0, 200))`
	for _, b := range []*tab{b, asking} {
		require.Empty(t, eval[[]string](b, small, "button, input, select, summary, #key-list a", 24))
		run(b, chromedp.EmulateViewport(360, 640, chromedp.EmulateMobile))
		b.wait("document.documentElement.clientWidth === 360")
		require.Empty(t, eval[[]string](b, small, "button, input, select", 44))
	}
}

// TestAccessibilityTree reads the page as a screen reader gets it.
func TestAccessibilityTree(t *testing.T) {
	b, asking := both(t)
	nameless := []string{"button", "link", "textbox", "searchbox", "combobox", "DisclosureTriangle", "image", "region", "navigation", "search", "table", "list", "heading"}
	seen := make(map[string][]string)
	for _, b := range []*tab{b, asking} {
		for _, n := range call(b, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{}).Nodes {
			if n.Ignored || n.Role == nil {
				continue
			}
			role, name := strings.Trim(string(n.Role.Value), `"`), ""
			if n.Name != nil {
				name = strings.Trim(string(n.Name.Value), `"`)
			}
			seen[role] = append(seen[role], name)
		}
	}
	for _, role := range nameless {
		require.NotContains(t, seen[role], "", "a %s without a name", role)
	}
	require.Subset(t, seen["button"], []string{"List keys", "Open as key", "Live tail", "Newest", "Older", "Newer", "Go", "Use this token"})
	require.Subset(t, seen["textbox"], []string{"Prefix, or a whole key", "From sequence", "Token"})
	require.Subset(t, seen["region"], []string{"Now", "Replicas", "Segments along time", "The last minutes", "Segments"})
	for _, landmark := range []string{"banner", "main", "search"} {
		require.NotEmpty(t, seen[landmark], landmark)
	}
	require.Len(t, seen["image"], 1, "the chart; sparks say nothing that is not said")
	require.Contains(t, seen["image"][0], "1 segment with 0 runs and")
	require.Equal(t, "h1 h2 h2 h2 h2 h2", eval[string](b, "[...document.querySelectorAll('h1, h2, h3')].filter((e) => e.checkVisibility()).map((e) => e.localName).join(' ')"))
	require.Equal(t, "en", eval[string](b, "document.documentElement.lang"))
	// A list of records that changes is no live region: what is said of it is said now and then.
	require.False(t, eval[bool](b, "Boolean(document.getElementById('records').closest('[aria-live], [role=status], [role=log]'))"))
}

// contrasts returns the texts whose contrast with what is behind them is below 4.5, and the controls whose edge's is below 3.
const contrasts = `(() => {
	const canvas = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
	const rgba = (color) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
	const light = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
		.reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
	const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
	const behind = (e) => { for (; e; e = e.parentElement) { const c = rgba(getComputedStyle(e).backgroundColor); if (c[3] > 0) return c; } return rgba('white'); };
	const low = [];
	const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	let seen = 0;
	while (texts.nextNode()) {
		const e = texts.currentNode.parentElement;
		if (!texts.currentNode.data.trim() || !e.checkVisibility()) continue;
		seen++;
		const r = ratio(rgba(getComputedStyle(e).color), behind(e));
		if (r < 4.5) low.push(r.toFixed(2) + ' ' + e.outerHTML.slice(0, 150));
	}
	for (const e of document.querySelectorAll('button, input, select')) {
		const r = ratio(rgba(getComputedStyle(e).borderTopColor), behind(e.parentElement));
		if (r < 3) low.push(r.toFixed(2) + ' edge of ' + e.outerHTML.slice(0, 150));
	}
	for (const e of document.querySelectorAll('#segments-chart .sealed')) {
		const r = ratio(rgba(getComputedStyle(e).fill), behind(e.closest('figure')));
		if (r < 3) low.push(r.toFixed(2) + ' bars');
	}
	return { seen, low };
})()`

func TestContrast(t *testing.T) {
	b, asking := both(t)
	for _, dark := range []bool{false, true} {
		for _, b := range []*tab{b, asking} {
			b.dark(dark)
			b.wait("matchMedia('(prefers-color-scheme: dark)').matches === %v", dark)
			found := eval[struct {
				Seen int
				Low  []string
			}](b, "%s", contrasts)
			require.Greater(t, found.Seen, 5)
			require.Empty(t, found.Low, fmt.Sprintf("dark: %v", dark))
		}
	}
	// Whoever wants less motion gets none.
	require.Equal(t, "fresh", eval[string](b, "(() => { const e = document.createElement('i'); e.className = 'fresh'; document.getElementById('records').append(e); return getComputedStyle(e).animationName; })()"))
	b.prefer("prefers-reduced-motion", "reduce")
	b.wait("getComputedStyle(document.querySelector('#records .fresh')).animationName === 'none'")
}

// TestLiveRegionsAreQuiet has a screen reader told of what changes, and not of each poll and record.
func TestLiveRegionsAreQuiet(t *testing.T) {
	s := serve(t, server.Options{})
	s.append("k", "before")
	b := newTab(t, s.origin())
	b.open("#key=k")
	b.waitText("state", "Writer, ready")
	b.click("#live")
	b.waitText("stream-note", "Live")
	eval[any](b, `globalThis.told = {}; for (const e of document.querySelectorAll('[role=status]')) {
		told[e.id] = 0;
		new MutationObserver(() => told[e.id]++).observe(e, { childList: true, characterData: true, subtree: true });
	}`)
	const records = 20
	for i := range records {
		s.append("k", fmt.Sprint("record ", i))
		b.waitText("records", fmt.Sprint("record ", i))
	}
	seen := len(b.requests())
	require.Eventually(t, func() bool {
		return strings.Count(strings.Join(b.requests()[seen:], " "), "/status") >= 2
	}, patience, pollInterval)
	told := eval[map[string]int](b, "told")
	require.Len(t, told, 3)
	require.Zero(t, told["state"])
	require.Zero(t, told["keys-note"])
	require.Less(t, told["stream-note"], records/2)
	b.waitText("stream-note", fmt.Sprintf("Live: record %d is the newest.", records))
}
