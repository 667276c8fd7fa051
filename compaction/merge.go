package compaction

import (
	"container/heap"
	"context"

	"github.com/annalsdb/annals/internal/base"
)

// Batches carry records from the merging goroutine to the one that builds tables: one
// is being filled, one waits and one is being emptied.
const (
	maxBatches   = 3
	batchRecords = 512
	batchBytes   = 256 << 10
)

// batch is a series of records. They alias input blocks, which it keeps in memory.
type batch struct {
	items []item
	bytes int
}

// item is one record; newKey says that its key is not that of the one before.
type item struct {
	base.Record
	newKey bool
}

func (b *batch) reset() {
	clear(b.items)
	b.items, b.bytes = b.items[:0], 0
}

// merger merges the inputs of a task. All but the channels belong to its goroutine;
// err is valid once full is closed.
type merger struct {
	task *task
	full chan *batch // in order; closed at the end
	free chan *batch
	err  error

	heap inputHeap
	cur  *batch
	last base.Record // the one before
	any  bool        // there is one
}

func newMerger(t *task) *merger {
	m := &merger{task: t, full: make(chan *batch, 1), free: make(chan *batch, maxBatches)}
	for range maxBatches {
		m.free <- &batch{items: make([]item, 0, batchRecords)}
	}
	return m
}

// run sends all records in (key, sequence) order.
func (m *merger) run(ctx context.Context) {
	defer close(m.full)
	m.err = m.merge(ctx)
}

func (m *merger) merge(ctx context.Context) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	for len(m.heap) > 0 {
		// The least input gives all of its records of one key.
		in := m.heap[0]
		for {
			if err := m.emit(ctx, in); err != nil {
				return err
			}
			more, err := in.advance(ctx)
			if err != nil {
				return err
			}
			if !more {
				heap.Pop(&m.heap)
				break
			}
			if !in.same {
				heap.Fix(&m.heap, 0)
				break
			}
		}
	}
	return m.send(ctx)
}

// begin opens all inputs, at the same time, and reads their first records.
func (m *merger) begin(ctx context.Context) error {
	t := m.task
	var ins []*input
	for i, r := range t.job.Inputs {
		if len(r.Tables) > 0 { // else it covers a gap only
			ins = append(ins, &input{task: t, run: r, order: i, tables: r.Tables})
		}
	}
	t.chunk = min(t.limits.ReadAhead, max(minChunk, t.bufferBytes()/int64(2*max(1, len(ins)))))
	for _, in := range ins {
		in.prepare(ctx)
	}
	for _, in := range ins {
		more, err := in.advance(ctx)
		if err != nil {
			return err
		}
		if more {
			m.heap = append(m.heap, in)
		}
	}
	heap.Init(&m.heap)
	return nil
}

// emit adds the current record of an input to the batch.
func (m *merger) emit(ctx context.Context, in *input) error {
	rec := &in.rec
	newKey := !m.any || !sameKey(m.last.Key, rec.Key)
	if !newKey && (rec.Sequence <= m.last.Sequence || rec.Timestamp < m.last.Timestamp) {
		return base.Corruptf(in.name, 0, "key %q: record %d at %d follows record %d at %d",
			rec.Key, rec.Sequence, rec.Timestamp, m.last.Sequence, m.last.Timestamp) // I4
	}
	if m.cur != nil && (len(m.cur.items) == batchRecords || m.cur.bytes+rec.Size() > batchBytes) {
		if err := m.send(ctx); err != nil {
			return err
		}
	}
	if m.cur == nil {
		select {
		case m.cur = <-m.free:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	m.cur.items = append(m.cur.items, item{*rec, newKey})
	m.cur.bytes += rec.Size()
	m.last, m.any = *rec, true
	m.task.recordsIn++
	return nil
}

// send passes the batch on.
func (m *merger) send(ctx context.Context) error {
	if m.cur == nil {
		return nil
	}
	select {
	case m.full <- m.cur:
		m.cur = nil
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// inputHeap is a container/heap of the inputs that have a current record.
type inputHeap []*input

func (h inputHeap) Len() int           { return len(h) }
func (h inputHeap) Less(i, j int) bool { return h[i].less(h[j]) }
func (h inputHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *inputHeap) Push(x any)        { *h = append(*h, x.(*input)) }
func (h *inputHeap) Pop() any {
	old := *h
	n := len(old) - 1
	in := old[n]
	old[n] = nil
	*h = old[:n]
	return in
}
