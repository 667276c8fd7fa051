package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/state"
	"github.com/annalsdb/annals/wal"
)

// smallState is a tree's small state, cursors and producers, at a place in the WAL: what the state objects of
// a MANIFEST hold, which is its state at position, and the entries of WAL objects from there on, in order, each
// applied once. The writer and replicas share it. It has no lock; whoever owns it guards it.
type smallState struct {
	tables *state.Tables
	shared *state.Tables // a clone that readers have; nil: none since the last change
}

// replace makes it the given tables.
func (s *smallState) replace(t *state.Tables) { s.tables, s.shared = t, nil }

// share returns a clone of the tables that nobody changes. It may be read by any goroutine, without the owner's lock.
func (s *smallState) share() *state.Tables {
	if s.shared == nil {
		s.shared = s.tables.Clone()
	}
	return s.shared
}

// apply applies an entry of a WAL object; batches are not its business.
func (s *smallState) apply(e *wal.Entry) {
	switch e.Type {
	case wal.EntryCursor:
		applyCursor(s.tables, e.Cursor)
	case wal.EntryProducer:
		p := &e.Producer
		s.tables.Mark(p.Producer, state.Mark{Sequence: p.Sequence, First: p.First, Count: p.Count, Timestamp: p.Timestamp})
	default:
		return
	}
	s.shared = nil
}

// applyCursor makes one change of a cursor.
func applyCursor(t *state.Tables, c wal.CursorChange) {
	switch c.Op {
	case wal.CursorSet:
		t.SetCursor(c.Consumer, c.Key, c.Next)
	case wal.CursorDelete:
		t.DeleteCursor(c.Consumer, c.Key)
	case wal.CursorDeleteConsumer:
		t.DeleteConsumer(c.Consumer)
	}
}

// statePiece is how much of a state object one request reads.
const statePiece = 8 << 20

// loadState reads the state objects that a MANIFEST names: the small state at its position. Wrong
// bytes match ErrCorrupt. A missing object gives a *missingError: the MANIFEST is old, or that is damage. Read it
// again, and ask namesState.
func (ts *tables) loadState(ctx context.Context, m *manifest.State, l state.Limits) (*state.Tables, error) {
	ref := m.GetState()
	if ref == nil {
		return state.New(l), nil
	}
	id := ref.ID()
	body, err := ts.whole(ctx, id, m.GetStateSize())
	if err != nil {
		return nil, fmt.Errorf("load the small state: %w", err)
	}
	t, err := state.DecodeBase(id.Name(), id.ULID, body, l)
	if err != nil {
		return nil, fmt.Errorf("load the small state: %w", err)
	}
	if ref = m.GetStateChanges(); ref == nil {
		return t, nil
	}
	changes := ref.ID()
	if body, err = ts.whole(ctx, changes, m.GetStateChangesSize()); err == nil {
		err = t.DecodeChanges(changes.Name(), changes.ULID, id.ULID, body)
	}
	if err != nil {
		return nil, fmt.Errorf("load what changed in the small state: %w", err)
	}
	return t, nil
}

// whole reads a whole object of a known size, a piece at a time: a wrong size costs no more memory than there are bytes.
func (ts *tables) whole(ctx context.Context, id base.ObjectID, size uint64) (body []byte, err error) {
	for off := uint64(0); off < size; off = uint64(len(body)) {
		piece, err := ts.read(ctx, id.Name(), int64(off), int64(min(statePiece, size-off)))
		if err != nil {
			return nil, missing(id, 0, err)
		}
		if off == 0 && uint64(len(piece)) == size {
			return piece, nil
		}
		body = append(body, piece...)
	}
	return body, nil
}

// namesState reports whether a MANIFEST names a state object as one in force.
func namesState(m *manifest.State, id base.ObjectID) bool {
	for _, ref := range []*manifest.ObjectRef{m.GetState(), m.GetStateChanges()} {
		if ref != nil && ref.ID() == id {
			return true
		}
	}
	return false
}

// Below so many bytes a base is written anew each time; above, once the changes since are more than a part of it. So what
// flushes write of the small state is a few times what changed in it at most, however large it is.
const (
	stateBaseMin   = 1 << 20
	stateBaseParts = 4
)

// stateObject is a state object on its way into the MANIFEST.
type stateObject struct {
	update manifest.StateUpdate // what is in force with it
	base   bool                 // it is a new base
	bytes  int
}

