package engine

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/wal"
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

	Segments []InspectedSegment `json:"segments"`
	Obsolete InspectedObsolete  `json:"obsolete"`
	Pins     int                `json:"pins"`
	Totals   InspectedTotals    `json:"totals"`
}

// InspectedPosition is a place in the WAL.
type InspectedPosition struct {
	Epoch uint64 `json:"epoch"`
	ID    uint64 `json:"id"`
}

// InspectedSegment is one segment.
type InspectedSegment struct {
	ID          uint32     `json:"id"`
	LastID      uint32     `json:"lastId"` // the last one merged into it, or ID
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

// InspectedObsolete is what waits for the collector.
type InspectedObsolete struct {
	Objects     int    `json:"objects"`
	Bytes       uint64 `json:"bytes"`
	NotYetTimed int    `json:"notYetTimed"` // whose grace has not begun
}

// InspectedTotals is what the store holds, and what it charges for.
type InspectedTotals struct {
	Objects    int   `json:"objects"`
	Bytes      int64 `json:"bytes"`
	WALObjects int   `json:"walObjects"`
	WALBytes   int64 `json:"walBytes"`
	Fences     int   `json:"fences"`
	Tables     int   `json:"tables"`
	TableBytes int64 `json:"tableBytes"`
	Other      int   `json:"other"` // LOG, MANIFEST, and what annals did not write
	Unnamed    int   `json:"unnamed"`
	// UnnamedBytes are of tables that the manifest does not name: about to be
	// committed, or left by a job that died.
	UnnamedBytes int64 `json:"unnamedBytes"`
}

// Inspect reads LOG and MANIFEST and lists the store, one request per 1,000
// objects. It reads no data and writes nothing, and may run beside a writer.
// Errors are those of manifest.Load and of the store.
func Inspect(ctx context.Context, store objstore.Store) (*Inspection, error) {
	env := base.SystemEnv()
	log, err := manifest.LoadLog(ctx, store)
	if err != nil {
		return nil, fmt.Errorf("inspect %s: %w", store, err)
	}
	snap, err := manifest.Load(ctx, store, env, tree)
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
		Pins:            len(s.GetPins()),
	}
	for _, g := range s.GetSegments() {
		in.Segments = append(in.Segments, inspectSegment(g, s, snap.StoreTime))
	}
	for _, o := range s.GetObsolete() {
		in.Obsolete.Objects++
		in.Obsolete.Bytes += o.GetSize()
		if o.GetSinceMs() == 0 {
			in.Obsolete.NotYetTimed++
		}
	}
	named := manifest.NamedObjects(s)
	err = objstore.ListAll(ctx, store, "", "", func(e objstore.Entry) (bool, error) {
		in.Totals.add(e, named)
		return true, nil
	})
	if err != nil {
		return nil, fmt.Errorf("inspect %s: %w", store, err)
	}
	return in, nil
}

func inspectSegment(g *manifest.Segment, s *manifest.State, now time.Time) InspectedSegment {
	seg := InspectedSegment{
		ID: g.GetId(), LastID: max(g.GetId(), g.GetLastId()),
		Start: g.GetFirstSequence(), End: s.GetFlushedEnd(), Sealed: g.GetSealed(), Runs: len(g.GetRuns()),
	}
	if ms := g.GetStartTimeMs(); ms != 0 {
		t := millis(ms)
		seg.Started = &t
	}
	if g.GetSealed() {
		t := millis(g.GetSealTimeMs())
		seg.End, seg.SealedAt, seg.AgeSeconds = g.GetEndSequence(), &t, max(0, now.Sub(t).Seconds())
	}
	for _, r := range g.GetRuns() {
		for _, t := range r.GetTables() {
			seg.Tables++
			seg.Records += t.GetRecords()
			seg.Bytes += t.GetBytes()
			seg.StoredBytes += t.GetSize()
		}
	}
	return seg
}

// add counts one object.
func (t *InspectedTotals) add(e objstore.Entry, named map[base.ObjectID]struct{}) {
	t.Objects++
	t.Bytes += e.Size
	if strings.HasPrefix(e.Name, base.WALPrefix(tree)) {
		if wal.IsFence(e.Size) {
			t.Fences++
			return
		}
		t.WALObjects++
		t.WALBytes += e.Size
		return
	}
	id, ok := base.ParseObjectName(e.Name)
	if !ok || id.Kind != base.KindSST {
		t.Other++
		return
	}
	t.Tables++
	t.TableBytes += e.Size
	if _, ok := named[id]; !ok {
		t.Unnamed++
		t.UnnamedBytes += e.Size
	}
}
