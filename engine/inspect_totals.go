package engine

import (
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/wal"
)

// InspectedTotals is what the store holds, and what it charges for.
type InspectedTotals struct {
	Objects    int   `json:"objects"`
	Bytes      int64 `json:"bytes"`
	WALObjects int   `json:"walObjects"`
	WALBytes   int64 `json:"walBytes"`
	Fences     int   `json:"fences"`
	FenceBytes int64 `json:"fenceBytes"`
	Tables     int   `json:"tables"`
	TableBytes int64 `json:"tableBytes"`
	Indexes    int   `json:"indexes"`
	IndexBytes int64 `json:"indexBytes"`
	States     int   `json:"states"`
	StateBytes int64 `json:"stateBytes"`
	Pinned     int   `json:"pinned"` // copies of manifests that were pinned
	PinBytes   int64 `json:"pinBytes"`
	Other      int   `json:"other"` // LOG, MANIFEST, probes, and what annals did not write
	OtherBytes int64 `json:"otherBytes"`
	// Unnamed are written-once objects that the manifest does not name, and no index that it
	// names lists: about to be committed, or left by a job that died.
	Unnamed      int   `json:"unnamed"`
	UnnamedBytes int64 `json:"unnamedBytes"`
	// LiveBytes are of what the log needs now: live tables and indexes, state objects in force, pins, WAL objects that
	// replay would read, fences, LOG and MANIFEST.
	LiveBytes int64 `json:"liveBytes"`
	// SpaceAmplification is Bytes / LiveBytes: 1 at best.
	SpaceAmplification float64 `json:"spaceAmplification"`
}

// totals lists the store.
func (i *inspector) totals(store objstore.Store) error {
	t, s := &i.in.Totals, i.snap.State
	t.LiveBytes = liveBytes(s)
	there := newPresence(s)
	err := objstore.ListAll(i.ctx, store, "", "", func(e objstore.Entry) (bool, error) {
		id, written := t.add(e, s)
		if !written {
			return true, nil
		}
		named, err := i.names.names(i.ctx, id)
		if err == nil && !named {
			t.Unnamed++
			t.UnnamedBytes += e.Size
		}
		there.listed(id, e.Size, named && i.names.listsTable(id))
		return true, err
	})
	if err != nil {
		return err
	}
	for _, d := range i.names.damage {
		i.in.Damage = append(i.in.Damage, d.Error())
	}
	t.SpaceAmplification = float64(t.Bytes) / float64(max(t.LiveBytes, 1))
	return i.present(store, there)
}

// add counts one object, and returns its id if it is one that is written once.
func (t *InspectedTotals) add(e objstore.Entry, s *manifest.State) (id base.ObjectID, written bool) {
	t.Objects++
	t.Bytes += e.Size
	count := func(n *int, bytes *int64) { *n, *bytes = *n+1, *bytes+e.Size }
	if _, epoch, wid, ok := base.ParseWALName(e.Name); ok {
		if wal.IsFence(e.Size) {
			count(&t.Fences, &t.FenceBytes)
			t.LiveBytes += e.Size
			return id, false
		}
		count(&t.WALObjects, &t.WALBytes)
		if at := (manifest.Pos{Epoch: epoch, ID: wid}); !at.Less(s.GetPosition().Pos()) {
			t.LiveBytes += e.Size
		}
		return id, false
	}
	id, ok := base.ParseObjectName(e.Name)
	if !ok {
		count(&t.Other, &t.OtherBytes)
		if e.Name == base.LogName || e.Name == base.ManifestName(tree) {
			t.LiveBytes += e.Size
		}
		return id, false
	}
	switch id.Kind {
	case base.KindSST:
		count(&t.Tables, &t.TableBytes)
	case base.KindIndex:
		count(&t.Indexes, &t.IndexBytes)
	case base.KindState:
		count(&t.States, &t.StateBytes)
		if namesState(s, id) {
			t.LiveBytes += e.Size
		}
	case base.KindPin:
		count(&t.Pinned, &t.PinBytes)
		t.LiveBytes += e.Size
	}
	return id, true
}

// liveBytes returns the bytes of a state's live tables and indexes.
func liveBytes(s *manifest.State) (n int64) {
	for _, g := range s.GetGroups() {
		n += int64(g.GetStoredBytes()) + int64(g.GetIndexSize())
	}
	for _, g := range s.GetSegments() {
		for _, r := range g.GetRuns() {
			for _, t := range r.GetTables() {
				n += int64(t.GetSize())
			}
		}
	}
	return n
}
