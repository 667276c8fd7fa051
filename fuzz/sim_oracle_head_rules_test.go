package fuzz

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
	walfile "github.com/annalsdb/annals/wal"
)

// lastRun returns the newest run of a version.
func lastRun(s *manifest.State) *manifest.Run {
	runs := s.GetSegments()[len(s.GetSegments())-1].GetRuns()
	return runs[len(runs)-1]
}

// TestSimOracleCatchesHeads puts versions of MANIFEST that must not be.
func TestSimOracleCatchesHeads(t *testing.T) {
	version := func(change func(*manifest.State)) func(*forge) {
		return func(f *forge) { f.version(change) }
	}
	catches(t, []forgery{
		{"a version is left out", "follows version", version(func(s *manifest.State) { s.Version++ })},
		{"another log", "is of another log", version(func(s *manifest.State) { s.LogId[0]++ })},
		{"seq_limit falls", "I3", version(func(s *manifest.State) { s.SeqLimit-- })},
		{"position goes back", "I4", version(func(s *manifest.State) { s.Position.Id-- })},
		{"timestamps fall", "F17", func(f *forge) {
			f.version(func(s *manifest.State) { s.LastTimestampMs++ })
			f.version(func(s *manifest.State) { s.LastTimestampMs-- })
		}},
		{"the beat falls", "lowers the compactor's beat", func(f *forge) {
			f.version(func(s *manifest.State) { s.CompactorBeat = 9 })
			f.version(func(s *manifest.State) { s.CompactorBeat = 8 })
		}},
		{"an epoch is left out", "has writer 3", version(func(s *manifest.State) {
			s.Writer = &manifest.Owner{Epoch: 3, Id: make([]byte, 16)}
		})},
		{"an epoch is taken twice", "has writer 1", version(func(s *manifest.State) { s.Writer.Id[0]++ })},
		{"a compactor's epoch falls", "has compactor 1", func(f *forge) {
			for range 2 {
				f.version(func(s *manifest.State) {
					s.Compactor = &manifest.Owner{Epoch: s.GetCompactor().GetEpoch() + 1, Id: append(make([]byte, 15), byte(s.GetVersion()))}
				})
			}
			f.version(func(s *manifest.State) { s.Compactor.Epoch-- })
		}},
		{"without a condition", "puts MANIFEST without a condition", func(f *forge) {
			f.o.sent(f.p, fault.Op{Kind: fault.Put, Name: manifestName})
		}},
		{"that cannot be read", "I5: process 100 puts a MANIFEST that cannot be read", func(f *forge) {
			f.o.applied(f.p, fault.Op{Kind: fault.Put, Name: manifestName, Body: []byte("x")}, nil)
		}},
		{"an epoch begins too low", "I3: epoch 2 begins at sequence 6", version(func(s *manifest.State) {
			s.Writer = &manifest.Owner{Epoch: 2, Id: make([]byte, 16)}
			s.SeqLimit = 6 + manifest.SeqReserve
		})},
		{"closed too low", "was closed at sequence 6", version(func(s *manifest.State) { s.CleanNext = proto.Uint64(6) })},
		{"position is not durable (F9)", "I1: version", version(func(s *manifest.State) { s.Position.Id = 5 })},
		{"position leaves records behind", "flushed_end 5, and object (1, 3) ends at 7", version(func(s *manifest.State) { s.Position.Id = 4 })},
		{"position passes an epoch without a fence", "epoch 1 has no fence", func(f *forge) {
			f.takeover()
			f.version(func(s *manifest.State) { s.Position = &manifest.Position{Epoch: 2, Id: 1} })
		}},
		{"flushed, and to be replayed", "which is to be replayed, begins at 5", version(func(s *manifest.State) {
			s.FlushedEnd, lastRun(s).End = 7, 7
		})},
		{"records are not flushed", "is not what the log has: 2 records are missing from sequence 5", func(f *forge) {
			f.version(func(s *manifest.State) {
				s.Position.Id, s.FlushedEnd = 4, 7
				g := s.GetSegments()[1]
				g.Runs = append(g.Runs, &manifest.Run{Id: append(make([]byte, 15), 1), Start: 5, End: 7})
			})
		}},
		{"a run changes", "I5: version", version(func(s *manifest.State) {
			lastRun(s).Tables = nil
		})},
		{"a compaction changes a record", "which is not next", func(f *forge) {
			f.o.log.records[3].value = "another"
			f.version(func(s *manifest.State) { lastRun(s).Id[0]++ })
		}},
		{"a compaction leaves out a record", "which is not next", func(f *forge) {
			f.o.log.records = append(f.o.log.records[:3:3], f.o.log.records[4:]...)
			f.version(func(s *manifest.State) { lastRun(s).Id[0]++ })
		}},
		{"a table's line is wrong", "the manifest says", version(func(s *manifest.State) {
			lastRun(s).Id[0]++
			lastRun(s).Tables[0].LowerKey = []byte("aa")
		})},
		{"a segment that is young is dropped (F17)", "F17: version", func(f *forge) { f.drop(1, 1) }},
		{"half a segment is dropped", "which are not whole sealed segments", func(f *forge) {
			time.Sleep(2 * time.Hour)
			before := f.o.head.state
			after := proto.CloneOf(before)
			after.Segments = after.Segments[1:]
			after.Segments[0].FirstSequence = 4
			f.o.head.checkDropped(f.p, before, after)
		}},
		{"a replica drops a segment", "which is no writer, drops segment 1", func(f *forge) {
			time.Sleep(2 * time.Hour)
			f.p.role = simReplica
			f.drop(1, 1)
		}},
		{"sealed in the future (F17)", "F17: version", version(func(s *manifest.State) {
			s.GetSegments()[0].SealTimeMs = time.Now().Add(time.Second).UnixMilli()
		})},
		{"the small state is not that of position", "does not have the small state", func(f *forge) {
			f.ended(simCall{kind: simSetCursors, consumer: "x", cursors: []engine.Cursor{{Key: []byte("a"), Next: 3}}, err: engine.ErrFenced})
			f.land(4, f.object(4, 7, nil, func(b *walfile.Builder) {
				b.AddCursor(walfile.CursorChange{Op: walfile.CursorSet, Consumer: "x", Key: []byte("a"), Next: 3})
			}))
			f.o.log.objects[2].batches, f.o.log.objects[2].First = nil, 7 // as if there were nothing else to flush
			f.version(func(s *manifest.State) { s.Position.Id = 5 })
		}},
	})
}

