package fuzz

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
)

// drawRange draws a range around what is there.
func (m *machine) drawRange(t *rapid.T) engine.Range {
	some := rapid.OneOf(rapid.Just(uint64(0)), rapid.Uint64Range(0, m.model.next+2), rapid.Just(base.MaxSequence))
	if n := len(m.model.recs); n > 0 {
		near := rapid.Map(rapid.IntRange(0, n-1), func(i int) uint64 { return m.model.recs[i].seq })
		some = rapid.OneOf(some, near, near)
	}
	if rapid.Bool().Draw(t, "all") {
		return engine.All()
	}
	return engine.Between(some.Draw(t, "start"), some.Draw(t, "end"))
}

func (m *machine) scan(t *rapid.T) {
	key, r := drawKey(t), m.drawRange(t)
	o := engine.ScanOptions{
		Limit:    rapid.SampledFrom([]int{0, 0, 1, 2, 7, 100}).Draw(t, "limit"),
		MaxBytes: rapid.SampledFrom([]int64{0, 0, 1, 8, 16, 300, 5000}).Draw(t, "max bytes"),
		Last:     rapid.SampledFrom([]int{0, 0, 1, 2, 7, 100}).Draw(t, "last"),
	}
	if n := len(m.model.recs); n > 0 && rapid.Bool().Draw(t, "since some record") {
		m.readKey(t, string(key)) // learns the timestamps
		ms := m.model.recs[rapid.IntRange(0, n-1).Draw(t, "record")].timestamp + rapid.Int64Range(-1, 1).Draw(t, "off")
		o.Since = time.UnixMilli(max(1, ms))
	}
	m.scanAgrees(t, string(key), r, o)
}

func (m *machine) readKey(t *rapid.T, key string) {
	m.scanAgrees(t, key, engine.All(), engine.ScanOptions{})
}

func (m *machine) readAll(t *rapid.T) {
	for _, key := range modelKeys {
		m.readKey(t, key)
	}
}

// scanAgrees scans and compares with the model at one of the frontiers and one of the
// first sequences that the scan may have observed. A scan that waits for the store goes on with what
// remains: of what was dropped meanwhile it may return a part.
func (m *machine) scanAgrees(t *rapid.T, key string, r engine.Range, o engine.ScanOptions) {
	before := m.begin()
	it := m.db.Scan(context.Background(), []byte(key), r, o)
	got, err := collect(it)
	require.NoError(t, err)
	if o.Last == 0 {
		m.model.passed = notAmong(got, m.db.FirstSequence())
		defer func() { m.model.passed = nil }()
	}
	if m.observed(before, func(frontier uint64) bool {
		want, next := m.model.scan(key, r, frontier, o)
		return next == it.Next() && agree(got, want)
	}) {
		return
	}
	want, next := m.model.scan(key, r, before.frontier, o)
	t.Fatalf("scan of %q in %v with %+v, %+v to %+v:\n got %s, next %d\nwant %s, next %d",
		key, r, o, before, m.begin(), describe(got), it.Next(), describeModel(want), next)
}

// notAmong selects the records below first that are not among those that were read.
func notAmong(got []engine.Record, first uint64) func(*modelRecord) bool {
	read := map[uint64]bool{}
	for _, rec := range got {
		read[rec.Sequence] = true
	}
	return func(rec *modelRecord) bool { return rec.seq < first && !read[rec.seq] }
}

// moment is what a read may observe: records from first on, below frontier.
type moment struct{ first, frontier uint64 }

func (m *machine) begin() moment { return moment{m.db.FirstSequence(), m.db.Frontier()} }

// observed reports whether an answer is right at a moment between before and now.
func (m *machine) observed(before moment, right func(frontier uint64) bool) bool {
	now := m.begin()
	defer func(first uint64) { m.model.first = first }(m.model.first)
	for _, first := range m.model.frontiers(before.first, now.first) {
		m.model.first = first
		for _, frontier := range m.model.frontiers(before.frontier, now.frontier) {
			if right(frontier) {
				return true
			}
		}
	}
	return false
}

func describe(recs []engine.Record) string {
	var b strings.Builder
	for _, r := range recs {
		fmt.Fprintf(&b, "%d@%d(%.12s:%d) ", r.Sequence, r.Timestamp, r.Value, len(r.Value))
	}
	return fmt.Sprintf("%d records: %s", len(recs), b.String())
}

func describeModel(recs []*modelRecord) string {
	var out []engine.Record
	for _, r := range recs {
		out = append(out, engine.Record{Value: []byte(r.value), Sequence: r.seq, Timestamp: r.timestamp})
	}
	return describe(out)
}

// scanPages reads a key from its start with limits, going on at Next each time, and
// sometimes leaves a loop early and goes on with the same iterator.
func (m *machine) scanPages(t *rapid.T) {
	key := drawKey(t)
	limit := rapid.SampledFrom([]int{1, 3, 10}).Draw(t, "limit")
	before := m.begin()
	var got []engine.Record
	cursor := uint64(0)
	for {
		it := m.db.Scan(context.Background(), key, engine.From(cursor), engine.ScanOptions{Limit: limit})
		n := len(got)
		for rec := range it.All() {
			got = append(got, rec)
			require.Equal(t, rec.Sequence+1, it.Next())
			break
		}
		rest, err := collect(it)
		require.NoError(t, err)
		got = append(got, rest...)
		require.LessOrEqual(t, len(got)-n, limit)
		require.GreaterOrEqual(t, it.Next(), cursor)
		cursor = it.Next()
		if len(got)-n < limit {
			break
		}
	}
	require.GreaterOrEqual(t, cursor, before.frontier)
	want, _ := m.model.scan(string(key), engine.All(), cursor, engine.ScanOptions{})
	want = slices.DeleteFunc(want, notAmong(got, m.db.FirstSequence()))
	require.True(t, agree(got, want), "got %s\nwant %s", describe(got), describeModel(want))
}

