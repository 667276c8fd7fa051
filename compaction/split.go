package compaction

import (
	"bytes"
	"cmp"
	"context"
	"runtime"
	"slices"

	"github.com/annalsdb/annals/manifest"
	"github.com/annalsdb/annals/sst"
)

const (
	// maxParts is the most key ranges that a job is split into (I9). Output tables share
	// a fixed memory, so that more parts mean smaller tables; and four
	// keep a network of 10 Gbit/s busy.
	maxParts = 4
	// defaultMinPart is the least stored input that is worth a part.
	defaultMinPart = 32 << 20
	// samplesPerPart is about how many samples decide where a part ends.
	samplesPerPart = 64
	// openPerPart times the number of parts bounds how many tables are opened to be sampled.
	openPerPart = 16
)

// sample says that a table has so many stored bytes from a position on.
type sample struct {
	sst.Position
	stored int64
}

// split divides the job into parts by (key, sequence), of about the same number of stored
// bytes each: as many as there are cores, and as the size of the job justifies. A key that is larger than a part is
// divided between two of its records.
func (t *task) split(ctx context.Context) ([]*part, error) {
	n := t.r.Parts
	if n == 0 {
		n = min(runtime.GOMAXPROCS(0), maxParts, int(t.job.Stored/defaultMinPart))
	}
	if n < 2 {
		return []*part{newPart(t, sst.Span{})}, nil
	}
	samples, err := t.samples(ctx, n)
	if err != nil {
		return nil, err
	}
	var parts []*part
	var from *sst.Position
	for _, to := range divide(samples, n) {
		parts = append(parts, newPart(t, sst.Span{From: from, To: &to}))
		from = &to
	}
	return append(parts, newPart(t, sst.Span{From: from})), nil
}

// samples returns where the data of the inputs lies, in order: from the index of the large tables,
// which stay open for the parts, and from the bounds of the others.
func (t *task) samples(ctx context.Context, parts int) ([]sample, error) {
	every := int64(t.job.Stored) / int64(parts*samplesPerPart)
	large := int64(t.job.Stored) / int64(parts*openPerPart)
	var samples []sample
	var open []*manifest.Table
	for _, r := range t.job.Inputs {
		for _, line := range r.Tables {
			if int64(line.Size) > large {
				open = append(open, line)
			} else {
				samples = append(samples, sample{sst.Position{Key: line.LowerKey}, int64(line.MetaOffset)})
			}
		}
	}
	if err := t.share(ctx, open); err != nil {
		return nil, err
	}
	for _, line := range open {
		err := t.shared[line].Samples(ctx, every, func(p sst.Position, stored int64) error {
			samples = append(samples, sample{sst.Position{Key: bytes.Clone(p.Key), Sequence: p.Sequence}, stored})
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(samples, func(a, b sample) int { return a.Compare(&b.Position) })
	return samples, nil
}

// share opens tables, all at the same time, for all parts.
func (t *task) share(ctx context.Context, lines []*manifest.Table) error {
	type result struct {
		r   *sst.GroupReader
		err error
	}
	results := make([]chan result, len(lines))
	for i, line := range lines {
		results[i] = make(chan result, 1)
		t.start("compaction open", func() {
			r, err := t.openTable(ctx, line)
			results[i] <- result{r, err}
		})
	}
	t.shared = make(map[*manifest.Table]*sst.GroupReader, len(lines))
	var first error
	for i, line := range lines {
		res := <-results[i]
		t.shared[line], first = res.r, cmp.Or(first, res.err)
	}
	return first
}

// divide returns at most n-1 ascending positions that divide what the sorted samples stand for into
// parts of about the same size. They lie before the first record of a key, unless that makes
// a part smaller by a quarter.
func divide(samples []sample, n int) []sst.Position {
	var total, before, ofKey int64
	for i := range samples {
		total += samples[i].stored
	}
	var ends []sst.Position
	for i := range samples {
		s := &samples[i]
		if i == 0 || !bytes.Equal(s.Key, samples[i-1].Key) {
			ofKey = 0
		}
		target := total * int64(len(ends)+1) / int64(n)
		if len(ends) < n-1 && before > 0 && before+s.stored/2 >= target {
			end := s.Position
			if ofKey <= total/int64(4*n) {
				end.Sequence = 0
			}
			least := sst.Position{}
			if len(ends) > 0 {
				least = ends[len(ends)-1]
			}
			if least.Compare(&end) < 0 {
				ends = append(ends, end)
			}
		}
		before, ofKey = before+s.stored, ofKey+s.stored
	}
	return ends
}