// drop forges a drop of segments.
func (f *forge) drop(first, last uint32) {
	f.version(func(s *manifest.State) {
		for s.GetSegments()[0].GetId() <= last {
			for _, r := range s.GetSegments()[0].GetRuns() {
				for _, table := range r.GetTables() {
					s.Obsolete = append(s.Obsolete, &manifest.Obsolete{Ref: table.GetRef(), Size: table.GetSize()})
				}
			}
			s.Segments = s.Segments[1:]
		}
	})
}

// TestSimOracleAcceptsADrop is a drop that may be, so that those which may not are told by what is wrong with them.
func TestSimOracleAcceptsADrop(t *testing.T) {
	failure(t, "old", func(t *testing.T) {
		f := newForge(t)
		time.Sleep(2 * time.Hour)
		f.drop(1, 1)
		require.NoError(t, f.o.err())
		require.Equal(t, uint64(3), f.o.head.first)
	})
	failure(t, "too much", func(t *testing.T) {
		f := newForge(t)
		f.p.opts.RetentionBytes = 5
		f.drop(1, 1)
		require.NoError(t, f.o.err())
	})
}

// TestSimOracleCatchesWindows looks at segments and runs that do not lie side by side.
func TestSimOracleCatchesWindows(t *testing.T) {
	for name, change := range map[string]func(*manifest.State){
		"a gap between segments":      func(s *manifest.State) { s.Segments[1].FirstSequence++ },
		"a gap between runs":          func(s *manifest.State) { lastRun(s).Start++ },
		"runs overlap":                func(s *manifest.State) { lastRun(s).Start-- },
		"ids fall":                    func(s *manifest.State) { s.Segments[1].Id = 1 },
		"a run is missing":            func(s *manifest.State) { s.Segments[0].Runs = nil },
		"sealed behind its runs":      func(s *manifest.State) { s.Segments[0].EndSequence++ },
		"the active one is sealed":    func(s *manifest.State) { s.Segments[1].Sealed, s.Segments[1].EndSequence = true, 5 },
		"flushed_end behind the runs": func(s *manifest.State) { s.FlushedEnd++ },
		"a group behind a gap": func(s *manifest.State) {
			s.Groups = []*manifest.Group{{FirstSegment: 1, LastSegment: 1, FirstSequence: 0, EndSequence: 2}}
			s.Segments = s.Segments[1:]
		},
	} {
		failure(t, name, func(t *testing.T) {
			f := newForge(t)
			s := proto.CloneOf(f.o.head.state)
			change(s)
			f.o.head.checkWindows(s)
			require.Error(t, f.o.err())
		})
	}
}

// TestSimOracleCatchesGroups changes what an index lists.
func TestSimOracleCatchesGroups(t *testing.T) {
	for name, change := range map[string]func(*forge, []indexedSegment, *manifest.Group){
		"another table": func(_ *forge, x []indexedSegment, _ *manifest.Group) { x[0].tables[0].Ref.Ulid[0]++ },
		"no table":      func(_ *forge, x []indexedSegment, _ *manifest.Group) { x[0].tables = nil },
		"another run":   func(_ *forge, x []indexedSegment, _ *manifest.Group) { x[0].segment.Runs[0].Id[0]++ },
		"a gap":         func(_ *forge, x []indexedSegment, _ *manifest.Group) { x[0].segment.FirstSequence++ },
		"a part":        func(_ *forge, _ []indexedSegment, g *manifest.Group) { g.EndSequence++ },
		"":              nil,
	} {
		failure(t, name, func(t *testing.T) {
			f := newForge(t)
			s := f.o.head.state.GetSegments()[0]
			id := base.ObjectID{Kind: base.KindIndex, Role: base.RoleCompactor, Epoch: 1}
			x := []indexedSegment{{segment: proto.CloneOf(s), tables: proto.CloneOf(s.GetRuns()[0]).Tables}}
			g := &manifest.Group{Id: make([]byte, 16), Index: manifest.RefOf(id), FirstSegment: 1, LastSegment: 1, EndSequence: s.GetEndSequence()}
			if change != nil {
				change(f, x, g)
			}
			f.o.refs.indexes[id] = x
			f.o.head.checkGroups(f.o.head.state, &manifest.State{Groups: []*manifest.Group{g}})
			if change == nil {
				require.NoError(t, f.o.err())
				return
			}
			require.ErrorContains(t, f.o.err(), "I5")
		})
	}
}

