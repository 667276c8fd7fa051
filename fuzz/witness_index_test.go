package fuzz

import (
	"context"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
)

// indexedSegment is a segment of an index and its tables.
type indexedSegment struct {
	segment *manifest.Segment // its run is without tables
	tables  []*manifest.Table
}

func (s *indexedSegment) first() uint32 { return s.segment.GetId() }
func (s *indexedSegment) last() uint32  { return s.segment.Last() }

// addTables adds the tables of the segments first to last of an index.
func (r *references) addTables(to map[base.ObjectID]bool, index base.ObjectID, first, last uint32) {
	segments, ok := r.indexes[index]
	if !ok {
		var err error
		if segments, err = readIndex(r.store, index); err != nil {
			r.broke("read an index that is named: %w", err)
		}
		r.indexes[index] = segments
	}
	for _, s := range segments {
		if s.last() < first || s.first() > last {
			continue
		}
		for _, t := range s.tables {
			to[t.GetRef().ID()] = true
		}
	}
}

// readIndex reads an index whole.
func readIndex(store objstore.Store, id base.ObjectID) ([]indexedSegment, error) {
	obj, err := store.Get(context.Background(), id.Name(), objstore.GetOptions{})
	if err != nil {
		return nil, err
	}
	size := int64(len(obj.Body))
	x, err := manifest.ParseIndex(id, size, obj.Body[max(0, size-manifest.IndexTailBytes):])
	if err != nil {
		return nil, err
	}
	var segments []indexedSegment
	for i := range x.Len() {
		off, n := x.ListRange(i)
		tables, err := x.ParseList(i, obj.Body[off:off+n])
		if err != nil {
			return nil, err
		}
		segments = append(segments, indexedSegment{x.Segment(i).GetSegment(), tables})
	}
	return segments, nil
}
