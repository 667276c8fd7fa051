package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/annalsdb/annals/internal/base"
)

// Validate returns an error that says which structural invariant the state breaks,
// or nil. docs/format/manifest.md ("What must hold") lists them. It does not
// change the state.
func Validate(s *State) error {
	v := newValidator(s)
	for _, check := range []func() error{
		v.identity, v.sequences, v.groups, v.segments, v.smallState, v.pins, v.obsolete,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// validator holds what has been seen so far of one state.
type validator struct {
	state *State
	runs  map[[idBytes]byte]bool
	live  map[base.ObjectID]bool // referred to by runs, groups, small state, pins
	// Where the window after the last group or segment must start, and the last
	// segment id so far. known is false before the first.
	known  bool
	end    uint64
	lastID uint32
}

func newValidator(s *State) *validator {
	return &validator{
		state: s,
		runs:  make(map[[idBytes]byte]bool),
		live:  make(map[base.ObjectID]bool),
	}
}

func (v *validator) identity() error {
	s := v.state
	switch {
	case s.FormatVersion != FormatVersion:
		return fmt.Errorf("format version %d inside, %d outside", s.FormatVersion, FormatVersion)
	case len(s.LogId) != idBytes:
		return fmt.Errorf("log id has %d bytes", len(s.LogId))
	case len(s.CommitId) != idBytes:
		return fmt.Errorf("commit id has %d bytes", len(s.CommitId))
	case s.Tree > base.MaxTree:
		return fmt.Errorf("tree %d is above %d", s.Tree, base.MaxTree)
	}
	if err := checkFeatures("the state", s.RequiredFeatures); err != nil {
		return err
	}
	if err := validOwner(s.Writer); err != nil {
		return fmt.Errorf("writer: %w", err)
	}
	if err := validOwner(s.Compactor); err != nil {
		return fmt.Errorf("compactor: %w", err)
	}
	return nil
}

func validOwner(o *Owner) error {
	switch {
	case o == nil:
		return errors.New("missing")
	case o.Epoch == 0 && len(o.Id) != 0:
		return errors.New("epoch 0 has an id")
	case o.Epoch != 0 && len(o.Id) != idBytes:
		return fmt.Errorf("id has %d bytes", len(o.Id))
	}
	return nil
}

func (v *validator) sequences() error {
	s := v.state
	if s.Position == nil {
		return errors.New("position is missing")
	}
	p := s.Position.Pos()
	switch {
	case p.Epoch < 1 || p.ID < 1:
		return fmt.Errorf("position %v is below (1, 1)", p)
	case p.Epoch > max(s.Writer.Epoch, 1):
		return fmt.Errorf("position %v is above the writer's epoch %d", p, s.Writer.Epoch)
	case s.FlushedEnd > s.SeqLimit:
		return fmt.Errorf("flushed_end %d is above seq_limit %d", s.FlushedEnd, s.SeqLimit)
	case s.CleanNext != nil && (*s.CleanNext < s.FlushedEnd || *s.CleanNext > s.SeqLimit):
		return fmt.Errorf("clean_next %d is not within flushed_end %d and seq_limit %d", *s.CleanNext, s.FlushedEnd, s.SeqLimit)
	}
	return nil
}

func (v *validator) groups() error {
	ids := make(map[[idBytes]byte]bool, len(v.state.Groups))
	for i, g := range v.state.Groups {
		if len(g.Id) != idBytes || ids[[idBytes]byte(g.Id)] {
			return fmt.Errorf("group %d: id is not unique or has %d bytes", i, len(g.Id))
		}
		ids[[idBytes]byte(g.Id)] = true
		if err := v.group(g); err != nil {
			return fmt.Errorf("group %d (%x): %w", i, g.Id, err)
		}
	}
	return nil
}

func (v *validator) group(g *Group) error {
	if err := v.claim(g.Index, base.KindIndex); err != nil {
		return fmt.Errorf("index: %w", err)
	}
	if err := validIndexLine(g); err != nil {
		return err
	}
	switch {
	case g.FirstSegment < 1 || g.FirstSegment > g.LastSegment:
		return fmt.Errorf("live range [%d, %d] of segments", g.FirstSegment, g.LastSegment)
	case g.FirstSequence >= g.EndSequence:
		return fmt.Errorf("empty window [%d, %d)", g.FirstSequence, g.EndSequence)
	case g.FirstSealTimeMs > g.LastSealTimeMs:
		return fmt.Errorf("seal times %d to %d", g.FirstSealTimeMs, g.LastSealTimeMs)
	case g.Segments < 1 || g.Segments > MaxGroupSegments || g.Segments-1 > g.LastSegment-g.FirstSegment:
		return fmt.Errorf("%d live segments [%d, %d]", g.Segments, g.FirstSegment, g.LastSegment)
	case g.Tables < g.Segments || g.Records < uint64(g.Tables) || g.StoredBytes < uint64(g.Tables):
		return fmt.Errorf("%d tables of %d bytes with %d records in %d segments", g.Tables, g.StoredBytes, g.Records, g.Segments)
	case g.Records > g.EndSequence-g.FirstSequence:
		return fmt.Errorf("%d records in the window [%d, %d)", g.Records, g.FirstSequence, g.EndSequence)
	}
	return v.window(g.FirstSegment, g.LastSegment, g.FirstSequence, g.EndSequence)
}

// validIndexLine checks what a group's line says of its index: where to read follows from it.
func validIndexLine(g *Group) error {
	shape := g.Shape()
	if err := shape.check(); err != nil {
		return err
	}
	switch {
	case g.IndexSize > math.MaxInt64 || g.TocOffset > g.IndexSize || g.IndexSize-g.TocOffset > IndexTailBytes:
		return fmt.Errorf("table of contents at %d of %d bytes", g.TocOffset, g.IndexSize)
	case shape.bytes() > g.TocOffset:
		return fmt.Errorf("%d bytes of key shards, the table of contents at %d", shape.bytes(), g.TocOffset)
	}
	return shape.checkKeys(g.Keys, int(min(g.Segments, MaxGroupSegments)))
}

// window checks that the next group or segment follows the one before (I5).
func (v *validator) window(firstID, lastID uint32, start, end uint64) error {
	if firstID <= v.lastID {
		return fmt.Errorf("segment id %d does not follow %d", firstID, v.lastID)
	}
	if v.known && start != v.end {
		return fmt.Errorf("window starts at %d, the one before ends at %d", start, v.end)
	}
	v.known, v.end, v.lastID = true, end, lastID
	return nil
}

func (v *validator) segments() error {
	segments := v.state.Segments
	if len(segments) == 0 {
		return errors.New("no segment")
	}
	for i, g := range segments {
		if err := v.segment(g, i == len(segments)-1); err != nil {
			return fmt.Errorf("segment %d: %w", g.Id, err)
		}
	}
	return nil
}

func (v *validator) segment(g *Segment, active bool) error {
	end := g.EndSequence
	switch {
	case g.Sealed == active:
		return fmt.Errorf("sealed is %t; exactly the last segment is not sealed", g.Sealed)
	case active && (g.EndSequence != 0 || g.SealTimeMs != 0 || g.LastId != 0):
		return errors.New("active, with an end, a seal time or merged segments")
	case active:
		end = v.state.FlushedEnd // I5: all below is in runs, I6: of this segment
	case g.FirstSequence >= end:
		return fmt.Errorf("sealed with empty window [%d, %d)", g.FirstSequence, end)
	case g.LastId != 0 && g.LastId <= g.Id:
		return fmt.Errorf("merged up to segment %d", g.LastId)
	}
	if err := v.window(g.Id, g.Last(), g.FirstSequence, end); err != nil {
		return err
	}
	at, tables := g.FirstSequence, 0
	for i, r := range g.Runs {
		if err := v.run(r, at); err != nil {
			return fmt.Errorf("run %d (%x): %w", i, r.Id, err)
		}
		at, tables = r.End, tables+len(r.Tables)
	}
	if at != end {
		return fmt.Errorf("runs end at %d, want %d", at, end)
	}
	if g.Sealed && tables == 0 {
		return errors.New("sealed without a record")
	}
	return nil
}

func (v *validator) run(r *Run, start uint64) error {
	switch {
	case len(r.Id) != idBytes || v.runs[[idBytes]byte(r.Id)]:
		return fmt.Errorf("id is not unique or has %d bytes", len(r.Id))
	case r.Start != start:
		return fmt.Errorf("starts at %d, want %d", r.Start, start)
	case r.Start >= r.End:
		return fmt.Errorf("empty interval [%d, %d)", r.Start, r.End)
	}
	v.runs[[idBytes]byte(r.Id)] = true
	var left = r.End - r.Start // sequences that can still name a record
	for i, t := range r.Tables {
		if err := v.table(t, r); err != nil {
			return fmt.Errorf("table %d: %w", i, err)
		}
		if t.Records > left {
			return fmt.Errorf("table %d: more records than the %d sequences of the run", i, r.End-r.Start)
		}
		left -= t.Records
		if i > 0 {
			if err := validNeighbours(r.Tables[i-1], t); err != nil {
				return fmt.Errorf("table %d: %w", i, err)
			}
		}
	}
	return nil
}

func (v *validator) table(t *Table, r *Run) error {
	if err := v.claim(t.Ref, base.KindSST); err != nil {
		return err
	}
	switch {
	case t.Size == 0 || t.MetaOffset > t.Size:
		return fmt.Errorf("metadata at %d of %d bytes", t.MetaOffset, t.Size)
	case t.Keys < 1 || t.Keys > t.Records:
		return fmt.Errorf("%d keys in %d records", t.Keys, t.Records)
	case t.FirstSequence < r.Start || t.FirstSequence > t.LastSequence || t.LastSequence >= r.End:
		return fmt.Errorf("sequences %d to %d in a run of [%d, %d)", t.FirstSequence, t.LastSequence, r.Start, r.End)
	case t.Records-1 > t.LastSequence-t.FirstSequence:
		return fmt.Errorf("%d records with sequences %d to %d", t.Records, t.FirstSequence, t.LastSequence)
	case t.FirstTimestampMs > t.LastTimestampMs || t.LastTimestampMs > v.state.LastTimestampMs:
		return fmt.Errorf("timestamps %d to %d, the tree's last is %d", t.FirstTimestampMs, t.LastTimestampMs, v.state.LastTimestampMs)
	case len(t.LowerKey) > base.MaxBoundBytes || len(t.UpperKey) > base.MaxBoundBytes:
		return fmt.Errorf("key bounds of %d and %d bytes", len(t.LowerKey), len(t.UpperKey))
	case t.UpperKey != nil && bytes.Compare(t.LowerKey, t.UpperKey) > 0:
		return fmt.Errorf("key bounds %x to %x", t.LowerKey, t.UpperKey)
	}
	return nil
}

// validNeighbours checks that b may follow a in a run: a's last key is at or before
// b's first, as far as the rounded bounds tell. Rounding keeps the order, so both
// bounds ascend; and b starts at or after a's upper bound unless that was rounded
// up from the very 32 bytes with which b's first key begins.
func validNeighbours(a, b *Table) error {
	if bytes.Compare(a.LowerKey, b.LowerKey) > 0 || compareUpper(a.UpperKey, b.UpperKey) > 0 {
		return fmt.Errorf("key bounds %x to %x after %x to %x", b.LowerKey, b.UpperKey, a.LowerKey, a.UpperKey)
	}
	if a.UpperKey != nil && bytes.Compare(b.LowerKey, a.UpperKey) >= 0 {
		return nil
	}
	if len(b.LowerKey) == base.MaxBoundBytes {
		if up, ok := base.PrefixEnd(b.LowerKey); ok == (a.UpperKey != nil) && bytes.Equal(up, a.UpperKey) {
			return nil
		}
	}
	return fmt.Errorf("starts at key %x, the table before ends at %x", b.LowerKey, a.UpperKey)
}

// compareUpper orders upper bounds; nil is infinite.
func compareUpper(a, b []byte) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return 1
	case b == nil:
		return -1
	}
	return bytes.Compare(a, b)
}

