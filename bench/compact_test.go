package bench

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/compaction"
	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
	"github.com/annalsdb/annals/objstore/mem"
)

// smallCompact is a segment of 1,000 records in four runs.
func smallCompact() CompactOptions {
	return CompactOptions{
		KeyOptions: KeyOptions{Keys: 100}, ValueOptions: ValueOptions{Size: 200, Sizes: LognormalSizes, Compress: 2},
		Records: 1000, Runs: 4, Kind: compaction.Consolidate, Times: 2, StoreInMemory: true,
	}
}

// compacted runs the workload on a store.
func compacted(t *testing.T, ctx context.Context, store objstore.Store, o CompactOptions, seed uint64) *Report {
	t.Helper()
	w := NewCompact(o)
	require.Empty(t, w.Faults())
	e, err := OpenEmbedded(t.Context(), store, engine.Options{
		FlushInterval: time.Millisecond, DisableCompaction: true, MemtableBytes: o.MemtableBytes(), GCInterval: time.Hour,
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, e.Close(context.Background())) }()
	return Execute(ctx, e, w, Options{Seed: seed})
}

func TestCompact(t *testing.T) {
	store := mem.New(mem.Options{})
	rep := compacted(t, t.Context(), store, smallCompact(), 1)
	require.False(t, rep.Failed(), "%v %v", rep.Failures, rep.Violations)
	require.EqualValues(t, 1000, rep.Results["records"])
	require.EqualValues(t, 4, rep.Results["tables_in"])
	require.EqualValues(t, 1, rep.Results["tables_out"])
	each := rep.Results["repetitions"].(CompactTimes)
	require.Len(t, each, 2)
	for _, c := range each {
		require.Positive(t, c.Seconds)
		require.Positive(t, c.BytesPerSecond)
		require.GreaterOrEqual(t, c.Gets, uint64(4), "each input is read")
		require.EqualValues(t, 1, c.Puts)
	}
	in, out, record := rep.Results["bytes_in"].(uint64), rep.Results["bytes_out"].(uint64), rep.Results["record_bytes"].(uint64)
	require.InDelta(t, float64(in+out)/float64(record), rep.Results["write_amplification"], 1e-9)
	require.Less(t, out, record, "values compress")
	require.EqualValues(t, 2*out, rep.Store.BytesWritten, "what is measured is the compactions and nothing else")

	var back map[string]any
	var text strings.Builder
	require.NoError(t, rep.WriteJSON(&text))
	require.NoError(t, json.Unmarshal([]byte(text.String()), &back))
	require.Len(t, back["results"].(map[string]any)["repetitions"], 2)
	text.Reset()
	require.NoError(t, rep.WriteText(&text))
	require.Contains(t, text.String(), "MB a processor second")

	// What was written is deleted, and the log is whole.
	require.NoError(t, objstore.ListAll(t.Context(), store, "", "", func(e objstore.Entry) (bool, error) {
		id, ok := base.ParseObjectName(e.Name)
		require.False(t, ok && id.Role == base.RoleCompactor, e.Name)
		return true, nil
	}))
	again := compacted(t, t.Context(), store, smallCompact(), 1)
	require.True(t, again.Failed())
	require.Contains(t, again.Failures[0], "needs an empty one")
}

// The seed decides the segment, and its shape is as asked for.
func TestCompactShape(t *testing.T) {
	shape := func(o CompactOptions, seed uint64) any {
		rep := compacted(t, t.Context(), mem.New(mem.Options{}), o, seed)
		require.False(t, rep.Failed(), "%v %v", rep.Failures, rep.Violations)
		return rep.Results["record_bytes"]
	}
	require.Equal(t, shape(smallCompact(), 7), shape(smallCompact(), 7))
	require.NotEqual(t, shape(smallCompact(), 7), shape(smallCompact(), 8))

	o := smallCompact()
	o.Records, o.Bytes, o.Sizes, o.Kind, o.Parallel = 0, int64(1000*(200+KeySize)), FixedSizes, compaction.Relieve, 2
	require.EqualValues(t, o.Bytes, shape(o, 1))

	o = smallCompact()
	o.HotShare, o.Keys = 0.5, 1_000_000
	store := mem.New(mem.Options{})
	require.False(t, compacted(t, t.Context(), store, o, 1).Failed())
	db, err := engine.Open(t.Context(), store, engine.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close(context.Background())) }()
	n, err := db.Count(t.Context(), AppendKey(nil, 0), engine.All())
	require.NoError(t, err)
	require.InDelta(t, 500, n, 80)
}

// A run that is interrupted reports the compactions that ended, and leaves nothing behind.
func TestCompactInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	inner := mem.New(mem.Options{})
	puts := 0
	store := fault.New(inner, func(_ context.Context, op fault.Op) fault.Plan {
		if id, ok := base.ParseObjectName(op.Name); ok && id.Role == base.RoleCompactor && op.Kind == fault.Put {
			if puts++; puts == 2 {
				cancel()
			}
		}
		return fault.Plan{}
	})
	rep := compacted(t, ctx, store, smallCompact(), 1)
	require.True(t, rep.Interrupted)
	require.False(t, rep.Failed(), "%v", rep.Failures)
	require.Equal(t, 2, puts)
	require.NotEmpty(t, rep.Results["repetitions"])
	require.NoError(t, objstore.ListAll(t.Context(), inner, base.ObjectPrefix(compactTree, base.KindSST), "", func(e objstore.Entry) (bool, error) {
		id, _ := base.ParseObjectName(e.Name)
		require.Equal(t, base.RoleWriter, id.Role)
		return true, nil
	}))
}

func TestCompactFaults(t *testing.T) {
	o := smallCompact()
	o.Runs, o.HotShare, o.Parallel, o.Times, o.Keys = 65, 1.5, -1, 0, 0
	faults := strings.Join(NewCompact(o).Faults(), "\n")
	for _, want := range []string{"--runs is 65", "--hot-share is 1.5", "--parallel is -1", "--times is 0", "--keys is 0"} {
		require.Contains(t, faults, want)
	}
	o = smallCompact()
	o.Records, o.Bytes = 0, 1<<50
	require.Contains(t, strings.Join(NewCompact(o).Faults(), ""), "raise --runs")
	o.Bytes = 1
	require.Contains(t, strings.Join(NewCompact(o).Faults(), ""), "one for each of 4 runs")
}
