package compaction

import (
	"context"
	"fmt"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/sst"
)

// minChunk is the least that one request for input data asks for, so that many
// inputs do not make for tiny requests.
const minChunk = 64 << 10

// wholeChunks is how many chunks a block may span: a larger one is read by one request of its own.
const wholeChunks = 4

// object reads one object by ranges: a sst.RangeReader.
type object struct {
	task *task
	name string
	size int64
}

// ReadRange implements sst.RangeReader.
func (o *object) ReadRange(ctx context.Context, off, n int64) ([]byte, error) {
	return o.task.get(ctx, o.name, o.size, off, n)
}

// source reads data of one table in chunks, with one request ahead: a
// sst.RangeReader for ranges that ascend. It belongs to one goroutine.
type source struct {
	object
	end   int64 // of the data that is wanted
	chunk int64

	cur    []byte // the bytes from offset on
	offset int64
	next   *fetch // the chunk after cur; nil: none
	// exhausted is called once, when the last chunk has been taken.
	exhausted func()
}

// fetch is a request under way.
type fetch struct {
	done chan struct{}
	body []byte
	err  error
}

// ReadRange implements sst.RangeReader. What it returns shares the memory of the
// chunks, which nothing writes to again.
func (s *source) ReadRange(ctx context.Context, off, n int64) ([]byte, error) {
	if off < s.offset || off+n > s.end {
		return nil, base.Corruptf(s.name, off, "a block of %d bytes is not where data is read", n)
	}
	if n > wholeChunks*s.chunk && off+n > s.offset+int64(len(s.cur)) {
		return s.whole(ctx, off, n)
	}
	var out []byte
	for {
		if at := off - s.offset; at < int64(len(s.cur)) {
			part := s.cur[at:min(at+n, int64(len(s.cur)))]
			if out == nil && int64(len(part)) == n {
				return part[:n:n], nil
			}
			if out == nil {
				out = make([]byte, 0, n)
			}
			out = append(out, part...)
			off, n = off+int64(len(part)), n-int64(len(part))
			if n == 0 {
				return out, nil
			}
		}
		if err := s.advance(ctx); err != nil {
			return nil, err
		}
	}
}

// whole reads a large block with one request, instead of many after one another and a
// copy, and asks for what follows it.
func (s *source) whole(ctx context.Context, off, n int64) ([]byte, error) {
	s.cur, s.offset = nil, off+n
	s.prefetch(ctx, off+n)
	return s.object.ReadRange(ctx, off, n)
}

// advance makes the next chunk current and asks for the one after it.
func (s *source) advance(ctx context.Context) error {
	f := s.next
	if f == nil {
		return base.Corruptf(s.name, s.offset, "a read of data runs past its end at %d", s.end)
	}
	s.offset += int64(len(s.cur))
	s.cur = nil
	select {
	case <-f.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if f.err != nil {
		return f.err
	}
	s.cur = f.body
	s.prefetch(ctx, s.offset+int64(len(s.cur)))
	return nil
}

// prefetch asks for the chunk at off.
func (s *source) prefetch(ctx context.Context, off int64) {
	s.next = nil
	n := min(s.chunk, s.end-off)
	if n <= 0 {
		if s.exhausted != nil {
			s.exhausted()
			s.exhausted = nil
		}
		return
	}
	f := &fetch{done: make(chan struct{})}
	s.next = f
	s.task.start("compaction read", func() {
		defer close(f.done)
		f.body, f.err = s.task.get(ctx, s.name, s.size, off, n)
	})
}

// opening is a table that is opened ahead of its turn.
type opening struct {
	done chan struct{}
	name string
	src  *source
	it   *sst.GroupIter
	err  error
}

// open starts to open a table and to read the first chunk of the data of span.
func (t *task) open(ctx context.Context, line *manifest.Table, span sst.Span) *opening {
	o := &opening{done: make(chan struct{}), name: line.Ref.ID().Name()}
	t.start("compaction open", func() {
		defer close(o.done)
		o.err = o.find(ctx, t, line, span)
	})
	return o
}

func (o *opening) find(ctx context.Context, t *task, line *manifest.Table, span sst.Span) error {
	r := t.shared[line]
	if r == nil {
		var err error
		if r, err = t.openTable(ctx, line); err != nil {
			return err
		}
	}
	o.it = r.Span(span)
	begin, end, err := o.it.Find(ctx)
	if err != nil {
		return err
	}
	o.src = &source{object: object{t, o.name, int64(line.Size)}, end: end, chunk: t.chunk, offset: begin}
	o.it.Read(o.src, t)
	o.src.prefetch(ctx, begin)
	return nil
}

// openTable opens a table and compares it with its line.
func (t *task) openTable(ctx context.Context, line *manifest.Table) (*sst.GroupReader, error) {
	id := line.Ref.ID()
	o := &object{t, id.Name(), int64(line.Size)}
	t.opened(line)
	r, err := sst.Open(ctx, sst.ReaderOptions{
		Name: o.name, ID: id.ULID, Size: o.size, MetaOffset: int64(line.MetaOffset), Source: o,
	})
	if err != nil {
		return nil, err
	}
	return r.Groups(), compareProperties(o.name, line, r.Properties())
}

// Enter implements sst.Gate: of all parts, one at a time has a large value in memory (F42).
func (t *task) Enter(ctx context.Context) error {
	select {
	case t.large <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Leave implements sst.Gate.
func (t *task) Leave() { <-t.large }

// compareProperties checks that a table is the one that the manifest describes (I8).
func compareProperties(name string, line *manifest.Table, p sst.Properties) error {
	is := [...]uint64{p.Records, p.Keys, p.Bytes, p.FirstSequence, p.LastSequence, uint64(p.FirstTimestamp), uint64(p.LastTimestamp)}
	want := [...]uint64{line.Records, line.Keys, line.Bytes, line.FirstSequence, line.LastSequence, uint64(line.FirstTimestampMs), uint64(line.LastTimestampMs)}
	if is != want {
		return base.Corruptf(name, int64(line.MetaOffset), "%s", fmt.Sprintf(
			"records, keys, bytes, sequences and timestamps are %d, the manifest says %d", is, want))
	}
	return nil
}
