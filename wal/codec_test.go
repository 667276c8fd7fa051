package wal

import (
	"bytes"
	"encoding/hex"
	"flag"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/annalsdb/annals/internal/base"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// goldenHeader, goldenObject: a record object with every kind of entry.
var goldenHeader = Header{
	Identity: testIdent, Writer: testWriter, Epoch: testEpoch, ID: 9, Segment: 7,
	PrevEnd: 1000, First: 1000,
}

func goldenObject() []byte {
	b := NewBuilder(goldenHeader, nil)
	b.AddBatch(1000, 1_700_000_000_000, []base.Record{
		{Key: []byte("user/1"), Value: []byte("hello")},
		{Key: nil, Value: nil},
		{Key: []byte{0xFF, 0}, Value: []byte("world")},
	})
	b.AddProducer(ProducerMark{Producer: "p-1", Sequence: 42, First: 1000, Count: 3, Timestamp: 1_700_000_000_000})
	b.AddCursor(CursorChange{Op: CursorSet, Consumer: "mailer", Key: []byte("user/1"), Next: 1001})
	b.AddCursor(CursorChange{Op: CursorDelete, Consumer: "mailer", Key: []byte("user/2")})
	b.AddCursor(CursorChange{Op: CursorDeleteConsumer, Consumer: "old"})
	b.AddBatch(1003, 1_700_000_000_001, []base.Record{{Key: []byte("k"), Value: []byte("v")}})
	return b.Finish()
}

func decodeGolden(body []byte) (*Object, error) {
	return Decode("golden", testIdent, testEpoch, 9, body)
}

// golden compares got with a file of hexadecimal text, 16 bytes a line.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		var text bytes.Buffer
		for line := range slices.Chunk(got, 16) {
			text.WriteString(hex.EncodeToString(line) + "\n")
		}
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, text.Bytes(), 0o644))
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	want, err := hex.DecodeString(string(bytes.ReplaceAll(text, []byte("\n"), nil)))
	require.NoError(t, err)
	require.Equal(t, hex.Dump(want), hex.Dump(got))
}

func TestGolden(t *testing.T) {
	golden(t, "record.hex", goldenObject())
	golden(t, "fence.hex", EncodeFence(testIdent, testEpoch, 9, 6))
}

func TestDecodeGolden(t *testing.T) {
	o, err := decodeGolden(goldenObject())
	require.NoError(t, err)
	want := goldenHeader
	want.End = 1004
	require.Equal(t, want, o.Header)
	require.False(t, o.Fence)
	require.EqualValues(t, 4, o.Records())
	require.EqualValues(t, 1_700_000_000_000, o.FirstTimestamp)
	require.EqualValues(t, 1_700_000_000_001, o.LastTimestamp)

	entries := slices.Collect(o.Entries())
	require.Len(t, entries, o.Len())
	var types []EntryType
	for _, e := range entries {
		types = append(types, e.Type)
	}
	require.Equal(t, []EntryType{EntryBatch, EntryProducer, EntryCursor, EntryCursor, EntryCursor, EntryBatch}, types)
	require.Equal(t, []base.Record{
		{Key: []byte("user/1"), Value: []byte("hello"), Sequence: 1000, Timestamp: 1_700_000_000_000},
		{Key: []byte{}, Value: []byte{}, Sequence: 1001, Timestamp: 1_700_000_000_000},
		{Key: []byte{0xFF, 0}, Value: []byte("world"), Sequence: 1002, Timestamp: 1_700_000_000_000},
	}, entries[0].Batch.AppendRecords(nil))
	require.Equal(t, 18, entries[0].Batch.Bytes())
	require.EqualValues(t, 1003, entries[0].Batch.End())
	require.Equal(t, ProducerMark{Producer: "p-1", Sequence: 42, First: 1000, Count: 3, Timestamp: 1_700_000_000_000}, entries[1].Producer)
	require.EqualValues(t, 1003, entries[1].Producer.End())
	require.Equal(t, CursorChange{Op: CursorSet, Consumer: "mailer", Key: []byte("user/1"), Next: 1001}, entries[2].Cursor)
	require.Equal(t, CursorChange{Op: CursorDelete, Consumer: "mailer", Key: []byte("user/2")}, entries[3].Cursor)
	require.Equal(t, CursorChange{Op: CursorDeleteConsumer, Consumer: "old", Key: []byte{}}, entries[4].Cursor)

	// Both iterators stop when told to.
	for range o.Entries() {
		break
	}
	for range entries[0].Batch.Records() {
		break
	}
}

