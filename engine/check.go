package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/objstore"
)

// CheckOptions of Check. The zero value is usable.
type CheckOptions struct {
	// Env is the clock and goroutine starts. Default: the system's.
	Env *base.Env
	// Progress, if set, is called after each table, index, state or WAL object, by the goroutine that called Check.
	Progress func(CheckProgress)

	maxHashes int // a constant, but for tests
}

// CheckProgress says how far a walk has come.
type CheckProgress struct {
	Object  string // the one that was looked at last
	Objects int
	Bytes   int64 // of the objects so far
	Total   int64 // of all that the MANIFEST names; the WAL comes on top of it
}

// Check walks everything that is reachable in the log and verifies every
// checksum, order, count, interval and reference: LOG, MANIFEST, each index of a
// group, each table and state object whole, and the WAL from where replay would start. An index must
// say exactly which keys its segments have, as far as it says it. It lists the store too, and says what in it the log
// does not need. It only reads, holds one table's blocks or one state object and at most 280 MiB more at a time, whatever
// is wrong and however large the log is, and may run beside a writer, a compactor and a collector: what is gone because
// the log has gone on is no damage.
//
// It returns an error only when it could not look (the store's error, the context's, or no log
// there); what it found wrong is in the report. With an error too the report says what was found until then.
func Check(ctx context.Context, store objstore.Store, o CheckOptions) (*CheckReport, error) {
	if o.Env == nil {
		o.Env = base.SystemEnv()
	}
	if o.Progress == nil {
		o.Progress = func(CheckProgress) {}
	}
	setDefault(&o.maxHashes, maxHashes)
	c := &checker{ctx: ctx, store: store, o: o, tables: uncached(store, o.Env)}
	c.report = &CheckReport{Store: store.String(), Damage: []Damage{}}
	c.ahead = newAheadReader(ctx, c.tables)
	defer c.ahead.close()
	err := c.run()
	r := c.report
	r.DamageLeftOut = r.DamageFound - len(r.Damage)
	if err != nil {
		r.Stopped = err.Error()
		return r, fmt.Errorf("check %s: %w", store, err)
	}
	r.Complete, r.Sound = true, r.DamageFound == 0
	return r, nil
}

// LostLog returns the bytes of the object LOG of a log that has lost it, made from its MANIFEST. It writes nothing. Errors:
// manifest.ErrLogExists, and those of reading the MANIFEST.
func LostLog(ctx context.Context, store objstore.Store) ([]byte, error) {
	body, err := manifest.LostLog(ctx, store, base.SystemEnv(), tree)
	if err != nil {
		return nil, fmt.Errorf("make LOG of %s anew: %w", store, err)
	}
	return body, nil
}

// checker is one walk. It belongs to one goroutine; what it reads ahead comes from others.
type checker struct {
	ctx    context.Context
	store  objstore.Store
	o      CheckOptions
	tables *tables
	ahead  *aheadReader
	report *CheckReport

	progress CheckProgress
	head     *manifest.Snapshot // the version that was read last
	live     *liveTables        // of head; nil: nobody asked
	// lastTime is the highest timestamp of the runs before the one at hand.
	lastTime int64
	upTo     uint32       // the last segment of a group that was looked at
	walEnd   manifest.Pos // where the walk over the WAL ended
	// newest is the highest that the versions that were read say: the log goes on beside the walk.
	newest struct {
		writer, compactor, position uint64 // epochs
		lastTime                    int64
	}
}

// run looks at the heads, and then at what they name.
func (c *checker) run() error {
	snap, err := c.load()
	if errors.Is(err, manifest.ErrNoLog) {
		if used := manifest.Unused(c.ctx, c.store, c.o.Env, tree); used != nil {
			err = used
		}
	}
	switch {
	case errors.Is(err, manifest.ErrMissingManifest), errors.Is(err, manifest.ErrMissingHeads):
		c.damaged(base.ManifestName(tree), everything(), err)
		return nil
	case errors.Is(err, manifest.ErrMissingLog):
		c.damaged(base.LogName, everything(), err)
		return nil
	case errors.Is(err, ErrCorrupt):
		c.damaged("", everything(), err)
		return nil
	case err != nil:
		return err
	}
	return c.walk(snap)
}

