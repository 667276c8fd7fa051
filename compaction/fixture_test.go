package compaction

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/sst"
)

// fixture is a tree with real tables, and the model of what they hold.
type fixture struct {
	*tree
	store *mem.Store
	model []base.Record // in the order of flushes
	rng   *rand.Rand
	// tableBytes is the stored size at which flushes are cut into tables.
	tableBytes int64
	blockBytes int // of flushes
	// compression of flushes; newFixture sets what the engine has.
	compression sst.Compression
	// timeOff is added to timestamps, in milliseconds.
	timeOff int64
}

func newFixture(seed uint64, l Limits) *fixture {
	return &fixture{
		tree: newTree(l), store: mem.New(mem.Options{}), rng: rand.New(rand.NewPCG(seed, 7)),
		tableBytes: 1 << 40, blockBytes: 4 << 10, compression: sst.Fast,
	}
}

// value makes n bytes that compress about 2 to 1.
func (f *fixture) value(n int) []byte {
	b := make([]byte, n+32)
	for i := 0; i < n; i += 32 {
		binary.LittleEndian.PutUint64(b[i:], f.rng.Uint64())
		binary.LittleEndian.PutUint64(b[i+8:], f.rng.Uint64())
	}
	return b[:n:n]
}

// noise makes n bytes, a multiple of 8, that do not compress.
func (f *fixture) noise(n int) []byte {
	b := make([]byte, n)
	for i := 0; i < n; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], f.rng.Uint64())
	}
	return b
}

// append flushes a run of n records with the keys and values that the functions give, one
// in ten sequences left out; none gives a run that covers a gap.
func (f *fixture) append(t testing.TB, n int, key func(i int) []byte, value func(i int) []byte) {
	start := f.s.FlushedEnd
	next := start
	recs := make([]base.Record, n)
	for i := range recs {
		if f.rng.IntN(10) == 0 {
			next++
		}
		recs[i] = base.Record{Key: key(i), Value: value(i), Sequence: next, Timestamp: 1_700_000_000_000 + int64(next/7) + f.timeOff}
		next++
	}
	next += uint64(f.rng.IntN(3)) + 1
	f.model = append(f.model, recs...)
	sortRecords(recs)
	r := &manifest.Run{Id: f.id(), Start: start, End: next}
	for len(recs) > 0 {
		ref := base.ObjectID{Kind: base.KindSST, Role: base.RoleWriter, Epoch: 1, Segment: f.active().Id, ULID: base.ULID(f.id())}
		w := sst.NewWriter(sst.WriterOptions{ID: ref.ULID, Segment: ref.Segment, BlockBytes: f.blockBytes, Compression: f.compression})
		for len(recs) > 0 && w.EstimatedSize() < f.tableBytes {
			w.Add(recs[0].Key, recs[0].Sequence, recs[0].Timestamp, recs[0].Value)
			recs = recs[1:]
		}
		body, info := w.Finish()
		_, err := f.store.Put(t.Context(), ref.Name(), body, objstore.PutOptions{IfAbsent: true})
		require.NoError(t, err)
		r.Tables = append(r.Tables, TableLine(ref, info))
	}
	f.active().Runs = append(f.active().Runs, r)
	f.s.FlushedEnd = next
}

// some flushes n records over keys k0..k(keys-1) with values of up to size bytes.
func (f *fixture) some(t testing.TB, n, keys, size int) {
	f.append(t, n,
		func(int) []byte { return fmt.Appendf(nil, "k%04d", f.rng.IntN(keys)) },
		func(int) []byte { return f.value(f.rng.IntN(size + 1)) })
}

func sortRecords(recs []base.Record) {
	slices.SortStableFunc(recs, func(a, b base.Record) int { return base.Compare(a.Key, a.Sequence, b.Key, b.Sequence) })
}

// job is the consolidation of the active segment's runs, sealed, or the merge of all
// sealed segments.
func (f *fixture) job() Job {
	var inputs []*manifest.Run
	for _, g := range f.s.Segments {
		inputs = append(inputs, g.Runs...)
	}
	first, last := f.s.Segments[0].Id, f.active().Id
	if len(f.s.Segments) == 1 {
		return newJob(Relieve, first, first, inputs)
	}
	return newJob(Merge, first, last-1, inputs)
}

func (f *fixture) runner(store objstore.Store) *Runner {
	return &Runner{Store: store, Env: testEnv(99), Epoch: testEpoch, Limits: f.l, MaxBufferBytes: 1 << 20}
}

// requireDone checks that a result holds exactly the model, in tables that verify,
// and that its edit applies.
func (f *fixture) requireDone(t testing.TB, job Job, res *Result) {
	t.Helper()
	f.requireRecords(t, job, res)
	require.NoError(t, res.Edit.Apply(f.s))
	f.requireValid(t)
	require.ErrorIs(t, res.Edit.Apply(f.s), manifest.ErrApplied) // F22
}

// requireRecords checks that a result holds exactly the model, in tables that verify.
func (f *fixture) requireRecords(t require.TestingT, job Job, res *Result) {
	ctx := context.Background()
	sortRecords(f.model)
	var got []base.Record
	var names []base.ObjectID
	var stored uint64
	for _, line := range res.Output.Tables {
		id := line.Ref.ID()
		names = append(names, id)
		stored += line.Size
		require.Equal(t, base.ObjectID{Kind: base.KindSST, Role: base.RoleCompactor, Epoch: testEpoch, Segment: job.First, ULID: id.ULID}, id)
		before := len(got)
		require.NoError(t, openTable(t, f.store, line).Verify(ctx, func(r *base.Record) error {
			got = append(got, *r)
			return nil
		}))
		require.Equal(t, int(line.Records), len(got)-before)
	}
	require.Equal(t, res.Outputs, names)
	require.Equal(t, len(f.model), len(got))
	for i := range got {
		w, g := &f.model[i], &got[i]
		if !bytes.Equal(w.Key, g.Key) || !bytes.Equal(w.Value, g.Value) || w.Sequence != g.Sequence || w.Timestamp != g.Timestamp {
			require.Fail(t, "wrong record", "record %d: %q %d, want %q %d", i, g.Key, g.Sequence, w.Key, w.Sequence)
		}
	}
	require.Equal(t, uint64(len(got)), res.RecordsIn)
	require.Equal(t, uint64(len(got)), res.RecordsOut)
	require.Equal(t, job.Stored, res.BytesIn)
	require.Equal(t, stored, res.BytesOut)
}

func openTable(t require.TestingT, store objstore.Store, line *manifest.Table) *sst.Reader {
	id := line.Ref.ID()
	r, err := sst.Open(context.Background(), sst.ReaderOptions{
		Name: id.Name(), ID: id.ULID, Size: int64(line.Size), MetaOffset: int64(line.MetaOffset),
		Source: &object{task: &task{r: &Runner{Store: store, Env: testEnv(1)}}, name: id.Name(), size: int64(line.Size)},
	})
	require.NoError(t, err)
	return r
}

// sealActive seals the active segment, an hour after the one before.
func (f *fixture) sealActive() { f.seal(time.Duration(f.active().Id) * time.Hour) }