func TestBuiltIsWhatDecodeGives(t *testing.T) {
	body := goldenObject()
	decoded, err := decodeGolden(body)
	require.NoError(t, err)
	built := Built(body)
	require.Equal(t, decoded.Header, built.Header)
	require.Equal(t, decoded.Len(), built.Len())
	require.Equal(t, slices.Collect(decoded.Entries()), slices.Collect(built.Entries()))
}

func TestFence(t *testing.T) {
	body := EncodeFence(testIdent, testEpoch, 9, 6)
	require.Len(t, body, FenceSize)
	require.True(t, IsFence(int64(len(body))))
	require.False(t, IsFence(int64(len(testObject(1, 0, 0)))), "the smallest record object")
	o, err := decodeGolden(body)
	require.NoError(t, err)
	require.True(t, o.Fence)
	require.EqualValues(t, 6, o.Fencer)
	require.Equal(t, Header{Identity: testIdent, Epoch: testEpoch, ID: 9}, o.Header)
	require.Empty(t, slices.Collect(o.Entries()))
}

// F14: no damage passes for something else, not even for an unknown version.
func TestEveryFlippedBitIsCorrupt(t *testing.T) {
	for name, whole := range map[string][]byte{"record": goldenObject(), "fence": EncodeFence(testIdent, testEpoch, 9, 6)} {
		for at := range whole {
			for bit := range 8 {
				body := bytes.Clone(whole)
				body[at] ^= 1 << bit
				_, err := decodeGolden(body)
				require.ErrorIs(t, err, base.ErrCorrupt, "%s, byte %d, bit %d", name, at, bit)
				require.ErrorContains(t, err, "golden")
			}
		}
	}
}

func TestEveryTruncationIsCorrupt(t *testing.T) {
	for name, whole := range map[string][]byte{"record": goldenObject(), "fence": EncodeFence(testIdent, testEpoch, 9, 6)} {
		for n := range whole {
			_, err := decodeGolden(whole[:n])
			require.ErrorIs(t, err, base.ErrCorrupt, "%s, first %d bytes", name, n)
			_, err = decodeGolden(append(bytes.Clone(whole), whole[:n+1]...))
			require.ErrorIs(t, err, base.ErrCorrupt, "%s, %d bytes more", name, n+1)
		}
	}
}

// I8: an intact object under another's name is damage.
func TestMisplacedIsCorrupt(t *testing.T) {
	other := testIdent
	other.LogID[3] ^= 1
	otherTree := testIdent
	otherTree.Tree++
	for name, whole := range map[string][]byte{"record": goldenObject(), "fence": EncodeFence(testIdent, testEpoch, 9, 6)} {
		for _, c := range []struct {
			ident     Identity
			epoch, id uint64
		}{{other, testEpoch, 9}, {otherTree, testEpoch, 9}, {testIdent, testEpoch + 1, 9}, {testIdent, testEpoch, 8}} {
			_, err := Decode("x", c.ident, c.epoch, c.id, whole)
			require.ErrorIs(t, err, base.ErrCorrupt, "%s as %+v", name, c)
		}
	}
}

// seal sets the checksum to what the bytes before it need.
func seal(body []byte) []byte {
	at := len(body) - checksumSize
	le.PutUint64(body[at:], base.Checksum(testIdent.seed(testEpoch, 9), body[:at]))
	return body
}

