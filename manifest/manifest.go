// Package manifest keeps the head of a log: LOG, which names its trees, and one
// MANIFEST per tree, which lists everything that the tree consists of.
//
// A MANIFEST is one object that is replaced by compare-and-swap. Changes are edits:
// functions from the latest state to the next whose precondition is falsified by
// their own commit, so that none is ever applied twice and a lost answer is
// resolved by looking. A Committer folds the edits of one process into commits.
// docs/format/manifest.md specifies the bytes and what must hold between them.
//
// Segments that nothing changes any more leave MANIFEST but for one line: their tables are listed,
// and their keys can be looked up, in indexes (Index, Shard, IndexBuilder; docs/format/idx.md).
//
// Invariants that this package upholds (numbered as in the whole project):
//
//	I2  writer epochs only rise, by the compare-and-swap that opens; an edit of a
//	    passed epoch fails with ErrFenced
//	I3  seq_limit rises by a commit before a sequence at or above it is assigned;
//	    an unclean open starts at the old seq_limit
//	I5  runs of a segment, and segments, cover adjacent, ascending windows
//	I6  a segment is sealed only when nothing of it is unflushed
//	I7  nothing is at the same time live and obsolete; a Snapshot knows when the
//	    request that proved it current was sent
//	I8  bytes are checked, with a seed, before they are believed
//	I9  object size, queue, batch and backoff are bounded
//
// States are immutable once they are in a Snapshot: edits work on clones.
package manifest

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/annalsdb/annals/internal/base"
)

// FormatVersion is the version of LOG and MANIFEST that this binary reads and
// writes.
const FormatVersion = 1

// Limits (invariant I9).
const (
	// MaxManifestBytes is the largest LOG or MANIFEST message before compression.
	MaxManifestBytes = 64 << 20
	// MaxPinName is the longest name of a pin in bytes.
	MaxPinName = 256
	// idBytes is the size of log, commit, owner, run and group ids and of ULIDs.
	idBytes = 16
)

// SeqReserve is how far a commit raises seq_limit above the next sequence: so
// many sequences can be assigned before another commit is needed, and so many
// at most are skipped by an unclean open.
const SeqReserve = 1 << 24

// Errors that callers tell apart. Bytes that are wrong match base.ErrCorrupt.
var (
	// ErrVersion: LOG, MANIFEST or an index has a format version that this binary does not
	// know. Use a newer binary.
	ErrVersion = errors.New("unknown format version")
	// ErrFeature: the log needs a feature that this binary lacks; the error names
	// it. Use a newer binary.
	ErrFeature = errors.New("unknown required feature")
	// ErrNoLog: there is no log, or one whose creation did not finish. Create makes
	// or completes it.
	ErrNoLog = errors.New("no log here")
	// ErrOtherLog: another log is in the place of the one that was there: it was deleted and made anew, or another bucket's
	// objects were copied over it. It is base.ErrCorrupt too. Whoever had the old one open must close it.
	ErrOtherLog = errors.New("another log is in the place of this one")
	// ErrMissingManifest: LOG exists, the tree's MANIFEST does not. Damage: restore
	// MANIFEST. Nothing was created.
	ErrMissingManifest = errors.New("LOG exists but MANIFEST does not")
	// ErrMissingLog: MANIFEST has been in use, LOG does not exist. Damage: restore
	// LOG. Nothing was created.
	ErrMissingLog = errors.New("MANIFEST is in use but LOG does not exist")
	// ErrMissingHeads: neither LOG nor MANIFEST exists, and objects of a log do. Damage: restore
	// both. Nothing was created.
	ErrMissingHeads = errors.New("objects of a log are here, but neither LOG nor MANIFEST")
	// ErrLogExists: a LOG was to be made anew, and there is one.
	ErrLogExists = errors.New("LOG exists")
	// ErrFenced: another process took a higher epoch. This one must stop.
	ErrFenced = errors.New("fenced: another process took over")
	// ErrCleanlyClosed: a writer edit after the same writer closed cleanly.
	ErrCleanlyClosed = errors.New("the writer has closed")
	// ErrApplied is returned by Edit.Apply when the state shows that this very edit
	// is already in force. Committer.Commit reports it as success.
	ErrApplied = errors.New("edit is already applied")
	// ErrUnknown: the edit may have been applied, or may be yet. Read MANIFEST.
	ErrUnknown = errors.New("outcome of the edit is unknown")
	// ErrClosed: the committer is closed.
	ErrClosed = errors.New("committer is closed")
)

// Pos is a place in the WAL: the object or fence (Epoch, ID). Everything before
// it needs no replay when it is a state's position.
type Pos struct {
	Epoch, ID uint64
}

// Compare orders positions by epoch, then id.
func (p Pos) Compare(o Pos) int {
	if c := cmp.Compare(p.Epoch, o.Epoch); c != 0 {
		return c
	}
	return cmp.Compare(p.ID, o.ID)
}

// Less reports whether p lies before o.
func (p Pos) Less(o Pos) bool { return p.Compare(o) < 0 }

// String formats the position as (epoch, id).
func (p Pos) String() string { return fmt.Sprintf("(%d, %d)", p.Epoch, p.ID) }

// Proto returns the position as a state stores it.
func (p Pos) Proto() *Position { return &Position{Epoch: p.Epoch, Id: p.ID} }

// Pos returns the stored position as a value. Nil gives the zero position.
func (x *Position) Pos() Pos { return Pos{x.GetEpoch(), x.GetId()} }

// Last returns the id of the newest segment that this one spans: its own, unless others were
// merged into it.
func (x *Segment) Last() uint32 { return max(x.GetId(), x.GetLastId()) }

// RefOf returns the stored form of an object's id.
func RefOf(id base.ObjectID) *ObjectRef {
	return &ObjectRef{
		Tree:    id.Tree,
		Kind:    Kind(id.Kind),
		Role:    Role(id.Role),
		Epoch:   id.Epoch,
		Segment: id.Segment,
		Ulid:    append([]byte(nil), id.ULID[:]...),
	}
}

// ID returns the object's id. The reference must come from a validated state:
// one with a bad ULID or an unknown kind or role panics.
func (x *ObjectRef) ID() base.ObjectID {
	id, err := x.parse()
	if err != nil {
		panic("manifest: reference that was not validated: " + err.Error())
	}
	return id
}

// parse is ID for references that are not validated yet.
func (x *ObjectRef) parse() (base.ObjectID, error) {
	if x == nil {
		return base.ObjectID{}, errors.New("reference is missing")
	}
	if len(x.Ulid) != idBytes {
		return base.ObjectID{}, fmt.Errorf("ULID has %d bytes", len(x.Ulid))
	}
	// Kinds and roles are open enums of 32 bits; do not let one wrap around into
	// a known value.
	if x.Kind < 0 || x.Kind > 0xFF || x.Role < 0 || x.Role > 0xFF {
		return base.ObjectID{}, fmt.Errorf("unknown object kind %d or role %d", x.Kind, x.Role)
	}
	id := base.ObjectID{
		Tree:    x.Tree,
		Kind:    base.Kind(x.Kind),
		Role:    base.Role(x.Role),
		Epoch:   x.Epoch,
		Segment: x.Segment,
		ULID:    base.ULID(x.Ulid),
	}
	return id, id.Valid()
}
