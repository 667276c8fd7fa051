package compaction

import (
	"bytes"
	"context"
	"encoding/binary"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/sst"
)

// input streams the records of one run, one table after the other, and checks what
// a table alone cannot: that sequences lie in the run's interval and that tables
// follow one another. It belongs to the merging goroutine.
type input struct {
	task  *task
	run   *manifest.Run
	order int // among the inputs: in sequence order

	tables  []*manifest.Table // not yet begun
	opening *opening          // of the first of them, or nil
	name    string            // of the current table, for errors
	it      *sst.AllIter      // of the current table, or nil

	rec    base.Record // the current record
	sorted uint64      // first bytes of its key, in an order-preserving form
	same   bool        // it has the key of the record before
	any    bool        // there was a record before
}

// prepare begins to open the next table, if there is one.
func (in *input) prepare(ctx context.Context) {
	if len(in.tables) > 0 && in.opening == nil {
		in.opening = in.task.open(ctx, in.tables[0])
	}
}

// advance moves to the next record, or reports that there is none.
func (in *input) advance(ctx context.Context) (bool, error) {
	for {
		if in.it != nil {
			rec, ok, err := in.it.Next(ctx)
			if err != nil {
				return false, err
			}
			if ok {
				return true, in.take(rec)
			}
			in.it = nil
		}
		if len(in.tables) == 0 {
			return false, nil
		}
		if err := in.nextTable(ctx); err != nil {
			return false, err
		}
	}
}

// nextTable makes the next table current. The one after it is opened when this one
// has no more to ask for.
func (in *input) nextTable(ctx context.Context) error {
	in.prepare(ctx)
	o := in.opening
	select {
	case <-o.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if o.err != nil {
		return o.err
	}
	in.opening, in.tables = nil, in.tables[1:]
	in.name, in.it = o.src.name, o.table.All(iterBytes)
	o.src.exhausted = func() { in.prepare(ctx) }
	return nil
}

// take checks a record and makes it current.
func (in *input) take(rec base.Record) error {
	if rec.Sequence < in.run.Start || rec.Sequence >= in.run.End {
		return base.Corruptf(in.name, 0, "record %d is outside the run of [%d, %d)", rec.Sequence, in.run.Start, in.run.End)
	}
	prev := &in.rec
	in.same = in.any && sameKey(prev.Key, rec.Key)
	if in.any && (in.same && prev.Sequence >= rec.Sequence || !in.same && bytes.Compare(prev.Key, rec.Key) > 0) {
		return base.Corruptf(in.name, 0, "key %q, record %d, is not above the table before", rec.Key, rec.Sequence)
	}
	if !in.same {
		in.sorted = sortPrefix(rec.Key)
	}
	in.rec, in.any = rec, true
	return nil
}

// sameKey compares keys, quickly when they are one piece of memory: those of one
// group are.
func sameKey(a, b []byte) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || bytes.Equal(a, b))
}

// sortPrefix returns a number that orders keys as far as their first eight bytes do.
func sortPrefix(key []byte) uint64 {
	if len(key) >= 8 {
		return binary.BigEndian.Uint64(key)
	}
	var b [8]byte
	copy(b[:], key)
	return binary.BigEndian.Uint64(b[:])
}

// less orders inputs by the key of their current record, then by sequence. Because runs
// cover ascending intervals, the latter is their order.
func (in *input) less(o *input) bool {
	if in.sorted != o.sorted {
		return in.sorted < o.sorted
	}
	if c := bytes.Compare(in.rec.Key, o.rec.Key); c != 0 {
		return c < 0
	}
	return in.order < o.order
}
