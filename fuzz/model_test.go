package fuzz

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/annalsdb/annals/engine"
)

// model is what a log must look like from outside: the records in sequence order,
// and nothing else. It knows no runs, no segments and no crashes; a reopening tells
// it how many of its batches are left.
type model struct {
	recs  []*modelRecord
	ends  []uint64 // sequence after each batch, ascending
	next  uint64   // no sequence below may be assigned any more (I3)
	first uint64   // retention dropped what is below
	// gone and goneEnds are what it dropped: a replica may not know yet.
	gone     []*modelRecord
	goneEnds []uint64
	// passed, if set, are records that a scan did not see because they were dropped on its way.
	passed func(*modelRecord) bool
}

// modelRecord is one record. timestamp is 0 until it is known: an append that ended
// with an unknown outcome does not tell it, the first read does.
type modelRecord struct {
	key, value string
	seq        uint64
	timestamp  int64
	at         time.Time // when it was appended
}

// add appends a batch.
func (m *model) add(first uint64, timestamp int64, recs []engine.Record) {
	for i, r := range recs {
		m.recs = append(m.recs, &modelRecord{string(r.Key), string(r.Value), first + uint64(i), timestamp, time.Now()})
	}
	m.next = first + uint64(len(recs))
	m.ends = append(m.ends, m.next)
}

// keep drops all but the first n records and reports whether a batch ends there.
func (m *model) keep(n int) bool {
	m.recs = m.recs[:n]
	end := uint64(0)
	if n > 0 {
		end = m.recs[n-1].seq + 1
	}
	i, whole := slices.BinarySearch(m.ends, end)
	if whole {
		i++
	}
	m.ends = m.ends[:i]
	return whole || n == 0
}

// drop removes and returns the records below first: retention dropped them.
func (m *model) drop(first uint64) (dropped []*modelRecord) {
	n := m.upTo(first)
	dropped, m.recs = m.recs[:n], m.recs[n:]
	ended := sort.Search(len(m.ends), func(i int) bool { return m.ends[i] > first })
	m.gone, m.goneEnds = append(m.gone, dropped...), append(m.goneEnds, m.ends[:ended]...)
	m.ends = m.ends[ended:]
	m.first = first
	return dropped
}

// from returns the records from a sequence on.
func (m *model) from(seq uint64) []*modelRecord { return m.recs[m.upTo(seq):] }

// upTo returns the number of records below the frontier.
func (m *model) upTo(frontier uint64) int {
	return sort.Search(len(m.recs), func(i int) bool { return m.recs[i].seq >= frontier })
}

// frontiers returns every frontier that a read may have observed that began when it
// was from and ended when it was to: it moves by whole batches (I4). The same holds for the
// first sequence: segments are dropped whole.
func (m *model) frontiers(from, to uint64) []uint64 {
	all := []uint64{from}
	for _, end := range m.ends {
		if end > from && end < to {
			all = append(all, end)
		}
	}
	if to > from {
		all = append(all, to)
	}
	return all
}

// scan returns what a scan returns that observes the frontier, and its Next.
func (m *model) scan(key string, r engine.Range, frontier uint64, o engine.ScanOptions) (out []*modelRecord, next uint64) {
	r.End = min(r.End, frontier)
	since := int64(math.MinInt64)
	if !o.Since.IsZero() {
		since = o.Since.UnixMilli()
	}
	var all []*modelRecord
	for _, rec := range m.recs {
		if rec.key == key && rec.seq >= m.first && rec.seq >= r.Start && rec.seq < r.End && rec.timestamp >= since {
			if m.passed == nil || !m.passed(rec) {
				all = append(all, rec)
			}
		}
	}
	if o.Last > 0 {
		all = m.newest(all, o)
		o.Limit = 0 // it lowers Last and stops nothing
	}
	next = max(r.Start, r.End)
	var bytes int64
	for _, rec := range all {
		if o.MaxBytes > 0 && len(out) > 0 && bytes+int64(len(rec.value)) > o.MaxBytes {
			return out, out[len(out)-1].seq + 1
		}
		out = append(out, rec)
		bytes += int64(len(rec.value))
		if o.Limit > 0 && len(out) == o.Limit {
			return out, rec.seq + 1
		}
	}
	return out, next
}

// newest cuts the records to those that Last selects: back from the newest one, for
// as long as the limits hold.
func (m *model) newest(all []*modelRecord, o engine.ScanOptions) []*modelRecord {
	n := o.Last
	if o.Limit > 0 {
		n = min(n, o.Limit)
	}
	var bytes int64
	i := len(all)
	for ; i > 0 && len(all)-i < n; i-- {
		bytes += int64(len(all[i-1].value))
		if o.MaxBytes > 0 && i < len(all) && bytes > o.MaxBytes {
			break
		}
	}
	return all[i:]
}

// count returns the number of the key's records within the range.
func (m *model) count(key string, r engine.Range, frontier uint64) uint64 {
	recs, _ := m.scan(key, r, frontier, engine.ScanOptions{})
	return uint64(len(recs))
}

// keys returns the page that Keys returns. The segments say which record is in which.
func (m *model) keys(o engine.KeysOptions, frontier uint64, segments []engine.SegmentInfo) (page []string, more bool) {
	seen := map[string]bool{}
	for _, rec := range m.recs[:m.upTo(frontier)] {
		if rec.seq < m.first {
			continue
		}
		segment := segmentOf(segments, rec.seq)
		if strings.HasPrefix(rec.key, string(o.Prefix)) && (o.After == nil || rec.key > string(o.After)) &&
			max(segment.ID, segment.LastID) >= o.StartSegment && (o.EndSegment == 0 || segment.ID < o.EndSegment) {
			seen[rec.key] = true
		}
	}
	for key := range seen {
		page = append(page, key)
	}
	slices.Sort(page)
	if o.Limit > 0 && len(page) > o.Limit {
		return page[:o.Limit], true
	}
	return page, false
}

// segmentOf returns the segment whose window holds a sequence.
func segmentOf(segments []engine.SegmentInfo, seq uint64) *engine.SegmentInfo {
	i, found := slices.BinarySearchFunc(segments, seq, func(s engine.SegmentInfo, seq uint64) int { return cmp.Compare(s.Start, seq) })
	if !found {
		return &segments[i-1]
	}
	for i+1 < len(segments) && segments[i+1].Start == seq { // an empty window ends before it
		i++
	}
	return &segments[i]
}

// agree reports whether the records read are those of the model. Timestamps that
// the model does not know yet it takes over.
func agree(got []engine.Record, want []*modelRecord) bool {
	if len(got) != len(want) {
		return false
	}
	last := int64(math.MinInt64)
	for i, rec := range got {
		w := want[i]
		if w.timestamp == 0 {
			w.timestamp = rec.Timestamp
		}
		if rec.Sequence != w.seq || string(rec.Key) != w.key || string(rec.Value) != w.value ||
			rec.Timestamp != w.timestamp || rec.Timestamp < last {
			return false
		}
		last = rec.Timestamp
	}
	return true
}

// collect drains a scan.
func collect(it *engine.Iterator) ([]engine.Record, error) {
	recs := slices.Collect(it.All())
	return recs, it.Err()
}
