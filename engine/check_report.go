package engine

import (
	"errors"
	"fmt"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/sst"
	"github.com/annalsdb/annals/state"
	"github.com/annalsdb/annals/wal"
)

// CheckReport says what Check walked over and what is wrong. The names of its fields in JSON are stable; docs/REPAIR.md
// describes them.
type CheckReport struct {
	Store string `json:"store"`
	// Complete says that the walk came to its end. If not, what was found until then is here.
	Complete bool `json:"complete"`
	// Stopped says why the walk did not come to its end; empty if it did.
	Stopped string `json:"stopped,omitzero"`
	// Sound says that the walk came to its end and found no damage.
	Sound bool `json:"sound"`
	// DamageFound counts all damage, DamageLeftOut that of it which the list has no room for.
	DamageFound   int `json:"damageFound"`
	DamageLeftOut int `json:"damageLeftOut"`
	// Damage lists what is wrong, each with its object and place, in the order of the log: groups and segments,
	// what is dropped, the small state, the WAL, references. The walk goes on behind damage where it can.
	Damage []Damage `json:"damage"`

	ManifestVersion uint64 `json:"manifestVersion"`
	Epoch           uint64 `json:"writerEpoch"`
	CompactorEpoch  uint64 `json:"compactorEpoch"`
	Groups          int    `json:"groups"`
	Segments        int    `json:"segments"` // those of groups included
	Runs            int    `json:"runs"`
	Tables          int    `json:"tables"`
	TableRecords    uint64 `json:"tableRecords"`
	StateObjects    int    `json:"stateObjects"` // of cursors and producers
	Pins            int    `json:"pins"`
	WALObjects      int    `json:"walObjects"`
	WALRecords      uint64 `json:"walRecords"`   // behind position, not yet in runs
	Next            uint64 `json:"nextSequence"` // after the last record found
	Bytes           int64  `json:"bytes"`        // read and verified

	// Orphans are objects of a passed epoch that nothing refers to: outputs of jobs
	// that never committed. They cost money, nothing else. While something is pinned, none
	// is known.
	Orphans CheckedObjects `json:"orphans"`
	// Uncommitted are objects of the epoch in force that nothing refers to: about to be committed, or
	// left by a process that died and whose epoch nobody has taken since.
	Uncommitted CheckedObjects `json:"uncommitted"`
	// Waiting are objects that the log no longer needs and the collector has not deleted yet.
	Waiting CheckedObjects `json:"waiting"`
	// Foreign are objects under the root with names that annals does not make, or of a tree that the log does
	// not have. Nobody but their owner deletes them.
	Foreign CheckedObjects `json:"foreign"`
}

// Err joins the damage into one error, nil if there is none.
func (r *CheckReport) Err() error {
	errs := make([]error, len(r.Damage))
	for i := range r.Damage {
		errs[i] = r.Damage[i]
	}
	if r.DamageLeftOut > 0 {
		errs = append(errs, fmt.Errorf("%w: and %d more", ErrCorrupt, r.DamageLeftOut))
	}
	return errors.Join(errs...)
}

// CheckedObjects is some objects of a log: how many, their bytes, and the names of the first of them.
type CheckedObjects struct {
	Objects int      `json:"objects"`
	Bytes   int64    `json:"bytes"`
	Names   []string `json:"names"` // in the order of names, at most maxCheckNames
}

// Bounds of what a report lists (I9). What is above them is counted.
const (
	maxCheckDamage = 1000
	maxCheckNames  = 1000
)

func (o *CheckedObjects) add(name string, size int64) {
	o.Objects++
	o.Bytes += size
	if len(o.Names) < maxCheckNames {
		o.Names = append(o.Names, name)
	}
}

// DamageKind says in a word what is wrong with an object. The words are stable.
type DamageKind string

const (
	// DamageMissing: the object is not there.
	DamageMissing DamageKind = "missing"
	// DamageSize: it has another size than what refers to it says, as after it was cut off.
	DamageSize DamageKind = "size"
	// DamageCorrupt: its bytes are not what their checksums or its format say.
	DamageCorrupt DamageKind = "corrupt"
	// DamageContradiction: it is intact by itself, and what it says is not what another object says.
	DamageContradiction DamageKind = "contradiction"
	// DamageNewer: it has a format that this binary does not know. That is damage only because the log's
	// heads do not ask for a newer binary.
	DamageNewer DamageKind = "newer"
)

// Damage is one thing that is wrong.
type Damage struct {
	Kind   DamageKind `json:"kind"`
	Object string     `json:"object"` // its name; empty only if none can be told
	Offset int64      `json:"offset"` // where in the object; 0 also if that is not known
	// Affected is the part of the log that cannot be trusted or read because of it; nil: none of its records.
	Affected *Affected `json:"affected,omitzero"`
	Message  string    `json:"message"`

	err error
}

