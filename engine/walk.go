package engine

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/sst"
)

// walk finds, one after another, the tables that hold records of one key in a range of
// sequences: groups and runs in sequence order or, backward, against it. A group is
// looked into when its turn comes, or when the walk looks ahead to it:
//
//  1. What is returned, and its order, does not depend on what was fetched ahead. An
//     error of a step counts when its turn comes, and not if it never does.
//  2. Nothing is fetched ahead before a step had to read from disk or store; then 1, 2, 4, 8, 16
//     steps ahead, fewer when the scan will be content before.
//  3. What was fetched ahead is held here: a cache that keeps nothing costs no second read.
//  4. After end no goroutine of the walk starts anything, and those under way find their
//     context ended.
//
// It belongs to one goroutine. It lives across the chunks of a scan as long as they see the same
// version of the manifest; it holds what is left of that version's runs, but no memtable.
type walk struct {
	c        *core
	ctx      context.Context // the scan's
	key      []byte
	hash     manifest.KeyHash
	rng      Range // served by groups and runs
	since    int64 // forward only: no record before it
	backward bool
	limit    int   // of records; 0: none
	maxBytes int64 // of values; 0: none

	version, memStart uint64 // of the view

	groups   []viewGroup // not yet in queue
	runs     []viewRun   // not yet in queue
	queue    []step      // the next steps, in order
	first    [4]step     // memory of a short queue
	unfolded []step      // memory of unfold
	window   int         // how far to look ahead

	table *viewTable // at which the walk stands
	iter  *sst.Iter  // its records

	taken, records int   // steps taken, records found
	tables         int   // tables with records of the key
	bytes          int64 // of their values
	inline         outcome

	life    context.Context // of what is fetched ahead; nil before the first
	cancel  context.CancelFunc
	running atomic.Int32 // steps under way in the background
	slots   int          // held by steps that were started
}

// step is a part of the log that may hold records of the key: a group, a segment of one, or a table.
type step struct {
	group *viewGroup
	run   indexedRun
	table *viewTable
	known bool // the table holds the key, as an index says
	job   *job // under way, or done, in the background
}

// job is a step that is taken in the background.
type job struct {
	done    chan struct{} // closed when outcome is set
	outcome outcome
}

// outcome is what a step leads to.
type outcome struct {
	steps []step    // of a group or a segment: the steps in its place
	iter  *sst.Iter // of a table: its records, the first of them fetched; nil: it has none
	err   error
	reads atomic.Uint32 // ranges that were not in memory
}

// newWalk begins a walk over what groups and runs of the view hold of the range.
func (it *Iterator) newWalk(v *view, since int64, backward bool) *walk {
	rng := v.onDisk(it.rng)
	w := &walk{
		c: it.c, ctx: it.ctx, key: it.key, rng: rng, since: since, backward: backward,
		limit: it.o.Limit, maxBytes: it.o.MaxBytes,
		version: v.snap.State.GetVersion(), memStart: v.memStart,
		groups: v.groupsIn(rng), runs: v.runsIn(rng),
	}
	if backward {
		w.limit = it.o.Last
	} else if w.limit > 0 {
		w.limit -= it.returned
	}
	if w.maxBytes > 0 {
		w.maxBytes = max(1, w.maxBytes-it.bytes)
	}
	if len(w.groups) > 0 {
		w.hash = manifest.HashKey(w.key)
	}
	return w
}

// of reports whether the walk is one over this view.
func (w *walk) of(v *view) bool {
	return w.version == v.snap.State.GetVersion() && w.memStart == v.memStart
}

// end gives up what is under way.
func (w *walk) end() {
	if w.cancel != nil {
		w.cancel()
	}
	w.leaveTable()
	for i := range w.queue {
		if it := w.queue[i].records(); it != nil {
			it.Close()
		}
	}
	w.c.tables.ahead.give(w.slots)
	w.slots, w.queue, w.groups, w.runs = 0, nil, nil, nil
}

func (w *walk) leaveTable() {
	if w.iter != nil {
		w.iter.Close()
	}
	w.table, w.iter = nil, nil
}

// walkedTo is what next came to.
type walkedTo int

const (
	atRecord walkedTo = iota
	atPause
	atEnd
)

// next returns the next record, or that the range has no more. With pause it also stops between tables
// of a cold log: what comes next is fetched while the caller uses what it has.
func (w *walk) next(pause bool) (Record, walkedTo, error) {
	for {
		if w.iter == nil {
			if ok, err := w.nextTable(); !ok || err != nil {
				return Record{}, atEnd, err
			}
		}
		rec, ok, err := w.iter.Next(w.ctx)
		if err != nil {
			return Record{}, atEnd, tableError(w.table, err)
		}
		if ok {
			w.records++
			w.bytes += int64(len(rec.Value))
			return rec, atRecord, nil
		}
		w.leaveTable()
		if pause && w.window > 0 {
			w.lookAhead(false)
			return Record{}, atPause, nil
		}
	}
}