// writeState writes what a frozen memory changed of the small state: as changes of the base in force, or as
// a new base. Only one is under way at a time, and the one before is in force or failed for good.
func (db *DB) writeState(ctx context.Context, m *memory) (*stateObject, error) {
	head := db.Head() // our own last commit, or a later version: nobody else changes these
	db.mu.Lock()
	lost := db.stateLost
	db.mu.Unlock()
	o := &stateObject{}
	ref := base.ObjectID{Tree: tree, Kind: base.KindState, Role: base.RoleWriter, Epoch: db.epoch, ULID: db.env.NewULID()}
	var body []byte
	inForce := head.GetState()
	if inForce == nil || lost || head.GetStateSize() < stateBaseMin || m.state.ChangesBytes() > m.state.BaseBytes()/stateBaseParts {
		o.base = true
		body = m.state.EncodeBase(ref.ULID)
		o.update.Base, o.update.BaseBytes = manifest.RefOf(ref), uint64(len(body))
	} else {
		body = m.state.EncodeChanges(ref.ULID, inForce.ID().ULID)
		o.update.Base, o.update.BaseBytes = inForce, head.GetStateSize()
		o.update.Changes, o.update.ChangesBytes = manifest.RefOf(ref), uint64(len(body))
	}
	o.bytes = len(body)
	_, err := db.putObject(ctx, ref, body)
	return o, err
}

// inForce returns what is in force with the object; nil for none.
func (o *stateObject) inForce() *manifest.StateUpdate {
	if o == nil {
		return nil
	}
	return &o.update
}

// stateCommitted notes that what writeState wrote of a memory is in force.
func (db *DB) stateCommitted(m *memory, o *stateObject) {
	if o == nil {
		return
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	db.stats.stateObjects++
	db.stats.stateObjectBytes += uint64(o.bytes)
	if !o.base {
		return
	}
	db.stateLost = false
	db.small.tables.Rebase(m.state)
	for _, later := range db.frozen { // with their own snapshots, not yet written
		if later != m && later.state != nil {
			later.state.Rebase(m.state)
		}
	}
}

// change makes one change of the small state, in memory and in the WAL object under construction. Callers hold
// mu.
func (db *DB) change(f func(object *wal.Builder)) {
	object := db.object()
	before := object.Size()
	f(object)
	size := int64(object.Size() - before)
	db.small.shared = nil
	db.stateAt = db.here()
	db.active.changes += size
	db.active.bytes += size
	db.unflush += size
}

// stateNow returns the small state as of now, once it is durable; where reads see what is in memory, at once.
func (db *DB) stateNow(ctx context.Context) (*state.Tables, error) {
	if err := db.readErr(); err != nil {
		return nil, err
	}
	db.mu.Lock()
	t, at := db.small.share(), db.stateAt
	db.mu.Unlock()
	if db.opts.ReadVisibility == Memory {
		return t, nil
	}
	return t, db.waitDurable(ctx, at)
}

// loadState reads the small state with which recovery begins.
func (r *recovery) loadState(m *manifest.State) error {
	t, err := r.db.tables.loadState(r.ctx, m, state.Limits{Producers: r.db.opts.MaxProducers})
	if errors.Is(err, objstore.ErrNotFound) {
		// Objects in force are not collected: a writer that passed us was at work, or it is lost.
		if perr := r.db.poll(r.ctx); perr != nil {
			return fmt.Errorf("%w (after: %w)", perr, err)
		}
		return fmt.Errorf("%w: the manifest names an object that is not there: %w", ErrCorrupt, err)
	}
	if err == nil {
		r.db.mu.Lock()
		r.db.small.replace(t)
		r.db.mu.Unlock()
	}
	return err
}

// mayForget reports whether the loss of the small state in force was said to be accepted.
func (r *recovery) mayForget(m *manifest.State) bool {
	lost := r.db.opts.ForgetLostState
	return lost != "" && slices.ContainsFunc([]*manifest.ObjectRef{m.GetState(), m.GetStateChanges()}, func(ref *manifest.ObjectRef) bool {
		return ref != nil && ref.ID().Name() == lost
	})
}

// forgetState goes on without a small state that is lost. The first flush, at the end of recovery at the latest, writes
// a new one, and the MANIFEST names what is lost no longer.
func (r *recovery) forgetState(why error) {
	r.db.opts.Logger.Warn("cursors and producers are lost and forgotten", "err", why)
	r.db.mu.Lock()
	defer r.db.mu.Unlock()
	r.db.stateLost = true
	r.db.active.changes++ // there is something to write
}
