package ui_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/server"
)

// TestServerGoesAndComes stops and starts the server under a page with a live tail.
func TestServerGoesAndComes(t *testing.T) {
	s := serve(t, server.Options{})
	s.append("k", "before")
	b := newTab(t, s.origin())
	b.open("#key=k")
	b.waitText("state", "Writer, ready")
	b.click("#live")
	b.waitText("stream-note", "Live")
	s.stop()
	b.waitText("state", "No answer")
	b.waitText("stream-note", "Live tail interrupted")

	// The port answers before the log is open.
	front := server.NewFront(server.FrontOptions{})
	l := s.listen()
	go func() { _ = front.Serve(l) }()
	b.waitText("state", "Not ready: the log is opening")
	early := newTab(t, s.origin())
	early.open("#key=k")
	early.waitText("state", "Not ready: the log is opening")
	early.waitText("keys-note", "No keys: the log is opening.")

	s.start(front)
	for _, b := range []*tab{b, early} {
		b.waitText("state", "Writer, ready")
		b.waitText("records", "before")
	}
	early.waitText("keys-note", "1 key")
	s.append("k", "after")
	b.waitText("records", "after")
	require.Equal(t, []uint64{1, 0}, sequences(b)[:2])
}

// TestHostileData shows what tries to be something else as what it is.
func TestHostileData(t *testing.T) {
	s := serve(t, server.Options{})
	script := `<script>document.title = "owned"</script><img src=x onerror="document.title='owned'">`
	keys := map[string]string{ // and what is shown of them
		script:                        script,
		"user/\u202egnp.exe":          `user/\u{202e}gnp.exe`,
		"nul\x00\n":                   `nul\u{0}\n`,
		"bin\xff\xfe\\":               `bin\xff\xfe\`,
		"":                            "the empty key",
		"http://example.invalid/#a=b": "http://example.invalid/#a=b",
		"עברית":                       "עברית",
	}
	for key := range keys {
		s.append(key, script)
	}
	b := newTab(t, s.origin())
	b.open("")
	b.waitText("keys-note", fmt.Sprintf("%d keys, in byte order.", len(keys)))
	shown := eval[[]string](b, "[...document.querySelectorAll('#key-list a')].map((a) => a.textContent)")
	for key, want := range keys {
		require.Contains(t, shown, want)
		openKey(b, want)
		b.waitText("records", script)
		require.Contains(t, eval[string](b, "document.getElementById('stream-title').textContent"), want, "%q", key)
	}
	require.Equal(t, "annals", eval[string](b, "document.title"))
	require.Zero(t, eval[int](b, "document.querySelectorAll('main script, main img').length"))
}

func TestHostileValues(t *testing.T) {
	s := serve(t, server.Options{})
	large := strings.Repeat("<b>123456789</b>", 1<<20/16)
	values := []string{
		"", "\x00\x01\xff", large, strings.Repeat("\xf0\x9f\x98\x80", 20_000), `{"a":1e400,"a":[{},[],{"b":12345678901234567890}],"c":"}\"{,"}`,
		"{not json", "a\u202eb\u2066c", strings.Repeat("\xff", 1<<17), strings.Repeat("[", 5000) + strings.Repeat("]", 5000),
	}
	for _, v := range values {
		s.append("k", v)
	}
	b := newTab(t, s.origin())
	b.open("#key=k")
	b.waitText("stream-note", fmt.Sprintf("%d records", len(values)))
	record := func(i int) string {
		return eval[string](b, "document.querySelectorAll('#records li')[%d].innerText.replace(/\\s+/g, ' ')", len(values)-1-i)
	}
	expand := func(i int) string {
		eval[any](b, "document.querySelectorAll('#records li')[%d].querySelector('summary').click()", len(values)-1-i)
		b.wait("document.querySelectorAll('#records details')[0] && document.querySelectorAll('#records li')[%d].querySelector('details pre').textContent !== ''", len(values)-1-i)
		return eval[string](b, "document.querySelectorAll('#records li')[%d].querySelector('details pre').textContent", len(values)-1-i)
	}
	require.Contains(t, record(0), "0 B")
	require.Contains(t, record(1), "3 B, bytes 00 01 ff ...")
	require.Contains(t, record(2), "1 MiB, text <b>123456789</b>")
	require.Contains(t, record(2), "The first 64 KiB")
	require.Less(t, len(record(2)), 1000)
	require.Equal(t, large[:64<<10], expand(2))
	require.Contains(t, record(3), "78.1 KiB, text 😀😀")
	require.Equal(t, 16_384, strings.Count(expand(3), "😀"))
	require.Contains(t, record(4), "JSON")
	require.Equal(t, "{\n  \"a\": 1e400,\n  \"a\": [\n    {},\n    [],\n    {\n      \"b\": 12345678901234567890\n    }\n  ],\n  \"c\": \"}\\\"{,\"\n}", expand(4))
	require.Contains(t, record(5), "text {not json")
	require.Contains(t, record(6), `text a\u{202e}b\u{2066}c`)
	require.Contains(t, record(7), "128 KiB, bytes ff ff")
	require.Contains(t, record(8), "[[[[")
	require.Zero(t, eval[int](b, "document.querySelectorAll('#records b:not(.meta b)').length"))

	// A large one is a long line of the event stream.
	b.click("#live")
	b.waitText("stream-note", "Live")
	s.append("k", strings.Repeat("large", 5<<20/5), "k", "small")
	b.waitText("records", "small")
	b.waitText("records", "5 MiB, text largelarge")
}

// TestDeepValues shows many small values that would be very large ones if they were laid out level by level.
func TestDeepValues(t *testing.T) {
	s := serve(t, server.Options{})
	const deep, values = 10_000, 25
	for range values {
		s.append("k", strings.Repeat("[", deep)+strings.Repeat("]", deep))
	}
	b := newTab(t, s.origin())
	b.open("#key=k")
	b.waitText("stream-note", fmt.Sprintf("%d records", values))
	eval[any](b, "document.querySelector('#records summary').click()")
	b.wait("document.querySelector('#records details pre').textContent.length > %d", 2*deep)
	require.Less(t, eval[int](b, "document.querySelector('#records details pre').textContent.length"), 100*2*deep)
	require.Zero(t, eval[int](b, "[...document.querySelectorAll('#records details:not([open]) pre')].filter((e) => e.textContent !== '').length"))
}

// TestTowersOfMarks shows text whose accents would be drawn over all that is above it.
func TestTowersOfMarks(t *testing.T) {
	s := serve(t, server.Options{})
	tower := "e" + strings.Repeat("\u0301", 300)
	s.append(tower, tower)
	b := newTab(t, s.origin())
	b.open("#key=" + url.QueryEscape(tower))
	b.waitText("stream-note", "1 record")
	b.waitText("keys-note", "1 key")
	for _, selector := range []string{"#stream-title", "#key-list a", "#records pre"} {
		require.NotEqual(t, "visible", eval[string](b, "getComputedStyle(document.querySelector(%s)).overflowY", quoted(selector)), selector)
	}
}
