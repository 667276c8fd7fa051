package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/sst"
	"github.com/annalsdb/annals/state"
	"github.com/annalsdb/annals/wal"
)

// liar makes a log say what is not so, with every checksum right.
type liar struct {
	*testing.T
	store *mem.Store
}

// state changes the MANIFEST as a commit would: what it then says is valid by itself.
func (l *liar) state(change func(s *manifest.State)) {
	l.Helper()
	env := base.SystemEnv()
	snap, err := manifest.Load(l.Context(), l.store, env, tree)
	require.NoError(l, err)
	_, err = manifest.CommitOne(l.Context(), manifest.CommitterOptions{Store: l.store, Env: env, Start: snap}, manifest.Edit{
		Name: "lie", Apply: func(s *manifest.State) error {
			change(s)
			return nil
		},
	})
	require.NoError(l, err)
}

func (l *liar) get(name string) []byte {
	l.Helper()
	obj, err := l.store.Get(l.Context(), name, objstore.GetOptions{})
	require.NoError(l, err)
	return obj.Body
}

func (l *liar) put(name string, body []byte) {
	l.Helper()
	require.NoError(l, l.store.Delete(l.Context(), []string{name}))
	_, err := l.store.Put(l.Context(), name, body, objstore.PutOptions{})
	require.NoError(l, err)
}

// sealed is the sealed segment that is in no group.
func sealedSegment(s *manifest.State) *manifest.Segment { return s.GetSegments()[0] }

// table puts a table with these records in the place of the first one of the sealed segment, or behind
// it, with a line that is true of the table.
func (l *liar) table(at int, recs ...base.Record) {
	l.Helper()
	l.state(func(s *manifest.State) {
		segment := sealedSegment(s)
		run := segment.Runs[0]
		id := run.Tables[0].GetRef().ID()
		id.ULID = base.SystemEnv().NewULID()
		w := sst.NewWriter(sst.WriterOptions{ID: id.ULID, Segment: id.Segment})
		for _, r := range recs {
			w.Add(r.Key, r.Sequence, r.Timestamp, r.Value)
		}
		body, info := w.Finish()
		l.put(id.Name(), body)
		p := info.Properties
		upper, _ := base.UpperBound(p.LastKey)
		line := &manifest.Table{
			Ref: manifest.RefOf(id), Size: uint64(info.Size), MetaOffset: uint64(info.MetaOffset),
			LowerKey: base.LowerBound(p.FirstKey), UpperKey: upper, FirstSequence: p.FirstSequence, LastSequence: p.LastSequence,
			FirstTimestampMs: p.FirstTimestamp, LastTimestampMs: p.LastTimestamp, Records: p.Records, Keys: p.Keys, Bytes: p.Bytes,
		}
		s.LastTimestampMs = max(s.LastTimestampMs, p.LastTimestamp)
		run.Tables = append(run.Tables[:min(at, len(run.Tables))], line)
		if at == 0 {
			segment.StartTimeMs = p.FirstTimestamp
		}
	})
}

// wal puts a record object where the walk over the WAL ends.
func (l *liar) wal(change func(h *wal.Header), fill func(b *wal.Builder)) {
	l.Helper()
	s := headOf(l.T, l.store)
	at := s.GetPosition().Pos()
	ident := wal.Identity{LogID: [16]byte(s.GetLogId()), Tree: tree}
	h := wal.Header{Identity: ident, Writer: [16]byte(s.GetWriter().GetId()), Epoch: at.Epoch, ID: at.ID, Segment: activeSegment(s).GetId()}
	for ; ; h.ID++ {
		o, _, err := wal.Read(l.Context(), l.store, ident, h.Epoch, h.ID)
		if err != nil {
			break
		}
		h.First, h.PrevEnd, h.Writer, h.Segment = o.End, o.End, o.Writer, o.Segment
	}
	change(&h)
	b := wal.NewBuilder(h, nil)
	fill(b)
	l.put(base.WALName(tree, h.Epoch, h.ID), b.Finish())
}