func TestUnknownVersion(t *testing.T) {
	for name, body := range map[string][]byte{"record": goldenObject(), "fence": EncodeFence(testIdent, testEpoch, 9, 6)} {
		le.PutUint32(body[offVersion:], Version+1)
		_, err := decodeGolden(seal(body))
		require.ErrorIs(t, err, ErrVersion, name)
		require.NotErrorIs(t, err, base.ErrCorrupt, name)
		require.ErrorContains(t, err, "version 2")
	}
}

// Bytes with a right checksum that no builder makes.
func TestDecodeRefuses(t *testing.T) {
	const (
		batch    = headerSize
		payload  = batch + entryHeaderSize
		record   = payload + batchHeaderSize
		producer = payload + batchHeaderSize + 3*recordHeaderSize + 18
		cursor   = producer + entryHeaderSize + producerFixedSize + 3
		deletion = cursor + entryHeaderSize + cursorHeaderSize + 12
		consumer = deletion + entryHeaderSize + cursorHeaderSize + 12
		last     = consumer + entryHeaderSize + cursorHeaderSize + 3
	)
	u32 := func(at int, v uint32) func([]byte) { return func(b []byte) { le.PutUint32(b[at:], v) } }
	u64 := func(at int, v uint64) func([]byte) { return func(b []byte) { le.PutUint64(b[at:], v) } }
	for name, change := range map[string]func([]byte){
		"identity":                  u32(offTree, 9),
		"epoch":                     u64(offEpoch, 99),
		"id":                        u64(offID, 99),
		"length":                    u64(offLength, 1),
		"first below previous end":  u64(offPrevEnd, 1001),
		"end below first":           u64(offEnd, 999),
		"end above batches":         u64(offEnd, 1005),
		"end below batches":         u64(offEnd, 1003),
		"first above batches":       u64(offFirst, 1001),
		"too few entries counted":   u32(offEntries, 5),
		"too many entries counted":  u32(offEntries, math.MaxUint32),
		"codec":                     func(b []byte) { b[offCodec] = 1 },
		"reserved byte":             func(b []byte) { b[offDurable-1] = 1 },
		"unknown entry":             u32(batch, 4),
		"entry type 0":              u32(batch, 0),
		"entry beyond the end":      u32(batch+4, math.MaxUint32),
		"entry one byte longer":     func(b []byte) { b[batch+4]++ },
		"entry one byte shorter":    func(b []byte) { b[batch+4]-- },
		"batch shorter than header": u32(batch+4, batchHeaderSize-1),
		"batch sequence":            u64(payload, 1001),
		"batch sequence overflows":  u64(payload, math.MaxUint64),
		"batch without records":     u32(payload+16, 0),
		"batch with records less":   u32(payload+16, 2),
		"batch with records more":   u32(payload+16, math.MaxUint32),
		"key length":                u32(record, math.MaxUint32),
		"value length":              u32(record+4, math.MaxUint32),
		"key and value length":      func(b []byte) { u32(record, math.MaxUint32)(b); u32(record+4, math.MaxUint32)(b) },
		"timestamp falls":           u64(payload+8, 1_700_000_000_002),
		"producer id length":        u32(producer+8, 4),
		"producer without records":  u32(producer+12, 0),
		"producer beyond the end":   u32(producer+12, 5),
		"producer before the first": u64(producer+24, 999),
		"producer overflows":        u64(producer+24, math.MaxUint64),
		"producer cut":              u32(producer+4, producerFixedSize-1),
		"cursor operation 0":        u32(cursor+8, 0),
		"cursor operation 4":        u32(cursor+8, 4),
		"consumer length":           u32(cursor+12, 7),
		"cursor key length":         u32(cursor+16, math.MaxUint32),
		"cursor lengths overflow":   func(b []byte) { u32(cursor+12, math.MaxUint32)(b); u32(cursor+16, 13)(b) },
		"cursor cut":                u32(cursor+4, cursorHeaderSize-1),
		"deletion with next":        u64(deletion+20, 1),
		"consumer with key":         u32(deletion+8, uint32(CursorDeleteConsumer)),
		"consumer with next":        u64(consumer+20, 1),
		"last batch sequence":       u64(last+8, 1004),
		"magic":                     func(b []byte) { copy(b, fenceMagic) },
	} {
		body := goldenObject()
		change(body)
		_, err := decodeGolden(seal(body))
		require.ErrorIs(t, err, base.ErrCorrupt, name)
	}

	fence := func(change func([]byte)) []byte {
		body := EncodeFence(testIdent, testEpoch, 9, 6)
		change(body)
		return seal(body)
	}
	for name, body := range map[string][]byte{
		"fencer not above":      fence(u64(offFencer, testEpoch)),
		"fence of other epoch":  fence(u64(offFenceEpoch, 4)),
		"fence of other id":     fence(u64(offFenceID, 8)),
		"fence of other log":    fence(func(b []byte) { b[offLogID] ^= 1 }),
		"record magic, 64 long": fence(func(b []byte) { copy(b, recordMagic) }),
		"65 bytes":              seal(append([]byte(recordMagic+"\x01"), make([]byte, 56)...)),
	} {
		_, err := decodeGolden(body)
		require.ErrorIs(t, err, base.ErrCorrupt, name)
	}
}

