package fuzz

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/objstore/mem"
)

// A specimen is a log that has everything that a log can have, as a crash left it: tables in
// runs and in groups, some that are obsolete, cursors and producers, a past epoch with records that
// nobody has flushed and a fence behind them, and the start of the present one.
type specimen struct {
	objects objects
	heads   [][]byte // every MANIFEST that there was, oldest first
	foreign objects  // those of another log with the same history

	records map[string][]engine.Record // by key
	end     uint64                     // the sequence behind the last record
	cursors string
}

// specimens are made once: it takes a while.
var specimens struct {
	sync.Mutex
	made *specimen
}

// newSpecimen returns the specimen. It must be called on simulated time.
func newSpecimen(t *testing.T) *specimen {
	// A clock that is above all that was written by it.
	defer time.Sleep(time.Hour)
	specimens.Lock()
	defer specimens.Unlock()
	if specimens.made == nil {
		s := growSpecimen(t, 1)
		s.foreign = growSpecimen(t, 2).objects
		kinds, _ := s.objects.classes()
		require.Equal(t, []string{"LOG", "MANIFEST", "fence", "seg", "sst", "state", "wal"}, kinds)
		specimens.made = s
	}
	return specimens.made
}

// headRecorder keeps every MANIFEST.
type headRecorder struct {
	objstore.Store
	mu    sync.Mutex
	heads [][]byte
}

func (r *headRecorder) Put(ctx context.Context, name string, body []byte, o objstore.PutOptions) (objstore.PutResult, error) {
	res, err := r.Store.Put(ctx, name, body, o)
	if name == manifestName && err == nil {
		r.mu.Lock()
		r.heads = append(r.heads, slices.Clone(body))
		r.mu.Unlock()
	}
	return res, err
}

// growSpecimen makes a log. Seeds make different ones.
func growSpecimen(t *testing.T, seed byte) *specimen {
	store := mem.New(mem.Options{})
	recorder := &headRecorder{Store: store}
	w := newAgingWork(t, recorder)
	defer w.killAll()
	w.env, w.values = seededEnvOf(seed), int(seed)*1000
	w.o.Retention, w.o.RetentionInterval = 0, 0
	w.dense = true
	ctx := t.Context()
	steps := func(all ...func(context.Context) error) {
		for _, step := range all {
			require.NoError(t, step(ctx))
		}
	}
	steps(w.open, w.relieved, w.large(9), w.small, w.smallState)
	w.compacted()
	require.NotEmpty(t, w.db.Head().GetGroups())
	require.NotEmpty(t, w.db.Head().GetObsolete())
	require.NoError(t, w.db.Close(ctx))
	w.o.DisableCompaction = true // what comes is left to do
	w.o.SegmentBytes = 64 << 10
	steps(w.open, w.relieved, w.smallState)
	for range 4 { // several WAL objects
		steps(w.smallState)
		require.NoError(t, w.append(ctx, engine.Durable, 20))
	}
	// The next writer dies when it has fenced and replayed this one, and is about to flush.
	before, taken := w.durable, (*mem.Store)(nil)
	w.store = fault.New(recorder, func(_ context.Context, op fault.Op) fault.Plan {
		if id, ok := base.ParseObjectName(op.Name); ok && op.Kind == fault.Put && id.Kind == base.KindSST && taken == nil {
			taken = store.Clone()
		}
		return fault.Plan{}
	})
	steps(w.open)
	require.NotNil(t, taken)
	heads := len(recorder.heads)
	w.killAll()
	s := &specimen{objects: bodiesOf(t, taken), heads: recorder.heads[:heads-1], end: before}
	s.observe(t, w, taken)
	return s
}

// smallState sets cursors, and appends as a producer.
func (w *agingWork) smallState(ctx context.Context) error {
	next := engine.Cursor{Key: []byte("k"), Next: w.model.next}
	if _, err := w.db.SetCursors(ctx, "consumer", []engine.Cursor{next, {Key: []byte("z"), Next: 1}}, engine.CursorOptions{}); err != nil {
		return err
	}
	recs := []engine.Record{{Key: []byte("k"), Value: []byte("by a producer")}}
	res, err := w.db.Append(ctx, recs, engine.AppendOptions{Producer: fmt.Sprint("p", w.model.next)})
	if err != nil {
		return err
	}
	w.model.add(res.First, res.Timestamp, recs)
	w.durable = w.model.next
	return nil
}

// bodiesOf returns all bodies of a store.
func bodiesOf(t *testing.T, store objstore.Store) objects {
	o := make(objects)
	ctx := context.Background()
	require.NoError(t, objstore.ListAll(ctx, store, "", "", func(e objstore.Entry) (bool, error) {
		obj, err := store.Get(ctx, e.Name, objstore.GetOptions{})
		o[e.Name] = obj.Body
		return true, err
	}))
	return o
}

// store returns a new store with the objects.
func (o objects) store(t *testing.T) *mem.Store {
	s := mem.New(mem.Options{})
	for name, body := range o {
		_, err := s.Put(context.Background(), name, body, objstore.PutOptions{IfAbsent: true})
		require.NoError(t, err)
	}
	return s
}

// observe notes what the log holds, from the log itself, and compares that with the model.
func (s *specimen) observe(t *testing.T, w *agingWork, store *mem.Store) {
	check(t, store)
	db, err := engine.Open(t.Context(), store.Clone(), specimenOptions())
	require.NoError(t, err)
	defer kill(db)
	s.records = make(map[string][]engine.Record)
	for _, key := range sweepKeys {
		recs, err := collect(db.Scan(t.Context(), []byte(key), engine.All(), engine.ScanOptions{}))
		require.NoError(t, err)
		require.True(t, agree(recs, recordsOf(w, key)), "key %q", key)
		s.records[key] = recs
	}
	s.cursors, err = cursorsOf(t.Context(), db)
	require.NoError(t, err)
}

func recordsOf(w *agingWork, key string) (out []*modelRecord) {
	for _, r := range w.model.recs {
		if r.key == key {
			out = append(out, r)
		}
	}
	return out
}

// sameRecords compares every byte.
func sameRecords(a, b []engine.Record) bool {
	return slices.EqualFunc(a, b, func(a, b engine.Record) bool {
		return a.Sequence == b.Sequence && a.Timestamp == b.Timestamp && bytes.Equal(a.Key, b.Key) && bytes.Equal(a.Value, b.Value)
	})
}

func cursorsOf(ctx context.Context, r engine.LogReader) (string, error) {
	page, err := r.Cursors(ctx, "consumer", engine.CursorsOptions{})
	var b strings.Builder
	for _, c := range page.Cursors {
		fmt.Fprintf(&b, "%q: %d ", c.Key, c.Next)
	}
	return b.String(), err
}

// specimenOptions are those of a writer that looks at a specimen.
func specimenOptions() engine.Options {
	o := agingOptions()
	o.Retention, o.RetentionInterval, o.CacheBytes, o.DisableCompaction = 0, 0, 1, true
	o.SegmentBytes = 64 << 10
	o.Env = simEnv()
	return o
}
