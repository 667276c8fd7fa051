package ui_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/server"
)

// sequences returns the sequences of the records that are shown, from the top.
func sequences(b *tab) []uint64 {
	return eval[[]uint64](b, "[...document.querySelectorAll('#records b')].map((e) => Number(e.textContent.slice(1)))")
}

// rows returns the cells of a table's body.
func rows(b *tab, id string) [][]string {
	return eval[[][]string](b, "[...document.querySelectorAll('#%s tbody tr')].map((r) => [...r.cells].map((c) => c.innerText))", id)
}

// openKey opens the stream of a key from the list.
func openKey(b *tab, key string) {
	b.t.Helper()
	find := fmt.Sprintf("[...document.querySelectorAll('#key-list a')].find((a) => a.innerText === %s)", quoted(key))
	b.wait("%s", find)
	eval[any](b, "%s.click()", find)
	b.waitText("stream-title", key)
}

func TestFiguresAndSegments(t *testing.T) {
	s := serve(t, server.Options{Version: "annals v1.2.3"})
	s.stop()
	s.engine.SegmentBytes = 64 << 10
	s.engine.SegmentMinBytes = 1 << 10
	s.start(nil)
	for i := range 3 {
		s.append("k", strings.Repeat("x", 70<<10))
		require.Eventually(t, func() bool { return s.db.Status().Segments == i+2 }, patience, pollInterval)
	}
	s.append("k", "the active segment's")
	b := newTab(t, s.origin())
	b.open("")
	b.waitText("state", "Writer, ready")
	b.waitText("about", "annals v1.2.3 · mem:")
	b.waitText("facts", "Segments 4")

	// Three sealed bars and the active one, each with what it is.
	const subpaths = "(document.querySelector('#segments-chart .%s')?.getAttribute('d').match(/M/g) ?? []).length"
	b.wait(subpaths+" === 3", "sealed")
	require.Equal(t, 1, eval[int](b, subpaths, "active"))
	b.click("#segments-details summary")
	b.wait("document.querySelectorAll('#segments-table tbody tr').length === 4")
	table := rows(b, "segments-table")
	require.Equal(t, []string{"4", "active"}, table[0][:2])
	require.Equal(t, []string{"1", "sealed"}, table[3][:2])
	require.Equal(t, []string{"1", "1", "70 KiB", "0 to 0"}, table[3][3:])
	corner := eval[[]float64](b, "(({ left, bottom }) => [left + 1, bottom - 5])(document.querySelector('#segments-chart').getBoundingClientRect())")
	run(b, chromedp.MouseEvent("mouseMoved", corner[0], corner[1]))
	b.waitText("segments-readout", "Segment 1, 1 run: 1 record, 70 KiB")

	// What is appended meanwhile shows.
	b.wait("document.querySelector('.tiles .value').innerText === '0'")
	resp, err := http.Post(s.origin()+"/api/v1/log/append", "application/json", strings.NewReader(`{"records":[{"key":"aw==","value":"dg=="}]}`))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusOK, resp.StatusCode)
	b.wait("Number(document.querySelector('.tiles .value').innerText) > 0")
	b.wait("/^[0-9.]+ (ms|s)$/.test(document.querySelectorAll('.tiles .value')[3].innerText)")
	require.NotEmpty(t, eval[string](b, "document.querySelector('.spark .line').getAttribute('d')"))
	b.click("#history summary")
	b.wait("document.querySelectorAll('#history-table tbody tr').length > 0")
	require.Zero(t, eval[int](b, "document.querySelectorAll('#replicas:not([hidden])').length"))
}

