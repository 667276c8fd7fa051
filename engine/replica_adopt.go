package engine

import (
	"context"
	"errors"

	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/memtable"
	"github.com/annalsdb/annals/wal"
)

// tailState is the replica's place in the log and what it holds of it. Guarded by
// Reader.mu. Invariants:
//
//   - cursor never moves back, and is never below the position of the snapshot. Every
//     record of every WAL object before it is in a memory or, below flushed_end, in a run of the
//     snapshot. It moves by one object that was applied, from a fence to the next epoch, or to the
//     position of a MANIFEST: no id is ever skipped otherwise.
//   - chain is what the object at the cursor must follow. chain.End is the sequence up to
//     which the log is known here, at least the snapshot's flushed_end.
//   - memories are as in view: ascending, adjacent, each within one segment (I6), the last one
//     growing, the first one beginning at or below flushed_end. Records out of Keys are in none.
//   - frontier is chain.End, or was that once: it never falls. A view that has what is
//     below it is published before it moves (I4).
type tailState struct {
	snapshot *manifest.Snapshot
	cursor   manifest.Pos
	chain    wal.Chain
	memories []*memory // never empty
	// recordsEnd is the sequence after the last record that was applied: chain.End, unless an epoch has begun
	// above and has no record yet.
	recordsEnd uint64
	cursorState
}

// start begins at a MANIFEST.
func (r *Reader) start(snap *manifest.Snapshot) {
	r.restart(snap)
	r.publishView(true)
	r.frontier.Store(r.chain.End)
	r.provedAt(snap.Sent)
}

// replicaMemory is an empty memory for records from a sequence on.
func replicaMemory(segment uint32, start uint64) *memory {
	return &memory{table: memtable.New(), segment: segment, start: start, marks: &marks{}}
}

// restart goes on at a snapshot's position with nothing in memory.
func (s *tailState) restart(snap *manifest.Snapshot) {
	s.snapshot = snap
	s.cursor = snap.State.GetPosition().Pos()
	s.chain = chainFrom(snap.State)
	s.memories = []*memory{replicaMemory(activeSegment(snap.State).GetId(), s.chain.End)}
	s.loaded = false
}

// chainFrom is what the first WAL object at a state's position must follow.
func chainFrom(s *manifest.State) wal.Chain {
	return wal.Chain{
		Started: true, End: s.GetFlushedEnd(), LastTimestamp: s.GetLastTimestampMs(), Segment: activeSegment(s).GetId(),
	}
}

// adopt takes over a newer version of the MANIFEST, as a whole or, to readers, not at all:
// runs, memories and frontier. The committer calls it, in version order.
//
// When position has passed the cursor, objects at the cursor may be collected, and their names
// filled again by a PUT that was delayed: the tail goes on at position, whatever lies before it
// (F33, F47). All of that is below flushed_end, in runs. What the memories have is
// kept if it reaches up to there: then nothing was missed.
func (r *Reader) adopt(snap *manifest.Snapshot) {
	r.mu.Lock()
	announced := r.adoptLocked(snap) &&
		r.followers.announce(announcement{jump: true, frontier: r.frontier.Load()}) // any key may have got records
	r.mu.Unlock()
	if announced {
		r.followers.deliver()
	}
}

// adoptLocked is adopt without those who wait. It reports whether the frontier moved. Callers hold mu.
func (r *Reader) adoptLocked(snap *manifest.Snapshot) (moved bool) {
	r.snapshot = snap
	position, flushed := snap.State.GetPosition().Pos(), snap.State.GetFlushedEnd()
	missed := r.chain.End < flushed
	if missed || r.cursor.Less(position) {
		if r.cursor.Less(position) {
			r.cursor, r.loaded = position, false
		}
		if missed {
			r.memories = []*memory{replicaMemory(activeSegment(snap.State).GetId(), flushed)}
		}
		end := max(r.chain.End, flushed) // an epoch may have begun above, without a record yet
		r.chain = chainFrom(snap.State)
		r.chain.End = end
		r.wakeTail()
	}
	if m := r.active(); m.start < flushed && !m.marks.any(flushed) {
		r.rotate(activeSegment(snap.State).GetId(), flushed) // so that all that is in runs can go
	}
	r.trim()
	for _, m := range r.memories {
		m.marks.forget(flushed)
	}
	r.publishView(true)
	r.provedAt(snap.Sent)
	if missed {
		r.jumps.Add(1)
		r.advance(flushed)
	}
	if r.loaded {
		r.small.tables.Rebase(r.small.tables) // what changed since when is of no interest here
	}
	if errors.Is(r.progress.trouble, errTailFull) && !r.full() {
		r.wakeTail()
	}
	return missed
}

