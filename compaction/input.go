package compaction

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/sst"
)

// input walks the groups of one run, or of a part of it, one table after the other, and checks what
// a table alone cannot: that sequences lie in the run's interval, that tables
// follow one another and that keys are within the manifest's bounds. It belongs to the goroutine of its
// part.
type input struct {
	part  *part
	run   *manifest.Run
	order int // among the runs of the job: in sequence order
	leaf  int // among the inputs of the part

	tables  []*manifest.Table // not yet begun
	opening *opening          // of the first of them, or nil
	name    string            // of the current table, for errors
	it      *sst.GroupIter    // of the current table, or nil

	key    []byte // of the current group; valid until the next advance
	sorted uint64 // the part of it that usually decides, in an order-preserving form
	ended  bool

	// The last group of the tables before, and whether the current table had none yet.
	lastKey []byte
	lastSeq uint64
	any     bool
	fresh   bool
}

// prepare begins to open the next table, if there is one.
func (in *input) prepare(ctx context.Context) {
	if len(in.tables) > 0 && in.opening == nil {
		in.opening = in.part.task.open(ctx, in.tables[0], in.part.span)
	}
}

// advance moves to the next group, or ends the input. Data is read when group is called.
func (in *input) advance(ctx context.Context) error {
	for {
		if in.it != nil {
			ok, err := in.it.Next(ctx)
			if err != nil {
				return err
			}
			if ok {
				return in.take()
			}
			if err := in.endTable(ctx); err != nil {
				return err
			}
		}
		if len(in.tables) == 0 {
			in.ended, in.sorted = true, math.MaxUint64
			return nil
		}
		if err := in.nextTable(ctx); err != nil {
			return err
		}
	}
}

// endTable remembers the last group of the current table.
func (in *input) endTable(ctx context.Context) error {
	if !in.fresh {
		g, err := in.it.Group(ctx)
		if err != nil {
			return err
		}
		in.lastKey, in.lastSeq, in.any = append(in.lastKey[:0], g.Key...), g.LastSequence, true
	}
	in.it = nil
	return nil
}

// nextTable makes the next table current. The one after it is opened when this one
// has no more to ask for.
func (in *input) nextTable(ctx context.Context) error {
	in.prepare(ctx)
	o := in.opening
	select {
	case <-o.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if o.err != nil {
		return o.err
	}
	in.opening, in.tables = nil, in.tables[1:]
	in.name, in.it, in.fresh = o.name, o.it, true
	if o.src.next == nil {
		in.prepare(ctx)
	} else {
		o.src.exhausted = func() { in.prepare(ctx) }
	}
	return nil
}

// take makes the group on which the iterator stands current.
func (in *input) take() error {
	key, prefix := in.it.Key(), in.part.prefix
	if !bytes.HasPrefix(key, prefix) {
		return base.Corruptf(in.name, 0, "key %q is outside the bounds that the manifest gives", key)
	}
	if in.fresh {
		if in.any && base.Compare(in.lastKey, in.lastSeq, key, in.it.Sequence()) >= 0 {
			return base.Corruptf(in.name, 0, "key %q, record %d, is not above the table before", key, in.it.Sequence())
		}
		in.fresh = false
	}
	in.key, in.sorted = key, sortPrefix(key[len(prefix):])
	return nil
}

// group returns the current group.
func (in *input) group(ctx context.Context) (*sst.Group, error) {
	g, err := in.it.Group(ctx)
	if err == nil && (g.FirstSequence < in.run.Start || g.LastSequence >= in.run.End) {
		err = base.Corruptf(in.name, 0, "records %d to %d are not within the run of [%d, %d)",
			g.FirstSequence, g.LastSequence, in.run.Start, in.run.End)
	}
	return g, err
}

// sortPrefix returns a number that orders keys as far as their first eight bytes do.
func sortPrefix(key []byte) uint64 {
	if len(key) >= 8 {
		return binary.BigEndian.Uint64(key)
	}
	var b [8]byte
	copy(b[:], key)
	return binary.BigEndian.Uint64(b[:])
}

// less orders inputs by the key of their current group, then by sequence. Because runs
// cover ascending intervals, the latter is their order. Ended inputs come last. The
// caller has found sorted to be equal.
func (in *input) less(o *input) bool {
	if in.ended || o.ended {
		return !in.ended
	}
	if c := bytes.Compare(in.key, o.key); c != 0 {
		return c < 0
	}
	return in.order < o.order
}
