package wal

import (
	"math"

	"github.com/annalsdb/annals/internal/base"
)

// Chain checks that WAL objects follow one another without a gap, across epochs.
// Whoever follows the WAL (replay, a replica) passes every record object through
// Accept, in order. The zero Chain takes any first object; to begin behind what a
// manifest holds, set End to its flushed_end (a lower bound of where its first object begins), LastTimestamp likewise, Segment to the
// active one, and Started.
type Chain struct {
	// Started says that the fields below mean something.
	Started bool
	// End is the End of the last object, or the sequence below which all is flushed.
	End uint64
	// LastTimestamp is that of the last record before End, or any lower bound.
	LastTimestamp int64
	// Segment of the last object, or any lower bound.
	Segment uint32

	// The last accepted object. epoch is 0 before the first.
	epoch, id uint64
	writer    WriterID
}

// Accept checks that o is what follows and moves the chain on, or returns an error
// that matches base.ErrCorrupt and leaves the chain as it was. Fences are not
// passed to it.
func (c *Chain) Accept(name string, o *Object) error {
	if o.Fence {
		panic("wal: a fence is no part of the chain")
	}
	if err := c.check(name, o); err != nil {
		return err
	}
	if o.Records() > 0 {
		c.LastTimestamp = o.LastTimestamp
	} else if !c.Started {
		c.LastTimestamp = math.MinInt64
	}
	c.Started = true
	c.End, c.Segment = o.End, o.Segment
	c.epoch, c.id, c.writer = o.Epoch, o.ID, o.Writer
	return nil
}

func (c *Chain) check(name string, o *Object) error {
	switch {
	case c.epoch == 0: // nothing accepted yet: any place in the log
	case o.Epoch == c.epoch && o.ID != c.id+1:
		return base.Corruptf(name, offID, "object %d/%d follows %d/%d", o.Epoch, o.ID, c.epoch, c.id)
	case o.Epoch == c.epoch && o.Writer != c.writer:
		return base.Corruptf(name, offWriter, "writer is %x, the epoch's is %x", o.Writer, c.writer)
	case o.Epoch < c.epoch || (o.Epoch > c.epoch && o.ID != 1):
		return base.Corruptf(name, offEpoch, "object %d/%d follows %d/%d", o.Epoch, o.ID, c.epoch, c.id)
	}
	if !c.Started {
		return nil
	}
	switch {
	// An epoch may begin above the end of the one before, which leaves out sequences
	// that its writer may have given away without making them durable (I3). Behind a manifest's
	// position too: objects without records may have begun the epoch and are not replayed again, and
	// flushed_end does not pass what they left out.
	case o.PrevEnd < c.End, o.ID != 1 && c.epoch != 0 && o.PrevEnd != c.End:
		return base.Corruptf(name, offPrevEnd, "previous object ends at sequence %d, want %d", o.PrevEnd, c.End)
	case o.Segment < c.Segment:
		return base.Corruptf(name, offSegment, "segment %d after %d", o.Segment, c.Segment)
	case o.Records() > 0 && o.FirstTimestamp < c.LastTimestamp:
		return base.Corruptf(name, headerSize, "timestamp %d after %d", o.FirstTimestamp, c.LastTimestamp)
	}
	return nil
}
