package engine

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/sst"
	"github.com/annalsdb/annals/wal"
)

// CheckOptions of Check. The zero value is usable.
type CheckOptions struct {
	// Env is the clock and goroutine starts. Default: the system's.
	Env *base.Env
	// Progress, if set, is called after each table or WAL object with its name.
	Progress func(object string)
}

// CheckReport says what Check walked over and what is wrong.
type CheckReport struct {
	ManifestVersion uint64
	Epoch           uint64
	Segments        int
	Runs            int
	Tables          int
	TableRecords    uint64
	WALObjects      int
	WALRecords      uint64 // records behind position, not yet in runs
	Next            uint64 // sequence after the last record found
	// Orphans are tables of a passed epoch that nothing refers to: outputs of jobs
	// that never committed. They cost money, nothing else.
	Orphans []string
	// Damage lists everything that is wrong, each with its object and place. The
	// walk goes on behind damage where it can.
	Damage []error
}

// Err joins the damage into one error, nil if there is none.
func (r *CheckReport) Err() error { return errors.Join(r.Damage...) }

// maxCheckDamage bounds the list of damage (I9).
const maxCheckDamage = 1000

// Check walks everything that is reachable in the log and verifies every
// checksum, order, count, interval and reference: LOG, MANIFEST, each table
// whole, and the WAL from where replay would start. It only reads, holds one
// table's blocks and at most 64 MiB more at a time, and may run beside a writer.
//
// It returns an error only when it could not look (the store's error, or no log
// there); what it found wrong is in the report.
func Check(ctx context.Context, store objstore.Store, o CheckOptions) (*CheckReport, error) {
	if o.Env == nil {
		o.Env = base.SystemEnv()
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	c := &checker{ctx: ctx, store: store, o: o, report: &CheckReport{}, named: make(map[base.ObjectID]bool)}
	snap, err := manifest.Load(ctx, store, o.Env, tree)
	if errors.Is(err, ErrCorrupt) || errors.Is(err, manifest.ErrMissingManifest) || errors.Is(err, manifest.ErrMissingLog) {
		c.damaged(err)
		return c.report, nil
	}
	if err != nil {
		return nil, fmt.Errorf("check %s: %w", store, err)
	}
	if err := c.walk(snap); err != nil {
		return nil, fmt.Errorf("check %s: %w", store, err)
	}
	return c.report, nil
}

// checker is one walk.
type checker struct {
	ctx    context.Context
	store  objstore.Store
	o      CheckOptions
	report *CheckReport
	named  map[base.ObjectID]bool // objects that the manifest refers to
	// lastTime is the highest timestamp of the runs before the one at hand.
	lastTime int64
}

func (c *checker) damaged(err error) {
	if len(c.report.Damage) < maxCheckDamage {
		c.report.Damage = append(c.report.Damage, err)
	}
}

// found sorts an error: damage goes to the report, what kept us from looking is
// returned.
func (c *checker) found(err error) error {
	if errors.Is(err, ErrCorrupt) || errors.Is(err, objstore.ErrNotFound) || errors.Is(err, sst.ErrVersion) || errors.Is(err, wal.ErrVersion) {
		c.damaged(err)
		return nil
	}
	return err
}

// absent is found for an error that may say that an object is not there: that is no damage
// if the log has gone on since the walk began and needs it no longer.
func (c *checker) absent(err error, needed func(*manifest.State) bool) error {
	if errors.Is(err, objstore.ErrNotFound) {
		now, lerr := manifest.Load(c.ctx, c.store, c.o.Env, tree)
		if lerr != nil {
			return c.found(lerr)
		}
		if !needed(now.State) {
			return nil
		}
	}
	return c.found(err)
}

// isLive reports whether a run of the state has the table.
func isLive(s *manifest.State, id base.ObjectID) bool {
	for _, segment := range s.GetSegments() {
		for _, run := range segment.GetRuns() {
			for _, t := range run.GetTables() {
				if t.GetRef().ID() == id {
					return true
				}
			}
		}
	}
	return false
}

func (c *checker) walk(snap *manifest.Snapshot) error {
	s := snap.State
	c.report.ManifestVersion = s.GetVersion()
	c.report.Epoch = s.GetWriter().GetEpoch()
	c.report.Segments = len(s.GetSegments())
	c.report.Next = s.GetFlushedEnd()
	for _, segment := range s.GetSegments() {
		for _, run := range segment.GetRuns() {
			c.report.Runs++
			if err := c.run(segment, run); err != nil {
				return err
			}
		}
	}
	for _, o := range s.GetObsolete() {
		c.named[o.GetRef().ID()] = true
	}
	if err := c.wal(snap); err != nil {
		return err
	}
	return c.orphans(s)
}

// run checks the tables of a run one by one and against each other, and the run
// against the one before it.
func (c *checker) run(segment *manifest.Segment, run *manifest.Run) error {
	rc := &runChecker{c: c, segment: segment, run: run}
	for _, t := range run.GetTables() {
		id := t.GetRef().ID()
		c.named[id] = true
		rc.name = id.Name()
		if err := rc.table(t, id); err != nil {
			return err
		}
	}
	rc.order()
	return nil
}

// maxOrdered bounds the records of a run whose sequences and timestamps are
// compared across keys (I9): they take 16 bytes each. The records of a larger run
// are compared within each key only.
const maxOrdered = 4 << 20

// runChecker checks one run.
type runChecker struct {
	c       *checker
	segment *manifest.Segment
	run     *manifest.Run
	name    string // of the table at hand

	last    base.Record // the record before, in (key, sequence) order, across tables
	any     bool
	times   []sequenceTime
	skipped bool // more than maxOrdered records
}

type sequenceTime struct {
	seq  uint64
	time int64
}

// record checks one record against those before it.
func (r *runChecker) record(rec *base.Record) error {
	if r.any && base.Compare(r.last.Key, r.last.Sequence, rec.Key, rec.Sequence) >= 0 {
		return base.Corruptf(r.name, 0, "record %d of key %.40q does not sort behind record %d of the table before it", rec.Sequence, rec.Key, r.last.Sequence)
	}
	r.last, r.any = *rec, true
	if len(r.times) == maxOrdered {
		r.skipped, r.times = true, nil
	}
	if !r.skipped {
		r.times = append(r.times, sequenceTime{rec.Sequence, rec.Timestamp})
	}
	return nil
}

// order checks that no sequence is used twice (I3) and that timestamps do not
// fall as sequences rise, within the run and from the run before.
func (r *runChecker) order() {
	slices.SortFunc(r.times, func(a, b sequenceTime) int { return cmp.Compare(a.seq, b.seq) })
	last := r.c.lastTime
	for i, t := range r.times {
		if i > 0 && t.seq == r.times[i-1].seq {
			r.c.damaged(base.Corruptf(r.name, 0, "two records of the run have sequence %d", t.seq))
			break
		}
		if t.time < last {
			r.c.damaged(base.Corruptf(r.name, 0, "the timestamp of record %d is before that of an earlier one", t.seq))
			break
		}
		last = t.time
	}
	for _, t := range r.run.GetTables() {
		last = max(last, t.GetLastTimestampMs())
	}
	r.c.lastTime = last
}

// table reads one table whole and compares it with its line in the manifest.
func (r *runChecker) table(t *manifest.Table, id base.ObjectID) error {
	c, name, run, segment := r.c, r.name, r.run, r.segment
	c.report.Tables++
	defer c.o.Progress(name)
	ts := &tables{store: c.store, env: c.o.Env}
	reader, err := sst.Open(c.ctx, sst.ReaderOptions{
		Name: name, ID: id.ULID, Size: int64(t.GetSize()), MetaOffset: int64(t.GetMetaOffset()),
		Source: &tableSource{tables: ts, name: name},
	})
	if err == nil {
		err = reader.Verify(c.ctx, r.record)
	}
	live := func(s *manifest.State) bool { return isLive(s, id) }
	if err != nil {
		return c.absent(err, live)
	}
	head, err := c.store.Head(c.ctx, name)
	if err != nil {
		return c.absent(fmt.Errorf("look at %s: %w", name, err), live)
	}
	p := reader.Properties()
	c.report.TableRecords += p.Records
	c.report.Next = max(c.report.Next, p.LastSequence+1)
	check := func(ok bool, format string, args ...any) {
		if !ok {
			c.damaged(base.Corruptf(name, 0, format, args...))
		}
	}
	upper, bounded := base.UpperBound(p.LastKey)
	check(head.Size == int64(t.GetSize()), "size is %d, the manifest says %d", head.Size, t.GetSize())
	check(p.Records == t.GetRecords() && p.Keys == t.GetKeys() && p.Bytes == t.GetBytes(),
		"%d records, %d keys, %d bytes; the manifest says %d, %d, %d", p.Records, p.Keys, p.Bytes, t.GetRecords(), t.GetKeys(), t.GetBytes())
	check(p.FirstSequence == t.GetFirstSequence() && p.LastSequence == t.GetLastSequence(),
		"sequences %d to %d; the manifest says %d to %d", p.FirstSequence, p.LastSequence, t.GetFirstSequence(), t.GetLastSequence())
	check(p.FirstTimestamp == t.GetFirstTimestampMs() && p.LastTimestamp == t.GetLastTimestampMs(),
		"timestamps %d to %d; the manifest says %d to %d", p.FirstTimestamp, p.LastTimestamp, t.GetFirstTimestampMs(), t.GetLastTimestampMs())
	check(p.FirstSequence >= run.GetStart() && p.LastSequence < run.GetEnd(),
		"sequences %d to %d are outside the run's interval [%d, %d)", p.FirstSequence, p.LastSequence, run.GetStart(), run.GetEnd())
	check(bytes.Equal(base.LowerBound(p.FirstKey), t.GetLowerKey()) && bounded == (t.UpperKey != nil) && bytes.Equal(upper, t.UpperKey),
		"keys %q to %q; the manifest says %q to %q", p.FirstKey, p.LastKey, t.GetLowerKey(), t.UpperKey)
	check(p.Segment <= max(segment.GetId(), segment.GetLastId()) && p.Segment >= segment.GetId(),
		"it was written for segment %d and is listed in %d", p.Segment, segment.GetId())
	return nil
}

// wal checks the WAL from where replay would start: every object up to the first
// fence of each past epoch, and the newest epoch up to its first missing id.
func (c *checker) wal(snap *manifest.Snapshot) error {
	s := snap.State
	ident := wal.Identity{LogID: [16]byte(s.GetLogId()), Tree: tree}
	chain := wal.Chain{
		Started: true, End: s.GetFlushedEnd(), LastTimestamp: s.GetLastTimestampMs(), Segment: activeSegment(s).GetId(),
	}
	at := s.GetPosition().Pos()
	for at.Epoch <= s.GetWriter().GetEpoch() {
		object, _, err := wal.Read(c.ctx, c.store, ident, at.Epoch, at.ID)
		name := base.WALName(tree, at.Epoch, at.ID)
		if errors.Is(err, objstore.ErrNotFound) {
			if err := c.lost(ident, at); err != nil {
				return err
			}
			break
		}
		if err != nil {
			return c.found(err) // what follows cannot be told
		}
		c.o.Progress(name)
		if object.Fence {
			at = manifest.Pos{Epoch: at.Epoch + 1, ID: 1}
			continue
		}
		if err := chain.Accept(name, object); err != nil {
			return c.found(err)
		}
		c.report.WALObjects++
		c.report.WALRecords += object.Records()
		c.report.Next = max(c.report.Next, chain.End)
		at.ID++
	}
	return c.limits(s, chain.End)
}

// lost looks at what lies behind a WAL object that is not there. Usually that is
// the end of the log: nothing, or objects behind a gap that were never
// acknowledged. But a fence is only ever put where all before it exists, and an
// object knows up to which id all were there when it was made.
func (c *checker) lost(ident wal.Identity, at manifest.Pos) error {
	prefix, name := base.WALEpochPrefix(tree, at.Epoch), base.WALName(tree, at.Epoch, at.ID)
	needed := func(s *manifest.State) bool { return !at.Less(s.GetPosition().Pos()) }
	missing := func(why, proof string) error {
		return c.absent(fmt.Errorf("%w: %s is missing, %s %s (%w)", ErrCorrupt, name, why, proof, objstore.ErrNotFound), needed)
	}
	var behind uint64 // the last record object behind it
	err := objstore.ListAll(c.ctx, c.store, prefix, name, func(e objstore.Entry) (bool, error) {
		if wal.IsFence(e.Size) {
			behind = 0
			return false, missing("below the fence", e.Name)
		}
		if _, _, id, ok := base.ParseWALName(e.Name); ok {
			behind = id
		}
		return true, nil
	})
	if err != nil || behind == 0 {
		return err
	}
	o, _, err := wal.Read(c.ctx, c.store, ident, at.Epoch, behind)
	if err != nil || o.Fence || o.Durable < at.ID {
		return nil // an object behind a gap is dead: what is wrong with it does not matter
	}
	return missing("though it was in the store before", base.WALName(tree, at.Epoch, behind))
}

// limits checks what the manifest says about sequences against where the WAL ends.
// A writer at work may have raised them since the walk began.
func (c *checker) limits(s *manifest.State, end uint64) error {
	if end > s.GetSeqLimit() || (s.CleanNext != nil && end > s.GetCleanNext()) {
		now, err := manifest.Load(c.ctx, c.store, c.o.Env, tree)
		if err != nil {
			return c.found(err)
		}
		s = now.State
	}
	if end > s.GetSeqLimit() {
		c.damaged(fmt.Errorf("%w: the WAL ends at sequence %d, above seq_limit %d", ErrCorrupt, end, s.GetSeqLimit()))
	}
	if s.CleanNext != nil && end > s.GetCleanNext() {
		c.damaged(fmt.Errorf("%w: the WAL ends at sequence %d, above the %d of a clean close", ErrCorrupt, end, s.GetCleanNext()))
	}
	return nil
}

// orphans lists tables that nothing refers to and nothing will: those of a passed
// epoch. A table of the current one may be about to be committed.
func (c *checker) orphans(s *manifest.State) error {
	return objstore.ListAll(c.ctx, c.store, base.ObjectPrefix(tree, base.KindSST), "", func(e objstore.Entry) (bool, error) {
		id, ok := base.ParseObjectName(e.Name)
		current := s.GetWriter().GetEpoch()
		if id.Role == base.RoleCompactor {
			current = s.GetCompactor().GetEpoch()
		}
		if ok && !c.named[id] && id.Epoch < current && len(c.report.Orphans) < maxCheckDamage {
			c.report.Orphans = append(c.report.Orphans, e.Name)
		}
		return true, nil
	})
}