func oneRecord(timestamp int64) func(b *wal.Builder) {
	return func(b *wal.Builder) {
		b.AddBatch(b.End(), timestamp, []Record{record("k", "v")})
	}
}

const far = 1 << 50 // a timestamp above all others

// lyingLog is a log with groups, a sealed and an active segment, small state, and a tail in the WAL.
func (r *garbageRig) lyingLog() {
	r.t.Helper()
	r.groupedKeys(r.manualOptions()).crash()
	db := r.open(r.manualOptions())
	_, err := db.Append(r.t.Context(), []Record{record("k", "v")}, AppendOptions{Producer: "p", ProducerSequence: 7})
	require.NoError(r.t, err)
	mustSet(r.t, db, "c", cursor("k", 1))
	require.NoError(r.t, db.Flush(r.t.Context()))
	mustAppend(r.t, db, record("tail", "1"))
	mustAppend(r.t, db, record("tail", "2"))
	db.crash()
	checkStore(r.t, r.store)
}

type lie struct {
	tell     func(l *liar)
	kind     DamageKind
	want     string // in the message
	affected string // how the affected part is described; "": no record
}

// first is the first table of the sealed segment.
func firstTable(s *manifest.State) *manifest.Table { return sealedSegment(s).Runs[0].Tables[0] }

// firstLine changes the line of the first table of the sealed segment.
func firstLine(change func(t *manifest.Table)) func(*liar) {
	return func(l *liar) { l.state(func(s *manifest.State) { change(firstTable(s)) }) }
}

// renamed puts the first table of the sealed segment under another name with the same ULID.
func renamed(change func(id *base.ObjectID)) func(*liar) {
	return func(l *liar) {
		l.state(func(s *manifest.State) {
			id := firstTable(s).GetRef().ID()
			body := l.get(id.Name())
			change(&id)
			l.put(id.Name(), body)
			firstTable(s).Ref = manifest.RefOf(id)
		})
	}
}

const inFirst = "segment 6, sequences 205 to 2"

