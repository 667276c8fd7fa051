package server

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/wire"
)

// startTimed runs a server of a log, each of whose appends is a second after the one before, and one of a replica.
func startTimed(t *testing.T) (writer, replica *running) {
	store := mem.New(mem.Options{})
	var now atomic.Int64
	env := base.SystemEnv()
	env.Now = func() time.Time { return time.UnixMilli(testTime + 1000*now.Load()) }
	db, err := engine.Open(t.Context(), store, engine.Options{Env: env, FlushInterval: time.Nanosecond})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close(context.Background())) })
	writer = start(t, Options{DB: db})
	for i := range 6 {
		now.Store(int64(i))
		writer.mustAppend([]string{"a", "p/x", "p/y"}[i%3], fmt.Sprint(i))
		if i == 2 {
			require.NoError(t, db.Flush(t.Context()))
		}
	}
	reader, err := engine.OpenReader(t.Context(), store, engine.ReaderOptions{PollInterval: time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, reader.Close(context.Background())) })
	replica = start(t, Options{DB: reader})
	replica.get(scanPath + "?key=a&min_sequence=6")
	return writer, replica
}

// timed is the line of a record of startTimed.
func timed(key string, seq uint64) string {
	return fmt.Sprintf(`{"key":"%s","sequence":%d,"timestampMs":%d,"value":"%s","nextSequence":%d}`,
		b64(key), seq, testTime+1000*int64(seq), b64(fmt.Sprint(seq)), seq+1)
}

// recordLine returns the next line that is not a cursor.
func (o *opened) recordLine() string {
	o.t.Helper()
	for {
		if line := o.line(); strings.HasPrefix(line, `{"key":`) {
			return line
		}
	}
}

// Older records are left out, of keys, of prefixes, and behind cursors and starts, which may begin later.
func TestFollowSince(t *testing.T) {
	w, r := startTimed(t)
	_, err := w.writer.SetCursors(t.Context(), "me", []engine.Cursor{{Key: []byte("a"), Next: 1}}, engine.CursorOptions{})
	require.NoError(t, err)
	r.get(scanPath + "?key=a&min_sequence=6")
	require.Eventually(t, func() bool { return strings.Contains(r.get(cursorsPath+"/me").body, b64("a")) }, patience, time.Millisecond)
	streams := `"streams":[{"key":"` + b64("a") + `"},{"key":"` + b64("p/y") + `","startSeq":3}],"prefixes":[{"prefix":"` + b64("p/") + `"}],"consumer":"me"`
	all := []string{timed("a", 0), timed("p/x", 1), timed("p/y", 2), timed("a", 3), timed("p/x", 4), timed("p/y", 5)}
	for name, s := range map[string]*running{"writer": w, "replica": r} {
		for since := -1; since <= 5; since++ {
			body := fmt.Sprintf(`{"sinceMs":%d,%s}`, testTime+1000*since, streams)
			o := s.open("POST", followPath, body, "Accept", "application/x-ndjson")
			want := all[max(since, 1):] // the cursor of a is behind its first record
			var got []string
			for range want {
				got = append(got, o.recordLine())
			}
			require.ElementsMatch(t, want, got, "%s since %d", name, since)
			o.cancel()
		}
		// Within a second, and with the others left out while they come.
		o := s.open("POST", followPath, fmt.Sprintf(`{"sinceMs":%d,"prefixes":[{"prefix":""}]}`, testTime+4001), "Accept", "application/x-ndjson")
		require.Equal(t, timed("p/y", 5), o.line(), name)
		o.cancel()
		o = s.open("POST", followPath, `{"sinceMs":18446744073709551615,"prefixes":[{"prefix":""}]}`, "Accept", "application/x-ndjson")
		o.cancel()
	}
}

// What has no start of its own begins at the frontier, which the answer tells, or at what the request says for all.
func TestFollowFromNow(t *testing.T) {
	w, r := startTimed(t)
	streams := `"streams":[{"key":"` + b64("a") + `","startSeq":3}],"prefixes":[{"prefix":"` + b64("p/") + `"}]`
	var opened []*opened
	for name, s := range map[string]*running{"writer": w, "replica": r} {
		o := s.open("POST", followPath, `{"fromNow":true,`+streams+`}`, "Accept", "application/x-ndjson")
		require.Equal(t, "6", o.resp.Header.Get(wire.HeaderFrontier), name)
		require.Equal(t, timed("a", 3), o.line(), name)
		opened = append(opened, o)
		o = s.open("POST", followPath, `{"startSeq":5,`+streams+`}`, "Accept", "application/x-ndjson")
		require.ElementsMatch(t, []string{timed("a", 3), timed("p/y", 5)}, []string{o.recordLine(), o.line()}, name)
		opened = append(opened, o)
	}
	w.mustAppend("p/x", "new")
	for _, o := range opened {
		require.Contains(t, o.recordLine(), `"sequence":6`)
		o.cancel()
	}
	got := w.post(followPath, `{"fromNow":true,"startSeq":1,`+streams+`}`)
	require.Equal(t, 400, got.status)
}
