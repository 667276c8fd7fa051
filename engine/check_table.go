package engine

import (
	"bytes"
	"context"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/sst"
)

// runChecker checks one run.
type runChecker struct {
	c       *checker
	segment *manifest.Segment
	run     *manifest.Run
	name    string    // of the table at hand
	hashes  *hashPass // takes the hashes of the keys; nil: nobody asks

	last       base.Record // the record before, in (key, sequence) order, across tables
	keys       uint64      // distinct ones so far
	order      *orderChecker
	incomplete bool // a table could not be read
}

func newRunChecker(c *checker, segment *manifest.Segment, run *manifest.Run) *runChecker {
	return &runChecker{c: c, segment: segment, run: run, order: newOrderChecker(run.GetStart(), run.GetEnd())}
}

// check checks the tables of the run one by one and against each other, and the run
// against those before it.
func (r *runChecker) check() error {
	last := r.c.lastTime
	for _, t := range r.run.GetTables() {
		id := t.GetRef().ID()
		r.name = id.Name()
		if err := r.table(t, id); err != nil {
			return err
		}
		r.c.lastTime = max(r.c.lastTime, t.GetLastTimestampMs())
	}
	if err := r.order.check(last); err != nil {
		r.c.contradicts(r.name, 0, affectedByRun(r.segment, r.run), "%v", err)
	}
	return nil
}

// record checks one record against those before it.
func (r *runChecker) record(rec *base.Record) error {
	if r.keys > 0 && base.Compare(r.last.Key, r.last.Sequence, rec.Key, rec.Sequence) >= 0 {
		return base.Corruptf(r.name, 0, "record %d of key %.40q does not sort behind record %d of the table before it", rec.Sequence, rec.Key, r.last.Sequence)
	}
	if r.keys == 0 || !bytes.Equal(r.last.Key, rec.Key) {
		r.keys++
		if r.hashes != nil {
			r.hashes.add(manifest.HashKey(rec.Key))
		}
	}
	r.last = *rec
	r.order.add(rec.Sequence, rec.Timestamp)
	return nil
}

// table reads one table whole and compares it with its line in the manifest.
func (r *runChecker) table(t *manifest.Table, id base.ObjectID) error {
	c, affected := r.c, affectedByTable(r.segment, t)
	c.report.Tables++
	source := c.ahead.next(t)
	defer func() {
		c.ahead.done(source)
		c.looked(r.name, t.GetSize())
	}()
	c.taken(id, affected)
	reader, err := openTable(c.ctx, t, source)
	if err == nil {
		err = reader.Verify(c.ctx, r.record)
	}
	if is := source.actual; is != 0 && is != int64(t.GetSize()) {
		c.damaged(r.name, affected, newSizeError(id, is, t.GetSize()))
		if isDamage(err) {
			r.incomplete = true
			return nil // that it ends too early is said
		}
	}
	if err != nil {
		r.incomplete = true
		return c.absent(r.name, affected, err, c.isLive(id))
	}
	c.report.TableRecords += t.GetRecords()
	c.report.Next = max(c.report.Next, t.GetLastSequence()+1)
	r.compare(t, id, reader.Properties(), affected)
	return nil
}

