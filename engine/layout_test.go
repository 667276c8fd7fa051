package engine

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/annalsdb/annals/compaction"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/memtable"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/sst"
)

// layout makes a log of any shape without a writer, and knows what is in it.
type layout struct {
	t     testing.TB
	store *mem.Store
	env   *base.Env
	state *manifest.State
	id    uint32   // of the last segment
	all   []Record // in sequence order
	// full segments by id: with their tables, wherever those are listed
	full     map[uint32]*manifest.Segment
	memories []*memory

	perTable   int // records
	blockBytes int
	shapeIndex func(b *manifest.IndexBuilder) // changes what an index says
}

func newLayout(t testing.TB) *layout {
	env := base.SystemEnv()
	id := func() []byte { u := env.NewULID(); return u[:] }
	return &layout{
		t: t, store: mem.New(mem.Options{}), env: env, full: map[uint32]*manifest.Segment{},
		perTable: 1 << 30, blockBytes: 1 << 10,
		state: &manifest.State{
			FormatVersion: manifest.FormatVersion, LogId: id(), CommitId: id(), Version: 1,
			Writer: &manifest.Owner{Epoch: 1, Id: id()}, Compactor: &manifest.Owner{Epoch: 1, Id: id()},
			Position: &manifest.Position{Epoch: 1, Id: 1}, SeqLimit: 1 << 40,
		},
	}
}

// records makes records with the next sequences.
func (l *layout) records(n int, pick func(i int) (key, value string)) []Record {
	recs := make([]Record, n)
	for i := range recs {
		k, v := pick(i)
		seq := uint64(len(l.all))
		recs[i] = Record{Key: []byte(k), Value: []byte(v), Sequence: seq, Timestamp: 1_000_000 + int64(seq)/3*2}
		l.all = append(l.all, recs[i])
	}
	return recs
}

// run writes the records, all that came since the last run, as a run of the segment.
func (l *layout) run(segment uint32, recs []Record) *manifest.Run {
	id := l.env.NewULID()
	end := recs[len(recs)-1].Sequence + 1
	run := &manifest.Run{Id: id[:], Start: recs[0].Sequence, End: end}
	sorted := slices.Clone(recs)
	slices.SortFunc(sorted, func(a, b Record) int { return base.Compare(a.Key, a.Sequence, b.Key, b.Sequence) })
	for part := range slices.Chunk(sorted, l.perTable) {
		ref := base.ObjectID{Tree: tree, Kind: base.KindSST, Role: base.RoleCompactor, Epoch: 1, Segment: segment, ULID: l.env.NewULID()}
		w := sst.NewWriter(sst.WriterOptions{ID: ref.ULID, Segment: segment, BlockBytes: l.blockBytes})
		for _, r := range part {
			w.Add(r.Key, r.Sequence, r.Timestamp, r.Value)
		}
		body, info := w.Finish()
		l.put(ref.Name(), body)
		run.Tables = append(run.Tables, compaction.TableLine(ref, info))
	}
	l.state.FlushedEnd = end
	l.state.LastTimestampMs = recs[len(recs)-1].Timestamp
	return run
}

func (l *layout) put(name string, body []byte) {
	_, err := l.store.Put(context.Background(), name, body, objstore.PutOptions{IfAbsent: true})
	require.NoError(l.t, err)
}

// segment adds a segment of one run for each series of records.
func (l *layout) segment(sealed bool, runs ...[]Record) {
	l.id++
	s := &manifest.Segment{Id: l.id, FirstSequence: uint64(len(l.all))}
	for i, recs := range runs {
		if i == 0 {
			s.FirstSequence, s.StartTimeMs = recs[0].Sequence, recs[0].Timestamp
		}
		s.Runs = append(s.Runs, l.run(l.id, recs))
	}
	if s.Sealed = sealed; sealed {
		s.EndSequence, s.SealTimeMs = s.Runs[len(s.Runs)-1].End, l.state.LastTimestampMs
	}
	l.full[l.id] = s
	l.state.Segments = append(l.state.Segments, s)
}

// group moves the first n segments into a group.
func (l *layout) group(n int) *manifest.Group {
	segments := l.state.Segments[:n]
	l.state.Segments = l.state.Segments[n:]
	line := l.index(segments)
	l.state.Groups = append(l.state.Groups, line)
	return line
}

