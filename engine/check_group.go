package engine

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
)

// group checks the segments of a group as those in the MANIFEST, and its index: that it agrees
// with the MANIFEST's line, that its parts are intact, and that its key shards say of each
// segment exactly which keys it has. Segments that were looked at before are passed over.
func (c *checker) group(g *manifest.Group) error {
	r := liveRange(g)
	lists, err := openLists(c.ctx, c.tables, &r)
	if err == nil {
		err = lists.index.Check(g)
	}
	if err == nil {
		err = c.sized(r.index, uint64(r.size))
	}
	if err != nil {
		return c.unread(g, fmt.Errorf("%s were not looked at: %w", describe(g), err))
	}
	c.taken(r.index, affectedByGroup(g))
	c.looked(r.index.Name(), uint64(r.size))
	gc := &groupChecker{c: c, g: g, lists: lists}
	if err := gc.readShards(); err != nil {
		return c.unread(g, fmt.Errorf("the key shards of %s: %w", describe(g), err))
	}
	if err := gc.segments(); err != nil {
		return err
	}
	c.report.Groups++
	return nil
}

// listed is the tables of a segment, or why they are not known.
type listed struct {
	tables []*manifest.Table
	err    error
}

// segments checks the live segments one after the other. The list of the next one is read, and its tables are fetched,
// while one is checked.
func (gc *groupChecker) segments() error {
	c, x := gc.c, gc.lists.index
	from, to := x.Live(gc.g)
	for from < to && x.Segment(from).GetSegment().Last() <= c.upTo {
		from++
	}
	var next listed
	for i := from; i < to; i++ {
		now := next
		if i == from {
			now = gc.list(i)
		}
		if i+1 < to {
			next = gc.list(i + 1)
		}
		segment := x.Segment(i).GetSegment()
		err := now.err
		switch {
		case errors.Is(err, objstore.ErrNotFound):
			return c.unread(gc.g, fmt.Errorf("%s and those after it were not looked at: %w", describeSegment(segment), err))
		case err != nil:
			err = c.found(gc.lists.ref.Name(), affectedByRun(segment, segment.GetRuns()[0]), fmt.Errorf("%s was not looked at: %w", describeSegment(segment), err))
		default:
			err = gc.segment(i, now.tables)
		}
		if err != nil {
			return err
		}
		c.upTo = segment.Last()
		c.report.Segments++
	}
	return nil
}

// list reads the list of the segment at a position of the index, and begins to fetch its tables.
func (gc *groupChecker) list(at int) listed {
	tables, err := gc.lists.list(gc.c.ctx, at)
	if err == nil {
		gc.c.ahead.expect(tables)
	}
	return listed{tables, err}
}

// unread is for a group whose index, or the rest of it, cannot be read. If it was regrouped since the
// walk began, its segments are looked at where they are listed now.
func (c *checker) unread(g *manifest.Group, err error) error {
	index, affected := g.GetIndex().ID(), affectedByGroup(g)
	if !errors.Is(err, objstore.ErrNotFound) {
		return c.found(index.Name(), affected, err)
	}
	now, lerr := c.load()
	if lerr != nil {
		return c.found(base.ManifestName(tree), everything(), lerr)
	}
	if live, _ := c.hasIndex(index)(now.State); live {
		return c.found(index.Name(), affected, err)
	}
	for _, next := range now.State.GetGroups() {
		if next.GetLastSegment() > c.upTo && next.GetFirstSegment() <= g.GetLastSegment() {
			if err := c.group(next); err != nil {
				return err
			}
		}
	}
	return nil
}

// describe says what of the log damage of a group's index affects.
func describe(g *manifest.Group) string {
	return fmt.Sprintf("segments %d to %d, sequences %d to %d,", g.GetFirstSegment(), g.GetLastSegment(), g.GetFirstSequence(), g.GetEndSequence()-1)
}

func describeSegment(s *manifest.Segment) string {
	return fmt.Sprintf("segment %d, sequences %d to %d,", s.GetId(), s.GetFirstSequence(), s.GetEndSequence()-1)
}

// hasIndex tells of a state whether a group of it has the index.
func (c *checker) hasIndex(index base.ObjectID) needed {
	return func(s *manifest.State) (bool, error) {
		return slices.ContainsFunc(s.GetGroups(), func(g *manifest.Group) bool { return g.GetIndex().ID() == index }), nil
	}
}

// dropped checks the lists of segments that were dropped and wait for the collector, which could
// not delete their tables without.
func (c *checker) dropped(s *manifest.State) error {
	ranges := listedRanges(s)
	for i := range ranges {
		r := &ranges[i]
		if !r.dropped {
			continue
		}
		if err := c.droppedLists(r); err != nil {
			still := func(s *manifest.State) (bool, error) { return listsDropped(s, r), nil }
			if err := c.absent(r.index.Name(), nil, fmt.Errorf("the tables of %s cannot be collected: %w", r, err), still); err != nil {
				return err
			}
		}
	}
	return nil
}

// listsDropped reports whether a range is on the obsolete list.
func listsDropped(s *manifest.State, r *listedRange) bool {
	for _, o := range s.GetObsolete() {
		if o.GetSegmentsOnly() && o.GetRef().ID() == r.index && o.GetFirstSegment() == r.first && o.GetLastSegment() == r.last {
			return true
		}
	}
	return false
}