// change is one step of building a random object.
type change struct {
	records  []base.Record
	cursor   *CursorChange
	producer *ProducerMark
}

func drawChanges(t *rapid.T, first uint64, timestamp int64) []change {
	next, out := first, []change{}
	blob := rapid.SliceOfN(rapid.Byte(), 0, 40)
	for range rapid.IntRange(0, 8).Draw(t, "entries") {
		var c change
		switch kind := rapid.IntRange(1, 3).Draw(t, "kind"); {
		case kind == 2:
			c.cursor = &CursorChange{
				Op:       CursorOp(rapid.IntRange(1, 3).Draw(t, "op")),
				Consumer: rapid.StringN(0, 20, -1).Draw(t, "consumer"), Key: []byte{},
			}
			if c.cursor.Op != CursorDeleteConsumer {
				c.cursor.Key = append([]byte{}, blob.Draw(t, "cursor key")...)
			}
			if c.cursor.Op == CursorSet {
				c.cursor.Next = rapid.Uint64().Draw(t, "next")
			}
		case kind == 3 && next > first:
			p := &ProducerMark{Producer: rapid.StringN(1, 20, -1).Draw(t, "producer"), Timestamp: timestamp}
			p.Sequence = rapid.Uint64().Draw(t, "producer sequence")
			p.First = rapid.Uint64Range(first, next-1).Draw(t, "first")
			p.Count = uint32(rapid.Uint64Range(1, next-p.First).Draw(t, "count"))
			c.producer = p
		default:
			timestamp += rapid.Int64Range(0, 1000).Draw(t, "ms")
			for range rapid.IntRange(1, 5).Draw(t, "records") {
				c.records = append(c.records, base.Record{
					Key: append([]byte{}, blob.Draw(t, "key")...), Value: append([]byte{}, blob.Draw(t, "value")...),
					Sequence: next, Timestamp: timestamp,
				})
				next++
			}
		}
		out = append(out, c)
	}
	return out
}

func TestRoundTrip(t *testing.T) { rapid.Check(t, roundTrip) }

