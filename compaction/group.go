package compaction

import (
	"context"
	"errors"
	"fmt"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
)

// A job of Kind Group moves no record. It writes one index (docs/format/idx.md) for the
// segments of its inputs:
//
//	group   -> its key shards, in order, with what is said of dropped segments left out
//	segment -> the key directories of its tables: hashes, sorted
//	        -> merge by hash -> index builder -> PUT
//
// The table lists are taken over from the groups' indexes, or from the MANIFEST's lines of the
// segments; both are checked first.
//
// Memory, however many keys there are: MaxBufferBytes of hashes and shards; the entries of
// the index (at most manifest.MaxEntryBytes) and, when it is finished, the index itself (at
// most manifest.MaxIndexBytes); the table lists (of manifest.MaxGroupTables tables, or those
// of the one segment); and the metadata of dirAhead+1 open tables. With the defaults about
// 220 MiB for the largest index.

// runGroup does a job of Kind Group. The errors are those of Run, and
// manifest.ErrIndexTooLarge, wrapped, when the inputs have too many keys for one index: they
// will have as many next time.
func (r *Runner) runGroup(ctx context.Context, job Job) (*Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := &task{r: r, job: job, limits: r.Limits.checked(), res: &Result{}}
	edit, err := t.group(ctx)
	cancel()
	t.running.Wait() // everything that was started has ended
	t.res.BytesIn, t.res.Gets, t.res.Puts = t.bytesIn.Load(), t.gets.Load(), t.puts.Load()
	if err != nil {
		return t.res, fmt.Errorf("%s: %w", job, err)
	}
	t.res.Regroup, t.res.Edit = edit, edit.Edit()
	return t.res, nil
}

// group writes the index of the job's inputs.
func (t *task) group(ctx context.Context) (manifest.Regroup, error) {
	edit := manifest.Regroup{Epoch: t.r.Epoch}
	if err := t.checkGroup(); err != nil {
		return edit, err
	}
	g := grouping{task: t}
	for _, line := range t.job.Groups {
		if err := g.addGroup(ctx, line); err != nil {
			return edit, err
		}
		edit.Groups = append(edit.Groups, manifest.GroupRef{ID: line.Id, First: line.FirstSegment, Last: line.LastSegment})
	}
	for _, s := range t.job.Segments {
		g.addSegment(s)
		edit.Segments = append(edit.Segments, manifest.SegmentRef{ID: s.Id, Run: s.Runs[0].Id})
	}
	body, line, ref, err := g.build(ctx)
	if err != nil {
		return edit, err
	}
	if line.Records != t.job.Records || line.Bytes != t.job.Bytes || line.StoredBytes != t.job.Stored {
		return edit, fmt.Errorf("the manifest counts %d records of %d bytes in %d, the new index %d of %d in %d",
			t.job.Records, t.job.Bytes, t.job.Stored, line.Records, line.Bytes, line.StoredBytes) // F27
	}
	t.res.Outputs = append(t.res.Outputs, ref)
	t.res.BytesOut += uint64(len(body))
	if err := t.put(ctx, ref.Name(), body); err != nil {
		return edit, err
	}
	edit.Output = line
	return edit, nil
}

// checkGroup refuses inputs that are not neighbours (I5), and segments that a compaction may
// still change.
func (t *task) checkGroup() error {
	if len(t.job.Segments) == 0 && len(t.job.Groups) < 2 {
		return errors.New("nothing to group")
	}
	var end uint64
	follows := func(what string, first, last uint64) error {
		if end != 0 && end != first {
			return fmt.Errorf("%s does not begin where the one before ends", what)
		}
		end = last
		return nil
	}
	for _, g := range t.job.Groups {
		if err := follows(fmt.Sprintf("group %x", g.Id), g.FirstSequence, g.EndSequence); err != nil {
			return err
		}
	}
	for _, s := range t.job.Segments {
		if !s.Sealed || len(s.Runs) != 1 {
			return fmt.Errorf("segment %d is not sealed or has %d runs", s.Id, len(s.Runs))
		}
		if err := follows(fmt.Sprintf("segment %d", s.Id), s.FirstSequence, s.EndSequence); err != nil {
			return err
		}
	}
	return nil
}

// grouping collects the inputs of a task.
type grouping struct {
	task     *task
	segments []*manifest.Segment // with their tables, in order
	keys     []uint64            // distinct keys of each, 0: counted by its directories
	streams  []hashStream
}

// hashStream gives the keys of an input, a part at a time. Parts, and what is in them, ascend.
type hashStream interface {
	// begin comes first. Memory is shared by so many streams.
	begin(b *manifest.IndexBuilder, streams int)
	// next returns the next part, valid until the call after it; one without hashes is
	// the end.
	next(ctx context.Context) (hashPart, error)
	// end comes last. It checks that all was there and tells the builder what it lacks.
	end(b *manifest.IndexBuilder) error
}

// hashPart is a series of hashes of keys, each with the segments of the output that hold
// such a key.
type hashPart struct {
	hashes []manifest.KeyHash
	masks  []uint64 // nil: mask, for each
	mask   uint64
}

// build merges the streams into the body of an index.
func (g *grouping) build(ctx context.Context) (body []byte, line *manifest.Group, ref base.ObjectID, err error) {
	t := g.task
	if n := len(g.segments); n > manifest.MaxGroupSegments {
		return nil, nil, ref, fmt.Errorf("%d segments for one index", n)
	}
	b := manifest.NewIndexBuilder(g.segments)
	if err := b.Err(); err != nil {
		return nil, nil, ref, err
	}
	for i, n := range g.keys {
		b.SetKeys(i, n)
	}
	for _, s := range g.streams {
		s.begin(b, len(g.streams))
	}
	if err := mergeHashes(ctx, b, g.streams); err != nil {
		return nil, nil, ref, err
	}
	for _, s := range g.streams {
		if err := s.end(b); err != nil {
			return nil, nil, ref, err
		}
	}
	ref = base.ObjectID{
		Tree: t.r.Tree, Kind: base.KindIndex, Role: base.RoleCompactor, Epoch: t.r.Epoch, ULID: t.r.Env.NewULID(),
	}
	body, line, err = b.Finish(ref)
	if err != nil {
		return nil, nil, ref, fmt.Errorf("build %s: %w", ref.Name(), err)
	}
	return body, line, ref, nil
}
