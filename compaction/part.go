package compaction

import (
	"bytes"
	"context"

	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/sst"
)

// part is one range of the keys of a task: it merges what the inputs hold of it into
// tables of its own. It belongs to one goroutine, which reads ahead and uploads in
// others.
type part struct {
	task   *task
	span   sst.Span
	prefix []byte // that all keys have
	inputs []*input
	out    output

	records uint64 // read
	// The last group, of which there is one if records is above 0.
	key  []byte
	last sst.Group
}

// newPart returns the part of the task for span.
func newPart(t *task, span sst.Span) *part {
	p := &part{task: t, span: span}
	p.out.task = t
	var all []*manifest.Table
	for i, r := range t.job.Inputs {
		var tables []*manifest.Table
		for _, line := range r.Tables {
			if overlaps(line, span) {
				tables = append(tables, line)
			}
		}
		if len(tables) > 0 { // else it covers a gap only, or nothing of the span
			p.inputs = append(p.inputs, &input{part: p, run: r, order: i, leaf: len(p.inputs), tables: tables})
			all = append(all, tables...)
		}
	}
	p.prefix = commonPrefix(all)
	return p
}

// overlaps reports whether a table may hold records of span, by its bounds.
func overlaps(line *manifest.Table, span sst.Span) bool {
	if from := span.From; from != nil && line.UpperKey != nil && bytes.Compare(line.UpperKey, from.Key) < 0 {
		return false
	}
	to := span.To
	return to == nil || base.Compare(line.LowerKey, 0, to.Key, to.Sequence) < 0
}

// commonPrefix returns what all keys begin with that are within the bounds of the tables.
func commonPrefix(tables []*manifest.Table) []byte {
	var lower, upper []byte
	for i, line := range tables {
		switch {
		case line.UpperKey == nil:
			return nil
		case i == 0:
			lower, upper = line.LowerKey, line.UpperKey
		}
		if bytes.Compare(line.LowerKey, lower) < 0 {
			lower = line.LowerKey
		}
		if bytes.Compare(line.UpperKey, upper) > 0 {
			upper = line.UpperKey
		}
	}
	n := 0
	for n < min(len(lower), len(upper)) && lower[n] == upper[n] {
		n++
	}
	return lower[:n]
}

// run merges the part and returns when all of its tables are uploaded.
func (p *part) run(ctx context.Context) error {
	tree, err := p.begin(ctx)
	if err != nil {
		return err
	}
	for in := tree.least(); in != nil; in = tree.least() {
		// The least input gives all that it has of one key: no other has records of it
		// with sequences in between (I5).
		for {
			if err := p.move(ctx, in); err != nil {
				return err
			}
			if err := in.advance(ctx); err != nil {
				return err
			}
			if in.ended || !bytes.Equal(in.key, p.key) {
				break
			}
		}
		tree.moved()
	}
	return p.out.end(ctx)
}

// begin opens all inputs, at the same time, and finds their first groups.
func (p *part) begin(ctx context.Context) (*loserTree, error) {
	for _, in := range p.inputs {
		in.prepare(ctx)
	}
	for _, in := range p.inputs {
		if err := in.advance(ctx); err != nil {
			return nil, err
		}
	}
	return newLoserTree(p.inputs), nil
}

// move adds the current group of an input to the output.
func (p *part) move(ctx context.Context, in *input) error {
	g, err := in.group(ctx)
	if err != nil {
		return err
	}
	last := &p.last
	newKey := p.records == 0 || !bytes.Equal(p.key, g.Key)
	if newKey {
		p.key = append(p.key[:0], g.Key...)
	} else if g.FirstSequence <= last.LastSequence || g.FirstTimestamp < last.LastTimestamp {
		return base.Corruptf(in.name, 0, "key %q: record %d at %d follows record %d at %d",
			g.Key, g.FirstSequence, g.FirstTimestamp, last.LastSequence, last.LastTimestamp) // I4
	}
	last.LastSequence, last.LastTimestamp = g.LastSequence, g.LastTimestamp
	p.records += uint64(g.Records)
	return p.out.add(ctx, g, newKey)
}