func roundTrip(t *rapid.T) {
	h := Header{
		Identity: Identity{Tree: rapid.Uint32().Draw(t, "tree")},
		Epoch:    rapid.Uint64Min(1).Draw(t, "epoch"), ID: rapid.Uint64Min(1).Draw(t, "id"),
		Segment: rapid.Uint32().Draw(t, "segment"),
		PrevEnd: rapid.Uint64Max(math.MaxUint64-1000).Draw(t, "previous end"),
	}
	copy(h.LogID[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "log"))
	copy(h.Writer[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "writer"))
	h.First = h.PrevEnd + rapid.Uint64Max(100).Draw(t, "gap")
	changes := drawChanges(t, h.First, rapid.Int64Range(math.MinInt64, math.MaxInt64-1e6).Draw(t, "timestamp"))

	b := NewBuilder(h, bytes.Repeat([]byte{0xEE}, rapid.IntRange(0, 300).Draw(t, "old buffer")))
	require.True(t, b.Empty())
	h.End = h.First
	for _, c := range changes {
		before := b.Size()
		switch {
		case c.cursor != nil:
			b.AddCursor(*c.cursor)
		case c.producer != nil:
			b.AddProducer(*c.producer)
		default:
			b.AddBatch(c.records[0].Sequence, c.records[0].Timestamp, c.records)
			require.Equal(t, before+BatchSize(c.records), b.Size())
			h.End += uint64(len(c.records))
		}
	}
	require.Equal(t, len(changes) == 0, b.Empty())
	require.Equal(t, h, b.Header())
	size := b.Size()
	body := b.Finish()
	require.Len(t, body, size)
	require.Equal(t, size, b.Size())
	require.Greater(t, size, FenceSize)

	o, err := Decode("object", h.Identity, h.Epoch, h.ID, body)
	require.NoError(t, err)
	require.Equal(t, h, o.Header)
	require.EqualValues(t, b.Records(), o.Records())
	require.Equal(t, b.End(), o.End)
	got := []change{}
	for e := range o.Entries() {
		switch e.Type {
		case EntryBatch:
			got = append(got, change{records: e.Batch.AppendRecords(nil)})
		case EntryCursor:
			got = append(got, change{cursor: &e.Cursor})
		case EntryProducer:
			got = append(got, change{producer: &e.Producer})
		}
	}
	require.Equal(t, changes, got)
}

// A caller that would build what cannot be read back has a bug.
func TestBuilderPanics(t *testing.T) {
	rec := []base.Record{{Key: []byte("k")}}
	build := func() *Builder {
		b := NewBuilder(goldenHeader, nil)
		b.AddBatch(1000, 50, rec)
		return b
	}
	for name, f := range map[string]func(){
		"epoch 0":            func() { NewBuilder(Header{ID: 1}, nil) },
		"id 0":               func() { NewBuilder(Header{Epoch: 1}, nil) },
		"first before end":   func() { NewBuilder(Header{Epoch: 1, ID: 1, PrevEnd: 2, First: 1}, nil) },
		"gap":                func() { build().AddBatch(1002, 50, rec) },
		"repeat":             func() { build().AddBatch(1000, 50, rec) },
		"no records":         func() { build().AddBatch(1001, 50, nil) },
		"timestamp falls":    func() { build().AddBatch(1001, 49, rec) },
		"mark before batch":  func() { build().AddProducer(ProducerMark{First: 1001, Count: 1}) },
		"mark without count": func() { build().AddProducer(ProducerMark{First: 1000}) },
		"cursor operation":   func() { build().AddCursor(CursorChange{}) },
		"consumer and key":   func() { build().AddCursor(CursorChange{Op: CursorDeleteConsumer, Key: []byte("k")}) },
		"deletion with next": func() { build().AddCursor(CursorChange{Op: CursorDelete, Next: 1}) },
		"finish twice":       func() { b := build(); b.Finish(); b.Finish() },
		"add after finish":   func() { b := build(); b.Finish(); b.AddBatch(1001, 50, rec) },
		"fence by itself":    func() { EncodeFence(testIdent, 5, 1, 5) },
		"fence at 0":         func() { EncodeFence(testIdent, 5, 0, 6) },
	} {
		require.Panics(t, f, name)
	}
}
