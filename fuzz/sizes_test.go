package fuzz

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/compaction"
	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/mem"
)

// F42 and F43: sizes, numbers and rates that are out of proportion.

// TestF42HugeValueAmongSmallOnes reads a value of the greatest size, and its neighbours, from
// memory, from a run, after a crash, and from a group.
func TestF42HugeValueAmongSmallOnes(t *testing.T) {
	t.Parallel()
	failure(t, "16 MiB and 10 bytes", func(t *testing.T) {
		r := newRig(t)
		o := options()
		o.RecentBytes, o.CacheBytes, o.SegmentBytes, o.SegmentMinBytes = 1, 1, 20<<20, 1
		o.TableBytes, o.BlockBytes = 1<<20, 4<<10
		db := r.open(o)
		huge := strings.Repeat("0123456789abcdef", engine.DefaultMaxValueBytes/16)
		var want []string
		appendAll := func(db *engine.DB, values ...string) {
			mustAppend(t, db, values...)
			want = append(want, values...)
		}
		same := func(db *engine.DB, where string) {
			got := read(t, db)
			require.True(t, slices.Equal(want, got), "%s: %d records, want %d", where, len(got), len(want))
			for i, v := range want { // each alone: no neighbour is needed
				it := db.Scan(t.Context(), []byte("k"), engine.From(0), engine.ScanOptions{Last: len(want) - i, MaxBytes: 1 << 30})
				for rec := range it.All() {
					require.True(t, v == string(rec.Value), where)
					break
				}
				require.NoError(t, it.Err())
			}
			n, err := db.Count(t.Context(), []byte("k"), engine.All())
			require.NoError(t, err)
			require.Equal(t, uint64(len(want)), n, where)
		}
		appendAll(db, "0123456789", huge, "9876543210")
		same(db, "memory")
		appendAll(db, "0123456789")
		crashed := r.crashed()
		kill(db)
		r = crashed
		db = r.open(o)
		same(db, "replayed")
		_, err := db.Append(t.Context(), batch(huge+"x"), engine.AppendOptions{})
		require.ErrorIs(t, err, engine.ErrTooLarge)
		appendAll(db, "1", huge, "2")
		appendAll(db, "3")
		require.NoError(t, db.Flush(t.Context()))
		same(db, "runs")
		require.NoError(t, db.Close(t.Context()))
		o.DisableCompaction = false
		db = r.open(o)
		time.Sleep(2 * time.Minute)
		require.NotZero(t, db.Status().Compaction.Jobs)
		require.Zero(t, db.Status().Compaction.Failures)
		require.NotEmpty(t, db.Head().GetGroups())
		same(db, "compacted")
	})
}

// TestF42TenThousandRecordsInOneBatch: they are there together, or not at all.
func TestF42TenThousandRecordsInOneBatch(t *testing.T) {
	failure(t, "at once", func(t *testing.T) {
		r := newRig(t)
		o := options()
		o.RecentBytes, o.WALObjectBytes, o.MemtableBytes = 1, 512, 4<<10
		db := r.open(o)
		mustAppend(t, db, "before")
		var recs []engine.Record
		for i := range 10_000 {
			key := "k"
			if i%2 == 0 {
				key = fmt.Sprint("key ", i)
			}
			recs = append(recs, engine.Record{Key: []byte(key), Value: fmt.Append(nil, i)})
		}
		held := r.hold(putOf(wal(1, 2)), nil)
		done := make(chan engine.AppendResult, 1)
		go func() {
			res, err := db.Append(t.Context(), recs, engine.AppendOptions{})
			require.NoError(t, err)
			done <- res
		}()
		<-held.Caught()
		require.Equal(t, []string{"before"}, read(t, db), "none of them")
		require.Equal(t, []string{"before"}, read(t, r.crashed().open(o)))
		require.NoError(t, held.Apply(t.Context()))
		res := <-done
		require.Equal(t, uint64(9_999), res.Last-res.First)
		for _, db := range []*engine.DB{db, r.crashed().open(o)} {
			require.Len(t, read(t, db), 5_001)
			n, err := db.Count(t.Context(), []byte("k"), engine.Between(res.First, res.Last+1))
			require.NoError(t, err)
			require.Equal(t, uint64(5_000), n)
			page, err := db.Keys(t.Context(), engine.KeysOptions{Prefix: []byte("key ")})
			require.NoError(t, err)
			require.Len(t, page.Keys, 5_000)
		}
	})
}