var liesOfTables = map[string]lie{
	"records":         {firstLine(func(t *manifest.Table) { t.Records--; t.Keys-- }), DamageContradiction, "records", inFirst},
	"keys":            {firstLine(func(t *manifest.Table) { t.Keys-- }), DamageContradiction, "keys", inFirst},
	"bytes":           {firstLine(func(t *manifest.Table) { t.Bytes++ }), DamageContradiction, "bytes", inFirst},
	"size":            {firstLine(func(t *manifest.Table) { t.Size++ }), DamageSize, "the manifest says", inFirst},
	"smaller size":    {firstLine(func(t *manifest.Table) { t.Size-- }), DamageSize, "the manifest says", inFirst},
	"metadata":        {firstLine(func(t *manifest.Table) { t.MetaOffset-- }), DamageCorrupt, "", inFirst},
	"first sequence":  {firstLine(func(t *manifest.Table) { t.FirstSequence++; t.LastSequence++ }), DamageContradiction, "sequences", "segment 6, sequences 206"},
	"last sequence":   {firstLine(func(t *manifest.Table) { t.LastSequence-- }), DamageContradiction, "sequences", inFirst},
	"first timestamp": {firstLine(func(t *manifest.Table) { t.FirstTimestampMs-- }), DamageContradiction, "timestamps", inFirst},
	"last timestamp":  {firstLine(func(t *manifest.Table) { t.FirstTimestampMs--; t.LastTimestampMs-- }), DamageContradiction, "timestamps", inFirst},
	"lower key":       {firstLine(func(t *manifest.Table) { t.LowerKey = []byte("a") }), DamageContradiction, "keys", inFirst},
	"upper key":       {firstLine(func(t *manifest.Table) { t.UpperKey = append(t.UpperKey, 0) }), DamageContradiction, "keys", inFirst},
	"another's bytes": {func(l *liar) {
		tables := sealedSegment(headOf(l.T, l.store)).Runs[0].Tables
		l.put(tables[0].GetRef().ID().Name(), l.get(tables[1].GetRef().ID().Name()))
	}, "", "", inFirst},
	"segment in its name": {renamed(func(id *base.ObjectID) { id.Segment = 1 }), DamageContradiction, "its name says 1", inFirst},
	"epoch in its name":   {renamed(func(id *base.ObjectID) { id.Epoch = 99 }), DamageContradiction, "nobody ever had the epoch", inFirst},
	"role in its name":    {renamed(func(id *base.ObjectID) { id.Role, id.Epoch = base.RoleCompactor, 5 }), DamageContradiction, "nobody ever had the epoch", inFirst},
	"a sequence twice": {func(l *liar) {
		l.table(0, rec("a", 210, far), rec("b", 210, far), rec("c", 220, far))
	}, DamageContradiction, "two records of the run have sequence 210", "segment 6, sequences 205 to 245, all keys"},
	"timestamps fall": {func(l *liar) {
		l.table(0, rec("a", 211, far), rec("b", 210, far+1))
	}, DamageContradiction, "the timestamp of record 211 is before that of an earlier one", "segment 6, sequences 205 to 245, all keys"},
	"timestamps fall from run to run": {func(l *liar) {
		l.table(0, rec("a", 210, 1))
	}, DamageContradiction, "the timestamp of record 210 is before that of an earlier one", "segment 6, sequences 205 to 245, all keys"},
	"a key again in the next table": {func(l *liar) {
		last := firstTable(headOf(l.T, l.store)).GetUpperKey()
		l.table(1, rec(string(last), 205, far))
	}, DamageCorrupt, "does not sort behind record", "segment 6, sequences 205 to 205"},
}

// rec is a record of a table.
func rec(key string, seq uint64, timestamp int64) base.Record {
	return base.Record{Key: []byte(key), Sequence: seq, Timestamp: timestamp, Value: []byte("v")}
}

var liesOfHeads = map[string]lie{
	"start of a segment": {func(l *liar) {
		l.state(func(s *manifest.State) { sealedSegment(s).StartTimeMs-- })
	}, DamageContradiction, "segment 6 started at", ""},
	"start without a record": {func(l *liar) {
		l.state(func(s *manifest.State) { activeSegment(s).StartTimeMs++ })
	}, DamageContradiction, "segment 7 started at", ""},
	"last timestamp": {func(l *liar) {
		l.state(func(s *manifest.State) { // what is left is in groups, whose lines do not say it
			s.LastTimestampMs = 1
			for _, segment := range s.Segments {
				for _, run := range segment.Runs {
					run.Tables = nil
				}
			}
			s.Segments = s.Segments[1:]
			s.Segments[0].FirstSequence = s.Groups[1].EndSequence
			s.Segments[0].Runs = []*manifest.Run{{Id: s.Segments[0].Runs[0].Id, Start: s.Groups[1].EndSequence, End: s.FlushedEnd}}
			s.Segments[0].StartTimeMs = 0
		})
	}, DamageContradiction, "the last timestamp is 1, tables have", ""},
	"seq_limit": {func(l *liar) {
		l.state(func(s *manifest.State) { s.SeqLimit = s.FlushedEnd })
	}, DamageContradiction, "above seq_limit", "from"},
	"clean_next": {func(l *liar) {
		l.state(func(s *manifest.State) { next := s.FlushedEnd; s.CleanNext = &next })
	}, DamageContradiction, "of a clean close", "from"},
	"two trees": {func(l *liar) {
		log, err := manifest.LoadLog(l.Context(), l.store)
		require.NoError(l, err)
		log.Trees = []*manifest.Tree{{Id: tree, EndKey: []byte("m")}, {Id: 1, StartKey: []byte("m")}}
		l.put(base.LogName, manifest.EncodeLog(log))
	}, DamageContradiction, "it names 2 trees", "sequences from 0 on, all keys"},
	"size of what is obsolete": {func(l *liar) {
		l.state(func(s *manifest.State) {
			id := orphanOf(base.RoleWriter, 1, 6)
			l.put(id.Name(), make([]byte, 10))
			s.Obsolete = append(s.Obsolete, &manifest.Obsolete{Ref: manifest.RefOf(id), Size: 11})
		})
	}, DamageSize, "size is 10, the manifest says 11", ""},
	"an older writer": {func(l *liar) {
		l.put(orphanOf(base.RoleWriter, 3, 6).Name(), []byte("x"))
	}, DamageContradiction, "it is older than the log: its writer epoch is 2", "sequences from 0 on"},
	"an older compactor": {func(l *liar) {
		l.put(orphanIndex(2).Name(), []byte("x"))
	}, DamageContradiction, "it is older than the log: its compactor epoch is 1", "sequences from 0 on"},
	"an older position": {func(l *liar) {
		l.put(base.WALName(tree, 3, 1), make([]byte, 200))
	}, DamageContradiction, "it is older than the log: its replay position's epoch is 2", "sequences from 0 on"},
}