// compare compares what a table says of itself with its line.
func (r *runChecker) compare(t *manifest.Table, id base.ObjectID, p sst.Properties, affected *Affected) {
	check := func(ok bool, format string, args ...any) {
		if !ok {
			r.c.contradicts(r.name, 0, affected, format, args...)
		}
	}
	upper, bounded := base.UpperBound(p.LastKey)
	check(p.Records == t.GetRecords() && p.Keys == t.GetKeys() && p.Bytes == t.GetBytes(),
		"%d records, %d keys, %d bytes; the manifest says %d, %d, %d", p.Records, p.Keys, p.Bytes, t.GetRecords(), t.GetKeys(), t.GetBytes())
	check(p.FirstSequence == t.GetFirstSequence() && p.LastSequence == t.GetLastSequence(),
		"sequences %d to %d; the manifest says %d to %d", p.FirstSequence, p.LastSequence, t.GetFirstSequence(), t.GetLastSequence())
	check(p.FirstTimestamp == t.GetFirstTimestampMs() && p.LastTimestamp == t.GetLastTimestampMs(),
		"timestamps %d to %d; the manifest says %d to %d", p.FirstTimestamp, p.LastTimestamp, t.GetFirstTimestampMs(), t.GetLastTimestampMs())
	check(p.FirstSequence >= r.run.GetStart() && p.LastSequence < r.run.GetEnd(),
		"sequences %d to %d are outside the run's interval [%d, %d)", p.FirstSequence, p.LastSequence, r.run.GetStart(), r.run.GetEnd())
	check(bytes.Equal(base.LowerBound(p.FirstKey), t.GetLowerKey()) && bounded == (t.UpperKey != nil) && bytes.Equal(upper, t.UpperKey),
		"keys %q to %q; the manifest says %q to %q", p.FirstKey, p.LastKey, t.GetLowerKey(), t.UpperKey)
	check(p.Segment == id.Segment, "it was written for segment %d, its name says %d", p.Segment, id.Segment)
	check(p.Segment <= r.segment.Last() && p.Segment >= r.segment.GetId(),
		"it was written for segment %d and is listed in %d", p.Segment, r.segment.GetId())
}

// openTable opens a table as its line says.
func openTable(ctx context.Context, t *manifest.Table, source sst.RangeReader) (*sst.Reader, error) {
	id := t.GetRef().ID()
	return sst.Open(ctx, sst.ReaderOptions{
		Name: id.Name(), ID: id.ULID, Size: int64(t.GetSize()), MetaOffset: int64(t.GetMetaOffset()), Source: source,
	})
}

// isLive tells of the newest version whether a run of it has the table.
func (c *checker) isLive(id base.ObjectID) needed {
	return func(s *manifest.State) (bool, error) {
		if c.live == nil {
			c.live = newLiveTables(c, s)
		}
		return c.live.has(id)
	}
}

// liveTables tells which tables a version has in its runs. It is asked for each table that is missing, which may be many: it
// keeps what the version says itself, and the list of the index that it looked at last.
type liveTables struct {
	c      *checker
	groups []*manifest.Group
	direct map[base.ObjectID]struct{}
	lists  *listReader
	at     int // the segment of the index that listed is about
	listed map[base.ObjectID]struct{}
}

func newLiveTables(c *checker, s *manifest.State) *liveTables {
	l := &liveTables{c: c, groups: s.GetGroups(), direct: make(map[base.ObjectID]struct{})}
	for _, segment := range s.GetSegments() {
		for _, run := range segment.GetRuns() {
			addTables(l.direct, run.GetTables())
		}
	}
	return l
}

func addTables(set map[base.ObjectID]struct{}, tables []*manifest.Table) {
	for _, t := range tables {
		set[t.GetRef().ID()] = struct{}{}
	}
}

func (l *liveTables) has(id base.ObjectID) (bool, error) {
	if _, ok := l.direct[id]; ok {
		return true, nil
	}
	for _, g := range l.groups {
		if id.Segment >= g.GetFirstSegment() && id.Segment <= g.GetLastSegment() {
			return l.inGroup(g, id)
		}
	}
	return false, nil
}

// inGroup reports whether the list of the segment in a table's name has the table.
func (l *liveTables) inGroup(g *manifest.Group, id base.ObjectID) (bool, error) {
	if l.lists == nil || l.lists.ref != g.GetIndex().ID() {
		r := liveRange(g)
		lists, err := openLists(l.c.ctx, l.c.tables, &r)
		if err != nil {
			return false, err
		}
		l.lists, l.listed = lists, nil
	}
	i, ok := l.lists.index.Find(id.Segment)
	if !ok {
		return false, nil
	}
	if l.listed == nil || l.at != i {
		list, err := l.lists.list(l.c.ctx, i)
		if err != nil {
			return false, err
		}
		l.at, l.listed = i, make(map[base.ObjectID]struct{}, len(list))
		addTables(l.listed, list)
	}
	_, ok = l.listed[id]
	return ok, nil
}