// nextTable moves to the next table that may have records, or reports that there is none.
func (w *walk) nextTable() (bool, error) {
	for w.fill(1) {
		if w.unfold(0) {
			continue
		}
		w.lookAhead(true)
		s := w.queue[0]
		out, err := w.take(&s)
		if err != nil {
			return false, err // the step stays in the queue, where end finds what it has fetched ahead
		}
		w.queue[0] = step{}
		w.queue = w.queue[1:]
		w.taken++
		switch {
		case out.reads.Load() > 0:
			w.window = min(max(1, 2*w.window), maxWindow)
		case s.run.group == nil: // a table list usually comes with something else
			w.window /= 2
		}
		if out.iter != nil {
			w.table, w.iter = s.table, out.iter
			w.tables++
			w.iter.Continue(w.bytes, 0)
			return true, nil
		}
		if len(out.steps) > 0 {
			w.queue = append(out.steps, w.queue...)
		}
	}
	return false, nil
}

// approach starts the steps behind the table at which the walk stands once it has found all of that, and reads
// ahead in the first of them.
func (w *walk) approach() {
	if w.iter == nil || w.window == 0 || !w.iter.Ending() {
		return
	}
	w.lookAhead(false)
	if len(w.queue) > 0 {
		if next := w.queue[0].records(); next != nil {
			next.Continue(w.bytes, w.iter.Ahead())
			next.LookAhead(w.ctx)
		}
	}
}

// records returns the iterator of a table that was opened in the background, once it is there.
func (s *step) records() *sst.Iter {
	if s.job == nil || !s.job.finished() {
		return nil
	}
	return s.job.outcome.iter
}

// take returns the outcome of a step: its own, if it is not under way yet.
func (w *walk) take(s *step) (*outcome, error) {
	if s.job == nil {
		w.inline = outcome{}
		w.resolve(w.ctx, s, w.hint(), 0, &w.inline)
		return &w.inline, w.inline.err
	}
	select {
	case <-s.job.done:
	case <-w.ctx.Done():
		return nil, w.ctx.Err()
	}
	w.free()
	return &s.job.outcome, s.job.outcome.err
}

// free gives back the slot of a step.
func (w *walk) free() {
	w.slots--
	w.c.tables.ahead.give(1)
}

// fill brings the queue to n steps, if there are so many.
func (w *walk) fill(n int) bool {
	if len(w.queue) == 0 {
		w.queue = w.first[:0]
	}
	for len(w.queue) < n {
		groups, runs := len(w.groups), len(w.runs)
		switch {
		case !w.backward && groups > 0:
			w.queue = append(w.queue, step{group: &w.groups[0]})
			w.groups = w.groups[1:]
		case !w.backward && runs > 0:
			w.queue = w.appendTables(w.queue, &w.runs[0], false)
			w.runs = w.runs[1:]
		case runs > 0:
			w.queue = w.appendTables(w.queue, &w.runs[runs-1], false)
			w.runs = w.runs[:runs-1]
		case groups > 0:
			w.queue = append(w.queue, step{group: &w.groups[groups-1]})
			w.groups = w.groups[:groups-1]
		default:
			return false
		}
	}
	return true
}

// appendTables appends a step for each table of the run that may hold a record of the scan. exact says
// that the run holds the key.
func (w *walk) appendTables(dst []step, run *viewRun, exact bool) []step {
	n := len(dst)
	tables := run.covering(w.key)
	for i := range tables {
		t := &tables[i]
		if t.overlaps(w.rng) && t.lastTime >= w.since {
			// Of several tables one may have the key, or all: their filters know.
			dst = append(dst, step{table: t, known: exact && len(tables) == 1})
		}
	}
	if w.backward {
		slices.Reverse(dst[n:])
	}
	return dst
}

// lookAhead starts the next steps of the queue, as far as the window goes; without the first one, if
// that is about to be taken. It replaces groups and segments that are done by what they lead to. A scan
// with a limit does not open tables behind a group or segment that may have all it wants.
func (w *walk) lookAhead(taking bool) {
	n := w.window
	if w.limit > 0 && w.records > 0 {
		// As many steps as so many records took so far.
		left := min(w.limit-w.records, 1<<20)
		n = min(n, left*w.taken/w.records+1)
	}
	i, sure, unsure := 0, 0, false // records that the steps before i give at least; they may give any number
	pass := func(s *step) {
		sure += s.atLeast()
		unsure = unsure || s.table == nil && w.limit > 0
		i++
	}
	if taking {
		pass(&w.queue[0])
	}
	for i <= n && w.fill(i+1) && (w.limit == 0 || sure < w.limit-w.records) {
		s := &w.queue[i]
		switch {
		case w.unfold(i):
		case s.job == nil:
			if !(s.table != nil && unsure) && !w.start(s) {
				return
			}
			pass(s)
		case s.table == nil && s.job.finished():
			steps := s.job.outcome.steps
			w.free()
			w.queue = slices.Replace(w.queue, i, i+1, steps...)
		default:
			pass(s)
		}
	}
}