// smallState checks that the state objects are exactly those of position: entries behind it are replayed.
func (v *validator) smallState() error {
	s := v.state
	switch {
	case (s.State == nil) != (s.StatePosition == nil):
		return errors.New("state object and its position: one without the other")
	case s.StateChanges != nil && s.State == nil:
		return errors.New("changes of the small state without a base")
	case (s.State == nil) != (s.StateSize == 0) || (s.StateChanges == nil) != (s.StateChangesSize == 0):
		return fmt.Errorf("state objects of %d and %d bytes", s.StateSize, s.StateChangesSize)
	case s.State == nil:
		return nil
	}
	if at, p := s.StatePosition.Pos(), s.Position.Pos(); at != p {
		return fmt.Errorf("state objects up to %v, replay starts at %v", at, p)
	}
	if err := v.claim(s.State, base.KindState); err != nil {
		return fmt.Errorf("state object: %w", err)
	}
	if s.StateChanges == nil {
		return nil
	}
	if err := v.claim(s.StateChanges, base.KindState); err != nil {
		return fmt.Errorf("changes of the small state: %w", err)
	}
	return nil
}

func (v *validator) pins() error {
	for i, p := range v.state.Pins {
		if err := v.claim(p.Ref, base.KindPin); err != nil {
			return fmt.Errorf("pin %d: %w", i, err)
		}
		if len(p.Name) > MaxPinName || !utf8.ValidString(p.Name) {
			return fmt.Errorf("pin %d: name is not UTF-8 or has %d bytes", i, len(p.Name))
		}
		if p.ExpiresMs != 0 && p.ExpiresMs < p.CreatedMs {
			return fmt.Errorf("pin %d: expires at %d, created at %d", i, p.ExpiresMs, p.CreatedMs)
		}
	}
	return nil
}

// claim checks a reference and notes that it is live; each object is referred to
// once.
func (v *validator) claim(ref *ObjectRef, kind base.Kind) error {
	id, err := ref.parse()
	if err != nil {
		return err
	}
	if id.Kind != kind {
		return fmt.Errorf("reference to an object of kind %d, want %d", id.Kind, kind)
	}
	if v.live[id] {
		return fmt.Errorf("%s is referred to twice", id.Name())
	}
	v.live[id] = true
	return nil
}
