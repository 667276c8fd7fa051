package manifest

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/mem"
)

// testEnv is an environment with repeatable randomness. Its clocks are package
// time's, so that in a synctest bubble they are simulated.
func testEnv(seed uint64) *base.Env {
	env := base.SystemEnv()
	start := time.Now()
	env.Elapsed = func() time.Duration { return time.Since(start) }
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 1))
	env.Random = func(p []byte) {
		mu.Lock()
		defer mu.Unlock()
		for i := range p {
			p[i] = byte(rng.Uint32())
		}
	}
	return env
}

// id16 returns an id that is recognisably n.
func id16(n int) []byte {
	id := make([]byte, idBytes)
	for i := range id {
		id[i] = byte(0xA0 + i)
	}
	binary.BigEndian.PutUint32(id[12:], uint32(n))
	return id
}

func owner(n int) [16]byte { return [16]byte(id16(n)) }

func ref(kind base.Kind, n int) *ObjectRef {
	r := RefOf(base.ObjectID{Tree: 7, Kind: kind, Role: base.RoleWriter, Epoch: 3, ULID: base.ULID(id16(n))})
	if kind == base.KindSST {
		r.Segment = 1
	}
	return r
}

// table returns a table of the given sequences, one record each, with keys "k...".
func table(n int, first, last uint64) *Table {
	return &Table{
		Ref: ref(base.KindSST, n), Size: 1000, MetaOffset: 900,
		LowerKey: []byte("k1"), UpperKey: []byte("k9"),
		FirstSequence: first, LastSequence: last, FirstTimestampMs: 10, LastTimestampMs: 20,
		Records: last - first + 1, Keys: 1, Bytes: 500,
	}
}

func run(n int, start, end uint64) *Run {
	return &Run{Id: id16(n), Start: start, End: end, Tables: []*Table{table(n, start, end-1)}}
}

func obsoleteObject(n int) *Obsolete { return &Obsolete{Ref: ref(base.KindSST, n), Size: 10} }

// richState uses every field: two groups, a merged sealed segment, an active one
// with a gap run, both objects of small state, pins, both kinds of obsolete entries.
func richState() *State {
	group := func(n int, firstSeg, lastSeg uint32, first, end uint64) *Group {
		return &Group{
			Id: id16(n), Index: ref(base.KindIndex, n), IndexSize: 5000, TocOffset: 4000,
			Shards: 2, ShardBytes: 1024, Keys: 40, Segments: 3,
			FirstSegment: firstSeg, LastSegment: lastSeg, FirstSequence: first, EndSequence: end,
			StartTimeMs: 1, FirstSealTimeMs: 2, LastSealTimeMs: 3, Tables: 4, Records: 40,
			Bytes: 600, StoredBytes: 300,
		}
	}
	spanning := run(20, 200, 260)
	spanning.Tables = []*Table{table(21, 200, 220), table(22, 221, 240), table(23, 241, 259)}
	spanning.Tables[0].UpperKey = []byte("k5")
	spanning.Tables[1].LowerKey = []byte("k5") // one key in both
	spanning.Tables[1].UpperKey = nil
	spanning.Tables[2].LowerKey = bytesOf(0xFF, 32) // rounded, overlaps the infinite bound
	spanning.Tables[2].UpperKey = nil
	return &State{
		FormatVersion: 1, LogId: id16(1), Tree: 7, Version: 99, CommitId: id16(2),
		Writer: &Owner{Epoch: 3, Id: id16(3)}, Compactor: &Owner{Epoch: 2, Id: id16(4)}, CompactorBeat: 8,
		Position: &Position{Epoch: 3, Id: 5}, FlushedEnd: 400, SeqLimit: 1000, CleanNext: proto.Uint64(410),
		LastTimestampMs: 20,
		Groups:          []*Group{group(10, 2, 9, 100, 150), group(11, 10, 17, 150, 200)},
		Segments: []*Segment{
			{Id: 18, LastId: 20, FirstSequence: 200, StartTimeMs: 5, Sealed: true, EndSequence: 300, SealTimeMs: 6,
				Runs: []*Run{spanning, run(24, 260, 300)}},
			{Id: 21, FirstSequence: 300, StartTimeMs: 7,
				Runs: []*Run{{Id: id16(25), Start: 300, End: 350}, run(26, 350, 400)}},
		},
		State: ref(base.KindState, 30), StateSize: 700, StatePosition: &Position{Epoch: 3, Id: 5},
		StateChanges: ref(base.KindState, 32), StateChangesSize: 70,
		Pins: []*Pin{{Ref: ref(base.KindPin, 31), CreatedMs: 5, ExpiresMs: 6, Name: "backup"}},
		Obsolete: []*Obsolete{
			obsoleteObject(40),
			{Ref: ref(base.KindIndex, 10), SegmentsOnly: true, FirstSegment: 1, LastSegment: 1, SinceMs: 77, Size: 3},
			{Ref: ref(base.KindIndex, 41), SinceMs: 78},
		},
	}
}

func bytesOf(b byte, n int) []byte {
	out := make([]byte, n)
	for i := range out {
		out[i] = b
	}
	return out
}

// newLog creates a log in a new store and returns its first version.
func newLog(t testing.TB, env *base.Env) (*mem.Store, *Snapshot) {
	t.Helper()
	store := mem.New(mem.Options{})
	_, err := Create(t.Context(), store, env, 0)
	require.NoError(t, err)
	return store, load(t, store, env)
}

func load(t testing.TB, store objstore.Store, env *base.Env) *Snapshot {
	t.Helper()
	snap, err := Load(t.Context(), store, env, 0)
	require.NoError(t, err)
	return snap
}

// openWriter commits an OpenWriter on top of what the store holds.
func openWriter(t testing.TB, store objstore.Store, env *base.Env, id int) *Snapshot {
	t.Helper()
	snap := load(t, store, env)
	snap, err := CommitOne(t.Context(), CommitterOptions{Store: store, Env: env, Start: snap},
		OpenWriter(snap.State.Writer.Epoch, owner(id)))
	require.NoError(t, err)
	return snap
}

// flushAt is a flush of one record per sequence in [start, end).
func flushAt(epoch uint64, fromID, toID uint64, n int, start, end uint64) Flush {
	return Flush{
		Epoch: epoch, From: Pos{epoch, fromID}, To: Pos{epoch, toID},
		Run: run(n, start, end), Start: start, End: end, Next: end,
		Segment: 1, SegmentStartMs: 10, LastTimestampMs: 20,
	}
}

func mustApply(t testing.TB, s *State, edits ...Edit) {
	t.Helper()
	for _, e := range edits {
		require.NoError(t, e.Apply(s), e.Name)
		require.NoError(t, Validate(s), e.Name)
	}
}

func commit(t testing.TB, c *Committer, e Edit) *Snapshot {
	t.Helper()
	snap, err := c.Commit(context.Background(), e)
	require.NoError(t, err)
	return snap
}
