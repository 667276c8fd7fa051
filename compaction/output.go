package compaction

import (
	"context"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/sst"
)

// output builds tables, one at a time, while the one before is uploaded. It belongs to
// the goroutine of Run.
type output struct {
	task   *task
	w      *sst.Writer
	ref    base.ObjectID
	tables []*manifest.Table

	uploading *upload // the one table that is on its way, or nil
	spare     []byte  // memory of the table before it
}

// upload is a PUT under way.
type upload struct {
	done chan struct{}
	body []byte
	err  error
}

// hardBytes is the stored size at which a table is cut inside a key.
func (t *task) hardBytes() int64 { return t.limits.TableBytes + t.limits.TableBytes/8 }

// add appends a record. A full table is cut where the next key begins; when a key goes
// on too long, between two of its records (F28).
func (o *output) add(ctx context.Context, rec *item) error {
	if o.w != nil {
		if size := o.w.EstimatedSize(); size >= o.task.limits.TableBytes && (rec.newKey || size >= o.task.hardBytes()) {
			if err := o.cut(ctx); err != nil {
				return err
			}
		}
	}
	if o.w == nil {
		o.begin()
	}
	o.w.Add(rec.Key, rec.Sequence, rec.Timestamp, rec.Value)
	o.task.res.RecordsOut++
	return nil
}

// begin starts the next table.
func (o *output) begin() {
	t := o.task
	o.ref = base.ObjectID{
		Tree: t.r.Tree, Kind: base.KindSST, Role: base.RoleCompactor,
		Epoch: t.r.Epoch, Segment: t.job.First, ULID: t.r.Env.NewULID(),
	}
	buf := o.spare
	o.spare = nil
	if buf == nil {
		// As much as the whole output may need, so that it does not grow by copying.
		buf = make([]byte, 0, min(t.hardBytes(), int64(t.job.Stored)+int64(t.job.Stored)/8)+minChunk)
	}
	o.w = sst.NewWriter(sst.WriterOptions{ID: o.ref.ULID, Segment: t.job.First, BlockBytes: t.limits.BlockBytes, Buffer: buf})
}

// cut finishes the table and starts to upload it, once the one before is there.
func (o *output) cut(ctx context.Context) error {
	body, info := o.w.Finish()
	o.w = nil
	if err := o.wait(ctx); err != nil {
		return err
	}
	t := o.task
	o.tables = append(o.tables, TableLine(o.ref, info))
	t.res.Outputs = append(t.res.Outputs, o.ref)
	t.res.BytesOut += uint64(info.Size)
	u := &upload{done: make(chan struct{}), body: body}
	o.uploading = u
	name := o.ref.Name()
	t.start("compaction write", func() {
		defer close(u.done)
		u.err = t.put(ctx, name, u.body)
	})
	return nil
}

// wait waits for the upload under way and keeps its memory.
func (o *output) wait(ctx context.Context) error {
	u := o.uploading
	if u == nil {
		return nil
	}
	select {
	case <-u.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	o.uploading = nil
	if u.err != nil {
		return u.err
	}
	if int64(cap(u.body)) <= 2*o.task.hardBytes() { // not what a huge value needed
		o.spare = u.body[:0]
	}
	return nil
}

// end finishes the last table and returns the lines of all, once they are there.
func (o *output) end(ctx context.Context) ([]*manifest.Table, error) {
	if o.w != nil {
		if err := o.cut(ctx); err != nil {
			return nil, err
		}
	}
	if err := o.wait(ctx); err != nil {
		return nil, err
	}
	return o.tables, nil
}

// TableLine describes a finished table for the manifest, with its key bounds rounded
// outward.
func TableLine(ref base.ObjectID, info sst.Info) *manifest.Table {
	p := info.Properties
	t := &manifest.Table{
		Ref:              manifest.RefOf(ref),
		Size:             uint64(info.Size),
		MetaOffset:       uint64(info.MetaOffset),
		LowerKey:         base.LowerBound(p.FirstKey),
		FirstSequence:    p.FirstSequence,
		LastSequence:     p.LastSequence,
		FirstTimestampMs: p.FirstTimestamp,
		LastTimestampMs:  p.LastTimestamp,
		Records:          p.Records,
		Keys:             p.Keys,
		Bytes:            p.Bytes,
	}
	if upper, ok := base.UpperBound(p.LastKey); ok {
		if upper == nil {
			upper = []byte{} // absent means unbounded
		}
		t.UpperKey = upper
	}
	return t
}
