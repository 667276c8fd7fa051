package engine

import (
	"context"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
)

// Inspection describes a log from what is in its store. The names of its fields
// in JSON are stable.
type Inspection struct {
	Store           string    `json:"store"`
	LogID           string    `json:"logId"`
	FormatVersion   uint32    `json:"formatVersion"`
	ManifestVersion uint64    `json:"manifestVersion"`
	StoreTime       time.Time `json:"storeTime"`

	WriterEpoch    uint64            `json:"writerEpoch"`
	CompactorEpoch uint64            `json:"compactorEpoch"`
	CompactorBeat  uint64            `json:"compactorBeat"`
	Position       InspectedPosition `json:"position"`   // where replay starts
	FlushedEnd     uint64            `json:"flushedEnd"` // every sequence below is in a run
	SeqLimit       uint64            `json:"seqLimit"`
	Clean          bool              `json:"clean"` // the last writer closed cleanly

	Groups   []InspectedGroup   `json:"groups"`
	Segments []InspectedSegment `json:"segments"` // those of groups first
	State    InspectedState     `json:"state"`
	Obsolete InspectedObsolete  `json:"obsolete"`
	Pins     int                `json:"pins"`
	Totals   InspectedTotals    `json:"totals"`
	// Damage is what could not be read of indexes (what depends on it is missing above), and live objects
	// that are not in the store, or not with their size. What is in tables is not looked at: see Check.
	Damage []string `json:"damage,omitempty"`
}

// InspectedPosition is a place in the WAL.
type InspectedPosition struct {
	Epoch uint64 `json:"epoch"`
	ID    uint64 `json:"id"`
}

// InspectedGroup is a group of segments that share an index. Counts and bytes are of its live
// segments, if nothing else is said.
type InspectedGroup struct {
	ID           string     `json:"id"`
	Index        string     `json:"index"` // the name of its index
	FirstSegment uint32     `json:"firstSegment"`
	LastSegment  uint32     `json:"lastSegment"`
	Segments     int        `json:"segments"`
	Start        uint64     `json:"startSeq"`
	End          uint64     `json:"endSeq"`
	Started      *time.Time `json:"startTime,omitempty"` // of its first record
	SealedAt     time.Time  `json:"sealTime"`            // of its newest segment
	AgeSeconds   float64    `json:"ageSeconds"`          // since then, by the store's time
	OldestAge    float64    `json:"oldestAgeSeconds"`    // since its first segment was sealed
	Tables       int        `json:"tables"`
	Records      uint64     `json:"records"`
	Bytes        uint64     `json:"bytes"`       // key + value
	StoredBytes  uint64     `json:"storedBytes"` // of its tables
	IndexBytes   uint64     `json:"indexBytes"`
	Keys         uint64     `json:"keys"` // entries of the index, those of dropped segments included
	Shards       int        `json:"shards"`
	ShardBytes   int        `json:"shardBytes"` // what a lookup reads
}

// InspectedSegment is one segment.
type InspectedSegment struct {
	ID          uint32     `json:"id"`
	LastID      uint32     `json:"lastId"`          // the last one merged into it, or ID
	Group       string     `json:"group,omitempty"` // the id of the group that it is in
	Start       uint64     `json:"startSeq"`
	End         uint64     `json:"endSeq"` // of what is in runs, while active
	Sealed      bool       `json:"sealed"`
	Started     *time.Time `json:"startTime,omitempty"` // of its first record
	SealedAt    *time.Time `json:"sealTime,omitempty"`
	AgeSeconds  float64    `json:"ageSeconds"` // since it was sealed, by the store's time
	Runs        int        `json:"runs"`
	Tables      int        `json:"tables"`
	Records     uint64     `json:"records"`
	Bytes       uint64     `json:"bytes"`       // key + value
	StoredBytes uint64     `json:"storedBytes"` // of its tables
}

