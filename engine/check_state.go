package engine

import (
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/state"
	"github.com/annalsdb/annals/wal"
)

// smallState checks the state objects, each whole, and that they belong together.
func (c *checker) smallState(s *manifest.State) error {
	inForce := []struct {
		ref     *manifest.ObjectRef
		size    uint64
		changes bool
	}{{s.GetState(), s.GetStateSize(), false}, {s.GetStateChanges(), s.GetStateChangesSize(), true}}
	for _, o := range inForce {
		if o.ref == nil {
			continue
		}
		id := o.ref.ID()
		c.report.StateObjects++
		c.taken(id, nil)
		if err := c.stateObject(s, id, o.size, o.changes); err != nil {
			still := func(now *manifest.State) (bool, error) { return namesState(now, id), nil }
			if err := c.absent(id.Name(), nil, err, still); err != nil {
				return err
			}
		}
		c.looked(id.Name(), o.size)
	}
	return nil
}

// stateObject checks one state object. What it affects is cursors and producers, no record.
func (c *checker) stateObject(s *manifest.State, id base.ObjectID, size uint64, changes bool) error {
	if err := c.sized(id, size); err != nil {
		return err
	}
	body, err := c.tables.whole(c.ctx, id, size)
	if err != nil {
		return err
	}
	info, err := state.Verify(id.Name(), id.ULID, body)
	switch {
	case err != nil:
		return err
	case info.Changes != changes:
		c.contradicts(id.Name(), 0, nil, "a base where the manifest says changes, or the other way round")
	case changes && info.Base != s.GetState().ID().ULID:
		c.contradicts(id.Name(), 0, nil, "changes of base %v; the manifest says %v", info.Base, s.GetState().ID().ULID)
	}
	// What the objects in force say is what was appended below position.
	if end := s.GetFlushedEnd(); info.AppendsEnd > end {
		c.contradicts(id.Name(), 0, nil, "a producer appended up to sequence %d, and what was appended before it was written ends at %d", info.AppendsEnd, end)
	}
	return nil
}

// marks checks that each producer's mark of a WAL object is that of a batch in it.
func (c *checker) marks(name string, o *wal.Object) {
	batches := map[uint64]wal.Batch{}
	for e := range o.Entries() {
		switch e.Type {
		case wal.EntryBatch:
			batches[e.Batch.First] = e.Batch
		case wal.EntryProducer:
			p := &e.Producer
			if b := batches[p.First]; b.Count != p.Count || b.Timestamp != p.Timestamp {
				c.contradicts(name, 0, nil, "append %d of producer %.128q has %d records from sequence %d, and no batch is like it",
					p.Sequence, p.Producer, p.Count, p.First)
			}
		}
	}
}