func (m *machine) count(t *rapid.T) {
	key, r := drawKey(t), m.drawRange(t)
	before := m.begin()
	n, err := m.db.Count(context.Background(), key, r)
	require.NoError(t, err)
	require.True(t, m.observed(before, func(frontier uint64) bool { return n == m.model.count(string(key), r, frontier) }),
		"count of %q in %v: %d, %+v to %+v", key, r, n, before, m.begin())
}

func (m *machine) keys(t *rapid.T) {
	o := engine.KeysOptions{
		Prefix: []byte(rapid.SampledFrom([]string{"", "", "a", "p", strings.Repeat("p", 32), "\xff", "nothing"}).Draw(t, "prefix")),
		Limit:  rapid.SampledFrom([]int{0, 1, 2, 5}).Draw(t, "limit"),
	}
	if rapid.Bool().Draw(t, "after") {
		o.After = drawKey(t)
	}
	before, began := m.allSegments(t), m.begin()
	if last := before[len(before)-1].ID; rapid.Bool().Draw(t, "some segments") {
		o.StartSegment = rapid.Uint32Range(0, last+1).Draw(t, "start segment")
		o.EndSegment = rapid.Uint32Range(0, last+2).Draw(t, "end segment")
	}
	page, err := m.db.Keys(context.Background(), o)
	require.NoError(t, err)
	got := []string{}
	for _, key := range page.Keys {
		got = append(got, string(key))
	}
	require.True(t, page.Keys == nil || slices.IsSortedFunc(page.Keys, bytes.Compare))
	if !slices.EqualFunc(before, m.allSegments(t), func(a, b engine.SegmentInfo) bool { return a.ID == b.ID && a.Start == b.Start }) {
		return // sealed, merged or dropped meanwhile: windows are not known
	}
	if m.observed(began, func(frontier uint64) bool {
		want, more := m.model.keys(o, frontier, before)
		return slices.Equal(want, got) && more == page.More
	}) {
		return
	}
	want, more := m.model.keys(o, began.frontier, before)
	t.Fatalf("keys of %+v:\n got %q, more %v\nwant %q, more %v\nsegments %+v", o, got, page.More, want, more, before)
}

// allSegments lists all segments, a few at a time.
func (m *machine) allSegments(t *rapid.T) []engine.SegmentInfo {
	var all []engine.SegmentInfo
	o := engine.SegmentsOptions{Limit: 3}
	for {
		page, err := m.db.Segments(context.Background(), o)
		require.NoError(t, err)
		all = append(all, page.Segments...)
		if !page.More {
			require.NotEmpty(t, all)
			return all
		}
		require.Len(t, page.Segments, o.Limit)
		o.After = all[len(all)-1].LastID
	}
}

// segments requires adjacent windows with ascending ids that hold all records.
func (m *machine) segments(t *rapid.T) {
	var all []engine.SegmentInfo
	m.unchanged(t, m.version, func() { all = m.allSegments(t) })
	m.dropped(t)
	records, sizes := make(map[uint32]uint64), make(map[uint32]uint64)
	for _, rec := range m.model.recs {
		id := segmentOf(all, rec.seq).ID
		records[id]++
		sizes[id] += uint64(len(rec.key) + len(rec.value))
	}
	for i, s := range all {
		require.Equal(t, records[s.ID], s.Records, "segment %d: %+v", s.ID, all)
		require.Equal(t, sizes[s.ID], s.Bytes, "segment %d: %+v", s.ID, all)
		if i == 0 {
			require.Equal(t, m.model.first, s.Start)
			require.True(t, s.Start > 0 || s.ID == 1)
		} else {
			// A merged segment keeps its first id: there may be gaps.
			require.Greater(t, s.ID, all[i-1].ID)
		}
		if s.Sealed {
			require.Less(t, i, len(all)-1, "the newest segment is active")
			require.Greater(t, s.Records, uint64(0), "an empty segment was sealed")
		}
		if i+1 < len(all) {
			require.Equal(t, all[i+1].Start, s.End)
		} else {
			require.Zero(t, s.End)
		}
		if i > 0 {
			require.Greater(t, s.Start, all[i-1].Start)
			require.True(t, all[i-1].Sealed || !s.Sealed, "sealed behind one that is not: %+v", all)
		}
	}
	r := m.drawRange(t)
	var page engine.SegmentsPage
	m.unchanged(t, m.version, func() {
		all = m.allSegments(t)
		var err error
		page, err = m.db.Segments(context.Background(), engine.SegmentsOptions{Range: r})
		require.NoError(t, err)
	})
	var want []engine.SegmentInfo
	for i, s := range all {
		window := engine.From(s.Start)
		if i+1 < len(all) {
			window.End = all[i+1].Start
		}
		if window.Overlaps(r) || r == (engine.Range{}) {
			want = append(want, s)
		}
	}
	require.Equal(t, want, page.Segments, "segments in %v", r)
}