// InspectedState is the small state, cursors and producers, at position: the objects in force.
type InspectedState struct {
	Base         string `json:"base,omitempty"` // its name; none: there is no small state
	BaseBytes    uint64 `json:"baseBytes"`
	Changes      string `json:"changes,omitempty"` // what changed since the base was written
	ChangesBytes uint64 `json:"changesBytes"`
}

func inspectState(s *manifest.State) (in InspectedState) {
	if s.GetState() != nil {
		in.Base, in.BaseBytes = s.GetState().ID().Name(), s.GetStateSize()
	}
	if s.GetStateChanges() != nil {
		in.Changes, in.ChangesBytes = s.GetStateChanges().ID().Name(), s.GetStateChangesSize()
	}
	return in
}

// InspectedObsolete is what waits for the collector.
type InspectedObsolete struct {
	Objects     int    `json:"objects"` // tables of dropped segments of groups included
	Bytes       uint64 `json:"bytes"`
	NotYetTimed int    `json:"notYetTimed"` // whose grace has not begun
}

// Inspect reads LOG, MANIFEST and the indexes of groups (their tails, and their lists of tables, a MiB
// at a time), and lists the store, one request per 1,000 objects. It reads no data and writes
// nothing, and may run beside a writer.
// Errors are those of manifest.Load and of the store; what is wrong with indexes, and what is not there, is in Damage.
func Inspect(ctx context.Context, store objstore.Store) (*Inspection, error) {
	env := base.SystemEnv()
	snap, err := manifest.Load(ctx, store, env, tree) // says what is wrong if one of the two is missing
	if err != nil {
		return nil, fmt.Errorf("inspect %s: %w", store, err)
	}
	log, err := manifest.LoadLog(ctx, store)
	if err != nil {
		return nil, fmt.Errorf("inspect %s: %w", store, err)
	}
	s := snap.State
	in := &Inspection{
		Store:           store.String(),
		LogID:           hex.EncodeToString(s.GetLogId()),
		FormatVersion:   log.GetFormatVersion(),
		ManifestVersion: s.GetVersion(),
		StoreTime:       snap.StoreTime.UTC(),
		WriterEpoch:     s.GetWriter().GetEpoch(),
		CompactorEpoch:  s.GetCompactor().GetEpoch(),
		CompactorBeat:   s.GetCompactorBeat(),
		Position:        InspectedPosition(s.GetPosition().Pos()),
		FlushedEnd:      s.GetFlushedEnd(),
		SeqLimit:        s.GetSeqLimit(),
		Clean:           s.CleanNext != nil,
		Groups:          []InspectedGroup{},
		State:           inspectState(s),
		Pins:            len(s.GetPins()),
	}
	i := inspector{ctx: ctx, tables: uncached(store, env), snap: snap, in: in}
	i.names = newNamer(i.tables, s)
	if err := i.run(store); err != nil {
		return nil, fmt.Errorf("inspect %s: %w", store, err)
	}
	return in, nil
}

// inspector fills in an inspection.
type inspector struct {
	ctx    context.Context
	tables *tables
	names  *namer
	snap   *manifest.Snapshot
	in     *Inspection
}

func (i *inspector) run(store objstore.Store) error {
	s := i.snap.State
	for _, g := range s.GetGroups() {
		if err := i.group(g); err != nil {
			return err
		}
	}
	for _, g := range s.GetSegments() {
		i.segment(g)
	}
	if err := i.obsolete(); err != nil {
		return err
	}
	return i.totals(store)
}

// damaged notes what is wrong with the index of a range, once; what kept us from looking is
// returned.
func (i *inspector) damaged(r *listedRange, err error) error {
	_, err = i.names.unknown(listPart{r.index.ULID, wholeIndex}, r, err)
	return err
}