// TestSimOracleCatchesReferences deletes what is needed, and names what is not there (I7).
func TestSimOracleCatchesReferences(t *testing.T) {
	table := func(f *forge) base.ObjectID { return lastRun(f.o.head.state).GetTables()[0].GetRef().ID() }
	remove := func(f *forge, name string) {
		f.o.applied(f.p, fault.Op{Kind: fault.Delete, Names: []string{name}}, nil)
	}
	forget := func(f *forge, obsolete bool) {
		f.version(func(s *manifest.State) {
			t := lastRun(s).GetTables()[0]
			if obsolete {
				s.Obsolete = append(s.Obsolete, &manifest.Obsolete{Ref: t.GetRef(), Size: t.GetSize()})
			}
			lastRun(s).Tables, lastRun(s).Id[0] = nil, lastRun(s).Id[0]+1
		})
		f.o.broken = nil // a run lost its records: that is found elsewhere
	}
	catches(t, []forgery{
		{"a table in force", "was deleted: version", func(f *forge) { remove(f, table(f).Name()) }},
		{"a table of an old view (F25)", "a process may rely on an old version", func(f *forge) {
			id := table(f)
			forget(f, true)
			time.Sleep(f.o.refs.stale - time.Second)
			remove(f, id.Name())
		}},
		{"forgotten", "nor calls it obsolete", func(f *forge) { forget(f, false) }},
		{"named and not there", "names what is not there", func(f *forge) {
			f.version(func(s *manifest.State) { lastRun(s).Tables[0].Ref.Ulid[0]++ })
			f.o.broken = nil
		}},
		{"back again", "brings back", func(f *forge) {
			before := proto.CloneOf(f.o.head.state)
			forget(f, true)
			f.version(func(s *manifest.State) { s.Segments, s.Obsolete = before.Segments, nil })
			f.o.broken = nil
		}},
		{"to be replayed", "replay starts at", func(f *forge) { remove(f, wal(1, 3)) }},
		{"a fence", "it is a fence", func(f *forge) {
			f.takeover()
			f.land(4, walfile.EncodeFence(f.o.log.identity(), 1, 4, 2))
			f.o.refs.state.Position = &manifest.Position{Epoch: 2, Id: 1}
			remove(f, wal(1, 4))
		}},
		{"about to be committed (F24)", "it may be about to be committed", func(f *forge) {
			remove(f, base.ObjectID{Kind: base.KindSST, Role: base.RoleWriter, Epoch: 1, Segment: 2}.Name())
		}},
		{"the head", "nobody collects such an object", func(f *forge) { remove(f, manifestName) }},
	})
}

// TestSimOracleCatchesALostRecord reads, at the end, a log that lost what was acknowledged.
func TestSimOracleCatchesALostRecord(t *testing.T) {
	for name, lose := range map[string]func(f *forge){
		"a record": func(f *forge) {
			f.o.log.keys["a"] = append(f.o.log.keys["a"], &simRecord{key: "a", value: "lost", seq: 6})
		},
		"another record": func(f *forge) { f.o.log.keys["a"][0].value = "another" },
		"a key":          func(f *forge) { f.o.log.keys["z"] = []*simRecord{{key: "z", seq: 6}} },
		"a key too many": func(f *forge) { delete(f.o.log.keys, "b") },
		"a cursor":       func(f *forge) { f.o.small.now.set("x", []engine.Cursor{{Next: 1}}, false) },
		"":               nil,
	} {
		failure(t, name, func(t *testing.T) {
			f := newForge(t)
			f.stage.t = t
			p := f.open(options())
			require.NoError(t, f.o.err())
			if lose != nil {
				lose(f)
			}
			f.o.finish(p.db)
			if lose == nil {
				require.NoError(t, f.o.err())
				return
			}
			require.ErrorContains(t, f.o.err(), "what the last writer reads is not what was put")
		})
	}
}

// TestSimOracleReadsObjects needs objects to be read from the bucket.
func TestSimOracleReadsObjects(t *testing.T) {
	failure(t, "a table is not there", func(t *testing.T) {
		f := newForge(t)
		id := lastRun(f.o.head.state).GetTables()[0].GetRef().ID()
		require.NoError(t, f.mem.Delete(context.Background(), []string{id.Name()}))
		f.version(func(s *manifest.State) { lastRun(s).Id[0]++ })
		require.ErrorIs(t, f.o.err(), objstore.ErrNotFound)
	})
}
