package engine

import (
	"testing"
	"time"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore/mem"
)

// BenchmarkOpenLarge opens a log of 100,000 tables, 6.4 TB: 390 segments of 256 tables
// each in groups, one that was just sealed and is not yet consolidated, and an active one
// with 200 runs. It reports the bytes of its MANIFEST.
func BenchmarkOpenLarge(b *testing.B) {
	store := mem.New(mem.Options{})
	env := base.SystemEnv()
	db, err := Open(b.Context(), store, Options{DisableCompaction: true})
	if err != nil {
		b.Fatal(err)
	}
	if err := db.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
	snap, err := manifest.Load(b.Context(), store, env, tree)
	if err != nil {
		b.Fatal(err)
	}
	commits := manifest.NewCommitter(manifest.CommitterOptions{Store: store, Env: env, Tree: tree, Start: snap})
	large := manifest.Edit{Name: "grow", Apply: func(s *manifest.State) error {
		growState(s, env)
		return nil
	}}
	if _, err := commits.Commit(b.Context(), large); err != nil {
		b.Fatal(err)
	}
	commits.Close()
	tables := 0
	for b.Loop() {
		db, err := Open(b.Context(), store, Options{DisableCompaction: true, GCInterval: time.Hour})
		if err != nil {
			b.Fatal(err)
		}
		tables = db.Status().Tables
		if err := db.Close(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	head, err := store.Head(b.Context(), base.ManifestName(tree))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(head.Size), "manifest-bytes")
	b.ReportMetric(float64(tables), "tables")
}

// growState makes the state of an empty log that of a large one.
func growState(s *manifest.State, env *base.Env) {
	const (
		perSegment = 256
		perTable   = 64 << 20
		records    = perTable / 256
		start      = 1_700_000_000_000
		hour       = 3_600_000
	)
	g := growing{env: env, records: records, size: perTable, bytes: 2 * perTable, keys: 1000, time: start}
	s.Segments, s.LastTimestampMs = nil, start+1000*hour
	for _, segments := range []int{64, 64, 64, 64, 64, 64, 1, 1, 1, 1, 1, 1} {
		id := env.NewULID()
		first, begin := g.segment+1, g.seq
		g.segment += uint32(segments)
		g.seq += uint64(segments) * perSegment * records
		s.Groups = append(s.Groups, &manifest.Group{
			Id:        id[:],
			Index:     manifest.RefOf(base.ObjectID{Tree: tree, Kind: base.KindIndex, Role: base.RoleCompactor, Epoch: 1, ULID: id}),
			IndexSize: 256*64<<10 + 1<<20, TocOffset: 256*64<<10 + 1<<20 - 8<<10, ShardBytes: 60 << 10, Shards: 256,
			FirstSegment: first, LastSegment: g.segment, FirstSequence: begin, EndSequence: g.seq,
			StartTimeMs: start, FirstSealTimeMs: start, LastSealTimeMs: start,
			Tables: uint32(segments * perSegment), Records: g.seq - begin, Bytes: (g.seq - begin) * 256, StoredBytes: (g.seq - begin) * 256,
			Segments: uint32(segments), Keys: 1_000_000,
		})
	}
	sealed := g.newSegment()
	for range 30 {
		sealed.Runs = append(sealed.Runs, g.run(9))
	}
	sealed.Sealed, sealed.EndSequence, sealed.SealTimeMs = true, g.seq, start+hour
	active := g.newSegment()
	for range 200 {
		active.Runs = append(active.Runs, g.run(1))
	}
	s.Segments = []*manifest.Segment{sealed, active}
	s.FlushedEnd, s.SeqLimit = g.seq, g.seq+manifest.SeqReserve
	s.Compactor = &manifest.Owner{Epoch: 1, Id: make([]byte, 16)}
	if s.CleanNext != nil {
		s.CleanNext = &g.seq
	}
}

// growing makes segments and runs that follow one another.
type growing struct {
	env           *base.Env
	segment       uint32
	seq           uint64
	records, size uint64 // of a table: its records, its stored bytes,
	bytes         uint64 // the record bytes in it,
	keys          int    // and the keys that it has alone in its run
	time          int64
}

func (g *growing) newSegment() *manifest.Segment {
	g.segment++
	return &manifest.Segment{Id: g.segment, FirstSequence: g.seq, StartTimeMs: g.time}
}

// run has tables that split the keys "user/..." between them.
func (g *growing) run(tables int) *manifest.Run {
	id := g.env.NewULID()
	r := &manifest.Run{Id: id[:], Start: g.seq}
	g.seq += uint64(tables) * g.records
	r.End = g.seq
	for i := range tables {
		lower, upper := benchKey(i*g.keys), benchKey(i*g.keys+g.keys-1)
		r.Tables = append(r.Tables, &manifest.Table{
			Ref: manifest.RefOf(base.ObjectID{
				Tree: tree, Kind: base.KindSST, Role: base.RoleCompactor, Epoch: 1, Segment: g.segment, ULID: g.env.NewULID(),
			}),
			Size: g.size, MetaOffset: g.size - 1<<20, LowerKey: lower, UpperKey: upper,
			FirstSequence: r.Start, LastSequence: r.End - 1, FirstTimestampMs: g.time, LastTimestampMs: g.time,
			Records: g.records, Keys: uint64(g.keys), Bytes: g.bytes,
		})
	}
	return r
}