// regroup makes one group of the groups from to to, as if nothing had been dropped.
func (l *layout) regroup(from, to int) {
	var segments []*manifest.Segment
	for _, g := range l.state.Groups[from:to] {
		segments = append(segments, l.fullSegments(g)...)
	}
	l.state.Groups = slices.Replace(l.state.Groups, from, to, l.index(segments))
	l.state.Version++
}

// fullSegments returns the live segments of a group.
func (l *layout) fullSegments(g *manifest.Group) (segments []*manifest.Segment) {
	for id := g.FirstSegment; id <= g.LastSegment; id++ {
		segments = append(segments, l.full[id])
	}
	return segments
}

// index writes an index of the segments.
func (l *layout) index(segments []*manifest.Segment) *manifest.Group {
	b := manifest.NewIndexBuilder(segments)
	masks := map[manifest.KeyHash]uint64{}
	for i, s := range segments {
		keys := map[string]bool{}
		for _, r := range l.all[s.FirstSequence:s.EndSequence] {
			keys[string(r.Key)] = true
			masks[manifest.HashKey(r.Key)] |= 1 << i
		}
		b.SetKeys(i, uint64(len(keys)))
	}
	if l.shapeIndex != nil {
		l.shapeIndex(b)
	}
	type entry struct {
		h    manifest.KeyHash
		mask uint64
	}
	entries := make([]entry, 0, len(masks))
	for h, mask := range masks {
		entries = append(entries, entry{h, mask})
	}
	slices.SortFunc(entries, func(a, b entry) int { return cmp.Compare(a.h, b.h) })
	for _, e := range entries {
		b.Add(e.h, e.mask)
	}
	ref := base.ObjectID{Tree: tree, Kind: base.KindIndex, Role: base.RoleCompactor, Epoch: 1, ULID: l.env.NewULID()}
	body, line, err := b.Finish(ref)
	require.NoError(l.t, err)
	l.put(ref.Name(), body)
	return line
}

// trim drops the segments up to upTo, which all lie in groups, and what the store has of them.
func (l *layout) trim(upTo uint32) {
	require.NoError(l.t, l.store.Delete(context.Background(), l.trimLines(upTo)))
}

// trimLine is trim with what the store has of a group left alone.
func (l *layout) trimLine(upTo uint32) {
	g := proto.CloneOf(l.state.Groups[0])
	for id := g.FirstSegment; id <= upTo; id++ {
		s := l.full[id]
		t := s.Runs[0].Tables[0]
		g.Segments, g.Tables, g.Records = g.Segments-1, g.Tables-1, g.Records-t.Records
		g.Bytes, g.StoredBytes = g.Bytes-t.Bytes, g.StoredBytes-t.Size
		g.FirstSegment, g.FirstSequence = id+1, s.EndSequence
	}
	g.StartTimeMs, g.FirstSealTimeMs = l.full[upTo+1].StartTimeMs, l.full[upTo+1].SealTimeMs
	l.state.Groups[0] = g
	l.state.Version++
}

func (l *layout) trimLines(upTo uint32) (gone []string) {
	ctx := context.Background()
	for len(l.state.Groups) > 0 && l.state.Groups[0].FirstSegment <= upTo {
		g := l.state.Groups[0]
		for _, s := range l.fullSegments(g) {
			if s.Id <= upTo {
				for _, t := range s.Runs[0].Tables {
					gone = append(gone, t.Ref.ID().Name())
				}
			}
		}
		l.state.Version++
		if g.LastSegment <= upTo {
			l.state.Groups = l.state.Groups[1:]
			gone = append(gone, g.Index.ID().Name())
			continue
		}
		x, err := (&tables{store: l.store, env: l.env}).index(ctx, g.Index.ID(), int64(g.IndexSize))
		require.NoError(l.t, err)
		trimmed, err := x.Trim(g, upTo)
		require.NoError(l.t, err)
		l.state.Groups = append([]*manifest.Group{trimmed}, l.state.Groups[1:]...)
	}
	return gone
}

