package compaction

import (
	"context"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/sst"
)

// output builds the tables of a part, one at a time, while those before are uploaded.
// It belongs to the goroutine of its part.
type output struct {
	task   *task
	w      *sst.Writer
	ref    base.ObjectID
	tables []*manifest.Table

	uploads []*upload // of the tables, in order
	records uint64    // added
}

// upload is a PUT under way.
type upload struct {
	done chan struct{}
	err  error
}

// add appends a group. A full table is cut where the next key begins; when a key goes
// on too long, between two of its groups (F28).
func (o *output) add(ctx context.Context, g *sst.Group, newKey bool) error {
	if o.w != nil {
		t, size := o.task, o.w.EstimatedSize()
		full := size >= t.tableBytes && (newKey || size >= t.hardBytes)
		// Memory for a table does not grow; a large value may not fit any more (F42).
		if full || size+int64(g.StoredBytes()) > t.hardBytes+tableSlack {
			if err := o.cut(ctx); err != nil {
				return err
			}
		}
	}
	if o.w == nil {
		if err := o.begin(ctx); err != nil {
			return err
		}
	}
	o.w.AddGroup(g)
	o.records += uint64(g.Records)
	return nil
}

// begin starts the next table, when there is memory for it.
func (o *output) begin(ctx context.Context) error {
	t := o.task
	var buf []byte
	select {
	case buf = <-t.bodies:
	case <-ctx.Done():
		return ctx.Err()
	}
	if buf == nil {
		buf = make([]byte, 0, t.bodyBytes())
	}
	o.ref = base.ObjectID{
		Tree: t.r.Tree, Kind: base.KindSST, Role: base.RoleCompactor,
		Epoch: t.r.Epoch, Segment: t.job.First, ULID: t.r.Env.NewULID(),
	}
	o.w = sst.NewWriter(sst.WriterOptions{
		ID: o.ref.ULID, Segment: t.job.First, BlockBytes: t.limits.BlockBytes, Compression: t.job.compression(), Buffer: buf,
	})
	return nil
}

// cut finishes the table and starts to upload it. Its memory is then free for another.
func (o *output) cut(ctx context.Context) error {
	body, info := o.w.Finish()
	o.w = nil
	t := o.task
	o.tables = append(o.tables, TableLine(o.ref, info))
	u := &upload{done: make(chan struct{})}
	o.uploads = append(o.uploads, u)
	name := o.ref.Name()
	t.start("compaction write", func() {
		defer close(u.done)
		if u.err = t.put(ctx, name, body); u.err != nil {
			t.fail(u.err)
			return
		}
		if int64(cap(body)) > 2*t.bodyBytes() { // what a huge value needed
			body = nil
		}
		t.bodies <- body[:0:cap(body)] // has room for all
	})
	return nil
}

// end finishes the last table and waits until all are there.
func (o *output) end(ctx context.Context) error {
	if o.w != nil {
		if err := o.cut(ctx); err != nil {
			return err
		}
	}
	for _, u := range o.uploads {
		select {
		case <-u.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		if u.err != nil {
			return u.err
		}
	}
	return nil
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