// TestLatencyFigures reads quantiles of histograms that a test made up.
func TestLatencyFigures(t *testing.T) {
	var polls atomic.Int64
	const status = `{"status":"success","role":"writer","version":"v","ready":true,"reason":"","nowMs":%d,"uptimeMs":%d,"store":"mem:","epoch":1,
		"frontier":0,"firstSequence":0,"segments":0,"runs":0,"tables":0,"storedBytes":0,"unflushedBytes":0,"followers":0,
		"ingest":{"appends":0,"records":%d,"bytes":%d},"appendLatency":{"le":[0.01,0.02,0.04],"counts":%s}}`
	origin := canned(t, func(path string) (int, string) {
		if !strings.HasSuffix(path, "/status") {
			return http.StatusOK, `{"status":"success","segments":[],"keys":[]}`
		}
		switch n := polls.Add(1); n {
		case 1:
			return http.StatusOK, fmt.Sprintf(status, int64(1e12), 10_000, 5, 0, "[4,4,4,5]")
		default: // in ten seconds 100 appends: 50 below 10 ms, 49 more below 20 ms, and one above 40 ms
			return http.StatusOK, fmt.Sprintf(status, int64(1e12+1e4*n), 10_000*n, 5+300*(n-1), 20480*(n-1),
				fmt.Sprintf("[%d,%d,%d,%d]", 4+50*(n-1), 4+99*(n-1), 4+99*(n-1), 5+100*(n-1)))
		}
	})
	b := newTab(t, origin)
	b.open("")
	b.waitText("tiles", "Records a second 30 ")
	require.Equal(t, []string{"30", "2 KiB", "10 ms", "20 ms"}, eval[[]string](b, "[...document.querySelectorAll('.tiles .value')].map((e) => e.innerText)"))
}

// TestManySegments draws few bars whatever the number of segments.
func TestManySegments(t *testing.T) {
	const n = 10_000
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`{"id":%d,"startSeq":%d,"startTimeMs":%d,"endSeq":%d,"sealed":true,"records":10,"bytes":%d,"runs":%d}`,
			i+1, 10*i, int64(1e12)+int64(i)*60_000, 10*i+10, 1000+i%7, 1+i%3))
	}
	origin := canned(t, func(path string) (int, string) {
		switch {
		case strings.HasSuffix(path, "/status"):
			return http.StatusOK, fmt.Sprintf(`{"status":"success","role":"writer","version":"v","ready":true,"reason":"","nowMs":%d,"uptimeMs":1,"store":"mem:","epoch":1,
				"frontier":0,"firstSequence":0,"segments":%d,"runs":0,"tables":0,"storedBytes":0,"unflushedBytes":0,"followers":0,
				"ingest":{"appends":0,"records":0,"bytes":0},"appendLatency":{"le":[1],"counts":[0,0]}}`, int64(1e12+n*6e4), n)
		case strings.HasSuffix(path, "/segments"): // as many as a page has at most, so there is another one
			page := strings.Join(all, ",")
			all = nil
			return http.StatusOK, `{"status":"success","segments":[` + page + `]}`
		}
		return http.StatusOK, `{"status":"success","keys":[]}`
	})
	b := newTab(t, origin)
	b.open("")
	b.wait("(document.querySelector('#segments-chart .sealed')?.getAttribute('d').match(/M/g) ?? []).length > 100")
	require.LessOrEqual(t, eval[int](b, "document.querySelector('#segments-chart .sealed').getAttribute('d').match(/M/g).length"),
		eval[int](b, "document.querySelector('#segments-chart').clientWidth / 3 + 1 | 0"))
	require.Less(t, eval[int](b, "document.querySelectorAll('#segments-chart *').length"), 10)
	require.Contains(t, eval[string](b, "document.querySelector('#segments-chart').getAttribute('aria-label')"), "10,000 segments with 19,999 runs")
	b.click("#segments-details summary")
	b.wait("document.querySelectorAll('#segments-table tbody tr').length === 100")
	require.Equal(t, "10000", rows(b, "segments-table")[0][0])
}