// TestF42OneRecordADay writes a record a day for years, by a process that runs for a few
// minutes each day. What is kept stays readable and in order, and neither segments nor
// objects nor WAL objects pile up.
func TestF42OneRecordADay(t *testing.T) {
	t.Parallel()
	for name, retention := range map[string]time.Duration{"for ever": 0, "for 90 days": 90 * 24 * time.Hour} {
		failure(t, name, func(t *testing.T) {
			store := mem.New(mem.Options{})
			o := engine.Options{Env: simEnv(), Retention: retention}
			days := scaled(400, 60)
			for day := range days {
				db, err := engine.Open(t.Context(), store, o)
				require.NoError(t, err)
				mustAppend(t, db, fmt.Sprint(day))
				time.Sleep(4 * time.Minute)
				require.NoError(t, db.Err())
				if day%50 == 49 || day == days-1 {
					requireDays(t, db, day, retention)
				}
				require.NoError(t, db.Close(t.Context()))
				time.Sleep(24*time.Hour - 4*time.Minute)
			}
			report := check(t, store)
			require.Less(t, report.Segments, 60)
			fences := len(objectNames(t, store, base.WALPrefix(0)))
			require.Less(t, store.Len()-fences, 200, "segments, their grace, and what a day leaves")
			require.LessOrEqual(t, fences, days+5, "of what is replayed at an open only the fences stay")
		})
	}
}

// requireDays requires that a log has the record of every day that is kept.
func requireDays(t *testing.T, db *engine.DB, today int, retention time.Duration) {
	values := read(t, db)
	var want []string
	for day := today + 1 - len(values); day <= today; day++ {
		want = append(want, fmt.Sprint(day))
	}
	require.Equal(t, want, values)
	if retention == 0 {
		require.Len(t, values, today+1)
		return
	}
	// A segment is sealed after an eighth of the retention, merged with what came within a
	// tenth of it, and dropped when the last of them expires.
	kept := int(retention / (24 * time.Hour))
	require.GreaterOrEqual(t, len(values), min(today+1, kept))
	require.Less(t, len(values), kept+kept/8+kept/10+5)
}

func objectNames(t *testing.T, store objstore.Store, prefix string) (names []string) {
	require.NoError(t, objstore.ListAll(t.Context(), store, prefix, "", func(e objstore.Entry) (bool, error) {
		names = append(names, e.Name)
		return true, nil
	}))
	return names
}

// pretend changes a log that is closed, as if it had a long life behind it.
func pretend(t *testing.T, store objstore.Store, change func(*manifest.State)) {
	snap, err := manifest.Load(t.Context(), store, simEnv(), 0)
	require.NoError(t, err)
	_, err = manifest.CommitOne(t.Context(), manifest.CommitterOptions{Store: store, Env: simEnv(), Start: snap}, manifest.Edit{
		Name:  "pretend",
		Apply: func(s *manifest.State) error { change(s); return nil },
	})
	require.NoError(t, err)
}

// TestF43CountsAbove32Bits: a manifest with segments of more than 2^32 records, in runs and
// tables, and bytes to match. (Nobody can make the tables: nothing here reads them.)
func TestF43CountsAbove32Bits(t *testing.T) {
	const many, heavy, large = uint64(5) << 32, uint64(7) << 40, uint64(9) << 32
	failure(t, "sums are right", func(t *testing.T) {
		r := newRig(t)
		o := options()
		o.SegmentBytes = 1                              // each batch is a segment
		db, err := engine.Open(t.Context(), r.store, o) // not checked at the end: that reads tables
		require.NoError(t, err)
		for i := range 3 {
			mustAppend(t, db, fmt.Sprint(i))
		}
		require.NoError(t, db.Close(t.Context()))
		pretend(t, r.mem, func(s *manifest.State) {
			at := uint64(0)
			for _, g := range s.Segments {
				g.FirstSequence = at
				for _, run := range g.Runs {
					run.Start, run.End = at, at+many
					table := run.Tables[0]
					table.FirstSequence, table.LastSequence, table.Records, table.Keys = at, at+many-1, many, many
					table.Bytes, table.Size, table.MetaOffset = heavy, large, large-1000
					at += many
				}
				if g.Sealed {
					g.EndSequence = at
				}
			}
			s.FlushedEnd, s.CleanNext, s.SeqLimit = at, &at, at+1
		})
		snap, err := manifest.Load(t.Context(), r.mem, simEnv(), 0)
		require.NoError(t, err)
		db, err = engine.Open(t.Context(), r.store, o)
		require.NoError(t, err)
		defer kill(db)
		s := db.Status()
		require.Equal(t, 3*many, s.Next)
		require.Equal(t, 3*large, s.StoredBytes)
		page, err := db.Segments(t.Context(), engine.SegmentsOptions{Range: engine.Between(many, many+1)})
		require.NoError(t, err)
		require.Len(t, page.Segments, 1)
		require.Equal(t, many, page.Segments[0].Start)
		require.Equal(t, many, page.Segments[0].Records)
		require.Equal(t, heavy, page.Segments[0].Bytes)

		jobs := compaction.Plan(snap.State, compaction.Limits{SegmentBytes: 1 << 50, FanIn: 2})
		require.NotEmpty(t, jobs)
		require.Equal(t, 2*many, jobs[0].Records)
		require.Equal(t, 2*heavy, jobs[0].Bytes)
		require.Equal(t, 2*large, jobs[0].Stored)
		res := mustAppend(t, db, "next")
		require.Equal(t, 3*many, res.First)
	})
}

