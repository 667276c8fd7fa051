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

// iterBytes is how much an iterator takes from its source at a time: parts of a chunk.
const iterBytes = 128 << 10

// source reads one table from its beginning to its end, in chunks, with one
// request ahead: a sst.RangeReader. It belongs to one goroutine.
type source struct {
	task  *task
	name  string
	size  int64
	data  int64 // where the data blocks end
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

// ReadRange implements sst.RangeReader. Data comes in parts that follow one another;
// they share the memory of the chunks, which nothing writes to again.
func (s *source) ReadRange(ctx context.Context, off, n int64) ([]byte, error) {
	if off >= s.data || off < s.offset {
		return s.task.get(ctx, s.name, s.size, off, n)
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

// advance makes the next chunk current and asks for the one after it.
func (s *source) advance(ctx context.Context) error {
	f := s.next
	if f == nil {
		return base.Corruptf(s.name, s.data, "a read of data runs into the metadata")
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
	n := min(s.chunk, s.data-off)
	if n <= 0 {
		if s.exhausted != nil {
			s.exhausted()
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
	done  chan struct{}
	src   *source
	table *sst.Reader
	err   error
}

// open starts to open a table and to read its first chunk.
func (t *task) open(ctx context.Context, line *manifest.Table) *opening {
	id := line.Ref.ID()
	o := &opening{done: make(chan struct{}), src: &source{
		task: t, name: id.Name(), size: int64(line.Size), data: int64(line.MetaOffset), chunk: t.chunk,
	}}
	t.bytesIn.Add(line.Size)
	t.start("compaction open", func() {
		defer close(o.done)
		o.table, o.err = sst.Open(ctx, sst.ReaderOptions{
			Name: o.src.name, ID: id.ULID, Size: o.src.size, MetaOffset: o.src.data, Source: o.src,
		})
		if o.err == nil {
			o.err = compareProperties(o.src.name, line, o.table.Properties())
		}
		if o.err == nil {
			o.src.prefetch(ctx, 0)
		}
	})
	return o
}

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