// advance moves the frontier. Callers hold mu and have published a view with all below it.
func (r *Reader) advance(end uint64) {
	if end > r.frontier.Load() {
		r.frontier.Store(end)
	}
}

func (s *tailState) active() *memory { return s.memories[len(s.memories)-1] }

// rotate begins another memory, for a segment, with the records from a sequence on: all
// before it are in the memories so far, or in runs. A memory of nothing it replaces.
func (s *tailState) rotate(segment uint32, end uint64) {
	m := s.active()
	next := replicaMemory(segment, end)
	if flushed := s.snapshot.State.GetFlushedEnd(); m.table.Empty() && !m.marks.any(flushed) {
		if end > flushed {
			next.start = m.start // there is no record in between
		}
		s.memories[len(s.memories)-1] = next
		return
	}
	m.table.Freeze()
	m.end = s.recordsEnd
	m.heap = m.table.Bytes()
	s.memories = append(s.memories, next)
}

// maxTailMemories bounds the memories that are kept beyond need, beside their bytes.
const maxTailMemories = 256

// trim lets go of memories: of those that retention dropped, and of the oldest of those that are in
// runs, until the rest is within TailBytes.
func (r *Reader) trim() {
	first, flushed := firstSequence(r.snapshot.State), r.snapshot.State.GetFlushedEnd()
	heap, n := r.heap(), 0
	for ; n < len(r.memories)-1; n++ {
		m := r.memories[n]
		if m.marks.any(flushed) || m.end > first && heap <= r.opts.TailBytes && len(r.memories)-n <= maxTailMemories {
			break
		}
		heap -= m.heap
	}
	if n > 0 {
		r.memories = append([]*memory(nil), r.memories[n:]...)
	}
}

// heapOf is what a memory occupies.
func (s *tailState) heapOf(m *memory) int64 {
	if m == s.active() {
		return m.table.Bytes()
	}
	return m.heap
}

// heap is what all memories occupy.
func (s *tailState) heap() (n int64) {
	for _, m := range s.memories {
		n += s.heapOf(m)
	}
	return n
}

// full reports whether the memories with records that are not in runs take more than TailBytes.
func (r *Reader) full() bool {
	var heap int64
	for _, m := range r.memories {
		if m.marks.any(r.snapshot.State.GetFlushedEnd()) {
			heap += r.heapOf(m)
		}
	}
	return heap > r.opts.TailBytes
}

// unflushedBytes is the record bytes of the log, as far as it is known, that are not in runs.
func (s *tailState) unflushedBytes() (n int64) {
	for _, m := range s.memories {
		n += int64(m.above(s.snapshot.State.GetFlushedEnd()).bytes)
	}
	return n
}

// publishView installs the view of the snapshot and the memories. Callers hold mu.
func (r *Reader) publishView(snapshotChanged bool) {
	memories := append([]*memory(nil), r.memories...)
	if snapshotChanged {
		r.publish(newView(r.snapshot, memories))
		return
	}
	r.publish(r.view.Load().withMemories(memories))
}

// wakeTail makes the tail look at once.
func (r *Reader) wakeTail() {
	select {
	case r.moved <- struct{}{}:
	default:
	}
}

// headLoop reads the MANIFEST every second until the replica ends.
func (r *Reader) headLoop() {
	for r.env.Sleep(r.life, pollInterval) == nil {
		err := r.poll(r.life)
		if r.life.Err() != nil {
			return
		}
		r.troubles[HeadUnreadable].note(err)
		_, behind := r.lag()
		r.troubles[NotFollowing].note(behind)
		r.tables.tryAgain(r.life, r.spawn)
	}
}

// poll reads the MANIFEST once, and adopts it if it is newer.
func (r *Reader) poll(ctx context.Context) error {
	r.manifestPolls.Add(1)
	s, err := r.committer.Refresh(ctx)
	if err != nil {
		if failsForGood(err) {
			r.fail(err)
		}
		return err
	}
	r.provedAt(s.Sent)
	return nil
}

// passed reads the MANIFEST and reports whether its position has passed the cursor. If not, what
// the store said about the object at the cursor before the call counts: nothing at or above
// position is ever collected, so that its name was not filled a second time.
func (r *Reader) passed(ctx context.Context, cursor manifest.Pos) (bool, error) {
	if err := r.poll(ctx); err != nil {
		return false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cursor != cursor, nil
}
