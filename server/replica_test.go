package server

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/mem"
)

var _ DB = (*engine.Reader)(nil)

// startReplica runs a server of a log, and one of a replica of it that has the given keys.
func startReplica(t *testing.T, keys engine.KeyRange) (writer, replica *running) {
	store := mem.New(mem.Options{})
	writer = start(t, Options{DB: openDB(t, store, engine.Options{})})
	return writer, startReplicaOf(t, store, keys)
}

// startReplicaOf runs a server of a replica of the log in the store.
func startReplicaOf(t *testing.T, store objstore.Store, keys engine.KeyRange) *running {
	reader, err := engine.OpenReader(t.Context(), store, engine.ReaderOptions{Keys: keys, PollInterval: time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, reader.Close(context.Background())) })
	return start(t, Options{DB: reader})
}

// What is appended is followed at a replica as at the writer.
func TestFollowAtAReplica(t *testing.T) {
	w, r := startReplica(t, engine.KeyRange{})
	e := r.events("key=k")
	p := r.open("POST", followPath, `{"prefixes":[{"prefix":""}]}`, "Accept", "application/x-ndjson")
	poll := r.later(scanPath + "?key=k&follow=true&timeout_ms=300000")
	r.followers(1, 1, 1)
	w.mustAppend("k", "v")
	require.Equal(t, event("k", 0, "v"), e.next())
	require.Equal(t, object("k", 0, "v"), p.line())
	require.Contains(t, soon(t, poll).body, `"values":[{"sequence":0,`)

	least := r.later(scanPath + "?key=k&min_sequence=2&timeout_ms=300000")
	r.followers(1, 1, 1)
	w.mustAppend("other", "")
	require.Contains(t, soon(t, least).body, `"nextSequence":2`)
	require.Equal(t, 200, r.get("/-/ready").status)
	require.Equal(t, 404, r.post(appendPath, `{"records":[]}`).status)
}

func TestKeysOutOfTheRangeOfAReplica(t *testing.T) {
	w, r := startReplica(t, engine.KeyRange{Start: []byte("b"), End: []byte("d")})
	w.mustAppend("c", "v")
	require.Equal(t, event("c", 0, "v"), r.events("key=c").next())
	require.Equal(t, object("c", 0, "v"), r.open("POST", followPath, `{"prefixes":[{"prefix":"`+b64("c")+`"}]}`, "Accept", "application/x-ndjson").line())
	for _, got := range []answer{
		r.get(scanPath + "?key=a"),
		r.get(scanPath + "?key=d&follow=true"),
		r.get(scanPath+"?key=a&follow=true", "Accept", "text/event-stream"),
		r.get(scanPath+fmt.Sprintf("?key=a&follow=true&since_ms=%d", int64(testTime)), "Accept", "text/event-stream"),
		r.get("/api/v1/log/count?key=d"),
		r.post(followPath, `{"streams":[{"key":"`+b64("c")+`"},{"key":"`+b64("a")+`"}]}`),
		r.post(followPath, `{"prefixes":[{"prefix":""}]}`),
	} {
		require.Equal(t, 421, got.status, got.body)
		require.Contains(t, got.body, "b..d")
	}
}

// Streams without a start begin at the consumer's cursors.
func TestFollowFromCursors(t *testing.T) {
	w, r := startReplica(t, engine.KeyRange{})
	const keys = cursorPage + 10
	var cursors []engine.Cursor
	body := ""
	for i := range 2 * keys {
		key := fmt.Sprintf("k/%d", i%keys)
		seq := w.mustAppend(key, "v")
		if i >= keys && i%2 == 0 {
			cursors = append(cursors, engine.Cursor{Key: []byte(key), Next: seq})
		}
		if i < keys {
			body += fmt.Sprintf(`,{"key":"%s"}`, b64(key))
		}
	}
	_, err := w.writer.SetCursors(t.Context(), "me", cursors, engine.CursorOptions{})
	require.NoError(t, err)
	w.mustAppend("after", "the cursors")
	body = `{"streams":[` + body[1:] + fmt.Sprintf(`,{"key":"%s"},{"key":"%s","startSeq":%d}],"consumer":"me"}`, b64("k/0"), b64("k/2"), 2*keys)
	for name, s := range map[string]*running{"writer": w, "replica": r} {
		t.Run(name, func(t *testing.T) {
			s.get(fmt.Sprintf("%s?key=k&min_sequence=%d", scanPath, 2*keys+1)) // a replica has the cursors then too
			o := s.open("POST", followPath, body, "Accept", "application/x-ndjson")
			got := map[string]int{}
			for range keys + keys/2 {
				got[o.line()]++
			}
			require.Len(t, got, keys+keys/2)
			for i := range 2 * keys {
				want := 1
				if i < keys && i%2 == 0 {
					want = 0 // below its cursor
				}
				require.Equal(t, want, got[object(fmt.Sprintf("k/%d", i%keys), uint64(i), "v")], i)
			}
		})
	}
	got := w.post(followPath, `{"streams":[{"key":"aw"}],"consumer":""}`)
	require.Equal(t, 400, got.status, got.body)
}

// A replica that cannot follow its log says so.
func TestReadyOfAReplica(t *testing.T) {
	db := &testDB{DB: openDB(t, mem.New(mem.Options{}), engine.Options{}), notOK: fmt.Errorf("7s behind the log")}
	got := start(t, Options{DB: reading{db}}).get("/-/ready")
	require.Equal(t, 503, got.status)
	require.Equal(t, `{"status":"error","message":"not ready: 7s behind the log"}`, got.body)
}