func (c *checker) droppedLists(r *listedRange) error {
	lists, err := openLists(c.ctx, c.tables, r)
	if err != nil {
		return err
	}
	from, to, err := lists.positions(r)
	if err != nil {
		return err
	}
	for i := from; i < to; i++ {
		if _, err := lists.list(c.ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// groupChecker checks one group.
type groupChecker struct {
	c     *checker
	g     *manifest.Group
	lists *listReader

	// base has the base mask of each shard: the segments of which it does not say which keys they
	// have. A shard that cannot be read says nothing of any.
	base []uint64
	// indexed is what the shards say of each segment, in the order of the index.
	indexed []hashSet
}

// readShards checks every shard by itself, and notes what they say.
func (gc *groupChecker) readShards() error {
	x, ref := gc.lists.index, gc.lists.ref
	shape := x.Shape()
	gc.base, gc.indexed = make([]uint64, shape.Shards), make([]hashSet, x.Len())
	together := max(1, listReadAhead/int(shape.ShardBytes))
	var entries uint64
	damaged := false
	for first := 0; first < int(shape.Shards); first += together {
		n := min(together, int(shape.Shards)-first)
		off, size := shape.Range(first)
		body, err := gc.c.tables.read(gc.c.ctx, ref.Name(), off, int64(n)*size)
		if err != nil {
			return err
		}
		for i := first; i < first+n; i++ {
			off, _ := shape.Range(i)
			shard, err := manifest.ParseShard(ref, shape, off, body[int64(i-first)*size:][:size])
			if err != nil {
				low, high := shape.Hashes(i)
				gc.c.damaged(ref.Name(), affectedByGroup(gc.g), fmt.Errorf("%s keys with hashes %010x to %010x: %w", describe(gc.g), uint64(low), uint64(high), err))
				gc.base[i], damaged = ^uint64(0), true
				continue
			}
			entries += uint64(shard.Len())
			gc.note(i, shard)
		}
	}
	if entries != gc.g.GetKeys() && !damaged {
		gc.c.contradicts(ref.Name(), 0, affectedByGroup(gc.g), "%s the key shards have %d entries, the manifest says %d", describe(gc.g), entries, gc.g.GetKeys())
	}
	return nil
}

// note takes up what shard i says.
func (gc *groupChecker) note(i int, shard *manifest.Shard) {
	gc.base[i] = shard.Base()
	for e := range shard.Len() {
		h, mask := shard.Entry(e)
		mixed := mix(h)
		for mask &^= shard.Base(); mask != 0; mask &= mask - 1 {
			gc.indexed[bits.TrailingZeros64(mask)].add(mixed)
		}
	}
}

// silent reports whether no shard says of the segment at a position of the index which keys it has.
func (gc *groupChecker) silent(at int) bool {
	return !slices.ContainsFunc(gc.base, func(mask uint64) bool { return mask>>at&1 == 0 })
}

// says reports whether the shard of a hash says whether the segment has it.
func (gc *groupChecker) says(at int, h manifest.KeyHash) bool {
	off, n := manifest.ShardRange(gc.g, h)
	return gc.base[off/n]>>at&1 == 0
}

// segment checks the segment at a position of the index, and what the key shards say of it.
func (gc *groupChecker) segment(at int, list []*manifest.Table) error {
	c, x := gc.c, gc.lists.index
	full := x.Full(at, list)
	run := full.GetRuns()[0]
	rc := newRunChecker(c, full, run)
	silent := gc.silent(at)
	if !silent {
		rc.hashes = newHashPass(c.o.maxHashes)
	}
	c.report.Runs++
	before := c.report.DamageFound
	if err := rc.check(); err != nil || rc.incomplete || c.report.DamageFound > before {
		return err // not all of its keys are known
	}
	segment, affected := describeSegment(full), affectedByRun(full, run)
	off, _ := x.ListRange(at)
	c.started(full, gc.lists.ref.Name(), off)
	if want := x.Segment(at).GetKeys(); rc.keys != want {
		c.contradicts(gc.lists.ref.Name(), off, affected, "%s has %d keys, the index says %d", segment, rc.keys, want)
	}
	if silent {
		return nil
	}
	var held hashSet
	for pass := rc.hashes; pass != nil; pass = pass.next() {
		if pass != rc.hashes {
			if all, err := c.readKeys(run, pass); err != nil || !all {
				return err
			}
		}
		for _, h := range pass.end() {
			if gc.says(at, h) {
				held.add(mix(h))
			}
		}
	}
	if got := gc.indexed[at]; got != held {
		c.contradicts(gc.lists.ref.Name(), 0, affected, "%s the key shards name %d hashes of keys, which are not those of the %d in its tables",
			segment, got.count, held.count)
	}
	return nil
}

// readKeys gives a pass the keys of a run, by the directories of its tables. It reports false if a
// table could not be read, which is in the report unless the log has gone on.
func (c *checker) readKeys(run *manifest.Run, pass *hashPass) (all bool, _ error) {
	for _, t := range run.GetTables() {
		if err := c.tableKeys(t, pass); err != nil {
			return false, c.absent(t.GetRef().ID().Name(), nil, err, c.isLive(t.GetRef().ID()))
		}
	}
	return true, nil
}

func (c *checker) tableKeys(t *manifest.Table, pass *hashPass) error {
	id := t.GetRef().ID()
	reader, err := openTable(c.ctx, t, &tableSource{tables: c.tables, name: id.Name(), id: id.ULID})
	if err != nil {
		return err
	}
	for keys := reader.Keys(nil); ; {
		key, ok, err := keys.Next(c.ctx)
		if err != nil || !ok {
			return err
		}
		pass.add(manifest.HashKey(key.Key))
	}
}