// load reads the heads, at the beginning and whenever it matters whether the log has gone on. When it has not, that costs
// one request.
func (c *checker) load() (*manifest.Snapshot, error) {
	var err error
	snap := c.head
	if snap == nil {
		snap, err = manifest.Load(c.ctx, c.store, c.o.Env, tree)
	} else {
		snap, _, err = manifest.Poll(c.ctx, c.store, c.o.Env, tree, snap.ETag)
	}
	if err != nil {
		return nil, err
	}
	if snap == nil {
		return c.head, nil
	}
	c.head, c.live = snap, nil
	s, n := snap.State, &c.newest
	n.writer, n.compactor = max(n.writer, s.GetWriter().GetEpoch()), max(n.compactor, s.GetCompactor().GetEpoch())
	n.position, n.lastTime = max(n.position, s.GetPosition().GetEpoch()), max(n.lastTime, s.GetLastTimestampMs())
	return snap, nil
}

// note takes up damage.
func (c *checker) note(d Damage) {
	c.report.DamageFound++
	if len(c.report.Damage) < maxCheckDamage {
		c.report.Damage = append(c.report.Damage, d)
	}
}

func (c *checker) damaged(object string, affected *Affected, err error) {
	c.note(newDamage(object, affected, err))
}

// contradicts notes that an object is intact and does not agree with another.
func (c *checker) contradicts(object string, offset int64, affected *Affected, format string, args ...any) {
	d := newDamage(object, affected, base.Corruptf(object, offset, format, args...))
	d.Kind = DamageContradiction
	c.note(d)
}

// found sorts an error: damage goes to the report, what kept us from looking is
// returned.
func (c *checker) found(object string, affected *Affected, err error) error {
	if isDamage(err) || isNewer(err) || errors.Is(err, manifest.ErrMissingManifest) {
		c.damaged(object, affected, err)
		return nil
	}
	return err
}

// needed tells of a state whether the log still needs an object.
type needed func(*manifest.State) (bool, error)

// absent is found for an error that may say that an object is not there: that is no damage
// if the log has gone on since the walk began and needs it no longer.
func (c *checker) absent(object string, affected *Affected, err error, still needed) error {
	if errors.Is(err, objstore.ErrNotFound) {
		return c.confirmed(object, affected, err, still)
	}
	return c.found(object, affected, err)
}

// confirmed is found for damage of an object that the log may have left behind since the walk began.
func (c *checker) confirmed(object string, affected *Affected, err error, still needed) error {
	if !isDamage(err) && !isNewer(err) {
		return err
	}
	now, lerr := c.load()
	if lerr != nil {
		return c.found(base.ManifestName(tree), everything(), lerr)
	}
	live, lerr := still(now.State)
	if lerr != nil {
		return c.found(object, affected, lerr)
	}
	if live {
		c.damaged(object, affected, err)
	}
	return nil
}

// looked notes that an object was looked at.
func (c *checker) looked(object string, bytes uint64) {
	p := &c.progress
	p.Object, p.Objects, p.Bytes = object, p.Objects+1, p.Bytes+int64(bytes)
	c.report.Bytes = p.Bytes
	c.o.Progress(*p)
}

// sized checks that an object is there, with the size that what refers to it says.
func (c *checker) sized(id base.ObjectID, size uint64) error {
	head, err := c.store.Head(c.ctx, id.Name())
	if err != nil {
		return fmt.Errorf("look at %s: %w", id.Name(), err)
	}
	if head.Size != int64(size) {
		return newSizeError(id, head.Size, size)
	}
	return nil
}

// sizeError says that an object has another size than it should have. It matches ErrCorrupt.
type sizeError struct{ base.CorruptError }

func (e *sizeError) Unwrap() error { return &e.CorruptError }