func TestReplicas(t *testing.T) {
	writer := serve(t, server.Options{})
	writer.append("k", "v")
	reader, err := engine.OpenReader(t.Context(), writer.store, engine.ReaderOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, reader.Close(context.Background())) })
	replica := serve(t, server.Options{})
	replica.stop()
	srv, err := server.New(server.Options{DB: reader})
	require.NoError(t, err)
	l := replica.listen()
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { require.NoError(t, srv.Shutdown(context.Background())) })
	gone := serve(t, server.Options{})
	gone.stop()

	writer.stop()
	writer.options.Replicas = []string{replica.origin(), gone.origin()}
	writer.start(nil)
	b := newTab(t, writer.origin())
	b.open("")
	b.wait("document.querySelectorAll('#replica-table tbody tr').length === 2")
	table := rows(b, "replica-table")
	require.Equal(t, []string{replica.origin(), "ready"}, table[0][:2])
	require.Contains(t, table[1][1], "refused")

	r := newTab(t, replica.origin())
	r.open("#key=k")
	r.waitText("state", "Replica, ready")
	r.waitText("tiles", "Behind the writer")
	r.waitText("records", "v")
}

func TestKeysByPrefix(t *testing.T) {
	s := serve(t, server.Options{})
	for i := range 60 {
		s.append(fmt.Sprintf("user/%02d", i), "v")
	}
	s.append("other", "v")
	b := newTab(t, s.origin())
	b.open("")
	b.waitText("keys-note", "25 keys, and more, in byte order.")
	b.write("#prefix", "user/")
	b.press("\r")
	b.waitText("keys-note", "25 keys with this prefix")
	b.click("#keys-next")
	b.waitText("key-list", "user/49")
	b.click("#keys-next")
	b.waitText("keys-note", "10 further keys with this prefix, in byte order.")
	b.click("#keys-next")
	b.waitText("keys-note", "This is the last page.")
	b.click("#keys-first")
	b.waitText("key-list", "user/00")

	// The address leads to the same place, and back.
	openKey(b, "user/07")
	require.Equal(t, "#prefix=user%2F&key=user%2F07", eval[string](b, "location.hash"))
	openKey(b, "user/08")
	require.Equal(t, "user/08", eval[string](b, "document.querySelector('#key-list [aria-current]').innerText"))
	eval[any](b, "history.back()")
	b.waitText("stream-title", "user/07")
	run(b, chromedp.Reload())
	b.waitText("stream-title", "user/07")
	b.waitText("keys-note", "25 keys with this prefix")
	require.Equal(t, "user/", eval[string](b, "document.getElementById('prefix').value"))

	b.write("#prefix", "no such")
	b.press("\r")
	b.waitText("keys-note", "No keys with this prefix.")
	run(b, chromedp.SetValue(chromedp.CSS("#coding"), "base64"))
	b.write("#prefix", "?")
	b.press("\r")
	b.waitText("keys-note", "This is not base64.")
	b.write("#prefix", "b3RoZXI")
	b.click("#open")
	b.waitText("stream-title", "Stream of other")
}

func TestPagesOfAStream(t *testing.T) {
	s := serve(t, server.Options{})
	s.appendMany("k", 60)
	b := newTab(t, s.origin())
	b.open("#key=k")
	b.waitText("stream-note", "25 records, 35 to 59.")
	require.Equal(t, uint64(59), sequences(b)[0])
	b.waitText("records", "value 59")
	b.click("#older")
	b.waitText("stream-note", "25 records, 10 to 34.")
	b.click("#older")
	b.waitText("stream-note", "10 records, 0 to 9.")
	b.click("#older")
	b.waitText("stream-note", "There are no older records.")
	require.Equal(t, []uint64{9, 8, 7, 6, 5, 4, 3, 2, 1, 0}, sequences(b))
	b.click("#newer")
	b.waitText("stream-note", "25 records, 10 to 34.")
	b.write("#sequence", "58")
	b.press("\r")
	b.waitText("stream-note", "2 records, 58 to 59.")
	b.click("#newer")
	b.waitText("stream-note", "There are no newer records yet.")
	s.append("k", "one more")
	b.click("#newer")
	b.waitText("stream-note", "1 record, 60.")
	b.click("#newest")
	b.waitText("stream-note", "25 records, 36 to 60.")
}