var liesOfTheWAL = map[string]lie{
	"a gap in sequences": {func(l *liar) {
		l.wal(func(h *wal.Header) { h.First, h.PrevEnd = h.First+5, h.PrevEnd+5 }, oneRecord(far))
	}, DamageCorrupt, "previous object ends at sequence", "sequences from"},
	"segment": {func(l *liar) {
		l.wal(func(h *wal.Header) { h.Segment-- }, oneRecord(far))
	}, DamageCorrupt, "segment 6 after 7", "sequences from"},
	"timestamp": {func(l *liar) {
		l.wal(func(*wal.Header) {}, oneRecord(1))
	}, DamageCorrupt, "timestamp 1 after", "sequences from"},
	"another writer": {func(l *liar) {
		l.wal(func(h *wal.Header) { h.Writer[0]++ }, oneRecord(far))
	}, DamageCorrupt, "the epoch's is", "sequences from"},
	"a writer that never opened": {func(l *liar) {
		l.state(func(s *manifest.State) { s.Writer.Id[0]++ })
	}, DamageContradiction, "it is by writer", "sequences"},
	"a mark of no batch": {func(l *liar) {
		l.wal(func(*wal.Header) {}, func(b *wal.Builder) {
			oneRecord(far)(b)
			b.AddProducer(wal.ProducerMark{Producer: "p", Sequence: 8, First: b.End() - 1, Count: 1, Timestamp: far + 1})
		})
	}, DamageContradiction, "no batch is like it", ""},
	"a fence of nobody": {func(l *liar) {
		s := headOf(l.T, l.store)
		ident := wal.Identity{LogID: [16]byte(s.GetLogId()), Tree: tree}
		l.put(base.WALName(tree, 2, s.GetPosition().GetId()), wal.EncodeFence(ident, 2, s.GetPosition().GetId(), 9))
	}, DamageContradiction, "the fence is of writer epoch 9", "sequences from"},
}