// TestF43GroupsAbove32Bits: the same in an index and in the line of its group.
func TestF43GroupsAbove32Bits(t *testing.T) {
	const many, heavy, large = uint64(5) << 32, uint64(7) << 40, uint64(9) << 32
	env := base.SystemEnv()
	var segments []*manifest.Segment
	for i := range uint32(3) {
		start := uint64(i) * many
		id, table := env.NewULID(), base.ObjectID{Kind: base.KindSST, Role: base.RoleCompactor, Epoch: 1, Segment: i + 1, ULID: env.NewULID()}
		segments = append(segments, &manifest.Segment{
			Id: i + 1, FirstSequence: start, StartTimeMs: 1, Sealed: true, EndSequence: start + many, SealTimeMs: int64(i + 1),
			Runs: []*manifest.Run{{Id: id[:], Start: start, End: start + many, Tables: []*manifest.Table{{
				Ref: manifest.RefOf(table), Size: large, MetaOffset: large - 1000, LowerKey: []byte("a"), UpperKey: []byte("b"),
				FirstSequence: start, LastSequence: start + many - 1, FirstTimestampMs: 1, LastTimestampMs: int64(i + 1),
				Records: many, Keys: many / 2, Bytes: heavy,
			}}}},
		})
	}
	ref := base.ObjectID{Kind: base.KindIndex, Role: base.RoleCompactor, Epoch: 1, ULID: env.NewULID()}
	b := manifest.NewIndexBuilder(segments)
	for i := range segments {
		b.SetKeys(i, many/2)
	}
	b.Add(manifest.HashKey([]byte("a")), 7)
	body, line, err := b.Finish(ref)
	require.NoError(t, err)
	require.Equal(t, 3*many, line.GetRecords())
	require.Equal(t, 3*heavy, line.GetBytes())
	require.Equal(t, 3*large, line.GetStoredBytes())
	require.Equal(t, 3*many, line.GetEndSequence())
	x, err := manifest.ParseIndex(ref, int64(len(body)), body[max(0, len(body)-manifest.IndexTailBytes):])
	require.NoError(t, err)
	require.NoError(t, x.Check(line))
	off, n := x.ListRange(2)
	tables, err := x.ParseList(2, body[off:off+n])
	require.NoError(t, err)
	require.Equal(t, many, tables[0].GetRecords())
	trimmed, err := x.Trim(line, 1)
	require.NoError(t, err)
	require.Equal(t, 2*many, trimmed.GetRecords())
	require.Equal(t, many, trimmed.GetFirstSequence())
}

// TestF43EpochsAbove32Bits: after a very long crash loop.
func TestF43EpochsAbove32Bits(t *testing.T) {
	const far = uint64(1) << 40
	failure(t, "names, fences and replay", func(t *testing.T) {
		r := newRig(t)
		o := tinyOptions()
		o.DisableCompaction = false
		db := r.open(o)
		mustAppend(t, db, "a")
		require.NoError(t, db.Close(t.Context()))
		pretend(t, r.mem, func(s *manifest.State) {
			s.Writer.Epoch, s.Compactor = far, &manifest.Owner{Epoch: far + 7, Id: make([]byte, 16)}
			s.CompactorBeat = 1 // as of one that died
			s.Position = manifest.Pos{Epoch: far, ID: far}.Proto()
		})
		var want []string
		for i := range uint64(4) {
			db = r.open(o)
			require.Equal(t, far+1+i, db.Status().Epoch)
			v := fmt.Sprint(i)
			mustAppend(t, db, v)
			want = append(want, v)
			if i == 2 {
				time.Sleep(2 * takesOver)
				require.Equal(t, far+8, db.Status().Compaction.Epoch)
			}
			crashed := r.crashed()
			kill(db)
			r = crashed
		}
		db = r.open(o)
		require.Equal(t, append([]string{"a"}, want...), read(t, db))
		_, err := db.CollectGarbage(t.Context())
		require.NoError(t, err)
		require.Equal(t, append([]string{"a"}, want...), read(t, r.crashed().open(o)))
		for _, name := range objectNames(t, r.mem, base.WALPrefix(0)) {
			_, epoch, _, ok := base.ParseWALName(name)
			require.True(t, ok && (epoch == 1 || epoch >= far), name)
		}
	})
}