func TestLiveTail(t *testing.T) {
	s := serve(t, server.Options{})
	s.append("k", "before")
	b := newTab(t, s.origin())
	b.open("#key=k")
	b.waitText("records", "before")
	b.click("#live")
	b.waitText("stream-note", "Live")
	s.append("k", "meanwhile")
	b.waitText("records", "meanwhile")
	require.Equal(t, []uint64{1, 0}, sequences(b))

	// The page keeps the newest only.
	s.appendMany("k", 600)
	b.wait("document.querySelector('#records b').textContent === '#601'")
	shown := sequences(b)
	require.Len(t, shown, 500)
	require.Equal(t, uint64(102), shown[499])

	// Paused it asks for nothing; then it goes on where it was.
	b.click("#live")
	b.waitText("stream-note", "Paused.")
	s.append("k", "paused")
	b.click("#live")
	b.waitText("records", "paused")
	require.Equal(t, uint64(602), sequences(b)[0])
	require.Equal(t, uint64(601), sequences(b)[1])

	// What was on its way when it was paused is not lost, and nothing comes twice.
	const more = 30
	for range more {
		s.append("k", "in between")
		eval[any](b, "document.getElementById('live').click(), document.getElementById('live').click()")
	}
	b.wait("document.querySelector('#records b').textContent === '#%d'", 602+more)
	shown = sequences(b)
	for i := range shown {
		require.Equal(t, uint64(602+more-i), shown[i])
	}
	b.click("#older")
	b.waitText("stream-note", fmt.Sprintf("25 records, %d to %d.", shown[len(shown)-1]-25, shown[len(shown)-1]-1))
}

// TestHiddenTab asks for nothing while nobody sees the page, and catches up.
func TestHiddenTab(t *testing.T) {
	s := serve(t, server.Options{})
	s.append("k", "before")
	b := newTab(t, s.origin())
	b.open("#key=k")
	b.click("#live")
	b.waitText("stream-note", "Live")
	require.Eventually(t, func() bool { return s.db.Status().Followers > 0 }, patience, pollInterval)
	hide := func(hidden bool) {
		eval[any](b, "Object.defineProperty(document, 'hidden', { configurable: true, value: %v }); document.dispatchEvent(new Event('visibilitychange'))", hidden)
	}
	hide(true)
	require.Eventually(t, func() bool { return s.db.Status().Followers == 0 }, patience, pollInterval)
	// No timer is left that would ask: another tab, which is seen, does so twice meanwhile.
	other := newTab(t, s.origin())
	other.open("")
	before, seen := len(b.requests()), len(other.requests())
	require.Eventually(t, func() bool {
		return strings.Count(strings.Join(other.requests()[seen:], " "), "/status") >= 3
	}, patience, pollInterval)
	require.Len(t, b.requests(), before)
	s.append("k", "hidden")
	hide(false)
	b.waitText("records", "hidden")
	require.Equal(t, []uint64{1, 0}, sequences(b))
	b.wait("document.getElementById('live').getAttribute('aria-pressed') === 'true'")
}

// TestBehindAProxy reaches the page and all that it asks for under a prefix.
func TestBehindAProxy(t *testing.T) {
	s := serve(t, server.Options{})
	s.append("k", "v")
	target, err := url.Parse(s.origin())
	require.NoError(t, err)
	proxy := httptest.NewServer(http.StripPrefix("/ops/annals", httputil.NewSingleHostReverseProxy(target)))
	t.Cleanup(proxy.Close)
	b := newTab(t, proxy.URL+"/ops/annals")
	b.open("#key=k")
	b.waitText("state", "Writer, ready")
	b.click("#live")
	b.waitText("stream-note", "Live")
	s.append("k", "through the proxy")
	b.waitText("records", "through the proxy")
}