var liesOfTheState = map[string]lie{
	"size": {func(l *liar) {
		l.state(func(s *manifest.State) { s.StateSize++ })
	}, DamageSize, "the manifest says", ""},
	"appends to come": {func(l *liar) {
		id := headOf(l.T, l.store).GetState().ID()
		tables := state.New(state.Limits{Producers: 10})
		tables.Mark("p", state.Mark{Sequence: 1, First: 1 << 40, Count: 1, Timestamp: 1})
		body := tables.EncodeBase(id.ULID)
		l.put(id.Name(), body)
		l.state(func(s *manifest.State) { s.StateSize = uint64(len(body)) })
	}, DamageContradiction, "a producer appended up to sequence", ""},
	"changes for a base": {func(l *liar) {
		id := headOf(l.T, l.store).GetState().ID()
		body := state.New(state.Limits{}).EncodeChanges(id.ULID, base.SystemEnv().NewULID())
		l.put(id.Name(), body)
		l.state(func(s *manifest.State) { s.StateSize = uint64(len(body)) })
	}, DamageContradiction, "a base where the manifest says changes", ""},
	"changes of another base": {func(l *liar) {
		id := headOf(l.T, l.store).GetState().ID()
		id.ULID = base.SystemEnv().NewULID()
		body := state.New(state.Limits{}).EncodeChanges(id.ULID, base.SystemEnv().NewULID())
		l.put(id.Name(), body)
		l.state(func(s *manifest.State) { s.StateChanges, s.StateChangesSize = manifest.RefOf(id), uint64(len(body)) })
	}, DamageContradiction, "changes of base", ""},
}

// pinned pins the bytes of a MANIFEST.
func (l *liar) pinned(body []byte) {
	l.Helper()
	l.state(func(s *manifest.State) {
		id := base.ObjectID{Tree: tree, Kind: base.KindPin, Role: base.RoleWriter, Epoch: 1, ULID: base.SystemEnv().NewULID()}
		l.put(id.Name(), body)
		s.Pins = append(s.Pins, &manifest.Pin{Ref: manifest.RefOf(id), Name: "pin"})
	})
}

var liesOfPins = map[string]lie{
	"a later version": {func(l *liar) {
		s := headOf(l.T, l.store)
		s.Version += 100
		l.pinned(manifest.EncodeState(s))
	}, DamageContradiction, "it is version", ""},
	"another log": {func(l *liar) {
		s := headOf(l.T, l.store)
		s.LogId[0]++
		l.pinned(manifest.EncodeState(s))
	}, DamageContradiction, "of log", ""},
	"no manifest": {func(l *liar) { l.pinned([]byte("no manifest")) }, DamageCorrupt, "", ""},
	"what is gone": {func(l *liar) {
		body := l.get(base.ManifestName(tree))
		gone := headOf(l.T, l.store).GetState()
		l.state(func(s *manifest.State) { s.State, s.StatePosition, s.StateSize = nil, nil, 0 })
		require.NoError(l, l.store.Delete(l.Context(), []string{gone.ID().Name()}))
		l.pinned(body)
	}, DamageMissing, "which is pinned", ""},
}

// Each object is intact, and what it says of itself or of another is not so.
func TestCheckFindsLies(t *testing.T) {
	for of, lies := range map[string]map[string]lie{
		"tables": liesOfTables, "heads": liesOfHeads, "WAL": liesOfTheWAL, "state": liesOfTheState, "pins": liesOfPins,
	} {
		t.Run(of, func(t *testing.T) {
			simulated(t, func(t *testing.T, r *garbageRig) {
				r.lyingLog()
				for name, c := range lies {
					l := &liar{t, r.clone()}
					c.tell(l)
					report, err := Check(context.Background(), l.store, CheckOptions{})
					require.NoError(t, err, name)
					require.True(t, report.Complete)
					require.False(t, report.Sound, name)
					i := slices.IndexFunc(report.Damage, func(d Damage) bool {
						return (c.kind == "" || d.Kind == c.kind) && strings.Contains(d.Message, c.want)
					})
					require.GreaterOrEqual(t, i, 0, "%s: %v", name, report.Damage)
					d := report.Damage[i]
					require.ErrorIs(t, d, ErrCorrupt, name)
					require.NotEmpty(t, d.Object, name)
					if c.affected == "" {
						require.Nil(t, d.Affected, name)
						continue
					}
					require.NotNil(t, d.Affected, name)
					require.Contains(t, fmt.Sprint(d.Affected), c.affected, name)
				}
			})
		})
	}
}