// Error implements error.
func (d Damage) Error() string { return d.Message }

// Is reports that all damage is ErrCorrupt.
func (d Damage) Is(target error) bool { return target == ErrCorrupt }

// Unwrap gives what was found: it may match objstore.ErrNotFound too, or an error of an unknown version.
func (d Damage) Unwrap() error { return d.err }

// Affected is a part of the log: records with a key and a sequence in these ranges. It is as narrow as what refers to
// the damaged object tells: not every record in it need be lost.
type Affected struct {
	// The ids of the segments; 0: of records that are in no segment yet, or not known.
	FirstSegment uint32 `json:"firstSegment,omitzero"`
	LastSegment  uint32 `json:"lastSegment,omitzero"`
	// The sequences [FirstSequence, EndSequence). EndSequence 0: all from FirstSequence on.
	FirstSequence uint64 `json:"firstSequence"`
	EndSequence   uint64 `json:"endSequence,omitzero"`
	// The keys, both inclusive, rounded outward to 32 bytes. nil: no bound.
	LowerKey []byte `json:"lowerKeyB64,omitzero"`
	UpperKey []byte `json:"upperKeyB64,omitzero"`
}

// String describes it for people, as an operator would type it.
func (a *Affected) String() string {
	text := fmt.Sprintf("sequences from %d on", a.FirstSequence)
	if a.EndSequence > 0 {
		text = fmt.Sprintf("sequences %d to %d", a.FirstSequence, a.EndSequence-1)
	}
	switch {
	case a.FirstSegment == 0:
	case a.FirstSegment == a.LastSegment:
		text = fmt.Sprintf("segment %d, %s", a.FirstSegment, text)
	default:
		text = fmt.Sprintf("segments %d to %d, %s", a.FirstSegment, a.LastSegment, text)
	}
	switch {
	case a.LowerKey == nil && a.UpperKey == nil:
		return text + ", all keys"
	case a.UpperKey == nil:
		return fmt.Sprintf("%s, keys from %q on", text, a.LowerKey)
	}
	return fmt.Sprintf("%s, keys %q to %q", text, a.LowerKey, a.UpperKey)
}

// affectedByTable is what a table of a segment holds, by its line.
func affectedByTable(s *manifest.Segment, t *manifest.Table) *Affected {
	return &Affected{
		FirstSegment: s.GetId(), LastSegment: s.Last(), FirstSequence: t.GetFirstSequence(), EndSequence: t.GetLastSequence() + 1,
		LowerKey: append([]byte{}, t.GetLowerKey()...), UpperKey: t.UpperKey,
	}
}

// affectedByRun is what a run of a segment covers.
func affectedByRun(s *manifest.Segment, r *manifest.Run) *Affected {
	return &Affected{FirstSegment: s.GetId(), LastSegment: s.Last(), FirstSequence: r.GetStart(), EndSequence: r.GetEnd()}
}

// affectedByGroup is what a group covers.
func affectedByGroup(g *manifest.Group) *Affected {
	return &Affected{
		FirstSegment: g.GetFirstSegment(), LastSegment: g.GetLastSegment(),
		FirstSequence: g.GetFirstSequence(), EndSequence: g.GetEndSequence(),
	}
}

// everything is the whole log.
func everything() *Affected { return &Affected{} }

// isNewer reports whether an error says that an intact object has a format version that this binary does not know.
func isNewer(err error) bool {
	return errors.Is(err, sst.ErrVersion) || errors.Is(err, wal.ErrVersion) || errors.Is(err, state.ErrVersion) ||
		errors.Is(err, manifest.ErrVersion)
}

// newDamage describes an error: kind, object and place are what it tells. An object that it does not name is the one given.
func newDamage(object string, affected *Affected, err error) Damage {
	d := Damage{Kind: DamageCorrupt, Object: object, Affected: affected, Message: err.Error(), err: err}
	var corrupt *base.CorruptError
	if errors.As(err, &corrupt) {
		d.Object, d.Offset = corrupt.Object, corrupt.Offset
	}
	switch {
	case errors.Is(err, objstore.ErrNotFound), errors.Is(err, manifest.ErrMissingManifest), errors.Is(err, manifest.ErrMissingLog),
		errors.Is(err, manifest.ErrMissingHeads):
		d.Kind = DamageMissing
	case isNewer(err):
		d.Kind = DamageNewer
	case errors.As(err, new(*sizeError)):
		d.Kind = DamageSize
	}
	return d
}
