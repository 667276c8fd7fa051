package engine

import (
	"slices"
	"sync"

	"github.com/annalsdb/annals/wal"
)

// marks count the records of a replica's memory by WAL object, those out of its Keys too: a run ends where
// a WAL object does, but not where a memory does. So what is in memory only can be told from what a
// run has as well, and what a segment holds does not depend on what this replica keeps. Safe for concurrent use.
type marks struct {
	mu   sync.Mutex
	list []mark // ascending; guarded by mu
}

// mark is what WAL objects hold up to a sequence, from where the mark before it ends.
type mark struct {
	end            uint64
	records, bytes uint64
	firstMs        int64 // timestamp of the first record
}

// maxMarks bounds the marks of a memory (I9). Objects beyond count with the one before them.
const maxMarks = 4096

// add counts an object with records, which have so many bytes.
func (k *marks) add(o *wal.Object, bytes uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if n := len(k.list); n == maxMarks {
		last := &k.list[n-1]
		last.end, last.records, last.bytes = o.End, last.records+o.Records(), last.bytes+bytes
		return
	}
	k.list = append(k.list, mark{end: o.End, records: o.Records(), bytes: bytes, firstMs: o.FirstTimestamp})
}

// forget lets go of marks below a sequence: runs count what lies there.
func (k *marks) forget(flushed uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := slices.IndexFunc(k.list, func(m mark) bool { return m.end > flushed })
	if n < 0 {
		n = len(k.list)
	}
	k.list = slices.Delete(k.list, 0, n)
}

// any reports whether there is a record above a sequence.
func (k *marks) any(flushed uint64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.list) > 0 && k.list[len(k.list)-1].end > flushed
}

// above adds up the objects that end above a sequence.
func (k *marks) above(flushed uint64) (sum mark) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, m := range k.list {
		if m.end <= flushed {
			continue
		}
		if sum.records == 0 {
			sum.firstMs = m.firstMs
		}
		sum.end, sum.records, sum.bytes = m.end, sum.records+m.records, sum.bytes+m.bytes
	}
	return sum
}

// above returns what of the memory no run has, if all below a sequence is in runs. The writer's memories become
// runs as they are.
func (m *memory) above(flushed uint64) mark {
	switch {
	case m.marks != nil:
		return m.marks.above(flushed)
	case m.start < flushed:
		return mark{}
	}
	return mark{records: m.table.Records(), bytes: uint64(m.table.DataBytes()), firstMs: m.table.FirstTimestamp()}
}