// memory adds a memtable of records that are in no run.
func (l *layout) memory(recs []Record) {
	m := &memory{table: memtable.New(), segment: l.id, start: l.state.FlushedEnd}
	if n := len(l.memories); n > 0 {
		m.start = l.memories[n-1].end
	}
	for i := range recs {
		m.table.AddBatch(recs[i].Sequence, recs[i].Timestamp, recs[i:i+1])
	}
	m.end = m.start + uint64(len(recs))
	l.memories = append(l.memories, m)
}

// view returns a view of the log as it is now.
func (l *layout) view() *view {
	state := proto.CloneOf(l.state)
	require.NoError(l.t, manifest.Validate(state))
	memories := l.memories
	if len(memories) == 0 {
		memories = []*memory{{table: memtable.New(), segment: l.id, start: state.FlushedEnd}}
	}
	return newView(&manifest.Snapshot{State: state}, memories)
}

// open returns a reader of the log as it is now.
func (l *layout) open(store objstore.Store, cacheBytes int64) *core {
	c := &core{
		env: l.env, tables: &tables{store: store, env: l.env, cache: newBlockCache(cacheBytes)}, staleAfter: time.Hour,
		refresh: func(context.Context) error { return nil },
		stopped: func() error { return nil },
	}
	c.provedAt(l.env.Elapsed())
	c.publish(l.view())
	c.frontier.Store(uint64(len(l.all)))
	return c
}

// want returns the records of a key in a range.
func (l *layout) want(key string, r Range) []Record {
	var out []Record
	for _, rec := range l.all {
		if string(rec.Key) == key && rec.Sequence >= r.Start && rec.Sequence < r.End {
			out = append(out, rec)
		}
	}
	return out
}

// meter counts the GETs of a store.
type meter struct {
	objstore.Store
	mu               sync.Mutex
	data, meta, idx  int
	names            map[string]int
	metaOffset       map[string]int64
	underWay, atOnce int
	rounds           int // GETs that began when no other was under way
	delay            time.Duration
}

// metered returns a meter over the layout's store.
func (l *layout) metered() *meter {
	m := &meter{Store: l.store, metaOffset: map[string]int64{}}
	for _, s := range l.full {
		for _, r := range s.Runs {
			for _, t := range r.Tables {
				m.metaOffset[t.Ref.ID().Name()] = int64(t.MetaOffset)
			}
		}
	}
	m.reset()
	return m
}

func (m *meter) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.data, m.meta, m.idx, m.atOnce, m.rounds, m.names = 0, 0, 0, 0, 0, map[string]int{}
}

func (m *meter) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return fmt.Sprintf("%d data, %d table metadata, %d index GETs, up to %d at once", m.data, m.meta, m.idx, m.atOnce)
}

func (m *meter) gets() (metadata, data int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.meta + m.idx, m.data
}

func (m *meter) Get(ctx context.Context, name string, o objstore.GetOptions) (objstore.Object, error) {
	m.mu.Lock()
	switch at, table := m.metaOffset[name]; {
	case strings.HasSuffix(name, ".idx"):
		m.idx++
	case table && o.Offset < at:
		m.data++
	default:
		m.meta++
	}
	m.names[name]++
	if m.underWay == 0 {
		m.rounds++
	}
	m.underWay++
	m.atOnce = max(m.atOnce, m.underWay)
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		m.underWay--
		m.mu.Unlock()
	}()
	if m.delay > 0 {
		timer := time.NewTimer(m.delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return objstore.Object{}, ctx.Err()
		}
	}
	return m.Store.Get(ctx, name, o)
}

// scan reads a key.
func scan(t testing.TB, c *core, key string, r Range, o ScanOptions) []Record {
	t.Helper()
	it := c.Scan(context.Background(), []byte(key), r, o)
	got := slices.Collect(it.All())
	require.NoError(t, it.Err())
	return got
}

func requireSame(t testing.TB, want, got []Record, what ...any) {
	t.Helper()
	same := slices.EqualFunc(want, got, func(a, b Record) bool {
		return a.Sequence == b.Sequence && a.Timestamp == b.Timestamp && bytes.Equal(a.Key, b.Key) && bytes.Equal(a.Value, b.Value)
	})
	if !same {
		require.Equal(t, sequences(want), sequences(got), what...)
		require.Fail(t, "keys, values or timestamps differ", what...)
	}
}

func sequences(recs []Record) []uint64 {
	out := []uint64{}
	for _, r := range recs {
		out = append(out, r.Sequence)
	}
	return out
}
