package engine

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/wal"
)

// walAhead is how many WAL objects are read before they are looked at, at most.
const walAhead = 4

// wal checks the WAL from where replay would start: every object up to the first
// fence of each past epoch, and the newest epoch up to its first missing id.
func (c *checker) wal(s *manifest.State) error {
	w := &walChecker{c: c, s: s, ident: wal.Identity{LogID: [16]byte(s.GetLogId()), Tree: tree}}
	w.chain = wal.Chain{
		Started: true, End: s.GetFlushedEnd(), LastTimestamp: s.GetLastTimestampMs(), Segment: activeSegment(s).GetId(),
	}
	w.at = s.GetPosition().Pos()
	err := w.walk()
	w.drain()
	c.walEnd = w.at
	if err != nil || w.broken {
		return err
	}
	return c.limits(s, w.chain.End)
}

// walChecker walks over the WAL.
type walChecker struct {
	c      *checker
	s      *manifest.State
	ident  wal.Identity
	chain  wal.Chain
	at     manifest.Pos // the next object to look at
	broken bool         // by damage: what follows cannot be told

	pending []chan fetchedWAL // from at on, in the order of ids of its epoch
	next    uint64            // the id behind them
}

// fetchedWAL is one object that was read, or could not be.
type fetchedWAL struct {
	object *wal.Object
	size   int64
	err    error
}

// affected is what is not known when the object at hand is lost: all from it on, as far as it is in no table.
func (w *walChecker) affected() *Affected { return &Affected{FirstSequence: w.chain.End} }

func (w *walChecker) walk() error {
	for ahead := 1; w.at.Epoch <= w.s.GetWriter().GetEpoch(); ahead = min(ahead+1, walAhead) {
		got := w.read(ahead)
		name := base.WALName(tree, w.at.Epoch, w.at.ID)
		switch {
		case errors.Is(got.err, objstore.ErrNotFound):
			return w.lost(name)
		case got.err != nil:
			return w.damaged(name, got.err)
		}
		w.c.looked(name, uint64(got.size))
		if got.object.Fence {
			if err := w.fence(name, got.object); err != nil {
				return err
			}
			w.drain()
			w.at = manifest.Pos{Epoch: w.at.Epoch + 1, ID: 1}
			continue
		}
		if err := w.chain.Accept(name, got.object); err != nil {
			return w.damaged(name, err)
		}
		w.record(name, got.object)
		w.at.ID++
	}
	return nil
}

// damaged ends the walk at the object at hand. Names below position are nobody's, and may hold anything.
func (w *walChecker) damaged(name string, err error) error {
	w.broken = true
	at := w.at
	return w.c.confirmed(name, w.affected(), err, func(s *manifest.State) (bool, error) { return !at.Less(s.GetPosition().Pos()), nil })
}

// record takes up an object that follows those before it.
func (w *walChecker) record(name string, o *wal.Object) {
	c := w.c
	if o.Epoch == w.s.GetWriter().GetEpoch() && !bytes.Equal(o.Writer[:], w.s.GetWriter().GetId()) {
		c.contradicts(name, 0, &Affected{FirstSequence: o.First, EndSequence: o.End},
			"it is by writer %x, and epoch %d is that of %x", o.Writer, o.Epoch, w.s.GetWriter().GetId())
	}
	c.marks(name, o)
	c.report.WALObjects++
	c.report.WALRecords += o.Records()
	c.report.Next = max(c.report.Next, w.chain.End)
}

// fence checks that who put a fence had an epoch.
func (w *walChecker) fence(name string, o *wal.Object) error {
	if o.Fencer > w.c.newest.writer {
		if _, err := w.c.load(); err != nil {
			return w.c.found(base.ManifestName(tree), everything(), err)
		}
	}
	if newest := w.c.newest.writer; o.Fencer > newest {
		w.c.contradicts(name, 0, w.affected(), "the fence is of writer epoch %d, and the MANIFEST's is %d", o.Fencer, newest)
	}
	return nil
}

// read makes sure that so many objects are being read, and waits for the first.
func (w *walChecker) read(ahead int) fetchedWAL {
	if len(w.pending) == 0 {
		w.next = w.at.ID
	}
	for len(w.pending) < ahead {
		epoch, id := w.at.Epoch, w.next
		w.next++
		done := make(chan fetchedWAL, 1)
		w.pending = append(w.pending, done)
		w.c.o.Env.Go("check wal read", func() {
			o, size, err := wal.Read(w.c.ctx, w.c.store, w.ident, epoch, id)
			done <- fetchedWAL{o, size, err}
		})
	}
	got := <-w.pending[0] // comes soon after the context ends, at the latest
	w.pending = w.pending[1:]
	return got
}

// drain waits for reads that nobody wants any more.
func (w *walChecker) drain() {
	for _, done := range w.pending {
		<-done
	}
	w.pending = nil
}

// lost looks at what lies behind a WAL object that is not there. Usually that is
// the end of the log: nothing, or objects behind a gap that were never
// acknowledged. But a fence is only ever put where all before it exists, and an
// object knows up to which id all were there when it was made.
func (w *walChecker) lost(name string) error {
	why, err := w.proof(name)
	if why == "" || err != nil {
		return err
	}
	// The proof may be younger than the look: a writer at work has put the object meanwhile.
	_, _, err = wal.Read(w.c.ctx, w.c.store, w.ident, w.at.Epoch, w.at.ID)
	if !errors.Is(err, objstore.ErrNotFound) {
		return nil
	}
	return w.damaged(name, fmt.Errorf("%w: %s is missing, %s (%w)", ErrCorrupt, name, why, objstore.ErrNotFound))
}

// proof says how it is known that the object at hand was once there, "" if it is not known.
func (w *walChecker) proof(name string) (why string, _ error) {
	c, at := w.c, w.at
	var behind uint64 // the last record object behind it
	err := objstore.ListAll(c.ctx, c.store, base.WALEpochPrefix(tree, at.Epoch), name, func(e objstore.Entry) (bool, error) {
		_, _, id, ok := base.ParseWALName(e.Name)
		switch {
		case !ok:
		case wal.IsFence(e.Size):
			why = "below the fence " + e.Name
			return false, nil
		default:
			behind = id
		}
		return true, nil
	})
	if err != nil || why != "" || behind == 0 {
		return why, err
	}
	o, _, err := wal.Read(c.ctx, c.store, w.ident, at.Epoch, behind)
	if err != nil || o.Fence || o.Durable < at.ID {
		return "", nil // an object behind a gap is dead: what is wrong with it does not matter
	}
	return "though it was in the store when " + base.WALName(tree, at.Epoch, behind) + " was made", nil
}

// limits checks what the manifest says about sequences against where the WAL ends.
// A writer at work may have raised them since the walk began.
func (c *checker) limits(s *manifest.State, end uint64) error {
	if end > s.GetSeqLimit() || (s.CleanNext != nil && end > s.GetCleanNext()) {
		now, err := c.load()
		if err != nil {
			return c.found(base.ManifestName(tree), everything(), err)
		}
		s = now.State
	}
	name, affected := base.ManifestName(tree), &Affected{FirstSequence: s.GetFlushedEnd()}
	if end > s.GetSeqLimit() {
		c.contradicts(name, 0, affected, "the WAL ends at sequence %d, above seq_limit %d", end, s.GetSeqLimit())
	}
	if s.CleanNext != nil && end > s.GetCleanNext() {
		c.contradicts(name, 0, affected, "the WAL ends at sequence %d, above the %d of a clean close", end, s.GetCleanNext())
	}
	return nil
}
