package memtable

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/annalsdb/annals/internal/base"
)

// model is a table as a plain list of records in sequence order.
type model struct {
	records []base.Record
}

func (m *model) add(firstSeq uint64, timestamp int64, recs []base.Record) {
	for i, r := range recs {
		m.records = append(m.records, base.Record{
			Key:       append([]byte{}, r.Key...),
			Value:     append([]byte{}, r.Value...),
			Sequence:  firstSeq + uint64(i),
			Timestamp: timestamp,
		})
	}
}

// of returns the key's records within rng, oldest first.
func (m *model) of(key []byte, rng base.Range) []base.Record {
	var out []base.Record
	for _, r := range m.records {
		if bytes.Equal(r.Key, key) && rng.Start <= r.Sequence && r.Sequence < rng.End {
			out = append(out, r)
		}
	}
	return out
}

func (m *model) keysFrom(start []byte, rng base.Range, limit int) [][]byte {
	seen := map[string]bool{}
	for _, r := range m.records {
		if rng.Start <= r.Sequence && r.Sequence < rng.End && bytes.Compare(r.Key, start) >= 0 {
			seen[string(r.Key)] = true
		}
	}
	var keys [][]byte
	for k := range seen {
		keys = append(keys, []byte(k))
	}
	slices.SortFunc(keys, bytes.Compare)
	return append([][]byte(nil), keys[:min(len(keys), max(limit, 0))]...)
}

func (m *model) all() []base.Record {
	out := slices.Clone(m.records)
	slices.SortFunc(out, func(a, b base.Record) int { return base.Compare(a.Key, a.Sequence, b.Key, b.Sequence) })
	return out
}

// limited cuts records as Scan documents it. None left is nil.
func limited(recs []base.Record, maxRecords int, maxBytes int64) []base.Record {
	for i := range recs {
		if i >= maxRecords {
			return append([]base.Record(nil), recs[:i]...)
		}
		if maxBytes -= int64(len(recs[i].Value)); maxBytes <= 0 {
			return recs[:i+1]
		}
	}
	return recs
}

// genKey draws from few keys, so that keys repeat, among them the empty one and
// such as differ only by trailing zeros or far behind.
var genKey = rapid.OneOf(
	rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 0xFF}), 0, 3),
	rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]byte{0, 'a'}), 0, 4), func(end []byte) []byte {
		return append(bytes.Repeat([]byte("prefix.."), 3), end...)
	}),
)

// checkModel compares everything that the two answer.
func checkModel(rt *rapid.T, table *Table, m *model) {
	key := genKey.Draw(rt, "key")
	top := uint64(0)
	if n := len(m.records); n > 0 {
		top = m.records[n-1].Sequence
		if rapid.Bool().Draw(rt, "key exists") {
			key = m.records[rapid.IntRange(0, n-1).Draw(rt, "record")].Key
		}
	}
	genSeq := rapid.OneOf(rapid.Uint64Range(0, top+2), rapid.SampledFrom([]uint64{0, base.MaxSequence}))
	rng := base.Range{Start: genSeq.Draw(rt, "start"), End: genSeq.Draw(rt, "end")}
	maxRecords := rapid.OneOf(rapid.IntRange(-1, 20), rapid.Just(1<<30)).Draw(rt, "max records")
	maxBytes := rapid.OneOf(rapid.Int64Range(-1, 100), rapid.Just(int64(1<<40))).Draw(rt, "max bytes")

	want := m.of(key, rng)
	require.Equal(rt, uint64(len(want)), table.Count(key, rng))
	require.Equal(rt, limited(want, maxRecords, maxBytes), table.Scan(nil, key, rng, maxRecords, maxBytes))
	reversed := slices.Clone(want)
	slices.Reverse(reversed)
	require.Equal(rt, limited(reversed, maxRecords, maxBytes), table.ScanBackward(nil, key, rng, maxRecords, maxBytes))

	last, ok := table.LastSequenceOf(key, rng)
	require.Equal(rt, len(want) > 0, ok)
	require.Equal(rt, ok, table.HasKey(key, rng))
	if ok {
		require.Equal(rt, reversed[0].Sequence, last)
	}

	ts := rapid.Int64Range(-1, table.LastTimestamp()+1).Draw(rt, "timestamp")
	seq, ok := table.SeekTimestamp(key, rng, ts)
	i := slices.IndexFunc(want, func(r base.Record) bool { return r.Timestamp >= ts })
	require.Equal(rt, i >= 0, ok)
	if ok {
		require.Equal(rt, want[i].Sequence, seq)
	}

	limit := rapid.OneOf(rapid.IntRange(-1, 10), rapid.Just(1<<30)).Draw(rt, "limit")
	require.Equal(rt, m.keysFrom(key, rng, limit), table.KeysFrom(nil, key, rng, limit))
}