// unfold replaces step i of the queue by the tables of its segment, if their list is at hand.
func (w *walk) unfold(i int) bool {
	s := &w.queue[i]
	if s.job != nil || s.run.group == nil {
		return false
	}
	run := s.run.held(w.c)
	if run == nil {
		return false
	}
	w.unfolded = w.appendTables(w.unfolded[:0], run, s.run.exact)
	w.queue = slices.Replace(w.queue, i, i+1, w.unfolded...)
	return true
}

// atLeast is how many records the step gives at least, unless the range begins or ends within it.
func (s *step) atLeast() int {
	if s.known {
		return 1
	}
	return 0
}

// finished reports whether the job is done and has no error.
func (j *job) finished() bool {
	select {
	case <-j.done:
		return j.outcome.err == nil
	default:
		return false
	}
}

// start takes a step in the background, or reports that too much is under way.
func (w *walk) start(s *step) bool {
	if w.running.Load() >= maxWindow || !w.c.tables.ahead.take(1) {
		return false
	}
	w.slots++
	w.running.Add(1)
	s.job = &job{done: make(chan struct{})}
	step, job, hint, ctx := *s, s.job, w.hint(), w.lifetime()
	w.c.env.Go("prefetch", func() {
		defer close(job.done)
		defer w.running.Add(-1)
		w.resolve(ctx, &step, hint, maxPrefetch, &job.outcome)
	})
	return true
}

// Take implements sst.Background for the read-ahead within tables.
func (w *walk) Take(n int64) bool {
	return w.c.tables.ahead.take(slotsOf(n))
}

// Give implements sst.Background.
func (w *walk) Give(n int64) { w.c.tables.ahead.give(slotsOf(n)) }

// Go implements sst.Background.
func (w *walk) Go(f func(context.Context)) {
	ctx := w.lifetime()
	w.c.env.Go("read ahead", func() { f(ctx) })
}

func (w *walk) lifetime() context.Context {
	if w.life == nil {
		w.life, w.cancel = context.WithCancel(w.ctx)
	}
	return w.life
}

// hint says what the scan still wants of a table.
func (w *walk) hint() sst.Hint {
	var h sst.Hint
	if w.maxBytes > 0 {
		h.Bytes = max(1, w.maxBytes-w.bytes)
	}
	if w.limit > 0 {
		h.Records = max(1, w.limit-w.records)
	}
	return h
}

// resolve takes one step, and fetches at most so many bytes of records. It may be called from any
// goroutine: it uses only what does not change.
func (w *walk) resolve(ctx context.Context, s *step, hint sst.Hint, most int64, out *outcome) {
	switch {
	case s.group != nil:
		var runs []indexedRun
		if runs, out.err = w.c.lookUp(ctx, s.group, w.hash, w.rng, nil, &out.reads); out.err != nil {
			return
		}
		for i := range runs {
			out.steps = append(out.steps, step{run: runs[i]})
		}
		if w.backward {
			slices.Reverse(out.steps)
		}
	case s.table == nil:
		var run *viewRun
		if run, out.err = s.run.load(ctx, w.c, &out.reads); out.err == nil {
			out.steps = w.appendTables(nil, run, s.run.exact)
		}
	default:
		out.iter, out.err = w.open(ctx, s, hint, most, &out.reads)
		out.err = tableError(s.table, out.err)
	}
}

// open opens a table and fetches the first records of the scan in it; nil: it has none.
func (w *walk) open(ctx context.Context, s *step, hint sst.Hint, most int64, reads *atomic.Uint32) (*sst.Iter, error) {
	if err := w.c.checkFresh(); err != nil {
		return nil, err
	}
	reader, err := w.c.tables.open(ctx, s.table, opening{reads: reads, known: s.known, background: w})
	if err != nil {
		return nil, err
	}
	if w.backward {
		return prime(ctx, reader.ScanBackward(w.key, w.rng, hint), most, reads)
	}
	rng := w.rng
	if w.since > s.table.firstTime {
		seq, ok, err := reader.SeekTimestamp(ctx, w.key, rng, w.since)
		if err != nil || !ok {
			return nil, err
		}
		rng.Start = seq
	}
	return prime(ctx, reader.Scan(w.key, rng, hint), most, reads)
}

// prime fetches what fits into most, and counts what does not.
func prime(ctx context.Context, it *sst.Iter, most int64, reads *atomic.Uint32) (*sst.Iter, error) {
	err := it.Prime(ctx, most)
	if it.Late() {
		reads.Add(1)
	}
	return it, err
}