// group describes a group by its line, and its segments by the table of contents of its index.
func (i *inspector) group(g *manifest.Group) error {
	sealed := millis(g.GetLastSealTimeMs())
	i.in.Groups = append(i.in.Groups, InspectedGroup{
		ID: hex.EncodeToString(g.GetId()), Index: g.GetIndex().ID().Name(),
		FirstSegment: g.GetFirstSegment(), LastSegment: g.GetLastSegment(), Segments: int(g.GetSegments()),
		Start: g.GetFirstSequence(), End: g.GetEndSequence(), Started: timeOf(g.GetStartTimeMs()),
		SealedAt: sealed, AgeSeconds: i.age(sealed), OldestAge: i.age(millis(g.GetFirstSealTimeMs())),
		Tables: int(g.GetTables()), Records: g.GetRecords(), Bytes: g.GetBytes(), StoredBytes: g.GetStoredBytes(),
		IndexBytes: g.GetIndexSize(), Keys: g.GetKeys(), Shards: int(g.GetShards()), ShardBytes: int(g.GetShardBytes()),
	})
	r := liveRange(g)
	lists, err := openLists(i.ctx, i.tables, &r)
	if err == nil {
		err = lists.index.Check(g)
	}
	if err != nil {
		return i.damaged(&r, err)
	}
	x := lists.index
	from, to := x.Live(g)
	for at := from; at < to; at++ {
		listed := x.Segment(at)
		seg := i.window(listed.GetSegment())
		seg.Group = hex.EncodeToString(g.GetId())
		seg.Tables, seg.Records = int(listed.GetTables()), listed.GetRecords()
		seg.Bytes, seg.StoredBytes = listed.GetBytes(), listed.GetStoredBytes()
		i.in.Segments = append(i.in.Segments, seg)
	}
	return nil
}

func (i *inspector) segment(g *manifest.Segment) {
	seg := i.window(g)
	for _, r := range g.GetRuns() {
		for _, t := range r.GetTables() {
			seg.Tables++
			seg.Records += t.GetRecords()
			seg.Bytes += t.GetBytes()
			seg.StoredBytes += t.GetSize()
		}
	}
	i.in.Segments = append(i.in.Segments, seg)
}

// window describes a segment without its tables.
func (i *inspector) window(g *manifest.Segment) InspectedSegment {
	seg := InspectedSegment{
		ID: g.GetId(), LastID: g.Last(), Start: g.GetFirstSequence(), End: i.in.FlushedEnd,
		Sealed: g.GetSealed(), Started: timeOf(g.GetStartTimeMs()), Runs: len(g.GetRuns()),
	}
	if g.GetSealed() {
		t := millis(g.GetSealTimeMs())
		seg.End, seg.SealedAt, seg.AgeSeconds = g.GetEndSequence(), &t, i.age(t)
	}
	return seg
}

// age is how long ago a time was, in seconds, by the store's time.
func (i *inspector) age(t time.Time) float64 { return max(0, i.snap.StoreTime.Sub(t).Seconds()) }

// timeOf converts a record timestamp; 0 is none.
func timeOf(ms int64) *time.Time {
	if ms == 0 {
		return nil
	}
	t := millis(ms)
	return &t
}

// obsolete counts what waits for the collector. How many tables a range of an index's segments has, the
// index knows.
func (i *inspector) obsolete() error {
	s, o := i.snap.State, &i.in.Obsolete
	sizes := sizesOfIndexes(s)
	for _, e := range s.GetObsolete() {
		o.Bytes += e.GetSize()
		n := 1
		if e.GetSegmentsOnly() {
			r := droppedRange(e, sizes[e.GetRef().ID()])
			var err error
			if n, err = i.tablesOf(&r); err != nil {
				return err
			}
		}
		o.Objects += n
		if e.GetSinceMs() == 0 {
			o.NotYetTimed += n
		}
	}
	return nil
}

// tablesOf returns how many tables a range has, 0 if the index is damaged.
func (i *inspector) tablesOf(r *listedRange) (n int, _ error) {
	lists, err := openLists(i.ctx, i.tables, r)
	if err != nil {
		return 0, i.damaged(r, err)
	}
	from, to, err := lists.positions(r)
	if err != nil {
		return 0, i.damaged(r, err)
	}
	for at := from; at < to; at++ {
		n += int(lists.index.Segment(at).GetTables())
	}
	return n, nil
}