func checkTotals(t require.TestingT, table *Table, m *model) {
	data := int64(0)
	for i := range m.records {
		data += int64(m.records[i].Size())
	}
	require.Equal(t, uint64(len(m.records)), table.Records())
	require.Equal(t, len(m.records) == 0, table.Empty())
	require.Equal(t, data, table.DataBytes())
	require.Equal(t, uint64(len(m.keysFrom(nil, base.All(), 1<<30))), table.Keys())
	require.GreaterOrEqual(t, table.Bytes(), data/8) // keys are counted for each record, stored once
	if n := len(m.records); n > 0 {
		require.Equal(t, m.records[0].Sequence, table.FirstSequence())
		require.Equal(t, m.records[0].Timestamp, table.FirstTimestamp())
		require.Equal(t, m.records[n-1].Sequence, table.LastSequence())
		require.Equal(t, m.records[n-1].Timestamp, table.LastTimestamp())
	}
}

// TestModel runs random batches and reads against the model (I4): one and many
// records for a key, gaps between batches, listings at any time.
func TestModel(t *testing.T) { rapid.Check(t, checkTable) }

func checkTable(rt *rapid.T) {
	table, m := New(), &model{}
	next, now := rapid.Uint64Range(0, 10).Draw(rt, "first"), int64(0)
	for range rapid.IntRange(0, 12).Draw(rt, "steps") {
		var recs []base.Record
		for range rapid.IntRange(0, 40).Draw(rt, "records") {
			value := rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(rt, "value")
			recs = append(recs, base.Record{Key: genKey.Draw(rt, "key"), Value: value})
		}
		next += rapid.Uint64Range(0, 3).Draw(rt, "gap")
		now += rapid.Int64Range(0, 2).Draw(rt, "time")
		table.AddBatch(next, now, recs)
		m.add(next, now, recs)
		next += uint64(len(recs))
		checkModel(rt, table, m)
	}
	checkTotals(rt, table, m)
	table.Freeze()
	checkTotals(rt, table, m)
	checkModel(rt, table, m)
	require.Equal(rt, m.all(), slices.AppendSeq([]base.Record(nil), table.All()))
	checkModel(rt, table, m)
}

// FuzzModel is TestModel on what a fuzzer draws.
func FuzzModel(f *testing.F) {
	draws := make([]byte, 64<<10)
	_, _ = rand.NewChaCha8([32]byte{}).Read(draws) // never fails
	f.Add(draws)
	f.Fuzz(rapid.MakeFuzz(checkTable))
}

// TestManyRecordsAKey covers long lists of chunks, which random batches do not
// reach: every bound of a range, and scans that pause their lock.
func TestManyRecordsAKey(t *testing.T) {
	const records, step = 3000, 3
	table := New()
	var recs []base.Record
	for i := range records {
		recs = append(recs, base.Record{Key: []byte("hot"), Value: fmt.Appendf(nil, "%d", i)},
			base.Record{Key: []byte("warm")}, base.Record{Key: fmt.Appendf(nil, "cold %d", i)})
	}
	for i := 0; i < len(recs); i += 1000 {
		table.AddBatch(uint64(i), int64(i/1000), recs[i:min(i+1000, len(recs))])
	}
	check := func() {
		key := []byte("hot")
		for i := range uint64(records) {
			rng := base.Range{Start: i*step - min(i, 1), End: base.MaxSequence}
			require.Equal(t, records-i, table.Count(key, rng))
			first := table.Scan(nil, key, rng, 1, 1)
			require.Equal(t, i*step, first[0].Sequence)
			last, ok := table.LastSequenceOf(key, base.Range{End: i*step + 1})
			require.True(t, ok)
			require.Equal(t, i*step, last)
			seq, ok := table.SeekTimestamp(key, base.All(), int64(i*step/1000))
			require.True(t, ok)
			require.LessOrEqual(t, seq, i*step)
			require.Equal(t, (i*step/1000*1000+step-1)/step*step, seq)
		}
		up := table.Scan(nil, key, base.All(), 1<<30, 1<<40)
		down := table.ScanBackward(nil, key, base.All(), 1<<30, 1<<40)
		require.Len(t, up, records)
		require.Len(t, down, records)
		for i, r := range up {
			require.Equal(t, uint64(i*step), r.Sequence)
			require.Equal(t, fmt.Sprint(i), string(r.Value))
			require.Equal(t, r, down[records-1-i])
		}
	}
	check()
	table.Freeze()
	check()
}

func TestChunkArithmetic(t *testing.T) {
	next := uint64(1)
	for c := range 200 {
		require.Equal(t, next, chunkStart(c))
		for offset := range chunkLen(c) {
			gotChunk, gotOffset := chunkOf(next)
			require.Equal(t, []int{c, offset}, []int{gotChunk, gotOffset})
			next++
		}
	}
	// Counts above 2^32.
	c, offset := chunkOf(1 << 40)
	require.Equal(t, uint64(1<<40), chunkStart(c)+uint64(offset))
}
