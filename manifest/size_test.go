package manifest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
)

const tablesPerSegment = 256 // of 64 MiB in 16 GiB

// agedLog is the MANIFEST of a log of 391 full segments: 5 groups of 64, 7 of 8, 7 of 1, then
// 7 segments that are not finished, and an active segment with as many runs as the planner lets be. Bounds of
// keys are as long as they can be, and everything is random that can be.
type agedLog struct {
	env   *base.Env
	s     *State
	next  uint64 // sequence
	time  int64
	total int // tables, those in groups too
}

func newAgedLog() *agedLog {
	env := testEnv(9)
	b := &agedLog{env: env, s: emptyState(env, 7), time: 1_700_000_000_000}
	b.s.Segments = nil
	id := uint32(1)
	for _, size := range []uint32{64, 64, 64, 64, 64, 8, 8, 8, 8, 8, 8, 8, 1, 1, 1, 1, 1, 1, 1} {
		b.group(id, size)
		id += size
	}
	for i := range 7 { // one run after consolidation, or those that the segment had when it was sealed
		b.segment(id, []int{1, 1, 1, 30, 30, 30, 30}[i], true)
		id++
	}
	b.segment(id, 233, false)
	b.s.FlushedEnd, b.s.SeqLimit, b.s.LastTimestampMs = b.next, b.next, b.time
	// What two consolidations and a regroup left until the grace period is over.
	for range 2*tablesPerSegment + 8 {
		b.s.Obsolete = append(b.s.Obsolete, &Obsolete{Ref: b.ref(base.KindSST, 390), Size: 64 << 20, SinceMs: b.time})
	}
	return b
}

func (b *agedLog) ref(kind base.Kind, segment uint32) *ObjectRef {
	return RefOf(base.ObjectID{Tree: 7, Kind: kind, Role: base.RoleCompactor, Epoch: 30, Segment: segment, ULID: base.ULID(randomID(b.env))})
}

func (b *agedLog) group(first, segments uint32) {
	tables := segments * tablesPerSegment
	records := uint64(tables) * 60_000
	keys := uint64(segments) * 50_000
	shards := uint32(1)
	for uint64(EntryBytes(int(segments)))*keys/uint64(shards) > targetShardBytes {
		shards *= 2
	}
	g := &Group{
		Id: randomID(b.env), Index: b.ref(base.KindIndex, 0), Keys: keys, Shards: shards, ShardBytes: 51_234,
		TocOffset: uint64(shards)*51_234 + uint64(tables)*110, FirstSegment: first, LastSegment: first + segments - 1,
		FirstSequence: b.next, EndSequence: b.next + records, StartTimeMs: b.time, FirstSealTimeMs: b.time + 1,
		LastSealTimeMs: b.time + int64(segments)*3_600_000, Segments: segments, Tables: tables, Records: records,
		Bytes: uint64(tables) * 61 << 20, StoredBytes: uint64(tables) * 63 << 20,
	}
	g.IndexSize = g.TocOffset + uint64(segments)*130 + footerBytes
	b.next, b.time = g.EndSequence, g.LastSealTimeMs
	b.s.Groups = append(b.s.Groups, g)
	b.total += int(tables)
}

func (b *agedLog) segment(id uint32, runs int, sealed bool) {
	g := &Segment{Id: id, FirstSequence: b.next, StartTimeMs: b.time}
	left := tablesPerSegment
	for i := range runs {
		n := left / (runs - i)
		left -= n
		g.Runs = append(g.Runs, b.run(id, n))
	}
	b.s.Segments = append(b.s.Segments, g)
	if g.Sealed = sealed; sealed {
		g.EndSequence, g.SealTimeMs = b.next, b.time
	}
	b.total += tablesPerSegment
}

func (b *agedLog) run(segment uint32, tables int) *Run {
	r := &Run{Id: randomID(b.env), Start: b.next}
	for i := range tables {
		bound := func(half int) []byte {
			k := append(randomID(b.env), randomID(b.env)...)
			k[0], k[1] = byte(i), byte(half)<<7|k[1]>>1
			return k
		}
		records := 60_000 + b.env.Uint64()%9000
		size := 60<<20 + b.env.Uint64()%(8<<20)
		r.Tables = append(r.Tables, &Table{
			Ref: b.ref(base.KindSST, segment), Size: size, MetaOffset: size - 100_000 - b.env.Uint64()%9000,
			LowerKey: bound(0), UpperKey: bound(1),
			FirstSequence: b.next, LastSequence: b.next + records - 1,
			FirstTimestampMs: b.time, LastTimestampMs: b.time + int64(records),
			Records: records, Keys: records / 10, Bytes: records * 1024,
		})
		b.next, b.time = b.next+records, b.time+int64(records)
	}
	r.End = b.next
	return r
}

// The promise of groups: a log of 100,000 tables has a MANIFEST of less than 1 MiB.
func TestManifestOf100kTablesStaysSmall(t *testing.T) {
	b := newAgedLog()
	require.NoError(t, Validate(b.s))
	require.GreaterOrEqual(t, b.total, 100_000)
	body := EncodeState(b.s)
	began := time.Now()
	s, err := DecodeState("M", 7, body)
	require.NoError(t, err)
	t.Logf("%d tables: MANIFEST of %d bytes, decoded and validated in %v", b.total, len(body), time.Since(began))
	require.Less(t, len(body), 1<<20)
	requireEqual(t, b.s, s)
}

// A line of a group does not depend on how many tables the group has.
func TestGroupLineStaysSmall(t *testing.T) {
	b := newAgedLog()
	was := len(EncodeState(b.s))
	b.s.Groups = nil
	require.Less(t, (was-len(EncodeState(b.s)))/19, 160)
}

func BenchmarkDecode100kTablesInGroups(b *testing.B) {
	body := EncodeState(newAgedLog().s)
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := DecodeState("M", 7, body); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncode100kTablesInGroups(b *testing.B) {
	s := newAgedLog().s
	for b.Loop() {
		b.SetBytes(int64(len(EncodeState(s))))
	}
}