func newSizeError(id base.ObjectID, is int64, want uint64) error {
	return &sizeError{base.CorruptError{Object: id.Name(), Reason: fmt.Sprintf("size is %d, the manifest says %d", is, want)}}
}

// taken checks that the epoch in the name of an object that is named was ever taken.
func (c *checker) taken(id base.ObjectID, affected *Affected) {
	if id.Tree == tree && (id.Epoch < 1 || id.Epoch > c.epoch(id.Role)) {
		c.contradicts(id.Name(), 0, affected, "it is named, and nobody ever had the epoch in its name: the MANIFEST's is %d", c.epoch(id.Role))
	}
}

// epoch is the newest epoch of a role.
func (c *checker) epoch(role base.Role) uint64 {
	if role == base.RoleWriter {
		return c.newest.writer
	}
	return c.newest.compactor
}

func (c *checker) walk(snap *manifest.Snapshot) error {
	s, r := snap.State, c.report
	r.ManifestVersion = s.GetVersion()
	r.Epoch, r.CompactorEpoch = s.GetWriter().GetEpoch(), s.GetCompactor().GetEpoch()
	r.Next, r.Pins = s.GetFlushedEnd(), len(s.GetPins())
	c.progress.Total = liveBytes(s) + int64(s.GetStateSize()+s.GetStateChangesSize())
	if err := c.features(s); err != nil {
		return err
	}
	for _, g := range s.GetGroups() {
		if err := c.group(g); err != nil {
			return err
		}
	}
	if err := c.segments(s); err != nil {
		return err
	}
	for _, part := range []func(*manifest.State) error{c.dropped, c.smallState, c.pins} {
		if err := part(s); err != nil {
			return err
		}
	}
	if err := c.wal(s); err != nil {
		return err
	}
	if c.lastTime > c.newest.lastTime {
		c.contradicts(base.ManifestName(tree), 0, nil, "the last timestamp is %d, tables have %d", c.newest.lastTime, c.lastTime)
	}
	return c.objects(s)
}

// features checks that MANIFEST asks for what LOG asks for: a process that is running sees MANIFEST only.
func (c *checker) features(s *manifest.State) error {
	log, err := manifest.LoadLog(c.ctx, c.store)
	if err != nil {
		return c.found(base.LogName, everything(), err)
	}
	if !slices.Equal(log.GetRequiredFeatures(), s.GetRequiredFeatures()) {
		c.contradicts(base.ManifestName(tree), 0, everything(), "it requires the features %q, LOG requires %q", s.GetRequiredFeatures(), log.GetRequiredFeatures())
	}
	if n := len(log.GetTrees()); n != 1 || log.GetTrees()[0].GetId() != tree {
		c.contradicts(base.LogName, 0, everything(), "it names %d trees, and this binary knows logs of tree %d alone", n, tree)
	}
	return nil
}

// segments checks the segments whose tables MANIFEST lists.
func (c *checker) segments(s *manifest.State) error {
	for _, segment := range s.GetSegments() {
		for _, run := range segment.GetRuns() {
			if segment.Last() > c.upTo {
				c.ahead.expect(run.GetTables())
			}
		}
	}
	for _, segment := range s.GetSegments() {
		if segment.Last() <= c.upTo {
			continue // in a group by now
		}
		c.report.Segments++
		for _, run := range segment.GetRuns() {
			c.report.Runs++
			if err := newRunChecker(c, segment, run).check(); err != nil {
				return err
			}
		}
		c.started(segment, base.ManifestName(tree), 0)
	}
	return nil
}

// started checks that a segment began with its first record, as what lists it in an object says.
func (c *checker) started(s *manifest.Segment, object string, offset int64) {
	var first int64
	tables := 0
	for _, run := range s.GetRuns() {
		for _, t := range run.GetTables() {
			if tables == 0 || t.GetFirstTimestampMs() < first {
				first = t.GetFirstTimestampMs()
			}
			tables++
		}
	}
	if got := s.GetStartTimeMs(); got != first {
		c.contradicts(object, offset, nil, "segment %d started at %d, its first record is of %d", s.GetId(), got, first)
	}
}
